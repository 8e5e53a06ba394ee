// dequantize_row is the definition that packed formats are tested against: here it meets the worked examples
// of the specification, which were computed by hand.

#include "core/weight_view.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/number_formats.h"

namespace mimo {
namespace {

TEST(WeightView, RowBytes) {
  EXPECT_EQ(weight_row_bytes(WeightFormat::kF32, 96), 384u);
  EXPECT_EQ(weight_row_bytes(WeightFormat::kBF16, 96), 192u);
  EXPECT_EQ(weight_row_bytes(WeightFormat::kFp8, 96), 96u);
  EXPECT_EQ(weight_row_bytes(WeightFormat::kMxfp4, 96), 48u);
}

// spec model 3.2: two elements of one matrix, in column blocks 0 and 1.
TEST(WeightView, WorkedFp8Example) {
  std::vector<std::uint8_t> codes(6 * 256, 0);
  codes[5 * 256 + 17] = 0x4B;
  codes[5 * 256 + 200] = 0xC4;
  const float scales[2] = {0.00031f, 0.00027f};
  const WeightView view{
      "w",
      WeightFormat::kFp8,
      6,
      256,
      {{.rows = 6, .data = codes.data(), .row_stride = 256, .scales_f32 = scales, .scale_stride = 2}}};
  std::vector<float> row(256);
  dequantize_row(view, 5, row.data());
  EXPECT_EQ(row[17], 5.5f * 0.00031f);
  EXPECT_EQ(row[200], -3.0f * 0.00027f);
  EXPECT_EQ(round_to_bf16(row[17]), 0.00170135498046875f);
  EXPECT_EQ(round_to_bf16(row[200]), -0.0008087158203125f);
  EXPECT_EQ(row[0], 0.0f);
  dequantize_row(view, 4, row.data());
  for (const float value : row) EXPECT_EQ(value, 0.0f);
}

// spec model 3.4: a fused matrix of 4 chunks of 3392 rows, each with 27 scale rows. Stored row 9884 is key
// head 2, dim 28, and its scale row is 78.
TEST(WeightView, WorkedFusedQkvExample) {
  constexpr std::int64_t kChunkRows = 3392;
  constexpr std::int64_t kScaleRows = 27;
  std::vector<std::uint8_t> codes(4 * kChunkRows, 0x38);  // 1.0; one column
  std::vector<float> scales(4 * kScaleRows);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i);
  WeightView view{"qkv", WeightFormat::kFp8, 4 * kChunkRows, 1, {}};
  std::int64_t local = 0;
  for (const std::int64_t part : {3072, 192, 128}) {
    for (std::int64_t chunk = 0; chunk < 4; ++chunk) {
      view.segments.push_back({.rows = part,
                               .data = codes.data() + chunk * kChunkRows + local,
                               .row_stride = 1,
                               .scales_f32 = scales.data() + chunk * kScaleRows,
                               .grid_row = local,
                               .scale_stride = 1});
    }
    local += part;
  }
  float value = 0;
  // Canonical row of key head 2, dim 28: after 64 query heads and two key heads.
  const std::int64_t key = 64 * 192 + 2 * 192 + 28;
  codes[9884] = 0x40;  // 2.0 marks the row
  dequantize_row(view, key, &value);
  EXPECT_EQ(value, 2.0f * 78.0f);
  // Borders of block 25 of chunk 0 (rows 3200..3327): the last 64 key rows and the first 64 value rows.
  for (const auto& [row, scale] : {std::pair<std::int64_t, float>{64 * 192 + 127, 24},
                                   {64 * 192 + 128, 25},
                                   {64 * 192 + 191, 25},
                                   {68 * 192, 25},
                                   {68 * 192 + 63, 25},
                                   {68 * 192 + 64, 26},
                                   {0, 0},
                                   {3071, 23},
                                   {3072, 27}}) {
    dequantize_row(view, row, &value);
    EXPECT_EQ(value, scale) << "canonical row " << row;
  }
}

// spec model 3.5: scale byte 0x7A, bytes 0x82 0x7D 0x1F; low nibble first.
TEST(WeightView, WorkedMxfp4Example) {
  std::vector<std::uint8_t> nibbles(2 * 32, 0);
  nibbles[32] = 0x82;
  nibbles[33] = 0x7D;
  nibbles[34] = 0x1F;
  nibbles[48] = 0x82;  // the second block has its own scale
  const std::uint8_t scales[4] = {0x7F, 0x7F, 0x7A, 0x7B};
  const WeightView view{
      "w",
      WeightFormat::kMxfp4,
      2,
      64,
      {{.rows = 2, .data = nibbles.data(), .row_stride = 32, .scales_u8 = scales, .scale_stride = 2}}};
  float row[64];
  dequantize_row(view, 1, row);
  const float expected[6] = {0.03125f, -0.0f, -0.09375f, 0.1875f, -0.1875f, 0.015625f};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(row[i], expected[i]) << i;
  EXPECT_TRUE(std::signbit(row[1]));
  EXPECT_EQ(row[32], 0.0625f);
}

TEST(WeightView, PlainFormatsAndColumnShards) {
  std::vector<float> f32(3 * 8);
  std::vector<std::uint16_t> bf16(3 * 8);
  for (std::size_t i = 0; i < f32.size(); ++i) {
    f32[i] = static_cast<float>(i) * 0.5f;
    bf16[i] = float_to_bf16(f32[i]);
  }
  float row[4];
  // Columns 4..7 of every row, first as one segment, then with the rows in another order.
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(f32.data());
  WeightView view{"w", WeightFormat::kF32, 3, 4, {{.rows = 3, .data = bytes + 16, .row_stride = 32}}};
  dequantize_row(view, 2, row);
  EXPECT_EQ(row[0], 10.0f);
  EXPECT_EQ(row[3], 11.5f);
  view.segments = {{.rows = 1, .data = bytes + 16 + 64, .row_stride = 32},
                   {.rows = 2, .data = bytes + 16, .row_stride = 32}};
  dequantize_row(view, 0, row);
  EXPECT_EQ(row[0], 10.0f);
  dequantize_row(view, 2, row);
  EXPECT_EQ(row[0], 6.0f);
  view = {"w",
          WeightFormat::kBF16,
          3,
          4,
          {{.rows = 3, .data = reinterpret_cast<const std::uint8_t*>(bf16.data()) + 8, .row_stride = 16}}};
  dequantize_row(view, 1, row);
  EXPECT_EQ(row[0], 6.0f);
}

TEST(WeightViewDeathTest, RowOutOfRange) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const float values[4] = {};
  const WeightView view{
      "some.weight",
      WeightFormat::kF32,
      1,
      4,
      {{.rows = 1, .data = reinterpret_cast<const std::uint8_t*>(values), .row_stride = 16}}};
  float row[4];
  EXPECT_DEATH(dequantize_row(view, 1, row), "some.weight: row 1 of 1");
}

}  // namespace
}  // namespace mimo
