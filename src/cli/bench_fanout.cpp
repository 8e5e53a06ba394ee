// `mimo bench fanout` and `mimo bench goodput`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "bench/fanout.h"
#include "bench/rate_search.h"
#include "cli/bench_commands.h"
#include "cli/bench_options.h"
#include "cli/model_options.h"
#include "cli/validators.h"
#include "core/progress.h"

namespace mimo {
namespace {

struct FanoutCommand {
  BenchLoadOptions load;
  AgentsOptions agents;
  double most_ratio = 0;
};

int run_fanout_command(FanoutCommand& command) {
  Result<LoadTarget> target = begin_load(command.load, true);
  if (!target) return report_error(target.error());
  command.load.style.ignore_eos = true;
  command.agents.seed = command.load.seed;
  command.agents.run = command.load.run;
  if (command.agents.first_tokens <= command.agents.shared_tokens) {
    return report_error({ErrorCode::kInvalidArgument,
                         fmt::format("--first-len {}: expected more than --shared-len {}",
                                     command.agents.first_tokens, command.agents.shared_tokens)});
  }
  Result<BenchOutput> output = BenchOutput::open(command.load, *target, "fanout");
  if (!output) return report_error(output.error());
  std::optional<Progress> progress(std::in_place, "fanout",
                                   static_cast<std::uint64_t>(command.agents.agents * command.agents.turns),
                                   Progress::Unit::kItems);
  std::uint64_t done = 0;
  const Result<FanoutResult> result = run_fanout(*target, command.load.style, command.agents,
                                                 [&](const SentRequest&) { progress->update(++done); });
  progress.reset();
  if (!result) return report_error(result.error());
  output->records(result->load.records, "fanout");
  json::object row = fanout_json(*result);
  output->result(row);
  if (const Status closed = output->close(); !closed) return report_error(closed.error());
  std::FILE* const shown = command.load.json ? stderr : stdout;
  fmt::print(shown, "{} at {}: {} agents, {} turns\n{}", target->model, command.load.target.url,
             command.agents.agents, command.agents.turns, fanout_text(*result));
  bool ok = result->summary.failed == 0;
  if (ok && command.most_ratio > 0 &&
      (!result->summary.cached_known || result->ratio() > command.most_ratio)) {
    fmt::print(shown, "FAILED: more than {:g} times the ideal was prefilled\n", command.most_ratio);
    ok = false;
  }
  if (command.load.json) {
    json::object out = output->header();
    out.stable_erase(out.find("type"));
    for (auto& [key, value] : row) out[key] = std::move(value);
    out["status"] = ok ? "ok" : "FAILED";
    std::fflush(stderr);
    fmt::print("{}\n", json::serialize(out));
  }
  return ok ? 0 : 1;
}

struct GoodputCommand {
  BenchLoadOptions load;
  DatasetChoice dataset;
  RateSearchOptions search;
  double target_ms = 0;
  double start = 0;
  double probe_seconds = 60;
  std::int64_t probe_requests = 100;
  int warm_ups = 10;
  double burstiness = 1;
  int gpus = 1;
};

// Loads at one rate after the other, each with prompts of its own.
class Prober {
 public:
  Prober(LoadTarget& target, const GoodputCommand& command, DatasetOptions dataset)
      : target_(target), command_(command), dataset_(std::move(dataset)) {}

  // Seconds to the first token of a request alone.
  Result<double> alone() {
    const Result<std::vector<SentRequest>> records = send(2, HUGE_VAL, 1);
    if (!records) return forward_error(records);
    for (const SentRequest& record : *records) {
      if (record.failed()) return fail(ErrorCode::kUnavailable, "{}", record.error);
    }
    const double seconds = records->back().ttft().value_or(0);
    if (seconds <= 0) return fail(ErrorCode::kUnavailable, "an answer had no first token");
    return seconds;
  }

  Result<RateProbe> probe(double rate) {
    if (command_.warm_ups > 0) {
      const Result<std::vector<SentRequest>> warm = send(command_.warm_ups, rate, 0);
      if (!warm) return forward_error(warm);
    }
    const auto count = std::max(command_.probe_requests,
                                static_cast<std::int64_t>(std::ceil(rate * command_.probe_seconds)));
    const Result<std::vector<SentRequest>> records = send(count, rate, 0);
    if (!records) return forward_error(records);
    last_ = *records;
    return judge_probe(rate, *records, command_.search);
  }

  const std::vector<SentRequest>& last() const { return last_; }

 private:
  Result<std::vector<SentRequest>> send(std::int64_t count, double rate, int concurrency) {
    DatasetOptions dataset = dataset_;
    dataset.count = count;
    const Result<std::vector<LoadPrompt>> prompts = make_prompts(dataset, &*target_.maker, ++part_);
    if (!prompts) return forward_error(prompts);
    Pace pace;
    pace.max_concurrency = concurrency;
    pace.rate = rate;
    pace.burstiness = command_.burstiness;
    pace.seed = command_.load.seed + part_;
    return run_load(*target_.client, command_.load.style, *prompts, pace).records;
  }

