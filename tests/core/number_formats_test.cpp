#include "core/number_formats.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mimo {
namespace {

// spec model 3.2: table points and the two worked elements.
TEST(NumberFormats, E4m3TablePoints) {
  EXPECT_EQ(e4m3_to_float(0x00), 0.0f);
  EXPECT_EQ(e4m3_to_float(0x01), 0.001953125f);
  EXPECT_EQ(e4m3_to_float(0x08), 0.015625f);
  EXPECT_EQ(e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_float(0x7E), 448.0f);
  EXPECT_TRUE(std::signbit(e4m3_to_float(0x80)));
  EXPECT_EQ(e4m3_to_float(0x4B), 5.5f);
  EXPECT_EQ(e4m3_to_float(0xC4), -3.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7F)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xFF)));
}

TEST(NumberFormats, WorkedFp8ExampleInBf16) {
  EXPECT_EQ(round_to_bf16(5.5f * 0.00031f), 0.00170135498046875f);
  EXPECT_EQ(round_to_bf16(-3.0f * 0.00027f), -0.0008087158203125f);
}

TEST(NumberFormats, E4m3RoundTripsEveryFiniteCode) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(code));
    if (std::isnan(value)) continue;
    EXPECT_EQ(float_to_e4m3(value), code) << "code " << code;
  }
}

TEST(NumberFormats, E4m3RoundsToNearestEvenAndSaturates) {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = e4m3_to_float(static_cast<std::uint8_t>(code));
    const float high = e4m3_to_float(static_cast<std::uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(float_to_e4m3(middle), (code & 1) != 0 ? code + 1 : code) << "code " << code;
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 1e9f)), code + 1);
  }
  EXPECT_EQ(float_to_e4m3(1e30f), 0x7E);
  EXPECT_EQ(float_to_e4m3(-INFINITY), 0xFE);
  EXPECT_EQ(float_to_e4m3(NAN), 0x7F);
}

// spec model 3.5: scale byte 0x7A, bytes 0x82 0x7D 0x1F.
TEST(NumberFormats, WorkedMxfp4Example) {
  const float scale = e8m0_to_float(0x7A);
  EXPECT_EQ(scale, 0.03125f);
  const float expected[6] = {0.03125f, -0.0f, -0.09375f, 0.1875f, -0.1875f, 0.015625f};
  const unsigned bytes[3] = {0x82, 0x7D, 0x1F};
  for (int i = 0; i < 6; ++i) {
    const unsigned code = (bytes[i / 2] >> (4 * (i % 2))) & 15u;
    const float value = scale * e2m1_to_float(code);
    EXPECT_EQ(value, expected[i]);
    EXPECT_EQ(std::signbit(value), std::signbit(expected[i]));
  }
  EXPECT_EQ(e8m0_to_float(0), std::ldexp(1.0f, -127));
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(NumberFormats, Bf16RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3F80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(NAN))));
  EXPECT_TRUE(std::isinf(bf16_to_float(float_to_bf16(3.4e38f * 1.0f)))) << "overflow rounds to infinity";
}

}  // namespace
}  // namespace mimo
