#include "cli/eval_options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "cli/validators.h"

namespace mimo {

void add_eval_options(CLI::App& command, EvalOptions& options) {
  add_model_options(command, options.model);
  // The problem set is the command here; the checkpoint is an option.
  command.remove_option(command.get_option("model"));
  command
      .add_option("--model", options.model.directory,
                  "Checkpoint directory to run in this process; default: the bundled model")
      ->check(check_not_empty);
  command.add_option("--chunked-prefill-size", options.chunk, "Rows of a prefill step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_name() != "--help") options.local_only.push_back(option);
  }

  command
      .add_option("--url", options.url, "Ask the OpenAI-compatible server at http://HOST[:PORT][/v1] instead")
      ->check(check_not_empty);
  options.url_only = {
      command
          .add_option("--model-name", options.model_name,
                      "With --url: the model's name there; default: the first that the server lists")
          ->check(check_not_empty),
      command.add_option("--api-key", options.api_key, "With --url: bearer token; default: $MIMO_API_KEY"),
      command.add_option("--timeout", options.timeout_seconds, "With --url: seconds an answer may take")
          ->check(check_not_nan)
          ->check(CLI::Range(0.01, 1e6))
          ->capture_default_str()};

  command
      .add_option("--data", options.data, "File with the problems; default: the bundled one, if there is one")
      ->check(check_not_empty);
  command.add_option("--limit", options.limit, "Only the first N problems; 0: all")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  command.add_option("--concurrency", options.run.concurrency, "Problems in flight at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("-n,--max-tokens", options.max_tokens, "Most tokens of an answer")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  command.add_option("--temperature", options.run.temperature, "0: greedy")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  command.add_option("--top-p", options.run.top_p)->check(CLI::Range(0.0, 1.0))->capture_default_str();
  command
      .add_option("--sample-seed", options.run.seed, "Seed of sampling; each problem gets one made from it")
      ->check(check_unsigned_integer)
      ->capture_default_str();
  CLI::Option* on = command.add_flag_function(
      "--thinking", [&options](std::int64_t /*count*/) { options.run.enable_thinking = true; },
      "Switch thinking on (neither: as the problem or the checkpoint says)");
  command
      .add_flag_function(
          "--no-thinking", [&options](std::int64_t /*count*/) { options.run.enable_thinking = false; },
          "Switch thinking off")
      ->excludes(on);
  command.add_flag("--json", options.json, "One JSON object as the last line of stdout");
  command.add_option("--output", options.output, "Write one JSON line a problem, as they end")
      ->check(check_not_empty);
}

Status finish_eval_options(EvalOptions& options) {
  SamplingParams sampling;
  sampling.temperature = options.run.temperature;
  sampling.top_p = options.run.top_p;
  if (const Status ok = validate(sampling, 0); !ok) return ok;
  if (options.url.empty()) {
    for (const CLI::Option* option : options.url_only) {
      if (option->count() > 0)
        return fail(ErrorCode::kInvalidArgument, "{}: only with --url", option->get_name());
    }
    return {};
  }
  for (const CLI::Option* option : options.local_only) {
    if (option->count() > 0) {
      return fail(ErrorCode::kInvalidArgument, "{}: not with --url, where the server decides",
                  option->get_name());
    }
  }
  if (options.api_key.empty()) {
    if (const char* key = std::getenv("MIMO_API_KEY"); key != nullptr) options.api_key = key;
  }
  return {};
}

}  // namespace mimo
