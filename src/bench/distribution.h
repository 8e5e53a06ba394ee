// What is reported of a set of measured values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"

namespace mimo {

// Quantile of ascending values by linear interpolation between the neighbours of q * (n - 1). No value: 0.
double quantile(std::span<const double> ascending, double q);

struct Distribution {
  std::int64_t n = 0;
  double mean = 0;
  double median = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;

  // "mean", "median" (or "p50"), "p90", "p95", "p99", "max"; anything else is a bug.
  double get(const std::string& statistic) const;
};

Distribution describe(std::vector<double> values);

// {"n", "mean", ...}, values times `scale`; null for no values.
json::value distribution_json(const Distribution& values, double scale);

}  // namespace mimo
