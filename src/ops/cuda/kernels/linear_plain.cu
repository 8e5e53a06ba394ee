#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/linear_plain.h"

namespace mimo::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileN = 64;  // weight rows of a block of threads
constexpr int kTileM = 32;  // activation rows
constexpr int kTileK = 32;

__device__ float2 e4m3_pair(std::uint32_t two_bytes) {
  // One instruction from sm_89 on, arithmetic before.
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two_bytes), __NV_E4M3);
  return __half22float2(__half2(halves));
}

__device__ float2 bf16_pair(std::uint32_t two) {
  return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000U)};
}

// Eight elements of a row from column `col` on, a multiple of eight below the padded width.
template <LinearFormat kFormat>
__device__ void load_weights(const std::uint8_t* data, int row, int col, int k_blocks, float (&out)[8]) {
  if constexpr (kFormat == LinearFormat::kF32) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 v =
          *reinterpret_cast<const float4*>(data + linear_offset(row, (col + half * 4) * 4, k_blocks));
      out[half * 4] = v.x;
      out[half * 4 + 1] = v.y;
      out[half * 4 + 2] = v.z;
      out[half * 4 + 3] = v.w;
    }
  } else if constexpr (kFormat == LinearFormat::kBF16) {
    const uint4 v = *reinterpret_cast<const uint4*>(data + linear_offset(row, col * 2, k_blocks));
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = bf16_pair(words[i]);
      out[i * 2] = two.x;
      out[i * 2 + 1] = two.y;
    }
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(data + linear_offset(row, col, k_blocks));
    const std::uint32_t words[4] = {v.x & 0xffffU, v.x >> 16, v.y & 0xffffU, v.y >> 16};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = e4m3_pair(words[i]);
      out[i * 2] = two.x;
      out[i * 2 + 1] = two.y;
    }
  }
}

template <LinearFormat kFormat>
__global__ void __launch_bounds__(kThreads) linear_plain(LinearArgs args, LinearWeight weight) {
  __shared__ float ws[kTileK][kTileN + 1];
  __shared__ float xs[kTileK][kTileM + 1];
  const int thread = threadIdx.x;
  const int n0 = blockIdx.x * kTileN;
  const int m0 = blockIdx.y * kTileM;
  const int k_blocks = linear_k_blocks(kFormat, weight.cols);
  const auto* data = static_cast<const std::uint8_t*>(weight.data);
  const int tn = thread % 16;
  const int tm = thread / 16;
  float sum[4][2] = {};
  float part[4][2] = {};

  for (int k0 = 0; k0 < weight.cols; k0 += kTileK) {
    float w[8];
    load_weights<kFormat>(data, n0 + thread / 4, k0 + thread % 4 * 8, k_blocks, w);
    float x[4];
    const int x_row = m0 + thread / 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int col = k0 + thread % 8 * 4 + i;
      x[i] = 0;
      if (x_row < args.rows && col < weight.cols) {
        const std::int64_t at = x_row * args.x_stride + col;
        x[i] = args.x_type == ActType::kF32 ? static_cast<const float*>(args.x)[at]
                                            : __bfloat162float(static_cast<const __nv_bfloat16*>(args.x)[at]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) ws[thread % 4 * 8 + i][thread / 4] = w[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) xs[thread % 8 * 4 + i][thread / 8] = x[i];
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < kTileK; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) part[i][j] = fmaf(ws[k][tn + i * 16], xs[k][tm * 2 + j], part[i][j]);
      }
    }
    if constexpr (kFormat == LinearFormat::kFp8) {
      const bool block_ends = (k0 + kTileK) % kLinearScaleCols == 0 || k0 + kTileK >= weight.cols;
      if (block_ends) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int group = (n0 + tn + i * 16) / weight.scale_rows;
          const float scale =
              weight.scales[static_cast<std::size_t>(group) * k_blocks + k0 / kLinearScaleCols];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            sum[i][j] = fmaf(scale, part[i][j], sum[i][j]);
            part[i][j] = 0;
          }
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int n = n0 + tn + i * 16;
      const int m = m0 + tm * 2 + j;
      if (n >= weight.rows || m >= args.rows) continue;
      const float value = kFormat == LinearFormat::kFp8 ? sum[i][j] : part[i][j];
      const std::int64_t at = m * args.y_stride + n;
      if (args.y_type == ActType::kF32) {
        float* y = static_cast<float*>(args.y);
        y[at] = args.add ? y[at] + value : value;
      } else {
        static_cast<__nv_bfloat16*>(args.y)[at] = __float2bfloat16_rn(value);
      }
    }
  }
}

}  // namespace

void launch_linear_plain(const LinearArgs& args, const LinearWeight& weight, cudaStream_t stream) {
  if (args.rows == 0 || weight.rows == 0) return;
  // The padded rows of the layout reach to a multiple of 128, so that every block of threads may read whole.
  const dim3 grid(static_cast<unsigned>((weight.rows + kTileN - 1) / kTileN),
                  static_cast<unsigned>((args.rows + kTileM - 1) / kTileM));
  switch (weight.format) {
    case LinearFormat::kF32:
      linear_plain<LinearFormat::kF32><<<grid, kThreads, 0, stream>>>(args, weight);
      break;
    case LinearFormat::kBF16:
      linear_plain<LinearFormat::kBF16><<<grid, kThreads, 0, stream>>>(args, weight);
      break;
    case LinearFormat::kFp8:
      linear_plain<LinearFormat::kFp8><<<grid, kThreads, 0, stream>>>(args, weight);
      break;
  }
  MIMO_CUDA_LAUNCHED();
}

}  // namespace mimo::cuda
