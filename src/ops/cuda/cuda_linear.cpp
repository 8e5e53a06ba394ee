#include "ops/cuda/cuda_linear.h"

#include <algorithm>

#include "ops/cuda/kernels/elementwise.h"
#include "ops/cuda/kernels/linear_large.h"
#include "ops/cuda/kernels/linear_plain.h"
#include "ops/cuda/kernels/linear_small.h"

namespace mimo::cuda {
namespace {

constexpr int kMostSmallRows = 32;
constexpr int kMostQuantCols = 16384;  // of launch_rms_norm_quant and launch_silu_mul_quant

}  // namespace

std::vector<std::string> CudaLinear::describe() const {
  if (!fast_) return {"linear layers: plain fp32 arithmetic"};
  return {
      "linear layers up to 128 rows: streamed weights, mma; FP8 weights with FP8 activations, groups of 128",
      "linear layers of more rows: wgmma with TMA"};
}

bool CudaLinear::takes_small(const LinearWeight& weight, int rows) const {
  if (!fast_ || rows >= kLargeLinearRows || weight.format == LinearFormat::kF32 || weight.cols % 8 != 0)
    return false;
  // Where both kernels give the same bits, the one for many rows takes over as soon as it is faster.
  return rows <= kMostSmallRows || weight.format != LinearFormat::kFp8 || weight.scale_rows != 64 ||
         !linear_small_whole(weight);
}

bool CudaLinear::takes_large(const LinearWeight& weight) const {
  return fast_ && weight.format != LinearFormat::kF32 && weight.cols % 8 == 0 &&
         (weight.format != LinearFormat::kFp8 || weight.scale_rows == 64);
}

void CudaLinear::run(const void* x, int rows, const LinearWeight& weight, void* y, ActType y_type, bool add) {
  if (rows == 0) return;
  LinearArgs args;
  args.x = x;
  args.x_type = type_;
  args.x_stride = weight.cols;
  args.y = y;
  args.y_type = y_type;
  args.y_stride = weight.rows;
  args.add = add;
  args.rows = rows;
  const bool small = takes_small(weight, rows);
  if (!small && !takes_large(weight)) {
    launch_linear_plain(args, weight, device_.stream());
    written(y);
    return;
  }
  const QuantRows* quant = nullptr;
  if (weight.format == LinearFormat::kFp8) {
    quantise(x, rows, weight.cols);
    quant = &quant_;
  }
  if (small) {
    launch_linear_small(args, quant, weight, workspace(weight, false), true, device_.stream());
  } else {
    launch_linear_large(args, quant, weight, true, device_.stream());
  }
  written(y);
}

bool CudaLinear::takes_best(const LinearWeight& weight) const {
  return fast_ && weight.format == LinearFormat::kBF16 && weight.cols % 8 == 0;
}

void CudaLinear::best(const void* x, int rows, const LinearWeight& weight, int count, std::int32_t* ids,
                      float* probabilities) {
  for (int first = 0; first < rows; first += kLinearSmallRows) {
    LinearArgs args;
    args.x = static_cast<const std::uint16_t*>(x) + static_cast<std::size_t>(first) * weight.cols;
    args.x_stride = weight.cols;
    args.rows = std::min(kLinearSmallRows, rows - first);
    BestArgs best;
    best.count = count;
    best.ids = ids + first;
    best.probabilities = probabilities == nullptr ? nullptr : probabilities + first;
    launch_linear_best(args, weight, best, workspace(weight, true), true, device_.stream());
  }
}

void CudaLinear::rms_norm(const float* x, int rows, const Vector& gain, float eps, void* out,
                          std::size_t out_stride) {
  const auto cols = static_cast<int>(gain.size());
  if (rows == 0) return;
  if (!fast_ || cols > kMostQuantCols || cols % 8 != 0) {
    cuda::rms_norm(x, rows, cols, gain.data(), eps, out, type_, out_stride, device_.stream());
    written(out);
    return;
  }
  const QuantRows quant = room(rows, cols);
  launch_rms_norm_quant(x, cols, rows, cols, gain.data(), eps, out, static_cast<std::int64_t>(out_stride),
                        quant, true, device_.stream());
  quantised_ = out_stride == gain.size() ? out : nullptr;
}

void CudaLinear::silu_mul(const void* gate_up, int rows, int inter, void* out) {
  if (rows == 0) return;
  if (!fast_ || inter > kMostQuantCols || inter % 8 != 0) {
    cuda::silu_mul(gate_up, rows, inter, out, type_, device_.stream());
    written(out);
    return;
  }
  launch_silu_mul_quant(gate_up, 2 * static_cast<std::int64_t>(inter), rows, inter, out, inter,
                        room(rows, inter), true, device_.stream());
  quantised_ = out;
}

// Where quantised rows go; what was there is gone.
QuantRows CudaLinear::room(int rows, int cols) {
  QuantRows quant;
  quant.stride = quant_stride(cols);
  quant.scale_stride = quant_scale_stride(rows);
  quant.values = quant_values_.reserve(ops_, static_cast<std::size_t>(rows * quant.stride));
  quant.scales =
      quant_scales_.reserve(ops_, static_cast<std::size_t>((cols + 127) / 128 * quant.scale_stride));
  quant_ = quant;
  quantised_ = nullptr;
  quantised_rows_ = rows;
  quantised_cols_ = cols;
  return quant;
}

void CudaLinear::quantise(const void* x, int rows, int cols) {
  if (quantised_ == x && quantised_rows_ == rows && quantised_cols_ == cols) return;
  launch_quant(x, cols, rows, cols, room(rows, cols), true, device_.stream());
  quantised_ = x;
}

void* CudaLinear::workspace(const LinearWeight& weight, bool best) {
  return device_.grow(workspace_, linear_small_workspace(weight, best), linear_small_counter_bytes());
}

}  // namespace mimo::cuda
