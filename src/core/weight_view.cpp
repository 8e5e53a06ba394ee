#include "core/weight_view.h"

#include <array>
#include <cstring>

#include "core/check.h"
#include "core/number_formats.h"

namespace mimo {
namespace {

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (std::size_t code = 0; code < table.size(); ++code)
      table[code] = e4m3_to_float(static_cast<std::uint8_t>(code));
    return table;
  }();
  return values;
}

}  // namespace

void dequantize_row(const WeightView& view, std::int64_t row, float* out) {
  MIMO_CHECK(row >= 0 && row < view.rows, "{}: row {} of {}", view.name, row, view.rows);
  const WeightSegment* segment = view.segments.data();
  while (row >= segment->rows) {
    row -= segment->rows;
    ++segment;
  }
  const std::uint8_t* bytes = segment->data + static_cast<std::size_t>(row) * segment->row_stride;
  switch (view.format) {
    case WeightFormat::kF32:
      std::memcpy(out, bytes, static_cast<std::size_t>(view.cols) * sizeof(float));
      return;
    case WeightFormat::kBF16:
      for (std::int64_t c = 0; c < view.cols; ++c) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, bytes + 2 * c, sizeof(bits));
        out[c] = bf16_to_float(bits);
      }
      return;
    case WeightFormat::kFp8: {
      const float* scales =
          segment->scales_f32 +
          static_cast<std::size_t>((segment->grid_row + row) / kFp8Block) * segment->scale_stride;
      const std::array<float, 256>& values = e4m3_values();
      for (std::int64_t c = 0; c < view.cols; ++c) out[c] = values[bytes[c]] * scales[c / kFp8Block];
      return;
    }
    case WeightFormat::kMxfp4: {
      const std::uint8_t* scales = segment->scales_u8 + static_cast<std::size_t>(row) * segment->scale_stride;
      for (std::int64_t block = 0; block < view.cols / kMxfp4Block; ++block) {
        const float scale = e8m0_to_float(scales[block]);
        for (std::int64_t c = block * kMxfp4Block; c < (block + 1) * kMxfp4Block; ++c) {
          const unsigned code = (bytes[c / 2] >> (4 * (c % 2))) & 15u;
          out[c] = e2m1_to_float(code) * scale;
        }
      }
      return;
    }
  }
}

}  // namespace mimo
