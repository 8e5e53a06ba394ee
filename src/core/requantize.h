// BF16 matrices to FP8 block-128, for the load option that trades numerics for bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/weight_view.h"

namespace mimo {

// An owned FP8 matrix with its scale grid.
struct Fp8Matrix {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<std::uint8_t> codes;  // [rows, cols]
  std::vector<float> scales;        // [ceil(rows/128), ceil(cols/128)]

  WeightView view() const;
};

// Nearest E4M3 codes with one scale a 128x128 block, max|w| / 448 (spec model 3.2).
Fp8Matrix quantize_fp8(const WeightView& view);

}  // namespace mimo
