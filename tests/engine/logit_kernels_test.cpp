#include "engine/logit_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace mimo {
namespace {

TEST(LogitKernels, KeysHaveTheOrderOfFloats) {
  const float inf = std::numeric_limits<float>::infinity();
  const float values[] = {-inf, -3e38f, -1, -1e-45f, 0, 1e-45f, 1, 3e38f, inf};
  for (std::size_t i = 0; i + 1 < std::size(values); ++i) {
    EXPECT_LT(order_key(values[i]), order_key(values[i + 1]));
    EXPECT_EQ(key_value(order_key(values[i])), values[i]);
  }
  EXPECT_EQ(order_key(-0.0f), order_key(0.0f));
  EXPECT_GT(order_key(std::nanf("")), kPlusInfinityKey);
  EXPECT_LT(order_key(-std::nanf("")), kMinusInfinityKey);
}

TEST(LogitKernels, WeightIsWithinTwoUnitsOfExp) {
  for (int i = 0; i <= 870000; ++i) {
    const float t = static_cast<float>(i) * -1e-4f;
    if (t < -87) break;
    const double expected = std::exp(static_cast<double>(t));
    ASSERT_NEAR(softmax_weight(t, 0, 1), expected, expected * 2e-7) << t;
  }
  EXPECT_EQ(softmax_weight(3, 3, 0.7f), 1.0f);
  EXPECT_EQ(softmax_weight(-87.8f, 0, 1), 0.0f);
  EXPECT_EQ(softmax_weight(-std::numeric_limits<float>::infinity(), 3, 1e5f), 0.0f);
}

TEST(LogitKernels, RowsOfEverySize) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 4);
  for (const std::size_t n : {1u, 2u, 63u, 64u, 65u, 127u, 128u, 1000u, 151680u}) {
    std::vector<float> x(n);
    for (float& v : x) v = normal(random);
    const auto blocks = static_cast<std::size_t>(logit_blocks(n));
    std::vector<std::int32_t> high(blocks);
    const LogitKeyRange range = scan_keys(x, high.data());
    EXPECT_EQ(key_value(range.high), *std::max_element(x.begin(), x.end()));
    EXPECT_EQ(key_value(range.low), *std::min_element(x.begin(), x.end()));

    const float maximum = key_value(range.high);
    std::vector<float> sums(blocks);
    const double total = sum_weights(x, maximum, 0.7f, sums.data());
    std::vector<float> weights = x;
    softmax_weights(weights, maximum, 0.7f);
    double expected_total = 0;
    for (std::size_t b = 0; b < blocks; ++b) {
      float block_max = -std::numeric_limits<float>::infinity();
      double sum = 0;
      for (std::size_t i = b * kLogitBlock; i < std::min(n, (b + 1) * kLogitBlock); ++i) {
        block_max = std::max(block_max, x[i]);
        sum += std::exp((static_cast<double>(x[i]) - maximum) * static_cast<double>(0.7f));
        ASSERT_EQ(weights[i], softmax_weight(x[i], maximum, 0.7f));
      }
      ASSERT_EQ(key_value(high[b]), block_max);
      ASSERT_NEAR(sums[b], sum, sum * 5e-6);  // t is rounded twice and down to about -25: 25 * 2^-23
      expected_total += sum;
    }
    EXPECT_NEAR(total, expected_total, expected_total * 5e-6);
  }
}

TEST(LogitKernels, PortableVersionsGiveTheSameBits) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 9);
  for (const std::size_t n : {1u, 64u, 77u, 50000u}) {
    std::vector<float> x(n);
    for (float& v : x) v = random() % 50 == 0 ? -std::numeric_limits<float>::infinity() : normal(random);
    x[n / 2] = 1;
    const auto blocks = static_cast<std::size_t>(logit_blocks(n));
    std::vector<std::int32_t> high(blocks), portable_high(blocks);
    const LogitKeyRange range = scan_keys(x, high.data());
    const LogitKeyRange portable_range = portable::scan_keys(x, portable_high.data());
    EXPECT_EQ(range.low, portable_range.low);
    EXPECT_EQ(range.high, portable_range.high);
    EXPECT_EQ(high, portable_high);
    const float maximum = key_value(range.high);
    std::vector<float> sums(blocks), portable_sums(blocks);
    EXPECT_EQ(sum_weights(x, maximum, 1.3f, sums.data()),
              portable::sum_weights(x, maximum, 1.3f, portable_sums.data()));
    EXPECT_EQ(sums, portable_sums);
    std::vector<float> weights = x;
    std::vector<float> portable_weights = x;
    softmax_weights(weights, maximum, 1.3f);
    portable::softmax_weights(portable_weights, maximum, 1.3f);
    EXPECT_EQ(weights, portable_weights);
  }
}

}  // namespace
}  // namespace mimo
