// `mimo bench goodput`: the largest request rate whose time to first token keeps a target.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/load_summary.h"
#include "bench/sent_request.h"
#include "core/result.h"

namespace mimo {

struct RateSearchOptions {
  double target = 0;              // seconds
  std::string statistic = "p99";  // of the TTFT: see Distribution::get
  double start = 1;               // requests a second
  double most = HUGE_VAL;         // no rate above this is tried
  double precision = 0.05;        // of the rate, at which the search ends
  int bisections = 8;             // most
  int confirmations = 2;          // further probes at the rate found
};

// One probe: a load at one rate.
struct RateProbe {
  double rate = 0;
  double value = 0;  // of the statistic
  bool failed = false;
  bool unstable = false;  // the queue grew as long as it was fed
  bool kept = false;      // the target, by a load that neither failed nor was unstable
  LoadSummary summary;
};

// Whether TTFT grew through the run: that of the last third of requests is over 1.5 times that of the middle one.
bool queue_grows(std::span<const SentRequest> records);

RateProbe judge_probe(double rate, std::span<const SentRequest> records, const RateSearchOptions& options);

struct RateSearch {
  std::vector<RateProbe> probes;    // in order
  std::optional<double> rate;       // none: no rate that was tried keeps the target
  std::optional<std::size_t> best;  // the last probe at it
};

// Doubles from `start` until the target is missed, or halves until it is kept, bisects between, and confirms; a rate
// that is not confirmed is lowered by `precision`. `probe` sends the load.
Result<RateSearch> search_rate(const RateSearchOptions& options,
                               const std::function<Result<RateProbe>(double)>& probe);

json::object probe_json(const RateProbe& probe);
std::string probe_head(const std::string& statistic);
std::string probe_line(const RateProbe& probe);

}  // namespace mimo
