#include <cuda_bf16.h>

#include <stdexcept>
#include <utility>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/activation_quant.h"
#include "ops/cuda/kernels/linear_ptx.cuh"

namespace mimo::cuda {
namespace {

constexpr int kGroup = 128;
constexpr int kEach = 8;  // columns of a thread at a time; 16 threads have a group

__device__ void load8(const float* row, int col, int cols, float (&v)[kEach]) {
  if (col + kEach <= cols && reinterpret_cast<std::uintptr_t>(row + col) % 16 == 0) {
    const float4 a = *reinterpret_cast<const float4*>(row + col);
    const float4 b = *reinterpret_cast<const float4*>(row + col + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[i] = col + i < cols ? row[col + i] : 0.0F;
  }
}

__device__ void load8(const __nv_bfloat16* row, int col, int cols, float (&v)[kEach]) {
  if (col + kEach <= cols && reinterpret_cast<std::uintptr_t>(row + col) % 16 == 0) {
    const uint4 a = *reinterpret_cast<const uint4*>(row + col);
    const std::uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i * 2] = __uint_as_float(words[i] << 16);
      v[i * 2 + 1] = __uint_as_float(words[i] & 0xffff0000U);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[i] = col + i < cols ? __bfloat162float(row[col + i]) : 0.0F;
  }
}

__device__ void store8(__nv_bfloat16* row, int col, int cols, const float (&v)[kEach]) {
  if (col + kEach <= cols && reinterpret_cast<std::uintptr_t>(row + col) % 16 == 0) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(v[i * 2], v[i * 2 + 1]);
      words[i] = *reinterpret_cast<const std::uint32_t*>(&two);
    }
    *reinterpret_cast<uint4*>(row + col) = {words[0], words[1], words[2], words[3]};
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (col + i < cols) row[col + i] = __float2bfloat16_rn(v[i]);
    }
  }
}

__device__ std::uint32_t e4m3_pair(float low, float high) {
  std::uint16_t two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
  return two;
}

// The 16 threads of a group call this together with their columns of a row; columns past the end are zeros.
__device__ void quantize8(const QuantRows& quant, int row, int col, int cols, const float (&v)[kEach]) {
  float largest = 1e-10F;
  // NaN must reach the scale, which fmax would drop.
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    largest = fmaxf(largest, fabsf(v[i]));
    nan = nan || v[i] != v[i];
  }
  if (nan) largest = __int_as_float(0x7fffffff);
#pragma unroll
  for (int step = 1; step < 16; step *= 2) {
    const float other = __shfl_xor_sync(0xffffffffU, largest, step);
    largest = largest != largest || other != other ? __int_as_float(0x7fffffff) : fmaxf(largest, other);
  }
  if (col >= cols) return;
  const float scale = __fdiv_rn(largest, 448.0F);
  const float inverse = __frcp_rn(scale);
  // x / scale, correctly rounded: a quotient from the rounded reciprocal, corrected by its remainder.
  const auto divide = [&](float x) {
    const float quotient = x * inverse;
    return fmaf(fmaf(-quotient, scale, x), inverse, quotient);
  };
  std::uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t low = e4m3_pair(divide(v[i * 4]), divide(v[i * 4 + 1]));
    const std::uint32_t high = e4m3_pair(divide(v[i * 4 + 2]), divide(v[i * 4 + 3]));
    words[i] = low | high << 16;
  }
  *reinterpret_cast<uint2*>(quant.values + row * quant.stride + col) = {words[0], words[1]};
  if (col % kGroup == 0) quant.scales[(col / kGroup) * quant.scale_stride + row] = scale;
}

__device__ void round_to_bf16(float (&v)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) v[i] = __bfloat162float(__float2bfloat16_rn(v[i]));
}

