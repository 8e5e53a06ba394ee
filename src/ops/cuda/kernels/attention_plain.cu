#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <stdexcept>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/attention_mask.cuh"
#include "ops/cuda/kernels/attention_plain.h"

namespace mimo::cuda {
namespace {

constexpr int kTile = 32;   // keys: one a lane
constexpr int kWarps = 8;   // of a block at most
constexpr int kHeads = 16;  // of a block at most: they share the keys
constexpr float kLog2e = 1.4426950408889634f;

__device__ float to_float(float x) { return x; }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float to_float(__nv_fp8_e4m3 x) { return static_cast<float>(x); }

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T value[4];
};

// A row of shared memory: four more floats than the dims, so that the lanes' 16-byte reads of 32 rows fall into
// different banks (a multiple of 4 floats, odd in units of 16 bytes).
__host__ __device__ constexpr int padded(int dim) {
  const int quads = (dim + 3) / 4;
  return 4 * (quads | 1);
}

// Copies `rows` heads of `dim` elements (those `valid`, with a page each) to shared memory as fp32, zero elsewhere.
template <class T>
__device__ void load_tile(const T* base, const float* scales, const KvView& kv, int head, int dim,
                          const std::int32_t* pages, int begin, VisibleKeys keys, float* tile) {
  const int width = padded(dim);
  const int quads = width / 4;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * quads; i += static_cast<int>(blockDim.x)) {
    const int slot = i / quads;
    const int d = (i - slot * quads) * 4;
    const int key = begin + slot;
    float4 x = {0, 0, 0, 0};
    if (key >= keys.first && key < keys.last && d < dim) {
      const int page = key / kv.page_size;
      const std::int64_t token =
          (static_cast<std::int64_t>(pages[page]) * kv.kv_heads + head) * kv.page_size +
          (key - page * kv.page_size);
      const T* from = base + token * dim + d;
      const float scale = scales == nullptr ? 1.0f : scales[token];
      if (dim % 4 == 0) {
        const Four<T> four = *reinterpret_cast<const Four<T>*>(from);
        x = {to_float(four.value[0]), to_float(four.value[1]), to_float(four.value[2]),
             to_float(four.value[3])};
      } else {
        x.x = to_float(from[0]);
        if (d + 1 < dim) x.y = to_float(from[1]);
        if (d + 2 < dim) x.z = to_float(from[2]);
        if (d + 3 < dim) x.w = to_float(from[3]);
      }
      x = {x.x * scale, x.y * scale, x.z * scale, x.w * scale};
    }
    *reinterpret_cast<float4*>(tile + slot * width + d) = x;
  }
}

// One block: one row, the heads of one KV head (16 of them at most). Each warp has kPerWarp heads. In a tile a lane
// scores one key; then it sums values of 4 * kQuads dims.
template <class Act, class Kv, int kPerWarp, int kQuads>
__global__ void __launch_bounds__(32 * kWarps) attention_plain_kernel(const AttentionArgs args) {
  extern __shared__ float shared[];
  const int row = args.sequences.total_rows - 1 - static_cast<int>(blockIdx.x);  // long rows first
  const int s = args.sequences.row_sequence[row];
  if (s < 0) return;
  const SequenceOf sequence = load_sequence(args.sequences, s);
  const int own_row = row - sequence.row_begin;
  if (own_row < 0 || own_row >= sequence.rows) return;

  const KvView& kv = args.kv;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int group = args.q_heads / kv.kv_heads;
  const int head_begin = kv_head * group + static_cast<int>(blockIdx.z) * kHeads;
  const int heads = min(kHeads, (kv_head + 1) * group - head_begin);
  const int qk_width = padded(kv.qk_dim);
  const int v_width = padded(kv.v_dim);
  float* q = shared;                // [heads][qk_width]
  float* k = q + heads * qk_width;  // [kTile][qk_width]
  float* v = k + kTile * qk_width;  // [kTile][v_width]

  const Act* from = static_cast<const Act*>(args.q) + row * args.q_stride;
  for (int i = static_cast<int>(threadIdx.x); i < heads * qk_width; i += static_cast<int>(blockDim.x)) {
    const int h = i / qk_width;
    const int d = i - h * qk_width;
    q[i] = d < kv.qk_dim ? to_float(from[(head_begin + h) * kv.qk_dim + d]) : 0.0f;
  }

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float top[kPerWarp];    // of the scores so far, in units of log 2
  float total[kPerWarp];  // of the weights: every lane its own part
  float4 sum[kPerWarp][kQuads];
  for (int p = 0; p < kPerWarp; ++p) {
    const int h = warp + p * warps;
    const bool sink = args.sinks != nullptr && h < heads;
    top[p] = sink ? args.sinks[head_begin + h] * kLog2e : -INFINITY;
    total[p] = sink && lane == 0 ? 1.0f : 0.0f;
    for (int i = 0; i < kQuads; ++i) sum[p][i] = {0, 0, 0, 0};
  }

  const VisibleKeys keys = visible_keys(args, sequence, own_row);
  const float scale = args.scale * kLog2e;
  for (int begin = keys.first / kTile * kTile; begin < keys.last; begin += kTile) {
    __syncthreads();  // the tile before has been read
    load_tile(static_cast<const Kv*>(kv.k), kv.k_scale, kv, kv_head, kv.qk_dim, sequence.pages, begin, keys,
              k);
    load_tile(static_cast<const Kv*>(kv.v), kv.v_scale, kv, kv_head, kv.v_dim, sequence.pages, begin, keys,
              v);
    __syncthreads();
    const int first = max(keys.first - begin, 0);
    const int last = min(keys.last - begin, kTile);

    float weight[kPerWarp];
    for (int p = 0; p < kPerWarp; ++p) weight[p] = 0;
    for (int d = 0; d < qk_width; d += 4) {
      const float4 x = *reinterpret_cast<const float4*>(k + lane * qk_width + d);
#pragma unroll
      for (int p = 0; p < kPerWarp; ++p) {
        const int h = min(warp + p * warps, heads - 1);
        const float4 y = *reinterpret_cast<const float4*>(q + h * qk_width + d);
        weight[p] = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, weight[p]))));
      }
    }
