// How stored weights are handed from the checkpoint to a backend: views of bytes that live in a memory map or
// a buffer, in checkpoint precision, cut into row segments so that fused and sharded matrices need no copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mimo {

enum class WeightFormat : std::uint8_t {
  kF32,    // fp32, row-major
  kBF16,   // bf16, row-major
  kFp8,    // E4M3, row-major, fp32 scales on a 128x128 grid that multiply (spec model 3.2)
  kMxfp4,  // E2M1 nibbles, low nibble = even column, E8M0 scale per 32 columns of a row (spec model 3.5)
};

inline constexpr std::int64_t kFp8Block = 128;
inline constexpr std::int64_t kMxfp4Block = 32;

// Bytes of `cols` consecutive elements of one row.
constexpr std::size_t weight_row_bytes(WeightFormat format, std::int64_t cols) {
  switch (format) {
    case WeightFormat::kF32:
      return static_cast<std::size_t>(cols) * 4;
    case WeightFormat::kBF16:
      return static_cast<std::size_t>(cols) * 2;
    case WeightFormat::kFp8:
      return static_cast<std::size_t>(cols);
    case WeightFormat::kMxfp4:
      return static_cast<std::size_t>(cols) / 2;
  }
  return 0;
}

// Consecutive rows of one stored tensor.
struct WeightSegment {
  std::int64_t rows = 0;
  const std::uint8_t* data = nullptr;  // first row, first column of the view
  std::size_t row_stride = 0;  // bytes from a row to the next (whole stored rows, also for column shards)
  // kFp8: the scale of (r, c) is scales_f32[(grid_row + r) / 128 * scale_stride + c / 128].
  const float* scales_f32 = nullptr;
  std::int64_t grid_row = 0;  // row of the scale grid that row 0 of this segment is
  // kMxfp4: the scale of (r, c) is scales_u8[r * scale_stride + c / 32].
  const std::uint8_t* scales_u8 = nullptr;
  std::size_t scale_stride = 0;  // elements from one scale row to the next
};

// A matrix [rows, cols] (y = x W^T), rows in canonical order. Does not own the bytes: they belong to the
// WeightSource that made the view and stay valid until it releases the layer or dies.
struct WeightView {
  std::string name;  // for messages
  WeightFormat format = WeightFormat::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<WeightSegment> segments;  // sum of their rows == rows

  bool empty() const { return rows == 0; }
};

// One dequantised row of the view, written to out[0, cols). The plain definition that packed formats are
// tested against.
void dequantize_row(const WeightView& view, std::int64_t row, float* out);

}  // namespace mimo