// One row a block; a thread keeps its columns in registers between the two passes.
template <int kThreads, int kPasses>
__global__ void __launch_bounds__(kThreads)
    rms_norm_quant(const float* x, std::int64_t x_stride, int cols, const float* weight, float eps,
                   __nv_bfloat16* out, std::int64_t out_stride, QuantRows quant) {
  __shared__ float sums[kThreads / 32];
  const int row = blockIdx.x;
  const int thread = threadIdx.x;
  const float* from = x + row * x_stride;
  float v[kPasses][kEach];
  float w[kPasses][kEach];
  ptx::let_next_kernel_start();
#pragma unroll
  for (int p = 0; p < kPasses; ++p) load8(weight, (p * kThreads + thread) * kEach, cols, w[p]);
  ptx::wait_for_previous_kernel();
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPasses; ++p) {
    load8(from, (p * kThreads + thread) * kEach, cols, v[p]);
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum = fmaf(v[p][i], v[p][i], sum);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, step);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) sum += sums[w];
  const float factor = rsqrtf(sum / static_cast<float>(cols) + eps);
#pragma unroll
  for (int p = 0; p < kPasses; ++p) {
    const int col = (p * kThreads + thread) * kEach;
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[p][i] *= factor * w[p][i];
    round_to_bf16(v[p]);
    if (out != nullptr) store8(out + row * out_stride, col, cols, v[p]);
    if (quant.values != nullptr) quantize8(quant, row, col, cols, v[p]);
  }
}

constexpr int kQuantThreads = 128;

template <bool kSiluMul>
__global__ void __launch_bounds__(kQuantThreads)
    quant_rows(const __nv_bfloat16* x, std::int64_t x_stride, int cols, __nv_bfloat16* out,
               std::int64_t out_stride, QuantRows quant) {
  const int row = blockIdx.x;
  const int col = static_cast<int>(blockIdx.y * kQuantThreads + threadIdx.x) * kEach;
  const __nv_bfloat16* from = x + row * x_stride;
  float v[kEach];
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  load8(from, col, cols, v);
  if constexpr (kSiluMul) {
    float up[kEach];
    load8(from + cols, col, cols, up);
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[i] = v[i] / (1.0F + __expf(-v[i])) * up[i];
    round_to_bf16(v);
    if (out != nullptr) store8(out + row * out_stride, col, cols, v);
  }
  if (quant.values != nullptr) quantize8(quant, row, col, cols, v);
}

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, bool overlap, cudaStream_t stream,
            Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  MIMO_CUDA(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

dim3 quant_grid(int rows, int cols) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>((cols + kQuantThreads * kEach - 1) / (kQuantThreads * kEach)));
}

}  // namespace

void launch_rms_norm_quant(const float* x, std::int64_t x_stride, int rows, int cols, const float* weight,
                           float eps, void* out, std::int64_t out_stride, const QuantRows& quant,
                           bool overlap, cudaStream_t stream) {
  if (rows == 0) return;
  auto* to = static_cast<__nv_bfloat16*>(out);
  const auto run = [&](auto kernel, int threads) {
    launch(kernel, dim3(static_cast<unsigned>(rows)), threads, overlap, stream, x, x_stride, cols, weight,
           eps, to, out_stride, quant);
  };
  if (cols <= 2048) {
    run(rms_norm_quant<256, 1>, 256);
  } else if (cols <= 4096) {
    run(rms_norm_quant<256, 2>, 256);
  } else if (cols <= 6144) {
    run(rms_norm_quant<384, 2>, 384);
  } else if (cols <= 16384) {
    run(rms_norm_quant<512, 4>, 512);
  } else {
    throw std::invalid_argument("rms_norm_quant: more than 16384 columns");
  }
}

void launch_quant(const void* x, std::int64_t x_stride, int rows, int cols, const QuantRows& quant,
                  bool overlap, cudaStream_t stream) {
  if (rows == 0) return;
  launch(quant_rows<false>, quant_grid(rows, cols), kQuantThreads, overlap, stream,
         static_cast<const __nv_bfloat16*>(x), x_stride, cols, static_cast<__nv_bfloat16*>(nullptr),
         std::int64_t{0}, quant);
}

void launch_silu_mul_quant(const void* x, std::int64_t x_stride, int rows, int cols, void* out,
                           std::int64_t out_stride, const QuantRows& quant, bool overlap,
                           cudaStream_t stream) {
  if (rows == 0) return;
  launch(quant_rows<true>, quant_grid(rows, cols), kQuantThreads, overlap, stream,
         static_cast<const __nv_bfloat16*>(x), x_stride, cols, static_cast<__nv_bfloat16*>(out), out_stride,
         quant);
}

}  // namespace mimo::cuda
