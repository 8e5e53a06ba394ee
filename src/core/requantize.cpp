#include "core/requantize.h"

#include <algorithm>
#include <cmath>

#include "core/number_formats.h"

namespace mimo {

WeightView Fp8Matrix::view() const {
  WeightView view;
  view.name = name;
  view.format = WeightFormat::kFp8;
  view.rows = rows;
  view.cols = cols;
  view.segments.push_back({.rows = rows,
                           .data = codes.data(),
                           .row_stride = static_cast<std::size_t>(cols),
                           .scales_f32 = scales.data(),
                           .scale_stride = static_cast<std::size_t>((cols + kFp8Block - 1) / kFp8Block)});
  return view;
}

Fp8Matrix quantize_fp8(const WeightView& view) {
  Fp8Matrix out;
  out.name = view.name;
  out.rows = view.rows;
  out.cols = view.cols;
  const auto cols = static_cast<std::size_t>(view.cols);
  const std::size_t blocks = (cols + kFp8Block - 1) / kFp8Block;
  out.codes.resize(static_cast<std::size_t>(view.rows) * cols);
  out.scales.resize(static_cast<std::size_t>((view.rows + kFp8Block - 1) / kFp8Block) * blocks);
  std::vector<float> band(static_cast<std::size_t>(kFp8Block) * cols);
  for (std::int64_t begin = 0; begin < view.rows; begin += kFp8Block) {
    const auto rows = static_cast<std::size_t>(std::min(kFp8Block, view.rows - begin));
    float* scales = out.scales.data() + static_cast<std::size_t>(begin / kFp8Block) * blocks;
    std::fill_n(scales, blocks, 1e-10f / 448.0f);
    for (std::size_t r = 0; r < rows; ++r) {
      float* row = band.data() + r * cols;
      dequantize_row(view, begin + static_cast<std::int64_t>(r), row);
      for (std::size_t c = 0; c < cols; ++c) {
        scales[c / kFp8Block] = std::max(scales[c / kFp8Block], std::fabs(row[c]) / 448.0f);
      }
    }
    for (std::size_t r = 0; r < rows; ++r) {
      const float* row = band.data() + r * cols;
      std::uint8_t* codes = out.codes.data() + (static_cast<std::size_t>(begin) + r) * cols;
      for (std::size_t c = 0; c < cols; ++c) codes[c] = float_to_e4m3(row[c] / scales[c / kFp8Block]);
    }
  }
  return out;
}

}  // namespace mimo
