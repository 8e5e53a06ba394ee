#include "ops/rotation.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mimo {
namespace {

// spec model 2.3: check values of inv_freq.
TEST(Rotation, InverseFrequenciesOfTheSpecification) {
  struct Row {
    float theta;
    double at[5];
  };
  constexpr std::size_t kIndex[5] = {0, 1, 2, 16, 31};
  for (const Row& row : {Row{1e7f, {1, 0.604296386, 0.365174145, 3.16227786e-4, 1.65481708e-7}},
                         Row{5e6f, {1, 0.617528737, 0.381341754, 4.47213621e-4, 3.23871547e-7}},
                         Row{1e4f, {1, 0.749894202, 0.562341332, 9.99999978e-3, 1.33352145e-4}}}) {
    const std::vector<float> frequencies = inverse_frequencies(row.theta, 64);
    ASSERT_EQ(frequencies.size(), 32u);
    for (std::size_t i = 0; i < 5; ++i) {
      // The last fp32 digit of pow differs between libraries: 1 ulp, and the 9 printed digits.
      EXPECT_NEAR(frequencies[kIndex[i]], row.at[i], row.at[i] * 0x1p-23 * 1.01)
          << row.theta << " " << kIndex[i];
    }
    // And against double: the exponent is rounded to fp32 (times ln theta), pow and the quotient round once
    // more.
    for (std::size_t i = 0; i < 32; ++i) {
      const double exact = std::pow(static_cast<double>(row.theta), -static_cast<double>(i) / 32);
      EXPECT_NEAR(frequencies[i], exact, exact * 3 * 0x1p-24) << i;
    }
  }
}

// C48: cosine and sine of the fp32 angle at every power of the context, to their last bit or so.
TEST(Rotation, AnglesAreFp32ProductsAtAllPositions) {
  for (const float theta : {1e4f, 1e7f}) {
    const std::vector<float> frequencies = inverse_frequencies(theta, 64);
    for (const std::int64_t position : {0, 1, 127, 128, 4095, 32767, 131071, 262143, 1048575}) {
      const SequenceRows rows{0, 1, position, {}};
      std::vector<float> cos;
      std::vector<float> sin;
      fill_rotation({&rows, 1}, theta, 64, cos, sin);
      ASSERT_EQ(cos.size(), 32u);
      for (std::size_t i = 0; i < 32; ++i) {
        const float angle = static_cast<float>(position) * frequencies[i];
        EXPECT_NEAR(cos[i], std::cos(static_cast<double>(angle)), 0x1p-23) << position << " " << i;
        EXPECT_NEAR(sin[i], std::sin(static_cast<double>(angle)), 0x1p-23) << position << " " << i;
        EXPECT_NEAR(cos[i] * cos[i] + sin[i] * sin[i], 1.0, 4 * 0x1p-23);
      }
    }
  }
}

TEST(Rotation, RowsFollowTheirSequences) {
  // Two sequences whose rows lie the other way round.
  const SequenceRows rows[] = {{3, 2, 100, {}}, {0, 3, 7, {}}};
  std::vector<float> cos;
  std::vector<float> sin;
  fill_rotation(rows, 1e4f, 8, cos, sin);
  ASSERT_EQ(cos.size(), 5u * 4);
  const std::int64_t positions[] = {7, 8, 9, 100, 101};
  for (std::size_t r = 0; r < 5; ++r) {
    EXPECT_EQ(cos[r * 4], std::cos(static_cast<float>(positions[r])));
    EXPECT_EQ(sin[r * 4], std::sin(static_cast<float>(positions[r])));
  }
}

}  // namespace
}  // namespace mimo
