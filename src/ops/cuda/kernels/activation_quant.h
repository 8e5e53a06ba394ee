// Activations on their way into FP8 linear layers (spec model 3.3): per row and 128 columns,
// s = max(max|x|, 1e-10) / 448 in fp32 and q = E4M3(x / s), nearest even, where x is a bf16 value.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace mimo::cuda {

// Quantised rows. Scales of one block of columns lie together, as kernels read them.
struct QuantRows {
  std::uint8_t* values = nullptr;  // [rows][stride] E4M3; stride is a multiple of 16 and at least the columns
  float* scales = nullptr;         // [ceil(cols / 128)][scale_stride]; kernels may read (not use) all of it
  std::int64_t stride = 0;
  std::int64_t scale_stride = 0;  // a multiple of 128, at least the rows
};

constexpr std::int64_t quant_stride(std::int64_t cols) { return (cols + 15) / 16 * 16; }
constexpr std::int64_t quant_scale_stride(std::int64_t rows) { return (rows + 127) / 128 * 128; }

// x [rows][x_stride] fp32 -> x / sqrt(mean(x^2) + eps) * weight, computed in fp32 and rounded once to bf16. Writes
// that to `out` [rows][out_stride] (if not null) and quantises it into `quant` (if its values are not null).
// cols <= 16384. `overlap`, here and below: the launch may start before the kernel before it on the stream has ended
// (it reads the gains meanwhile), and lets the next one do so.
void launch_rms_norm_quant(const float* x, std::int64_t x_stride, int rows, int cols, const float* weight,
                           float eps, void* out, std::int64_t out_stride, const QuantRows& quant,
                           bool overlap, cudaStream_t stream);

// Quantises bf16 rows x [rows][x_stride].
void launch_quant(const void* x, std::int64_t x_stride, int rows, int cols, const QuantRows& quant,
                  bool overlap, cudaStream_t stream);

// bf16 rows x [rows][x_stride] of a gate (columns [0, cols)) and an up projection ([cols, 2 cols)) ->
// bf16(silu(gate) * up), computed in fp32; to `out` and `quant` as launch_rms_norm_quant.
void launch_silu_mul_quant(const void* x, std::int64_t x_stride, int rows, int cols, void* out,
                           std::int64_t out_stride, const QuantRows& quant, bool overlap,
                           cudaStream_t stream);

}  // namespace mimo::cuda
