// `mimo bench serve` and `mimo bench report`.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "bench/serve_bench.h"
#include "cli/bench_commands.h"
#include "cli/bench_options.h"
#include "cli/model_options.h"
#include "cli/validators.h"
#include "core/jsonl.h"
#include "core/progress.h"

namespace mimo {
namespace {

// Rounds that differ more than this say little.
constexpr double kMostSpread = 0.03;

struct ServeCommand {
  BenchLoadOptions load;
  DatasetChoice dataset;
  ServeBenchOptions bench;
  std::vector<std::string> goodput;
  std::string rate = "inf";
};

Result<double> parse_rate(const std::string& text) {
  if (text == "inf") return HUGE_VAL;
  char* end = nullptr;
  const double rate = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(rate > 0) || std::isinf(rate))
    return fail(ErrorCode::kInvalidArgument, "--request-rate {}: expected requests a second, or inf", text);
  return rate;
}

Status finish_options(ServeCommand& command) {
  const Result<GoodputLimits> limits = parse_goodput(command.goodput);
  if (!limits) return forward_error(limits);
  command.bench.goodput = *limits;
  const Result<double> rate = parse_rate(command.rate);
  if (!rate) return forward_error(rate);
  command.bench.pace.rate = *rate;
  command.bench.pace.seed = command.load.seed;
  command.bench.warm = command.load.warm;
  const Result<DatasetOptions> dataset = chosen_dataset(command.dataset, command.load);
  if (!dataset) return forward_error(dataset);
  command.bench.dataset = *dataset;
  if (command.bench.dataset.dataset == Dataset::kAgents && !std::isinf(*rate))
    return fail(ErrorCode::kInvalidArgument,
                "--dataset agents: no --request-rate, an agent waits for its answers");
  if (command.bench.dataset.dataset == Dataset::kAgents && command.bench.pace.max_concurrency > 0)
    return fail(ErrorCode::kInvalidArgument, "--dataset agents: no --max-concurrency; it is --agents");
  return {};
}

int run(ServeCommand& command) {
  if (const Status ok = finish_options(command); !ok) return report_error(ok.error());
  Result<LoadTarget> target = begin_load(command.load, true);
  if (!target) return report_error(target.error());
  command.bench.style = command.load.style;
  command.bench.dataset.run = command.load.run;
  command.bench.agents.seed = command.load.seed;
  command.bench.agents.run = command.load.run;
  Result<BenchOutput> output = BenchOutput::open(command.load, *target, "serve");
  if (!output) return report_error(output.error());

  std::FILE* const shown = command.load.json ? stderr : stdout;
  fmt::print(shown, "{} at {}, {}; {}{}\n", target->model, command.load.target.url, command.dataset.name,
             command.load.warm ? "prompts fixed by the seed and cached before" : "prompts of this run alone",
             command.bench.style.ignore_eos ? "; answers forced to their length" : "");
  std::optional<Progress> progress;
  std::uint64_t done = 0;
  const BenchEvents events = {.round_begins =
                                  [&](int round, std::int64_t requests) {
                                    done = 0;
                                    progress.emplace(fmt::format("round {}", round + 1),
                                                     static_cast<std::uint64_t>(requests),
                                                     Progress::Unit::kItems);
                                  },
                              .request_ended = [&](const SentRequest&) { progress->update(++done); },
                              .round_ended =
                                  [&](int round, const BenchRound& result) {
                                    progress.reset();
                                    if (command.bench.rounds > 1)
                                      fmt::print(shown, "\nround {}\n", round + 1);
                                    fmt::print(shown, "{}", round_text(result));
                                    std::fflush(shown);
                                    output->records(result.load.records, "serve");
                                    json::object line = round_json(result);
                                    line["round"] = round;
                                    output->result(std::move(line));
                                  }};
  const Result<std::vector<BenchRound>> rounds = run_serve_bench(*target, command.bench, events);
  progress.reset();
  if (!rounds) return report_error(rounds.error());
  if (const Status closed = output->close(); !closed) return report_error(closed.error());

  bool ok = true;
  double mean = 0;
  json::array list;
  for (const BenchRound& round : *rounds) {
    ok &= round.ok();
    mean += round.summary.output_rate / static_cast<double>(rounds->size());
    list.push_back(round_json(round));
  }
  if (rounds->size() > 1 && ok) {
    const double spread_of = spread(*rounds);
    fmt::print(shown, "\nmean of {} rounds: {:.1f} output tokens/s, spread {:.1f}%{}\n", rounds->size(), mean,
               100 * spread_of, spread_of > kMostSpread ? ": repeat the measurement" : "");
  }
  if (command.load.json) {
    json::object out = output->header();
    out.stable_erase(out.find("type"));
    out["status"] = ok ? "ok" : "FAILED";
    out["rounds"] = std::move(list);
    if (ok) {
      out["output_throughput"] = mean;
      out["spread"] = spread(*rounds);
    }
    std::fflush(stderr);
    fmt::print("{}\n", json::serialize(out));
  }
  return ok ? 0 : 1;
}

struct ReportCommand {
  std::vector<std::string> files;
  std::vector<std::string> goodput;
  bool json = false;
};

// Tables again from the requests of results files.
int report(const ReportCommand& command) {
  const Result<GoodputLimits> limits = parse_goodput(command.goodput);
  if (!limits) return report_error(limits.error());
  json::array list;
  bool ok = true;
  for (const std::string& file : command.files) {
    std::map<std::pair<std::string, int>, std::vector<SentRequest>> rounds;
    const Status read = read_jsonl(file, [&](const JsonLine& line) -> Status {
      const json::value* type = line.object().if_contains("type");
      if (type == nullptr || *type != "request") return {};
      Result<SentRequest> record = record_from_json(line.object(), line.where());
      if (!record) return forward_error(record);
      const Result<std::string> arm = line.text("arm");
      if (!arm) return forward_error(arm);
      rounds[{*arm, record->round}].push_back(std::move(*record));
      return {};
    });
    if (!read) return report_error(read.error());
    if (rounds.empty())
      return report_error({ErrorCode::kInvalidArgument, fmt::format("{}: holds no requests", file)});
    for (const auto& [key, records] : rounds) {
      const LoadSummary summary = summarise_load(records, *limits);
      ok &= summary.failed == 0;
      if (command.json) {
        json::object out = summary_json(summary);
        out["file"] = file;
        out["arm"] = key.first;
        out["round"] = key.second;
        list.push_back(std::move(out));
      } else {
        fmt::print("{} {} round {}\n{}\n", file, key.first, key.second + 1, summary_text(summary));
      }
    }
  }
  if (command.json) fmt::print("{}\n", json::serialize(list));
  return ok ? 0 : 1;
}

void add_goodput_option(CLI::App& command, std::vector<std::string>& terms) {
  command.add_option("--goodput", terms, "Limits of a good request: ttft:MS tpot:MS e2el:MS");
}

}  // namespace

