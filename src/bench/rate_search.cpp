#include "bench/rate_search.h"

#include <algorithm>

#include "bench/distribution.h"

namespace mimo {
namespace {

constexpr double kGrowth = 1.5;
// Below this many requests thirds say nothing.
constexpr std::size_t kFewestRequests = 30;
// Doublings or halvings, and lowerings of a rate that was not confirmed.
constexpr int kMostSteps = 20;
constexpr int kMostLowerings = 5;
constexpr double kMilliseconds = 1e3;

double mean_ttft(std::span<const SentRequest* const> records) {
  double sum = 0;
  for (const SentRequest* record : records) sum += record->ttft().value_or(0);
  return records.empty() ? 0 : sum / static_cast<double>(records.size());
}

}  // namespace

bool queue_grows(std::span<const SentRequest> records) {
  if (records.size() < kFewestRequests) return false;
  std::vector<const SentRequest*> ordered;
  for (const SentRequest& record : records) ordered.push_back(&record);
  std::sort(ordered.begin(), ordered.end(),
            [](const SentRequest* one, const SentRequest* other) { return one->due < other->due; });
  const std::size_t third = ordered.size() / 3;
  const std::span<const SentRequest* const> all(ordered);
  return mean_ttft(all.last(third)) > kGrowth * mean_ttft(all.subspan(third, third));
}

RateProbe judge_probe(double rate, std::span<const SentRequest> records, const RateSearchOptions& options) {
  RateProbe probe;
  probe.rate = rate;
  probe.summary = summarise_load(records, {});
  probe.failed = probe.summary.failed > 0;
  if (probe.failed) return probe;
  probe.value = probe.summary.ttft.get(options.statistic);
  probe.unstable = queue_grows(records);
  probe.kept = !probe.unstable && probe.summary.ttft.n > 0 && probe.value <= options.target;
  return probe;
}

Result<RateSearch> search_rate(const RateSearchOptions& options,
                               const std::function<Result<RateProbe>(double)>& probe) {
  RateSearch search;
  const auto keeps = [&](double rate) -> Result<bool> {
    Result<RateProbe> done = probe(rate);
    if (!done) return forward_error(done);
    search.probes.push_back(std::move(*done));
    return search.probes.back().kept;
  };
  double low = 0;   // keeps the target
  double high = 0;  // misses it
  double rate = std::min(options.start, options.most);
  for (int step = 0; step < kMostSteps && (low == 0 || high == 0) && low < options.most; ++step) {
    const Result<bool> kept = keeps(rate);
    if (!kept) return forward_error(kept);
    (*kept ? low : high) = rate;
    rate = *kept ? std::min(2 * rate, options.most) : rate / 2;
  }
  if (low == 0) return search;
  for (int step = 0; step < options.bisections && high > 0 && high - low >= options.precision * low; ++step) {
    const double middle = (low + high) / 2;
    const Result<bool> kept = keeps(middle);
    if (!kept) return forward_error(kept);
    (*kept ? low : high) = middle;
  }
  for (int lowering = 0; lowering <= kMostLowerings; ++lowering) {
    int confirmed = 0;
    while (confirmed < options.confirmations) {
      const Result<bool> kept = keeps(low);
      if (!kept) return forward_error(kept);
      if (!*kept) break;
      ++confirmed;
    }
    if (confirmed == options.confirmations) {
      search.rate = low;
      for (std::size_t i = 0; i < search.probes.size(); ++i) {
        if (search.probes[i].rate == low && search.probes[i].kept) search.best = i;
      }
      return search;
    }
    low *= 1 - options.precision;
  }
  return search;
}

json::object probe_json(const RateProbe& probe) {
  json::object out = summary_json(probe.summary);
  out["rate"] = probe.rate;
  out["ttft_statistic_ms"] = probe.value * kMilliseconds;
  out["unstable"] = probe.unstable;
  out["kept"] = probe.kept;
  return out;
}

std::string probe_head(const std::string& statistic) {
  return fmt::format("| requests/s | TTFT {} ms | tok/s in all | |\n|---|---|---|---|\n", statistic);
}

std::string probe_line(const RateProbe& probe) {
  if (probe.failed)
    return fmt::format("| {:.3f} | FAILED: {} | | missed |\n", probe.rate, probe.summary.first_error);
  return fmt::format("| {:.3f} | {:.2f} | {:.1f} | {} |\n", probe.rate, probe.value * kMilliseconds,
                     probe.summary.total_rate,
                     probe.kept       ? "kept"
                     : probe.unstable ? "unstable: the queue grows"
                                      : "missed");
}

}  // namespace mimo
