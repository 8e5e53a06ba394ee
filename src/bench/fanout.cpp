#include "bench/fanout.h"

#include <iterator>
#include <utility>

namespace mimo {

Result<FanoutResult> run_fanout(LoadTarget& target, const RequestStyle& style, AgentsOptions options,
                                const std::function<void(const SentRequest&)>& ended) {
  const Result<std::int64_t> overhead = template_overhead(target, style);
  if (!overhead) return forward_error(overhead);
  options.overhead = *overhead;
  const Result<ServerCounters> before = ServerCounters::read(*target.client);
  if (!before) return forward_error(before);
  FanoutResult result;
  result.ideal = ideal_prefill(options);
  result.load = run_agents(target, style, options, ended);
  const Result<ServerCounters> after = ServerCounters::read(*target.client);
  if (!after) return forward_error(after);
  result.work = work_between(*before, *after);
  result.summary = summarise_load(result.load.records, {});
  return result;
}

json::object fanout_json(const FanoutResult& result) {
  json::object out = summary_json(result.summary);
  if (result.summary.failed > 0) return out;
  for (auto& [key, value] : work_json(result.work)) out[key] = std::move(value);
  out["ideal_prefill_tokens"] = result.ideal;
  const bool known = result.summary.cached_known;
  out["prefilled_tokens"] = known ? json::value(result.prefilled()) : json::value(nullptr);
  out["prefilled_over_ideal"] = known ? json::value(result.ratio()) : json::value(nullptr);
  out["cached_device_tokens"] =
      known ? json::value(result.summary.n_cached - result.summary.n_host) : json::value(nullptr);
  return out;
}

std::string fanout_text(const FanoutResult& result) {
  std::string out = summary_text(result.summary);
  if (result.summary.failed > 0) return out;
  const auto append = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
  };
  append("fan-out: {:.3f} s from the first request to the last answer\n", result.summary.wall);
  if (result.summary.cached_known) {
    append("prefilled {} tokens, ideal {}: {:.3f} times\n", result.prefilled(), result.ideal, result.ratio());
  } else {
    append("ideal prefill {} tokens\n", result.ideal);
  }
  if (result.summary.cached_known) {
    append("cached: {} tokens on the device, {} from host memory",
           result.summary.n_cached - result.summary.n_host, result.summary.n_host);
    if (result.work.host_restores) append(" in {:.0f} restores", *result.work.host_restores);
    out += '\n';
  }
  if (result.work.retractions) append("retractions: {:.0f}\n", *result.work.retractions);
  if (result.work.evicted_pages) append("evicted pages: {:.0f}\n", *result.work.evicted_pages);
  return out;
}

}  // namespace mimo
