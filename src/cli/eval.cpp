#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "cli/bundled_model.h"
#include "cli/commands.h"
#include "cli/eval_options.h"
#include "cli/eval_sets.h"
#include "cli/speculation_report.h"
#include "core/jsonl_writer.h"
#include "core/progress.h"
#include "eval/local_runner.h"
#include "eval/report.h"
#include "eval/url_runner.h"

namespace mimo {
namespace {

using Clock = std::chrono::steady_clock;

// `model` is empty with --url.
json::object settings_json(const EvalOptions& options, const EvalSet& set, const LoadedModel& model) {
  json::object out;
  out["eval"] = set.name;
  out["model"] =
      options.url.empty() ? json::value(json::string(options.model.directory)) : json::value(nullptr);
  out["url"] = options.url.empty() ? json::value(nullptr) : json::value(json::string(options.url));
  if (model.model) {
    out["backend"] = model.ops->name();
    out["kv_cache_dtype"] = kv_dtype_name(model.kv_dtype);
    out["speculative_algorithm"] = model.drafter ? model.drafter->name() : "NONE";
    out["chunked_prefill_size"] = options.chunk;
  }
  out["concurrency"] = options.run.concurrency;
  out["max_tokens"] = options.run.max_tokens;
  out["temperature"] = options.run.temperature;
  out["top_p"] = options.run.top_p;
  out["sample_seed"] = options.run.seed;
  out["enable_thinking"] =
      options.run.enable_thinking ? json::value(*options.run.enable_thinking) : json::value(nullptr);
  return out;
}

// Where the tokenizer and the chat template come from; empty: nobody needs them.
Result<std::string> text_directory(const EvalOptions& options, const EvalSet& set) {
  if (options.url.empty()) return options.model.directory;
  if (!set.builds_prompts) return std::string();
  if (!options.tokenizer.empty()) return options.tokenizer;
  Result<std::string> bundled = bundled_model();
  if (!bundled) return tl::unexpected(bundled.error().within("--tokenizer"));
  return bundled;
}

// `text` and `model` must outlive the runner; `model` is filled unless a server is asked.
Result<std::unique_ptr<Runner>> make_runner(EvalOptions& options, std::size_t problems, const TextModel& text,
                                            LoadedModel& model) {
  if (!options.url.empty()) {
    UrlRunnerOptions url;
    url.model = options.model_name;
    url.api_key = options.api_key;
    url.http.request_timeout =
        std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_seconds * 1e3));
    return make_url_runner(options.url, url);
  }
  // The drafter keeps room for so many: no more than there can be.
  options.model.max_running =
      static_cast<int>(std::min(static_cast<std::size_t>(options.run.concurrency), problems));
  options.model.allowed_vocab = static_cast<int>(text.tokenizer->vocab_size());
  Result<LoadedModel> loaded = load_model(options.model);
  if (!loaded) return forward_error(loaded);
  model = std::move(*loaded);
  GeneratorOptions generator = make_generator_options(model, options.model);
  generator.chunk = options.chunk;
  generator.tokenizer = text.tokenizer.get();
  return make_local_runner(*model.model, *model.ops, text.format.get(), generator);
}

int run(EvalOptions& options, const EvalSet& set) {
  if (const Status ok = finish_eval_options(options); !ok) return report_error(ok.error());
  if (options.url.empty() && options.model.directory.empty()) {
    Result<std::string> bundled = bundled_model();
    if (!bundled) return report_error(bundled.error());
    options.model.directory = std::move(*bundled);
  }
  options.run.max_tokens = options.max_tokens.value_or(
      options.run.enable_thinking == false ? set.max_tokens_without_thinking : set.max_tokens);

  // Text first: what is wrong with the problems is known before weights are read.
  TextModel text;
  const Result<std::string> directory = text_directory(options, set);
  if (!directory) return report_error(directory.error());
  if (!directory->empty()) {
    Result<TextModel> loaded = load_text_model(*directory);
    if (!loaded) return report_error(loaded.error());
    text = std::move(*loaded);
  }
  Result<std::vector<Problem>> problems = set.load(options, text);
  if (!problems) return report_error(problems.error());
  if (options.limit > 0 && std::cmp_less(options.limit, problems->size()))
    problems->resize(static_cast<std::size_t>(options.limit));
  std::optional<JsonlWriter> output;
  if (!options.output.empty()) {
    Result<JsonlWriter> file = JsonlWriter::create(options.output);
    if (!file) return report_error(file.error().within("--output"));
    output.emplace(std::move(*file));
  }
  LoadedModel model;
  const Result<std::unique_ptr<Runner>> runner = make_runner(options, problems->size(), text, model);
  if (!runner) return report_error(runner.error());

  std::vector<ItemResult> results(problems->size());
  std::optional<Error> first_error;
  std::size_t done = 0;
  std::size_t correct = 0;
  const Clock::time_point start = Clock::now();
  {
    Progress progress(set.name, problems->size(), Progress::Unit::kItems);
    progress.update(0);
    const Status finished = (*runner)->run(*problems, options.run, [&](std::size_t i, Answer answer) {
      ItemResult& result = results[i];
      result.answer = std::move(answer);
      if (result.answer.error) {
        if (!first_error) first_error = result.answer.error->within((*problems)[i].id);
      } else {
        result.grade = grade((*problems)[i], result.answer);
      }
      ++done;
      correct += result.grade.correct ? 1 : 0;
      if (output) output->write(item_json((*problems)[i], result, options.strict));
      progress.update(done, fmt::format("{:.1f}% right",
                                        100.0 * static_cast<double>(correct) / static_cast<double>(done)));
    });
    if (!finished) return report_error(finished.error());
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (output) {
    if (const Status closed = output->close(); !closed)
      return report_error(closed.error().within("--output"));
  }

  const EvalSummary summary = summarise(*problems, results, seconds);
  fmt::print(options.json ? stderr : stdout, "{}", summary_table(set.name, summary, options.strict));
  if (options.json) {
    json::object out = settings_json(options, set, model);
    for (auto& [key, value] : summary_json(summary, options.strict)) out[key] = std::move(value);
    if (summary.speculation) out["speculation"] = speculation_json(*summary.speculation);
    json::array items;
    for (std::size_t i = 0; i < results.size(); ++i)
      items.push_back(item_json((*problems)[i], results[i], options.strict));
    out["items"] = std::move(items);
    std::fflush(stderr);
    fmt::print("{}\n", json::serialize(out));
  }
  if (!first_error) return 0;
  return report_error(
      {first_error->code, fmt::format("{} of {} problems got no answer; the first: {}", summary.failed,
                                      summary.problems, first_error->message)});
}

}  // namespace

CommandBody add_eval_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "Measure how often answers are right");
  command->require_subcommand(1);
  std::vector<std::pair<const char*, CommandBody>> bodies;
  for (const EvalSet& set : eval_sets()) {
    CLI::App* sub = command->add_subcommand(set.name, set.description);
    auto options = std::make_shared<EvalOptions>();
    options->run.concurrency = set.concurrency;
    add_eval_options(*sub, *options);
    if (set.add_options != nullptr) set.add_options(*sub, *options);
    bodies.emplace_back(set.name, [options, &set] { return run(*options, set); });
  }
  bodies.emplace_back("compare", add_eval_compare_command(*command));
  return [command, bodies] {
    for (const auto& [name, body] : bodies) {
      if (command->got_subcommand(name)) return body();
    }
    return 1;
  };
}

}  // namespace mimo
