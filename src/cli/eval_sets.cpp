#include "cli/eval_sets.h"

#include <CLI/CLI.hpp>
#include <unordered_set>
#include <utility>

#include "cli/bundled_model.h"
#include "cli/validators.h"
#include "core/file.h"
#include "core/progress.h"
#include "eval/needle.h"
#include "eval/problem_prompt.h"

namespace mimo {
namespace {

// A file of the eval folder of the chosen checkpoint, or else of the bundled one.
Result<std::string> eval_file(const EvalOptions& options, const char* name) {
  std::string tried;
  if (!options.model.directory.empty()) {
    tried = options.model.directory + "/eval/" + name;
    if (file_exists(tried)) return tried;
  }
  if (const Result<std::string> bundled = bundled_model()) {
    const std::string path = *bundled + "/eval/" + name;
    if (file_exists(path)) return path;
    if (tried.empty()) tried = path;
  }
  return fail(ErrorCode::kNotFound, "{}: not found; give --data FILE",
              tried.empty() ? std::string("eval/") + name : tried);
}

Result<std::string> data_file(const EvalOptions& options, const char* name) {
  if (!options.data.empty()) return options.data;
  return eval_file(options, name);
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

Result<std::vector<Problem>> load_nano_gsm_set(const EvalOptions& options, const TextModel& /*text*/) {
  const Result<std::string> path = data_file(options, "nano_gsm.jsonl");
  if (!path) return forward_error(path);
  return load_nano_gsm(*path);
}

Result<std::vector<Problem>> load_toolcall_set(const EvalOptions& options, const TextModel& /*text*/) {
  const Result<std::string> path = data_file(options, "toolcall.jsonl");
  if (!path) return forward_error(path);
  return load_toolcall(*path);
}

Result<std::vector<Problem>> load_gsm8k_set(const EvalOptions& options, const TextModel& /*text*/) {
  if (options.data.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--data: give the test.jsonl of GSM8K; it is not bundled");
  }
  Gsm8kOptions gsm8k = options.gsm8k;
  const bool completion = gsm8k.protocol == Gsm8kOptions::Protocol::kCompletion;
  gsm8k.shots = options.shots.value_or(completion ? 5 : 0);
  if (!gsm8k.shots_file.empty() && (completion || gsm8k.shots == 0)) {
    return fail(ErrorCode::kInvalidArgument, "--shots-data {}: has no effect {}", gsm8k.shots_file,
                completion ? "with --protocol p3, whose examples come from --data" : "without --shots");
  }
  if (options.strict && completion) {
    return fail(ErrorCode::kInvalidArgument,
                "--strict: has no effect with --protocol p3, which has no leniency");
  }
  if (gsm8k.shots_file.empty()) gsm8k.shots_file = folder_of(options.data) + "/train.jsonl";
  return load_gsm8k(options.data, gsm8k);
}

Result<std::vector<Problem>> load_needle_set(const EvalOptions& options, const TextModel& text) {
  const Result<std::string> path = data_file(options, "needle.json");
  if (!path) return forward_error(path);
  const std::string haystack =
      options.haystack.empty() ? folder_of(*path) + "/haystack.txt" : options.haystack;
  Result<NeedleMaterial> material = load_needle_material(*path, haystack);
  if (!material) return forward_error(material);
  TokenCounter counter;
  counter.text = [&](std::string_view part) { return text.tokenizer->encode(part, EncodeOptions{}).size(); };
  counter.prompt = [&](const Problem& problem) -> Result<std::size_t> {
    const Result<ChatPrompt> prompt =
        make_problem_prompt(*text.tokenizer, text.format.get(), problem, options.run.enable_thinking);
    if (!prompt) return forward_error(prompt);
    return prompt->ids.size();
  };
  const NeedleBuilder builder(std::move(*material), counter);
  std::vector<NeedleCase> cases;
  for (const std::int64_t length : options.lengths) {
    for (const double depth : options.depths) {
      for (int sample = 0; sample < options.samples; ++sample)
        cases.push_back({length, depth, static_cast<std::uint64_t>(sample)});
    }
  }
  if (options.limit > 0 && std::cmp_less(options.limit, cases.size()))
    cases.resize(static_cast<std::size_t>(options.limit));
  std::vector<Problem> problems;
  std::unordered_set<std::string> ids;
  Progress progress("prompts", cases.size(), Progress::Unit::kItems);
  for (const NeedleCase& one : cases) {
    Result<Problem> problem = builder.build(one, options.needle_seed);
    if (!problem) return forward_error(problem);
    if (!ids.insert(problem->id).second) {
      return fail(ErrorCode::kInvalidArgument, "--lengths, --depths: {} would be asked twice", problem->id);
    }
    problem->index = problems.size();
    problems.push_back(std::move(*problem));
    progress.update(problems.size());
  }
  return problems;
}

void add_gsm8k_options(CLI::App& command, EvalOptions& options) {
  command
      .add_option_function<std::string>(
          "--protocol",
          [&options](const std::string& name) {
            options.gsm8k.protocol =
                name == "p3" ? Gsm8kOptions::Protocol::kCompletion : Gsm8kOptions::Protocol::kChat;
          },
          "p1: chat, boxed answers; p3: few-shot completion, last integer")
      ->check(CLI::IsMember({"p1", "p3"}))
      ->default_str("p1");
  command.add_option("--shots", options.shots, "Worked examples in the prompt; default: 0 (p1), 5 (p3)")
      ->check(CLI::Range(0, 64));
  command.add_option("--shots-data", options.gsm8k.shots_file,
                     "Examples of p1; default: train.jsonl beside the data");
  command.add_flag("--strict", options.strict, "No leniency about percent (factors of 100)");
}

void add_needle_options(CLI::App& command, EvalOptions& options) {
  command.add_option("--haystack", options.haystack,
                     "Prose, one sentence a line; default: haystack.txt beside the data");
  options.url_only.push_back(command.add_option(
      "--tokenizer", options.tokenizer,
      "With --url: directory whose tokenizer and template count prompt tokens; default: the bundled model"));
  command.add_option("--lengths", options.lengths, "Prompt tokens, exact")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(std::int64_t{64}, std::int64_t{1} << 24))
      ->capture_default_str();
  command.add_option("--depths", options.depths, "Where the needle stands: shares of the haystack")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(check_not_nan)
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--samples", options.samples, "Prompts for each length and depth")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command.add_option("--needle-seed", options.needle_seed, "Seed of names, codes and places")
      ->check(check_unsigned_integer)
      ->capture_default_str();
}

constexpr EvalSet kSets[] = {
    {.name = "nano-gsm",
     .description = "Word problems of the bundled model's kind",
     .max_tokens = 1024,
     .max_tokens_without_thinking = 1024,
     .concurrency = 16,
     .load = load_nano_gsm_set},
    {.name = "gsm8k",
     .description = "GSM8K (--data FILE)",
     .max_tokens = 4096,
     .max_tokens_without_thinking = 4096,
     .concurrency = 16,
     .add_options = add_gsm8k_options,
     .load = load_gsm8k_set},
    // Few at a time: the KV cache has room for the longest prompt in each place.
    {.name = "needle",
     .description = "Find a sentence in a long prompt",
     .max_tokens = 2048,
     .max_tokens_without_thinking = 64,
     .concurrency = 4,
     .builds_prompts = true,
     .add_options = add_needle_options,
     .load = load_needle_set},
    {.name = "toolcall",
     .description = "Tool calls: the right ones with the right arguments",
     .max_tokens = 1024,
     .max_tokens_without_thinking = 1024,
     .concurrency = 16,
     .load = load_toolcall_set},
};

}  // namespace

Result<TextModel> load_text_model(const std::string& directory) {
  TextModel text;
  Result<Tokenizer> tokenizer = Tokenizer::load(directory + "/tokenizer.json");
  if (!tokenizer) return forward_error(tokenizer);
  text.tokenizer = std::make_unique<Tokenizer>(std::move(*tokenizer));
  Result<ChatFormat> format = ChatFormat::load(directory);
  if (format) {
    text.format = std::make_unique<ChatFormat>(std::move(*format));
  } else if (format.error().code != ErrorCode::kNotFound) {
    return forward_error(format);
  }
  return text;
}

std::span<const EvalSet> eval_sets() { return kSets; }

}  // namespace mimo
