// The few statistics that results are reported with.
#pragma once

#include <cstdint>

namespace mimo {

struct Interval {
  double low = 0;
  double high = 1;
};

// Wilson score interval of a share, 95%: right also near 0 and 1, where most results are. n = 0: [0, 1].
Interval wilson_interval(std::int64_t successes, std::int64_t n);

// Two-sided exact McNemar test of a paired comparison: the probability, if both arms are equally good, of a
// split of the discordant pairs at least as uneven as this one. 1 when there are none.
double mcnemar_exact(std::int64_t right_to_wrong, std::int64_t wrong_to_right);

}  // namespace mimo
