// The CUDA backend in tests, beside the oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <vector>

#include "ops/cuda/cuda_ops.h"
#include "ops/host_calls.h"
#include "ops/reference/reference_ops.h"
#include "ops/stored_matrix.h"

namespace mimo::testing {

inline std::unique_ptr<Ops> make_cuda(bool exact) {
  Result<std::unique_ptr<Ops>> ops = make_cuda_ops({.exact = exact});
  if (!ops) throw std::runtime_error(ops.error().message);
  return std::move(*ops);
}

// Made once and kept.
inline Ops& cuda_ops(bool exact) {
  static const std::unique_ptr<Ops> made[2] = {make_cuda(false), make_cuda(true)};
  return *made[exact ? 1 : 0];
}

inline Ops& reference_ops() {
  static const std::unique_ptr<Ops> made = make_reference_ops();
  return *made;
}

// ||a - b|| / ||b||; infinite where a has something that is not finite.
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double size = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    size += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / size);
}

// Values that bf16 holds exactly, so that rounding activations on the way in changes nothing.
inline std::vector<float> bf16_values(Random& random, std::size_t count, float deviation) {
  std::vector<float> values = normal_values(random, count, deviation);
  for (float& value : values) value = round_to_bf16(value);
  return values;
}

// FP8 activations of spec model 3.3, as values: per row and 128 columns s = max|x| / 448 and E4M3(x / s) * s.
inline std::vector<float> fp8_rows(const std::vector<float>& x, std::size_t cols) {
  std::vector<float> out(x.size());
  for (std::size_t row = 0; row < x.size(); row += cols) {
    for (std::size_t begin = 0; begin < cols; begin += 128) {
      const std::size_t end = std::min(begin + 128, cols);
      float top = 1e-10f;
      for (std::size_t i = begin; i < end; ++i) top = std::max(top, std::fabs(x[row + i]));
      const float scale = top / 448.0f;
      for (std::size_t i = begin; i < end; ++i) {
        out[row + i] = e4m3_to_float(float_to_e4m3(x[row + i] / scale)) * scale;
      }
    }
  }
  return out;
}

// One rounding to bf16 of a result, and fp32 sums.
inline constexpr double kExactBound = 2e-6;
inline constexpr double kRoundedBound = 3e-3;
// Sums in tensor cores, whose accumulators cut off what fp32 would round.
inline constexpr double kTensorBound = 3e-5;
inline constexpr double kFp8TensorBound = 2e-3;

}  // namespace mimo::testing
