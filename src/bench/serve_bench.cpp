#include "bench/serve_bench.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace mimo {
namespace {

constexpr std::uint64_t kWarmupPart = 0;

std::uint64_t part_of(const ServeBenchOptions& options, int round) {
  return options.warm ? 1 : 1 + static_cast<std::uint64_t>(round);
}

const PromptMaker* maker_of(const LoadTarget& target) { return target.maker ? &*target.maker : nullptr; }

Status check_sent(const LoadResult& result, const char* what) {
  for (const SentRequest& record : result.records) {
    if (record.failed()) return fail(ErrorCode::kUnavailable, "{}: {}", what, record.error);
  }
  return {};
}

Status warm_up(LoadTarget& target, const ServeBenchOptions& options) {
  if (options.warmup_requests == 0) return {};
  if (options.dataset.dataset == Dataset::kAgents) {
    AgentsOptions few = options.agents;
    few.agents = options.warmup_requests;
    few.turns = 1;
    ++few.seed;  // other text
    return check_sent(run_agents(target, options.style, few), "warm-up");
  }
  DatasetOptions dataset = options.dataset;
  if (dataset.dataset == Dataset::kRandom || dataset.dataset == Dataset::kRandomIds)
    dataset.count = options.warmup_requests;
  Result<std::vector<LoadPrompt>> prompts = make_prompts(dataset, maker_of(target), kWarmupPart);
  if (!prompts) return forward_error(prompts);
  if (std::cmp_less(options.warmup_requests, prompts->size()))
    prompts->resize(static_cast<std::size_t>(options.warmup_requests));
  Pace pace;
  pace.max_concurrency = options.pace.max_concurrency;
  return check_sent(run_load(*target.client, options.style, *prompts, pace), "warm-up");
}

// Every prompt once, for one token: it is cached then.
Status fill_cache(LoadTarget& target, const ServeBenchOptions& options, std::vector<LoadPrompt> prompts) {
  for (LoadPrompt& prompt : prompts) prompt.output_tokens = 1;
  Pace pace;
  pace.max_concurrency = options.pace.max_concurrency;
  return check_sent(run_load(*target.client, options.style, prompts, pace), "filling the cache");
}

Result<BenchRound> run_round(LoadTarget& target, const ServeBenchOptions& options, int number,
                             const BenchEvents& events) {
  const bool agents = options.dataset.dataset == Dataset::kAgents;
  std::vector<LoadPrompt> prompts;
  if (!agents) {
    Result<std::vector<LoadPrompt>> made =
        make_prompts(options.dataset, maker_of(target), part_of(options, number));
    if (!made) return forward_error(made);
    prompts = std::move(*made);
  }
  std::vector<std::string> warnings;
  if (options.flush || (!options.warm && !has_own_content(options.dataset.dataset))) {
    const Status flushed = flush_cache(*target.client);
    if (!flushed && options.flush) return forward_error(flushed);
    // A file's prompts are the same in every run.
    if (!flushed) warnings.push_back(flushed.error().message + ": earlier runs may have left prompts in it");
  }
  if (options.warm && number == 0 && !agents) {
    if (const Status filled = fill_cache(target, options, prompts); !filled) return forward_error(filled);
  }
  const Result<ServerCounters> before = ServerCounters::read(*target.client);
  if (!before) return forward_error(before);
  if (events.round_begins) {
    events.round_begins(
        number, agents ? std::int64_t{options.agents.agents} * options.agents.turns : std::ssize(prompts));
  }
  BenchRound round;
  if (agents) {
    AgentsOptions mine = options.agents;
    if (!options.warm) mine.run += static_cast<std::uint64_t>(number);
    round.load = run_agents(target, options.style, mine, events.request_ended);
  } else {
    Pace pace = options.pace;
    pace.seed += static_cast<std::uint64_t>(number);
    round.load = run_load(*target.client, options.style, prompts, pace, events.request_ended);
  }
  for (SentRequest& record : round.load.records) record.round = number;
  const Result<ServerCounters> after = ServerCounters::read(*target.client);
  if (!after) return forward_error(after);
  round.work = work_between(*before, *after);
  round.summary = summarise_load(round.load.records, options.goodput);
  round.summary.warnings.insert(round.summary.warnings.end(), warnings.begin(), warnings.end());
  if (target.tokenizer && round.summary.failed == 0) {
    round.summary.retokenized = 0;
    for (const SentRequest& record : round.load.records)
      round.summary.retokenized +=
          std::ssize(target.tokenizer->encode(record.text, {.allow_added_tokens = true}));
  }
  return round;
}

Status prepare(LoadTarget& target, ServeBenchOptions& options) {
  options.style.model = target.model;
  options.dataset.endpoint = options.style.endpoint;
  const Dataset kind = options.dataset.dataset;
  if (kind == Dataset::kShareGpt || kind == Dataset::kFile) return {};
  const Result<std::int64_t> overhead = template_overhead(target, options.style);
  if (!overhead) return forward_error(overhead);
  options.dataset.overhead = *overhead;
  options.agents.overhead = *overhead;
  return {};
}

}  // namespace

Result<std::vector<BenchRound>> run_serve_bench(LoadTarget& target, ServeBenchOptions options,
                                                const BenchEvents& events) {
  if (const Status ready = prepare(target, options); !ready) return forward_error(ready);
  if (const Status warm = warm_up(target, options); !warm) return forward_error(warm);
  std::vector<BenchRound> rounds;
  for (int number = 0; number < options.rounds; ++number) {
    Result<BenchRound> round = run_round(target, options, number, events);
    if (!round) return forward_error(round);
    if (events.round_ended) events.round_ended(number, *round);
    rounds.push_back(std::move(*round));
  }
  return rounds;
}

json::object round_json(const BenchRound& round) {
  json::object out = summary_json(round.summary);
  if (!round.ok()) out["status"] = "FAILED";
  out["client_cpu_share"] = round.client_cpu();
  out["client_us_per_event"] =
      round.load.cost.events > 0
          ? json::value(round.load.cost.cpu_seconds * 1e6 / static_cast<double>(round.load.cost.events))
          : json::value(nullptr);
  for (auto& [key, value] : work_json(round.work)) out[key] = std::move(value);
  return out;
}

std::string round_text(const BenchRound& round) {
  std::string out = summary_text(round.summary);
  if (round.summary.failed > 0) return out;
  const auto append = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
  };
  if (const auto length = round.work.accept_length()) {
    append("accept length {:.2f}", *length);
    if (const auto rate = round.work.acceptance_rate()) append(", {:.1f}% of drafts accepted", 100 * *rate);
    out += '\n';
  }
  if (round.work.retractions.value_or(0) > 0) append("{:.0f} retractions\n", *round.work.retractions);
  append("client: {:.1f}% of a core\n", 100 * round.client_cpu());
  if (round.client_cpu() > kMostClientCpu)
    append("FAILED: the client was the bottleneck (more than {:.0f}% of a core)\n", 100 * kMostClientCpu);
  return out;
}

double spread(const std::vector<BenchRound>& rounds) {
  if (rounds.empty()) return 0;
  double low = rounds.front().summary.output_rate;
  double high = low;
  double sum = 0;
  for (const BenchRound& round : rounds) {
    low = std::min(low, round.summary.output_rate);
    high = std::max(high, round.summary.output_rate);
    sum += round.summary.output_rate;
  }
  return sum > 0 ? (high - low) / (sum / static_cast<double>(rounds.size())) : 0;
}

}  // namespace mimo
