#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "ops/cuda/kernels/experts_plain.h"

namespace mimo::cuda {
namespace {

constexpr int kWarps = 8;  // of a block; each computes one output element

__device__ void load8(const float* p, float (&v)[8]) {
  const float4 a = reinterpret_cast<const float4*>(p)[0];
  const float4 b = reinterpret_cast<const float4*>(p)[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

__device__ void load8(const __nv_bfloat16* p, float (&v)[8]) {
  const uint4 raw = *reinterpret_cast<const uint4*>(p);
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(words[i] << 16);
    v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ float e2m1(std::uint32_t code) {
  const std::uint32_t magnitude = code & 7;
  // 0, 0.5, 1, 1.5, 2, 3, 4, 6
  const float value = magnitude < 2
                          ? 0.5f * static_cast<float>(magnitude)
                          : __uint_as_float((126 + (magnitude >> 1)) << 23) * (magnitude & 1 ? 1.5f : 1.0f);
  return code & 8 ? -value : value;
}

// 2^(byte - 127); byte 0 is a denormal.
__device__ float e8m0(std::uint32_t byte) { return __uint_as_float(byte == 0 ? 0x00400000u : byte << 23); }

// Columns [c, c + 8) of a row, dequantised.
template <MlpFormat F>
__device__ void load_weights(const MlpWeights& w, int expert, int row, int cols, int c, float (&v)[8]) {
  const auto* base = static_cast<const std::uint8_t*>(w.data) + expert * w.expert_stride;
  const std::int64_t at = static_cast<std::int64_t>(row) * cols + c;
  if constexpr (F == MlpFormat::kF32) {
    load8(reinterpret_cast<const float*>(base) + at, v);
  } else if constexpr (F == MlpFormat::kBF16) {
    load8(reinterpret_cast<const __nv_bfloat16*>(base) + at, v);
  } else if constexpr (F == MlpFormat::kFp8) {
    const uint2 raw = *reinterpret_cast<const uint2*>(base + at);
    const float scale = static_cast<const float*>(
        w.scales)[expert * w.scale_expert_stride + row / 128 * w.scale_stride + c / 128];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      __nv_fp8_e4m3 value;
      value.__x = static_cast<std::uint8_t>((i < 4 ? raw.x : raw.y) >> (i % 4 * 8));
      v[i] = static_cast<float>(value) * scale;
    }
  } else {
    const std::uint32_t raw = *reinterpret_cast<const std::uint32_t*>(base + at / 2);
    const float scale = e8m0(static_cast<const std::uint8_t*>(
        w.scales)[expert * w.scale_expert_stride + row * w.scale_stride + c / 32]);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = e2m1(raw >> (4 * i) & 15) * scale;
  }
}

__device__ float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

template <MlpFormat F, class X>
__device__ float dot(const X* x, const MlpWeights& w, int expert, int row, int cols) {
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x) * 8; c < cols; c += 32 * 8) {
    float a[8], b[8];
    load8(x + c, a);
    load_weights<F>(w, expert, row, cols, c, b);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(a[i], b[i], sum);
  }
  return warp_sum(sum);
}

__device__ int expert_of(const PlainExpertsArgs& args, std::int64_t pair) {
  const int id = args.ids == nullptr ? 0 : args.ids[pair];
  return id >= 0 && id < args.experts ? id : -1;
}

// workspace[pair][j] = silu(gate(x)) * up(x)
template <MlpFormat F, class X>
__global__ void plain_gate_up(const PlainExpertsArgs args) {
  const std::int64_t pair = blockIdx.x;
  const int j = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.y);
  const int expert = expert_of(args, pair);
  if (j >= args.inter || expert < 0) return;
  const X* x = static_cast<const X*>(args.x) + pair / args.top_k * args.hidden;
  const float g = dot<F>(x, args.gate, expert, j, args.hidden);
  const float u = dot<F>(x, args.up, expert, j, args.hidden);
  if (threadIdx.x == 0) args.workspace[pair * args.inter + j] = g / (1.0f + expf(-g)) * u;
}

template <MlpFormat F>
__global__ void plain_down(const PlainExpertsArgs args) {
  const std::int64_t row = blockIdx.x;
  const int j = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.y);
  if (j >= args.hidden) return;
  float sum = 0;
  bool any = false;
  for (int k = 0; k < args.top_k; ++k) {
    const std::int64_t pair = row * args.top_k + k;
    const int expert = expert_of(args, pair);
    if (expert < 0) continue;
    const float d = dot<F>(args.workspace + pair * args.inter, args.down, expert, j, args.inter);
    sum += (args.weights == nullptr ? 1.0f : args.weights[pair]) * d;
    any = true;
  }
  if (any && threadIdx.x == 0) args.y[row * args.hidden + j] += sum;
}

template <MlpFormat F>
cudaError_t launch(const PlainExpertsArgs& args, cudaStream_t stream) {
  const dim3 block(32, kWarps);
  const auto blocks_of = [](int n) { return static_cast<unsigned>((n + kWarps - 1) / kWarps); };
  const dim3 pairs(static_cast<unsigned>(args.rows) * static_cast<unsigned>(args.top_k),
                   blocks_of(args.inter));
  if (args.type == ActType::kF32) {
    plain_gate_up<F, float><<<pairs, block, 0, stream>>>(args);
  } else {
    plain_gate_up<F, __nv_bfloat16><<<pairs, block, 0, stream>>>(args);
  }
  plain_down<F><<<dim3(static_cast<unsigned>(args.rows), blocks_of(args.hidden)), block, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

std::size_t plain_experts_workspace(int rows, int top_k, int inter) {
  return sizeof(float) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(top_k) *
         static_cast<std::size_t>(inter);
}

cudaError_t launch_plain_experts(const PlainExpertsArgs& args, cudaStream_t stream) {
  if (args.rows <= 0) return cudaSuccess;
  const MlpFormat format = args.gate.format;
  if (args.up.format != format || args.down.format != format || args.hidden % 32 != 0 ||
      args.inter % 32 != 0) {
    return cudaErrorInvalidValue;
  }
  switch (format) {
    case MlpFormat::kF32:
      return launch<MlpFormat::kF32>(args, stream);
    case MlpFormat::kBF16:
      return launch<MlpFormat::kBF16>(args, stream);
    case MlpFormat::kFp8:
      return launch<MlpFormat::kFp8>(args, stream);
    case MlpFormat::kMxfp4:
      return launch<MlpFormat::kMxfp4>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace mimo::cuda
