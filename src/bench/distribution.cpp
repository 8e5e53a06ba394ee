#include "bench/distribution.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"

namespace mimo {

double quantile(std::span<const double> ascending, double q) {
  if (ascending.empty()) return 0;
  const double place = q * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, ascending.size() - 1);
  return std::lerp(ascending[below], ascending[above], place - std::floor(place));
}

double Distribution::get(const std::string& statistic) const {
  if (statistic == "mean") return mean;
  if (statistic == "median" || statistic == "p50") return median;
  if (statistic == "p90") return p90;
  if (statistic == "p95") return p95;
  if (statistic == "p99") return p99;
  MIMO_CHECK(statistic == "max", "statistic {}", statistic);
  return max;
}

Distribution describe(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.n = std::ssize(values),
          .mean = sum / static_cast<double>(values.size()),
          .median = quantile(values, 0.5),
          .p90 = quantile(values, 0.9),
          .p95 = quantile(values, 0.95),
          .p99 = quantile(values, 0.99),
          .max = values.back()};
}

json::value distribution_json(const Distribution& values, double scale) {
  if (values.n == 0) return nullptr;
  return json::object{{"n", values.n},
                      {"mean", values.mean * scale},
                      {"median", values.median * scale},
                      {"p90", values.p90 * scale},
                      {"p95", values.p95 * scale},
                      {"p99", values.p99 * scale},
                      {"max", values.max * scale}};
}

}  // namespace mimo