void add_agents_options(CLI::App& command, AgentsOptions& options) {
  const char* const group = "Agents";
  const auto add = [&](const char* name, auto& value, const char* text) {
    command.add_option(name, value, text)->check(CLI::Range(1, 1 << 30))->capture_default_str()->group(group);
  };
  add("--agents", options.agents, "Conversations side by side");
  add("--turns", options.turns, "Turns of each");
  add("--shared-len", options.shared_tokens, "Tokens with which all begin");
  add("--first-len", options.first_tokens, "Tokens of a first prompt, those included");
  add("--growth-len", options.growth_tokens, "Tokens by which a prompt grows from turn to turn");
  add("--turn-output-len", options.output_tokens, "Tokens of an answer");
}

CommandBody add_bench_serve_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("serve", "Load a server and report latencies and throughput");
  auto options = std::make_shared<ServeCommand>();
  add_load_options(*command, options->load);
  add_dataset_options(*command, options->dataset);
  add_agents_options(*command, options->bench.agents);
  const char* const group = "Load";
  ServeBenchOptions& serve = options->bench;
  command->add_option("--max-concurrency", serve.pace.max_concurrency, "Most requests in flight; 0: no bound")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command->add_option("--request-rate", options->rate, "Requests a second; inf: all are due at once")
      ->capture_default_str()
      ->group(group);
  command
      ->add_option("--burstiness", serve.pace.burstiness,
                   "Shape of the gamma-distributed gaps; 1: a Poisson process, less: bursts")
      ->check(check_not_nan)
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str()
      ->group(group);
  command->add_option("--warmup-requests", serve.warmup_requests, "Sent before, of the same shape")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command->add_option("--rounds", serve.rounds, "Repetitions")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str()
      ->group(group);
  command->add_flag("--ignore-eos", options->load.style.ignore_eos, "Answers have their full length")
      ->group(group);
  command->add_flag("--stream,!--no-stream", options->load.style.stream, "As events (default), or whole")
      ->group(group);
  command->add_flag("--flush-cache", serve.flush, "Empty the prefix cache before each round")->group(group);
  add_goodput_option(*command, options->goodput);
  return [options] { return run(*options); };
}

CommandBody add_bench_report_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("report", "The figures of results files, computed again");
  auto options = std::make_shared<ReportCommand>();
  command->add_option("files", options->files, "Files of --output-file")->required();
  add_goodput_option(*command, options->goodput);
  command->add_flag("--json", options->json, "A JSON list on stdout");
  return [options] { return report(*options); };
}

}  // namespace mimo
