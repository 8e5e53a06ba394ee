#include "bench/arrivals.h"

#include <cmath>
#include <random>

namespace mimo {

std::vector<double> arrival_times(std::int64_t count, double rate, double burstiness, std::uint64_t seed) {
  std::vector<double> times(static_cast<std::size_t>(count), 0.0);
  if (times.empty() || std::isinf(rate)) return times;
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> gap(burstiness, 1.0);
  double at = 0;
  for (double& time : times) time = at += gap(random);
  // Drawn gaps miss the rate by 10% at 100 requests; what is offered must be what is reported.
  const double scale = at > 0 ? static_cast<double>(count) / rate / at : 0.0;
  for (double& time : times) time *= scale;
  times.back() = static_cast<double>(count) / rate;
  return times;
}

}  // namespace mimo
