// Random matrices in every stored format, as a checkpoint would hand them over: row segments, scale grids,
// shards.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "core/number_formats.h"
#include "core/weight_view.h"

namespace mimo::testing {

using Random = std::mt19937_64;

inline int uniform_int(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}
inline float uniform(Random& random, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(random);
}

inline std::vector<float> normal_values(Random& random, std::size_t count, float deviation) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// How far the scale exponents of two neighbouring MXFP4 blocks lie apart.
enum class ScaleGap : std::uint8_t {
  kEqual,
  kNear,    // 0..3: shifts are folded into weight bytes
  kMiddle,  // 4..14: integer shifts
  kFar,     // 15..30: low bits of the smaller block are dropped
  kMixed,   // any of these, block by block
};

// Owns the bytes of one matrix. Views stay valid while it lives, moves included.
struct StoredMatrix {
  WeightFormat format = WeightFormat::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<std::uint8_t> bytes;  // [stored rows, row_stride]
  std::size_t row_stride = 0;
  std::size_t first_byte = 0;           // of row 0, column 0 (column shards start inside a row)
  std::vector<float> scales_f32;        // kFp8
  std::vector<std::uint8_t> scales_u8;  // kMxfp4
  std::size_t scale_stride = 0;
  std::size_t first_scale = 0;
  // kFp8 with more than one segment: fused chunks of [q | k | v] rows, each on its own scale grid.
  struct Fused {
    int chunks = 0;
    std::int64_t q = 0, k = 0, v = 0;  // rows of a chunk
  } fused;

  WeightView view() const {
    WeightView view;
    view.name = "test";
    view.format = format;
    view.rows = rows;
    view.cols = cols;
    if (fused.chunks == 0) {
      view.segments.push_back({.rows = rows,
                               .data = bytes.data() + first_byte,
                               .row_stride = row_stride,
                               .scales_f32 = scales_f32.data() + first_scale,
                               .scales_u8 = scales_u8.data() + first_scale,
                               .scale_stride = scale_stride});
      return view;
    }
    const std::int64_t chunk_rows = fused.q + fused.k + fused.v;
    const std::int64_t scale_rows = (chunk_rows + kFp8Block - 1) / kFp8Block;
    std::int64_t local = 0;
    for (const std::int64_t part : {fused.q, fused.k, fused.v}) {
      for (int chunk = 0; chunk < fused.chunks; ++chunk) {
        view.segments.push_back(
            {.rows = part,
             .data = bytes.data() + static_cast<std::size_t>(chunk * chunk_rows + local) * row_stride,
             .row_stride = row_stride,
             .scales_f32 = scales_f32.data() + static_cast<std::size_t>(chunk * scale_rows) * scale_stride,
             .grid_row = local,
             .scale_stride = scale_stride});
      }
      local += part;
    }
    return view;
  }

  // The matrix a view shows, dequantised.
  std::vector<float> dense() const {
    const WeightView from = view();
    std::vector<float> values(static_cast<std::size_t>(rows * cols));
    for (std::int64_t r = 0; r < rows; ++r) dequantize_row(from, r, values.data() + r * cols);
    return values;
  }
};

// Columns before and after the view inside a stored row: a column shard.
struct ColumnShard {
  std::int64_t before = 0;  // a multiple of 128
  std::int64_t after = 0;
};

inline StoredMatrix empty_matrix(WeightFormat format, std::int64_t rows, std::int64_t cols,
                                 ColumnShard shard) {
  StoredMatrix m;
  m.format = format;
  m.rows = rows;
  m.cols = cols;
  const std::int64_t stored = shard.before + cols + shard.after;
  m.row_stride = weight_row_bytes(format, stored);
  m.first_byte = weight_row_bytes(format, shard.before);
  m.bytes.resize(static_cast<std::size_t>(rows) * m.row_stride);
  return m;
}

inline StoredMatrix f32_matrix(Random& random, std::int64_t rows, std::int64_t cols, float deviation = 1.0f,
                               ColumnShard shard = {}) {
  StoredMatrix m = empty_matrix(WeightFormat::kF32, rows, cols, shard);
  const std::vector<float> values = normal_values(random, m.bytes.size() / 4, deviation);
  std::memcpy(m.bytes.data(), values.data(), m.bytes.size());
  return m;
}

inline StoredMatrix f32_matrix_of(std::span<const float> values, std::int64_t rows, std::int64_t cols) {
  StoredMatrix m = empty_matrix(WeightFormat::kF32, rows, cols, {});
  std::memcpy(m.bytes.data(), values.data(), m.bytes.size());
  return m;
}

// `octaves`: magnitudes spread over so many powers of two below a normal value. Beyond 7 the integer form of
// BF16 matrices starts to round.
inline StoredMatrix bf16_matrix(Random& random, std::int64_t rows, std::int64_t cols, float deviation = 1.0f,
                                int octaves = 0, ColumnShard shard = {}) {
  StoredMatrix m = empty_matrix(WeightFormat::kBF16, rows, cols, shard);
  const std::vector<float> values = normal_values(random, m.bytes.size() / 2, deviation);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int down = octaves == 0 ? 0 : uniform_int(random, 0, octaves);
    const std::uint16_t bits = float_to_bf16(std::ldexp(values[i], -down));
    std::memcpy(m.bytes.data() + 2 * i, &bits, 2);
  }
  return m;
}

