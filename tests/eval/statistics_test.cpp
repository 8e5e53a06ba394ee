#include "eval/statistics.h"

#include <gtest/gtest.h>

namespace mimo {
namespace {

// Reference values: statsmodels proportion_confint(method="wilson") and scipy binomtest.
TEST(Statistics, WilsonInterval) {
  const Interval gsm = wilson_interval(1287, 1319);
  EXPECT_NEAR(gsm.low, 0.96594, 5e-5);
  EXPECT_NEAR(gsm.high, 0.98276, 5e-5);
  const Interval half = wilson_interval(5, 10);
  EXPECT_NEAR(half.low, 0.236593, 1e-6);
  EXPECT_NEAR(half.high, 0.763407, 1e-6);
  const Interval none = wilson_interval(0, 20);
  EXPECT_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 0.161125, 1e-6);
  const Interval all = wilson_interval(20, 20);
  EXPECT_NEAR(all.low, 0.838875, 1e-6);
  EXPECT_EQ(all.high, 1);
  EXPECT_EQ(wilson_interval(0, 0).low, 0);
  EXPECT_EQ(wilson_interval(0, 0).high, 1);
}

TEST(Statistics, McNemarExact) {
  EXPECT_EQ(mcnemar_exact(0, 0), 1);
  EXPECT_EQ(mcnemar_exact(3, 3), 1);
  EXPECT_NEAR(mcnemar_exact(0, 5), 0.0625, 1e-12);  // 2 / 2^5
  EXPECT_NEAR(mcnemar_exact(5, 0), 0.0625, 1e-12);
  EXPECT_NEAR(mcnemar_exact(2, 8), 0.109375, 1e-12);     // 2 (1 + 10 + 45) / 2^10
  EXPECT_NEAR(mcnemar_exact(1, 9), 0.021484375, 1e-12);  // 2 (1 + 10) / 2^10
  // 2^-n alone would underflow to 0.
  EXPECT_GT(mcnemar_exact(980, 1020), 0.3);
  EXPECT_LT(mcnemar_exact(980, 1020), 0.5);
}

}  // namespace
}  // namespace mimo
