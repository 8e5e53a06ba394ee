#include "eval/statistics.h"

#include <algorithm>
#include <cmath>

namespace mimo {
namespace {

constexpr double kZ95 = 1.959963984540054;

}  // namespace

Interval wilson_interval(std::int64_t successes, std::int64_t n) {
  if (n <= 0) return {};
  const auto count = static_cast<double>(n);
  const double share = static_cast<double>(successes) / count;
  const double z2 = kZ95 * kZ95;
  const double centre = (share + z2 / (2 * count)) / (1 + z2 / count);
  const double half =
      kZ95 / (1 + z2 / count) * std::sqrt(share * (1 - share) / count + z2 / (4 * count * count));
  // At the ends the formula gives 0 and 1 up to rounding.
  return {successes == 0 ? 0 : std::max(0.0, centre - half),
          successes == n ? 1 : std::min(1.0, centre + half)};
}

double mcnemar_exact(std::int64_t right_to_wrong, std::int64_t wrong_to_right) {
  const std::int64_t n = right_to_wrong + wrong_to_right;
  const std::int64_t fewer = std::min(right_to_wrong, wrong_to_right);
  if (n <= 0) return 1;
  // Binomial tail with share 1/2, in logarithms: 2^-n underflows for n above a thousand.
  const double log_total = static_cast<double>(n) * std::log(2.0);
  double tail = 0;
  for (std::int64_t k = 0; k <= fewer; ++k) {
    const double log_choose = std::lgamma(static_cast<double>(n) + 1) -
                              std::lgamma(static_cast<double>(k) + 1) -
                              std::lgamma(static_cast<double>(n - k) + 1);
    tail += std::exp(log_choose - log_total);
  }
  return std::min(1.0, 2 * tail);
}

}  // namespace mimo
