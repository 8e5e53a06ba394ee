# The everyday commands. Each installs what is missing, builds, and runs; see CONTRIBUTING.md.
JOBS ?= $(shell nproc)
MODEL ?= models/nano
PORT ?= 8000
PROMPT ?= Tom has 32 feathers. Jack has twice as many feathers as Tom. Emily has 22 more feathers than Jack. What is the number of feathers that Emily has?
# For the recipe, so that a question may hold quotes.
export PROMPT

.PHONY: build serve ask test test-fast asan tsan fuzz format lint clean
.NOTPARALLEL:

build:
	@scripts/setup --build
	@cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build build -j $(JOBS) --target mimo

serve: build
	@build/mimo serve $(MODEL) --port $(PORT)

ask: build
	@printf '\n> %s\n\n' "$$PROMPT"
	@build/mimo generate $(MODEL) --message "$$PROMPT" --max-tokens 512

test:
	@scripts/setup
	@cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build build -j $(JOBS)
	@scripts/test

test-fast:
	@scripts/setup
	@cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build build -j $(JOBS)
	@scripts/test --fast

# All unit tests under AddressSanitizer and UndefinedBehaviorSanitizer.
asan:
	@scripts/setup
	@cmake --preset asan --log-level=WARNING >/dev/null
	@cmake --build build-asan -j $(JOBS)
	@scripts/test --fast --build build-asan

# What has threads, under ThreadSanitizer.
tsan:
	@scripts/setup
	@cmake --preset tsan --log-level=WARNING >/dev/null
	@cmake --build build-tsan -j $(JOBS) --target mimo test_core test_cache test_http test_engine
	@scripts/test --fast --build build-tsan --only core cache http engine
	@bench/serve_load.py --mimo build-tsan/mimo --requests 100 --clients 16 --cases 24 --no-memory-check --runs fp8-page1-host

fuzz:
	@scripts/setup
	@scripts/fuzz

format:
	@scripts/setup
	@scripts/format

lint:
	@scripts/setup
	@scripts/check_includes --headers
	@scripts/format --check
	@cmake --preset release --log-level=WARNING >/dev/null
	@scripts/tidy

clean:
	rm -rf build build-* .cache