  LoadTarget& target_;
  const GoodputCommand& command_;
  DatasetOptions dataset_;
  std::uint64_t part_ = 0;
  std::vector<SentRequest> last_;
};

int run_goodput_command(GoodputCommand& command) {
  Result<DatasetOptions> dataset = chosen_dataset(command.dataset, command.load);
  if (!dataset) return report_error(dataset.error());
  if (dataset->dataset != Dataset::kRandom && dataset->dataset != Dataset::kRandomIds) {
    return report_error({ErrorCode::kInvalidArgument,
                         fmt::format("--dataset {}: a search needs prompts without end: random or random-ids",
                                     command.dataset.name)});
  }
  Result<LoadTarget> target = begin_load(command.load, true);
  if (!target) return report_error(target.error());
  const Result<std::int64_t> overhead = template_overhead(*target, command.load.style);
  if (!overhead) return report_error(overhead.error());
  dataset->overhead = *overhead;
  dataset->run = command.load.run;
  Result<BenchOutput> output = BenchOutput::open(command.load, *target, "goodput");
  if (!output) return report_error(output.error());
  Prober prober(*target, command, std::move(*dataset));
  command.search.target = command.target_ms / 1e3;
  command.search.start = command.start;
  if (command.start == 0) {
    const Result<double> alone = prober.alone();
    if (!alone) return report_error(alone.error());
    command.search.start = 0.5 / *alone;
  }
  std::FILE* const shown = command.load.json ? stderr : stdout;
  fmt::print(shown, "{} at {}: {} TTFT up to {:g} ms\n\n{}", target->model, command.load.target.url,
             command.search.statistic, command.target_ms, probe_head(command.search.statistic));
  std::fflush(shown);
  json::array probes;
  const Result<RateSearch> search = search_rate(command.search, [&](double rate) {
    Result<RateProbe> probe = prober.probe(rate);
    if (probe) {
      fmt::print(shown, "{}", probe_line(*probe));
      std::fflush(shown);
      output->records(prober.last(), fmt::format("{:.4f}/s #{}", rate, probes.size()));
      output->result(probe_json(*probe));
      probes.push_back(probe_json(*probe));
    }
    return probe;
  });
  if (!search) return report_error(search.error());
  if (const Status closed = output->close(); !closed) return report_error(closed.error());
  if (search->rate) {
    const LoadSummary& best = search->probes[*search->best].summary;
    fmt::print(shown, "\n{:.3f} requests/s, {:.1f} tokens/s for each of {} GPUs\n{}", *search->rate,
               best.total_rate / command.gpus, command.gpus, summary_text(best));
  } else {
    double once = 0;
    for (const RateProbe& probe : search->probes) once = std::max(once, probe.kept ? probe.rate : 0.0);
    fmt::print(shown, "\nFAILED: {}\n",
               once > 0
                   ? fmt::format("{:.3f} requests/s kept the target once, and no rate did so again", once)
                   : std::string("no rate that was tried keeps the target"));
  }
  if (command.load.json) {
    json::object out = output->header();
    out.stable_erase(out.find("type"));
    out["status"] = search->rate ? "ok" : "FAILED";
    out["rate"] = search->rate ? json::value(*search->rate) : json::value(nullptr);
    out["probes"] = std::move(probes);
    std::fflush(stderr);
    fmt::print("{}\n", json::serialize(out));
  }
  return search->rate ? 0 : 1;
}

}  // namespace

CommandBody add_bench_fanout_command(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("fanout", "Conversations side by side: wall time, and what was computed twice");
  auto options = std::make_shared<FanoutCommand>();
  add_load_options(*command, options->load);
  add_agents_options(*command, options->agents);
  command->add_option("--max-ratio", options->most_ratio, "Fail if prefilled over ideal is more; 0: never")
      ->check(check_not_nan)
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  return [options] { return run_fanout_command(*options); };
}

CommandBody add_bench_goodput_command(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("goodput", "Search the largest request rate that keeps a time to first token");
  auto options = std::make_shared<GoodputCommand>();
  add_load_options(*command, options->load);
  add_dataset_options(*command, options->dataset);
  command->remove_option(command->get_option("--num-prompts"));
  const char* const group = "Search";
  const auto number = [&](const char* name, double& value, const char* text, double least, double most) {
    return command->add_option(name, value, text)
        ->check(check_not_nan)
        ->check(CLI::Range(least, most))
        ->group(group);
  };
  number("--target-ttft", options->target_ms, "Milliseconds", 0.001, 1e9)->required();
  command->add_option("--statistic", options->search.statistic, "Of the TTFT")
      ->check(CLI::IsMember({"mean", "p50", "p90", "p95", "p99", "max"}))
      ->capture_default_str()
      ->group(group);
  number("--start-rate", options->start, "Requests a second; 0: half of what one request at a time gives", 0,
         1e6)
      ->capture_default_str();
  number("--max-rate", options->search.most, "No rate above this is tried; default: any", 1e-6, 1e9);
  number("--probe-seconds", options->probe_seconds, "Least time of a probe", 0.1, 1e6)->capture_default_str();
  command->add_option("--probe-requests", options->probe_requests, "Least requests of a probe")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str()
      ->group(group);
  command->add_option("--warmup-requests", options->warm_ups, "Before each probe")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group(group);
  number("--precision", options->search.precision, "Of the rate", 0.001, 1)->capture_default_str();
  number("--burstiness", options->burstiness, "Shape of the gaps; 1: a Poisson process", 0.001, 1e6)
      ->capture_default_str();
  command->add_option("--gpus", options->gpus, "For the throughput of each")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str()
      ->group(group);
  command->add_flag("--ignore-eos", options->load.style.ignore_eos, "Answers have their full length")
      ->group(group);
  return [options] { return run_goodput_command(*options); };
}

}  // namespace mimo