#pragma unroll
    for (int p = 0; p < kPerWarp; ++p) {
      const float score = lane >= first && lane < last ? weight[p] * scale : -INFINITY;
      float best = score;
      for (int step = 16; step > 0; step /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, step));
      best = fmaxf(best, top[p]);
      // All scores -inf (or a NaN among them, which fmaxf drops): what follows must not subtract two infinities.
      const float base = best == -INFINITY ? 0.0f : best;
      const float keep = exp2f(top[p] - base);
      weight[p] = exp2f(score - base);
      top[p] = best;
      total[p] = total[p] * keep + weight[p];
      for (int i = 0; i < kQuads; ++i) {
        sum[p][i] = {sum[p][i].x * keep, sum[p][i].y * keep, sum[p][i].z * keep, sum[p][i].w * keep};
      }
    }
    for (int slot = first; slot < last; ++slot) {
      float w[kPerWarp];
#pragma unroll
      for (int p = 0; p < kPerWarp; ++p) w[p] = __shfl_sync(~0u, weight[p], slot);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const int d = (lane + 32 * i) * 4;
        if (d >= v_width) break;
        const float4 x = *reinterpret_cast<const float4*>(v + slot * v_width + d);
#pragma unroll
        for (int p = 0; p < kPerWarp; ++p) {
          float4& to = sum[p][i];
          to = {fmaf(w[p], x.x, to.x), fmaf(w[p], x.y, to.y), fmaf(w[p], x.z, to.z), fmaf(w[p], x.w, to.w)};
        }
      }
    }
  }

  for (int p = 0; p < kPerWarp; ++p) {
    const int h = warp + p * warps;
    float all = total[p];
    for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(~0u, all, step);
    if (h >= heads) continue;
    const float share = 1.0f / all;
    Act* to = static_cast<Act*>(args.out) +
              (static_cast<std::int64_t>(row) * args.q_heads + head_begin + h) * kv.v_dim;
    for (int i = 0; i < kQuads; ++i) {
      const float value[4] = {sum[p][i].x, sum[p][i].y, sum[p][i].z, sum[p][i].w};
      for (int j = 0; j < 4; ++j) {
        const int d = (lane + 32 * i) * 4 + j;
        if (d < kv.v_dim) to[d] = static_cast<Act>(value[j] * share);
      }
    }
  }
}

template <class Act, class Kv, int kPerWarp, int kQuads>
void launch(const AttentionArgs& args, dim3 grid, int threads, int bytes, cudaStream_t stream) {
  const auto kernel = attention_plain_kernel<Act, Kv, kPerWarp, kQuads>;
  MIMO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid, threads, static_cast<std::size_t>(bytes), stream>>>(args);
  MIMO_CUDA_LAUNCHED();
}

template <class Act, class Kv>
void dispatch(const AttentionArgs& args, cudaStream_t stream) {
  const int group = args.q_heads / args.kv.kv_heads;
  const int heads = std::min(group, kHeads);
  const int warps = std::min(heads, kWarps);
  const dim3 grid(static_cast<unsigned>(args.sequences.total_rows), static_cast<unsigned>(args.kv.kv_heads),
                  static_cast<unsigned>((group + kHeads - 1) / kHeads));
  const int bytes = 4 * ((heads + kTile) * padded(args.kv.qk_dim) + kTile * padded(args.kv.v_dim));
  if (args.kv.v_dim > 128) {
    launch<Act, Kv, 2, 2>(args, grid, 32 * warps, bytes, stream);
  } else if (heads > warps) {
    launch<Act, Kv, 2, 1>(args, grid, 32 * warps, bytes, stream);
  } else {
    launch<Act, Kv, 1, 1>(args, grid, 32 * warps, bytes, stream);
  }
}

}  // namespace

void attention_plain(const AttentionArgs& args, cudaStream_t stream) {
  if (args.kv.qk_dim > kPlainMaxDim || args.kv.v_dim > kPlainMaxDim) {
    throw std::invalid_argument("attention_plain: a head is wider than 256");
  }
  if (args.sequences.total_rows == 0) return;
  if (args.type == ActType::kF32) {
    args.kv.fp8 ? dispatch<float, __nv_fp8_e4m3>(args, stream) : dispatch<float, __nv_bfloat16>(args, stream);
  } else {
    args.kv.fp8 ? dispatch<__nv_bfloat16, __nv_fp8_e4m3>(args, stream)
                : dispatch<__nv_bfloat16, __nv_bfloat16>(args, stream);
  }
}

}  // namespace mimo::cuda
