// An engine without a thread on the bundled random model, with every freed page poisoned.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "engine/generator_fixture.h"

namespace mimo::testing {

struct Outcome {
  std::vector<std::int32_t> ids;
  std::string text;
  std::optional<Finish> finish;
  std::optional<Error> error;
  RequestUsage usage;
  int last_steps = 0;
  bool done() const { return last_steps > 0; }
};

class OutcomeSink final : public AnswerSink {
 public:
  explicit OutcomeSink(Outcome& outcome) : outcome_(outcome) {}
  void on_step(AnswerStep&& step) override {
    EXPECT_EQ(outcome_.last_steps, 0) << "a step after the last one";
    for (const SampledToken& token : step.tokens) outcome_.ids.push_back(token.id);
    for (const AnswerPiece& piece : step.text) outcome_.text += piece.text;
    if (!step.last()) return;
    ++outcome_.last_steps;
    outcome_.finish = step.finish;
    outcome_.error = step.error;
    outcome_.usage = step.usage;
  }

 private:
  Outcome& outcome_;
};

struct RigOptions {
  int page_size = 16;
  int rows = 64;
  int max_running = 8;
  std::int64_t tokens = 4096;     // of the full pool
  std::int64_t window_tails = 8;  // windows beyond what running requests need
  bool prefix_cache = true;
  std::uint64_t host_bytes = 0;  // of the host tier
  Drafter* drafter = nullptr;
  std::optional<bool> choose_on_backend = {};
};

class EngineRig {
 public:
  explicit EngineRig(const RigOptions& options = {}) {
    EngineOptions engine;
    const int window = tiny().model->config().window.window;
    engine.scheduler.layout = {options.page_size, window};
    engine.scheduler.rows = options.rows;
    engine.scheduler.max_running = options.max_running;
    engine.scheduler.max_queued = 4096;
    engine.scheduler.block = 1 + (options.drafter == nullptr ? 0 : options.drafter->max_drafts());
    engine.full_pages = pages_for(options.tokens, options.page_size);
    engine.window_pages = Scheduler::window_pages(engine.scheduler, options.max_running) +
                          options.window_tails * pages_for(window, options.page_size);
    engine.prefix_cache = options.prefix_cache;
    engine.host_kv_bytes = options.host_bytes;
    engine.host_kv_min_tokens = 32;
    engine.tokenizer = tiny().tokenizer.get();
    engine.drafter = options.drafter;
    engine.poison = true;
    engine.choose_on_backend = options.choose_on_backend;
    engine.log = [](std::string_view) {};
    core = value_or_throw(EngineCore::make(*tiny().model, *tiny().ops, engine));
  }

  // The outcome fills up while step() is called.
  Outcome& add(EngineRequest request) {
    const RequestId id = next_id++;
    Outcome& outcome = outcomes[id];
    const Status taken = core->submit(id, std::move(request), std::make_shared<OutcomeSink>(outcome));
    if (!taken) throw std::runtime_error(taken.error().message);
    return outcome;
  }

  void finish() {
    for (int i = 0; !core->idle(); ++i) {
      core->step();
      if (i > 200000) throw std::runtime_error("the engine does not come to an end");
    }
    core->settle();
  }

  // Nothing but the prefix cache holds a page.
  void expect_balance() const {
    const EngineStatus status = core->status();
    EXPECT_EQ(status.full.free + status.full.cached, status.full.total);
    EXPECT_EQ(status.window.free + status.window.cached, status.window.total);
    EXPECT_EQ(status.running, 0);
    EXPECT_EQ(status.waiting, 0);
    if (core->prefix_tree() != nullptr) {
      const Status ok = core->prefix_tree()->verify();
      EXPECT_TRUE(ok) << (ok ? "" : ok.error().message);
    }
    if (core->host_tier() != nullptr) {
      const Status ok = core->host_tier()->verify();
      EXPECT_TRUE(ok) << (ok ? "" : ok.error().message);
    }
  }

  std::unique_ptr<EngineCore> core;
  std::map<RequestId, Outcome> outcomes;
  RequestId next_id = 1;
};

inline EngineRequest greedy(std::vector<std::int32_t> prompt, std::int64_t max_tokens) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.params.temperature = 0;
  request.params.max_tokens = max_tokens;
  request.params.ignore_eos = true;
  return request;
}

// The same requests, each alone and without a prefix cache.
inline std::vector<std::int32_t> cold_ids(const EngineRequest& request, int page_size = 16) {
  RigOptions options;
  options.page_size = page_size;
  options.max_running = 1;
  options.prefix_cache = false;
  EngineRig rig(options);
  Outcome& outcome = rig.add(request);
  rig.finish();
  return outcome.ids;
}

// Sixteen prompts with three beginnings, and their cold answers.
struct SharedPrompts {
  SharedPrompts() {
    for (unsigned i = 0; i < 16; ++i) {
      std::vector<std::int32_t> prompt = random_prompt(150, 40 + i % 3);
      const std::vector<std::int32_t> own = random_prompt(20 + 7 * (i % 5), 60 + i);
      prompt.insert(prompt.end(), own.begin(), own.end());
      requests.push_back(greedy(std::move(prompt), 60 + i % 7));
      expected.push_back(cold_ids(requests.back()));
    }
  }

  // All of them three times, in an order and at moments that `seed` decides; each answer must be the cold one.
  void run(EngineRig& rig, unsigned seed) const {
    std::mt19937 random(seed);
    std::vector<std::pair<std::size_t, Outcome*>> got;
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<std::size_t> order(requests.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      for (const std::size_t i : order) {
        got.emplace_back(i, &rig.add(requests[i]));
        for (unsigned steps = random() % 6; steps > 0; --steps) rig.core->step();
      }
    }
    rig.finish();
    for (const auto& [i, outcome] : got) {
      ASSERT_TRUE(outcome->done());
      EXPECT_EQ(outcome->ids, expected[i]) << "seed " << seed << ", request " << i;
    }
    rig.expect_balance();
  }

  std::vector<EngineRequest> requests;
  std::vector<std::vector<std::int32_t>> expected;
};

}  // namespace mimo::testing