inline void fill_fp8(Random& random, StoredMatrix& m) {
  for (std::uint8_t& code : m.bytes) {
    do code = static_cast<std::uint8_t>(uniform_int(random, 0, 255));
    while ((code & 0x7F) == 0x7F);
  }
  for (float& scale : m.scales_f32) scale = std::exp(uniform(random, -9.0f, -6.0f));
}

inline StoredMatrix fp8_matrix(Random& random, std::int64_t rows, std::int64_t cols, ColumnShard shard = {}) {
  StoredMatrix m = empty_matrix(WeightFormat::kFp8, rows, cols, shard);
  m.scale_stride = (m.row_stride + kFp8Block - 1) / kFp8Block;
  m.first_scale = static_cast<std::size_t>(shard.before / kFp8Block);
  m.scales_f32.resize(static_cast<std::size_t>((rows + kFp8Block - 1) / kFp8Block) * m.scale_stride);
  fill_fp8(random, m);
  return m;
}

inline StoredMatrix fused_fp8_matrix(Random& random, const StoredMatrix::Fused& fused, std::int64_t cols) {
  const std::int64_t chunk_rows = fused.q + fused.k + fused.v;
  StoredMatrix m = empty_matrix(WeightFormat::kFp8, fused.chunks * chunk_rows, cols, {});
  m.fused = fused;
  m.scale_stride = static_cast<std::size_t>((cols + kFp8Block - 1) / kFp8Block);
  m.scales_f32.resize(static_cast<std::size_t>(fused.chunks * ((chunk_rows + kFp8Block - 1) / kFp8Block)) *
                      m.scale_stride);
  fill_fp8(random, m);
  return m;
}

inline int scale_gap(Random& random, ScaleGap gap) {
  switch (gap) {
    case ScaleGap::kEqual:
      return 0;
    case ScaleGap::kNear:
      return uniform_int(random, 0, 3);
    case ScaleGap::kMiddle:
      return uniform_int(random, 4, 14);
    case ScaleGap::kFar:
      return uniform_int(random, 15, 30);
    case ScaleGap::kMixed: {
      constexpr ScaleGap kKinds[] = {ScaleGap::kEqual, ScaleGap::kNear,   ScaleGap::kNear,
                                     ScaleGap::kNear,  ScaleGap::kMiddle, ScaleGap::kFar};
      return scale_gap(random, kKinds[uniform_int(random, 0, 5)]);
    }
  }
  return 0;
}

inline StoredMatrix mxfp4_matrix(Random& random, std::int64_t rows, std::int64_t cols,
                                 ScaleGap gap = ScaleGap::kNear, ColumnShard shard = {}) {
  StoredMatrix m = empty_matrix(WeightFormat::kMxfp4, rows, cols, shard);
  for (std::uint8_t& byte : m.bytes) byte = static_cast<std::uint8_t>(uniform_int(random, 0, 255));
  m.scale_stride = m.row_stride / static_cast<std::size_t>(kMxfp4Block / 2);
  m.first_scale = static_cast<std::size_t>(shard.before / kMxfp4Block);
  m.scales_u8.resize(static_cast<std::size_t>(rows) * m.scale_stride);
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    for (std::size_t b = 0; b < m.scale_stride; b += 2) {
      const int larger = uniform_int(random, 118, 121);
      const int smaller = larger - scale_gap(random, gap);
      const bool first = uniform_int(random, 0, 1) == 0;
      std::uint8_t* to = m.scales_u8.data() + r * m.scale_stride + b;
      to[0] = static_cast<std::uint8_t>(first ? larger : smaller);
      if (b + 1 < m.scale_stride) to[1] = static_cast<std::uint8_t>(first ? smaller : larger);
    }
  }
  return m;
}

// Activations with the shape real ones have: normal values, now and then an outlier, rows of different size.
inline std::vector<float> activations(Random& random, int rows, std::int64_t cols) {
  std::vector<float> x = normal_values(random, static_cast<std::size_t>(rows * cols), 1.0f);
  for (int r = 0; r < rows; ++r) {
    const float size = std::exp2(uniform(random, -3.0f, 3.0f));
    for (std::int64_t c = 0; c < cols; ++c) {
      float& value = x[static_cast<std::size_t>(r * cols + c)];
      value *= size * (uniform_int(random, 0, 99) == 0 ? 8.0f : 1.0f);
    }
  }
  return x;
}

}  // namespace mimo::testing
