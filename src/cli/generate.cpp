#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/bundled_model.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/prompt.h"
#include "cli/speculation_report.h"
#include "cli/validators.h"
#include "core/json.h"
#include "core/npy.h"
#include "engine/generator.h"

namespace mimo {
namespace {

struct GenerateOptions {
  ModelOptions model;
  PromptOptions prompt;
  std::int64_t max_tokens = 128;
  SamplingParams params;
  std::optional<std::uint64_t> sample_seed;
  int chunk = 512;
  std::string logits_out;
  bool json = false;
};

const char* finish_name(const GenerateResult& result) {
  if (result.error) return "error";
  if (!result.finish) return "length";
  return result.finish->reason == FinishReason::kLength ? "length" : "stop";
}

// Tokens a second; the first token comes out of the prefill.
double decode_rate(const GenerateResult& result) {
  return result.decode_seconds > 0 && result.tokens.size() > 1
             ? static_cast<double>(result.tokens.size() - 1) / result.decode_seconds
             : 0.0;
}

json::value to_json(const GenerateResult& result, std::size_t prompt_tokens, const LoadedModel& loaded) {
  json::object out;
  json::array ids;
  json::array logprobs;
  for (const SampledToken& token : result.tokens) {
    ids.push_back(token.id);
    json::object entry;
    entry["id"] = token.id;
    entry["logprob"] = token.logprob;
    json::array top;
    for (const TopLogprob& candidate : token.top) {
      json::object one;
      one["id"] = candidate.id;
      one["logprob"] = candidate.logprob;
      top.push_back(std::move(one));
    }
    entry["top_logprobs"] = std::move(top);
    logprobs.push_back(std::move(entry));
  }
  out["token_ids"] = std::move(ids);
  out["text"] = result.text;
  out["finish_reason"] = finish_name(result);
  json::object usage;
  usage["prompt_tokens"] = prompt_tokens;
  usage["completion_tokens"] = result.tokens.size();
  usage["total_tokens"] = prompt_tokens + result.tokens.size();
  out["usage"] = std::move(usage);
  json::object timings;
  timings["load_seconds"] = loaded.load_seconds;
  timings["prefill_seconds"] = result.prefill_seconds;
  timings["decode_seconds"] = result.decode_seconds;
  timings["prefill_tokens_per_second"] =
      result.prefill_seconds > 0 ? static_cast<double>(prompt_tokens) / result.prefill_seconds : 0.0;
  timings["decode_tokens_per_second"] = decode_rate(result);
  out["timings"] = std::move(timings);
  if (loaded.drafter) {
    json::object speculation = speculation_json(result.speculation);
    speculation["algorithm"] = loaded.drafter->name();
    out["speculation"] = std::move(speculation);
  }
  out["logprobs"] = std::move(logprobs);
  return out;
}

int run(GenerateOptions& options) {
  if (options.model.directory.empty() && options.model.load_format != "random") {
    Result<std::string> bundled = bundled_model();
    if (!bundled) return report_error(bundled.error());
    options.model.directory = std::move(*bundled);
  }
  // Everything that can be refused is refused before weights are read.
  Result<ModelConfig> config = read_config(options.model);
  if (!config) return report_error(config.error());
  Result<Prompt> prompt = make_prompt(options.prompt, options.model.directory, *config);
  if (!prompt) return report_error(prompt.error());
  GenerateRequest request;
  request.prompt = std::move(prompt->ids);
  request.params = options.params;
  request.params.max_tokens = options.max_tokens;
  request.params.seed = options.sample_seed;
  if (options.json && !request.params.logprobs) request.params.logprobs = 0;
  if (const Status ok = check_request(request, *config); !ok) return report_error(ok.error());

  if (prompt->tokenizer) options.model.allowed_vocab = static_cast<int>(prompt->tokenizer->vocab_size());
  Result<LoadedModel> loaded = load_model(options.model);
  if (!loaded) return report_error(loaded.error());
  GeneratorOptions generator_options = make_generator_options(*loaded, options.model);
  generator_options.chunk = options.chunk;
  generator_options.tokenizer = prompt->tokenizer ? &*prompt->tokenizer : nullptr;

  GenerateCallbacks callbacks;
  if (!options.json) {
    callbacks.on_text = [](std::size_t, std::string_view text) {
      fmt::print("{}", text);
      std::fflush(stdout);
    };
  }
  std::optional<NpyWriter> logits;
  if (!options.logits_out.empty()) {
    Result<NpyWriter> writer = NpyWriter::create(
        options.logits_out, static_cast<std::int64_t>(request.prompt.size()), config->vocab);
    if (!writer) return report_error(writer.error());
    logits.emplace(std::move(*writer));
    callbacks.on_prompt_logits = [&](std::size_t, std::int64_t, std::span<const float> rows) {
      logits->write(rows);
    };
  }

  Generator generator(*loaded->model, *loaded->ops, generator_options);
  const Result<std::vector<GenerateResult>> results = generator.run({&request, 1}, callbacks);
  if (!results) return report_error(results.error());
  if (logits) {
    if (const Status ok = logits->close(); !ok) return report_error(ok.error());
  }
  const GenerateResult& result = results->front();
  if (result.error) return report_error(*result.error);
  if (options.json) {
    fmt::print("{}\n", json::serialize(to_json(result, request.prompt.size(), *loaded)));
    return 0;
  }
  if (generator_options.tokenizer == nullptr) {
    // Without a tokenizer ids are all there is to show.
    for (const SampledToken& token : result.tokens) fmt::print("{} ", token.id);
  }
  fmt::print("\n");
  fmt::print(stderr,
             "{} prompt tokens in {:.3f} s, {} generated in {:.3f} s, {:.0f} tokens a second, finish: {}\n",
             request.prompt.size(), result.prefill_seconds, result.tokens.size(), result.decode_seconds,
             decode_rate(result), finish_name(result));
  if (loaded->drafter) {
    fmt::print(stderr, "{}: {}\n", loaded->drafter->name(), speculation_line(result.speculation));
  }
  return 0;
}

}  // namespace

CommandBody add_generate_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("generate", "Continue one prompt and print the answer as it is made");
  auto options = std::make_shared<GenerateOptions>();
  options->params.temperature = 0;
  add_model_options(*command, options->model);
  add_prompt_options(*command, options->prompt);
  SamplingParams& params = options->params;
  command
      ->add_option("-n,--max-tokens", options->max_tokens, "Most tokens to generate; 0: run the prompt only")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--temperature", params.temperature, "0: greedy")->capture_default_str();
  command->add_option("--top-k", params.top_k, "0: off")->capture_default_str();
  command->add_option("--top-p", params.top_p)->capture_default_str();
  command->add_option("--min-p", params.min_p)->capture_default_str();
  command->add_option("--repetition-penalty", params.repetition_penalty)->capture_default_str();
  command->add_option("--presence-penalty", params.presence_penalty)->capture_default_str();
  command->add_option("--frequency-penalty", params.frequency_penalty)->capture_default_str();
  command->add_option("--sample-seed", options->sample_seed, "Seed of the sampler; absent: a random one")
      ->check(check_unsigned_integer);
  command->add_option("--min-tokens", params.min_tokens)->capture_default_str();
  command->add_option("--stop", params.stop, "Stop string; may be given several times")
      ->allow_extra_args(false);
  command->add_option("--stop-token-ids", params.stop_token_ids, "Further ids that end the answer")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_flag("--ignore-eos", params.ignore_eos, "Go on after end tokens");
  command->add_option("--logprobs", params.logprobs,
                      "Log-probabilities of this many candidates a token (with --json)");
  command
      ->add_option_function<std::vector<std::string>>(
          "--logit-bias",
          [options](const std::vector<std::string>& values) {
            for (const std::string& value : values) {
              const std::size_t colon = value.find(':');
              std::int64_t id = 0;
              double bias = 0;
              if (colon == std::string::npos || !CLI::detail::lexical_cast(value.substr(0, colon), id) ||
                  !CLI::detail::lexical_cast(value.substr(colon + 1), bias)) {
                throw CLI::ValidationError("--logit-bias", value + ": expected ID:BIAS");
              }
              options->params.logit_bias[id] = bias;
            }
          },
          "ID:BIAS added to a token's logit; may be given several times")
      ->allow_extra_args(false)
      ->type_name("ID:BIAS");
  command->add_option("--chunked-prefill-size", options->chunk, "Rows of a prefill step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command->add_option("--logits-out", options->logits_out,
                      "Write the prompt's logits, fp32 [positions, vocab], as .npy");
  command->add_flag("--json", options->json, "One JSON object as the last line of stdout");
  return [options] { return run(*options); };
}

}  // namespace mimo
