// `mimo bench sbs` and `mimo bench prefill`: prompts of given lengths, measured cell by cell.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <utility>

#include "bench/prefill_matrix.h"
#include "bench/sbs.h"
#include "cli/bench_commands.h"
#include "cli/bench_options.h"
#include "cli/model_options.h"
#include "cli/validators.h"

namespace mimo {
namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 30;

struct SbsCommand {
  BenchLoadOptions load;
  SbsOptions sbs;
  std::string text_file;
};

struct PrefillCommand {
  BenchLoadOptions load;
  PrefillOptions prefill;
  std::string text_file;
};

Result<PromptSource> source_of(const BenchLoadOptions& load, LoadTarget& target,
                               const std::string& text_file) {
  return make_prompt_source(
      target, load.style,
      {.endpoint = load.style.endpoint, .text_file = text_file, .seed = load.seed, .run = load.run});
}

// Ends a command: the JSON object, and the exit status.
int finish(const BenchLoadOptions& load, BenchOutput& output, json::array rows, bool ok) {
  if (const Status closed = output.close(); !closed) return report_error(closed.error());
  if (load.json) {
    json::object out = output.header();
    out.stable_erase(out.find("type"));
    out["status"] = ok ? "ok" : "FAILED";
    out["results"] = std::move(rows);
    std::fflush(stderr);
    fmt::print("{}\n", json::serialize(out));
  }
  return ok ? 0 : 1;
}

int run_sbs_command(SbsCommand& command) {
  if (command.sbs.long_answer <= command.sbs.short_answer) {
    return report_error(
        {ErrorCode::kInvalidArgument, fmt::format("--long {}: expected more than --short {}",
                                                  command.sbs.long_answer, command.sbs.short_answer)});
  }
  Result<LoadTarget> target = begin_load(command.load, true);
  if (!target) return report_error(target.error());
  const Result<PromptSource> prompts = source_of(command.load, *target, command.text_file);
  if (!prompts) return report_error(prompts.error());
  Result<BenchOutput> output = BenchOutput::open(command.load, *target, "sbs");
  if (!output) return report_error(output.error());
  std::FILE* const shown = command.load.json ? stderr : stdout;
  fmt::print(shown, "{} at {}, decode from {} and {} tokens, {} repeats\n\n{}", target->model,
             command.load.target.url, command.sbs.short_answer, command.sbs.long_answer, command.sbs.repeats,
             sbs_head());
  bool ok = true;
  json::array rows;
  run_sbs(*target, command.load.style, command.sbs, *prompts, [&](const SbsRow& row) {
    ok &= row.error.empty();
    fmt::print(shown, "{}", sbs_line(row));
    std::fflush(shown);
    output->records(row.records, fmt::format("{}x{}", row.streams, row.context));
    output->result(sbs_json(row));
    rows.push_back(sbs_json(row));
  });
  return finish(command.load, *output, std::move(rows), ok);
}

int run_prefill_command(PrefillCommand& command) {
  Result<LoadTarget> target = begin_load(command.load, true);
  if (!target) return report_error(target.error());
  PrefillOptions& options = command.prefill;
  if (options.pool_tokens == 0) options.pool_tokens = target->pool_tokens;
  options.context = target->max_model_len;
  const Result<PromptSource> prompts = source_of(command.load, *target, command.text_file);
  if (!prompts) return report_error(prompts.error());
  Result<BenchOutput> output = BenchOutput::open(command.load, *target, "prefill");
  if (!output) return report_error(output.error());
  std::FILE* const shown = command.load.json ? stderr : stdout;
  fmt::print(shown, "{} at {}, one output token\n\n{}", target->model, command.load.target.url,
             prefill_head());
  bool ok = true;
  json::array rows;
  run_prefill_matrix(*target, command.load.style, options, *prompts, [&](const PrefillCell& cell) {
    ok &= cell.summary.failed == 0;
    fmt::print(shown, "{}", prefill_line(cell, options.gpus));
    std::fflush(shown);
    output->records(cell.records, fmt::format("{}x{}", cell.concurrency, cell.length));
    output->result(prefill_json(cell, options.gpus));
    rows.push_back(prefill_json(cell, options.gpus));
  });
  return finish(command.load, *output, std::move(rows), ok);
}

void add_text_file_option(CLI::App& command, std::string& file) {
  command
      .add_option("--text-file", file,
                  "Prompts are pieces of this text; default: random, meaningless to a drafter")
      ->check(check_not_empty);
}

}  // namespace

CommandBody add_bench_sbs_command(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("sbs", "Prefill, and decode as the difference of two answers on a warm prefix");
  auto options = std::make_shared<SbsCommand>();
  add_load_options(*command, options->load);
  command->add_option("--input-len", options->sbs.contexts, "Prompt lengths")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, kLongest))
      ->capture_default_str();
  command->add_option("--streams", options->sbs.streams, "Requests at a time")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--short", options->sbs.short_answer, "Tokens of the short answer")
      ->check(CLI::Range(std::int64_t{1}, kLongest))
      ->capture_default_str();
  command->add_option("--long", options->sbs.long_answer, "Tokens of the long answer")
      ->check(CLI::Range(std::int64_t{2}, kLongest))
      ->capture_default_str();
  command->add_option("--repeats", options->sbs.repeats, "Of each answer; medians count")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      ->add_option("--page-size", options->sbs.page,
                   "Of the server's KV cache: bounds what a warm prompt recomputes")
      ->check(CLI::Range(std::int64_t{1}, kLongest))
      ->capture_default_str();
  add_text_file_option(*command, options->text_file);
  return [options] { return run_sbs_command(*options); };
}

CommandBody add_bench_prefill_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("prefill", "Prompt processing by prompt length and concurrency");
  auto options = std::make_shared<PrefillCommand>();
  add_load_options(*command, options->load);
  command->add_option("--input-len", options->prefill.lengths, "Prompt lengths")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, kLongest))
      ->capture_default_str();
  command->add_option("--concurrency", options->prefill.concurrencies, "Requests at a time")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      ->add_option("--num-prompts", options->prefill.prompts,
                   "Of a cell; 0: 4 times the concurrency, at least 8")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--pool-tokens", options->prefill.pool_tokens,
                   "KV tokens of the server: cells that need more are left out; 0: what it says")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--gpus", options->prefill.gpus, "For the rate of each")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  add_text_file_option(*command, options->text_file);
  return [options] { return run_prefill_command(*options); };
}

}  // namespace mimo
