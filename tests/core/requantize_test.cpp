#include "core/requantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "core/number_formats.h"

namespace mimo {
namespace {

struct Bf16 {
  std::vector<std::uint16_t> bits;
  WeightView view;
};

Bf16 random_bf16(std::int64_t rows, std::int64_t cols, float size, unsigned seed) {
  Bf16 m;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, size);
  for (std::int64_t i = 0; i < rows * cols; ++i) m.bits.push_back(float_to_bf16(normal(random)));
  m.view = {"w",
            WeightFormat::kBF16,
            rows,
            cols,
            {{.rows = rows,
              .data = reinterpret_cast<const std::uint8_t*>(m.bits.data()),
              .row_stride = static_cast<std::size_t>(cols) * 2}}};
  return m;
}

// Every element within half a step of E4M3 at its magnitude: 2^-4 of it for normals, half of 2^-9 scales
// below.
TEST(Requantize, ErrorIsHalfAStep) {
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 130}, {128, 128}, {129, 256}, {300, 77}}) {
    for (const float size : {1e-3f, 1.0f, 1e3f}) {
      const Bf16 from = random_bf16(rows, cols, size, static_cast<unsigned>(rows));
      const Fp8Matrix to = quantize_fp8(from.view);
      const WeightView view = to.view();
      EXPECT_EQ(view.format, WeightFormat::kFp8);
      EXPECT_EQ(view.rows, rows);
      EXPECT_EQ(view.cols, cols);
      EXPECT_EQ(view.name, "w");
      ASSERT_EQ(to.scales.size(), static_cast<std::size_t>((rows + 127) / 128 * ((cols + 127) / 128)));
      std::vector<float> a(static_cast<std::size_t>(cols));
      std::vector<float> b(a.size());
      std::vector<float> largest(to.scales.size(), 0.0f);
      for (std::int64_t r = 0; r < rows; ++r) {
        dequantize_row(from.view, r, a.data());
        dequantize_row(view, r, b.data());
        for (std::int64_t c = 0; c < cols; ++c) {
          const auto block = static_cast<std::size_t>(r / 128 * ((cols + 127) / 128) + c / 128);
          largest[block] = std::max(largest[block], std::fabs(a[static_cast<std::size_t>(c)]));
          const double value = a[static_cast<std::size_t>(c)];
          const double bound = std::max(std::fabs(value) * 0x1p-4, to.scales[block] * 0x1p-10) * (1 + 1e-6);
          ASSERT_NEAR(b[static_cast<std::size_t>(c)], value, bound) << r << " " << c;
        }
      }
      // The largest of each block is 448 of its scale: the range is used.
      for (std::size_t i = 0; i < largest.size(); ++i) EXPECT_FLOAT_EQ(to.scales[i], largest[i] / 448.0f);
    }
  }
}

TEST(Requantize, BlocksHaveTheirOwnScale) {
  Bf16 m = random_bf16(256, 256, 1.0f, 7);
  for (std::size_t r = 128; r < 256; ++r) {
    for (std::size_t c = 128; c < 256; ++c)
      m.bits[r * 256 + c] = float_to_bf16(bf16_to_float(m.bits[r * 256 + c]) * 1000.0f);
  }
  const Fp8Matrix to = quantize_fp8(m.view);
  EXPECT_GT(to.scales[3], 500 * to.scales[0]);
  EXPECT_LT(to.scales[1], 2 * to.scales[0]);
}

TEST(Requantize, ZerosStayZeros) {
  const Bf16 m = random_bf16(3, 140, 0.0f, 1);
  const Fp8Matrix to = quantize_fp8(m.view);
  for (const std::uint8_t code : to.codes) EXPECT_EQ(code & 0x7F, 0);
  for (const float scale : to.scales) EXPECT_TRUE(std::isnormal(scale));
}

}  // namespace
}  // namespace mimo
