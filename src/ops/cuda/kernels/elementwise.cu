#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/activation.cuh"
#include "ops/cuda/kernels/elementwise.h"
#include "ops/cuda/kernels/overlap.cuh"

namespace mimo::cuda {
namespace {

constexpr int kThreads = 256;

int blocks_for(std::size_t count) { return static_cast<int>((count + kThreads - 1) / kThreads); }
bool aligned(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; }
int blocks_of_warps(int count) { return (count + kThreads / 32 - 1) / (kThreads / 32); }

// A thread has 16 bytes of a row, which lie together.
__global__ void embed_kernel(LinearWeight table, const std::int32_t* ids, float* out) {
  wait_for_kernel_before();
  const int row = ids[blockIdx.y];
  const int element = linear_element_bytes(table.format);
  const int byte = (blockIdx.x * blockDim.x + threadIdx.x) * 16;
  const int first = byte / element;
  if (first >= table.cols) return;
  const uint4 piece =
      *reinterpret_cast<const uint4*>(static_cast<const std::uint8_t*>(table.data) +
                                      linear_offset(row, byte, linear_k_blocks(table.format, table.cols)));
  float* to = out + static_cast<std::size_t>(blockIdx.y) * table.cols + first;
  const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
  float values[8];
  int count = 16 / element;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (element == 4) {
      values[i] = __uint_as_float(words[i]);
    } else {
      values[2 * i] = __uint_as_float(words[i] << 16);
      values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  if (table.cols % 4 == 0 && first + count <= table.cols) {
    reinterpret_cast<float4*>(to)[0] = make_float4(values[0], values[1], values[2], values[3]);
    if (count == 8)
      reinterpret_cast<float4*>(to)[1] = make_float4(values[4], values[5], values[6], values[7]);
    return;
  }
  count = min(count, table.cols - first);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) to[i] = values[i];
  }
}

template <class Word>
__global__ void gather_kernel(Word* to, const Word* from, std::size_t words, const std::int32_t* index) {
  wait_for_kernel_before();
  const std::size_t row = index[blockIdx.y];
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    to[blockIdx.y * words + i] = from[row * words + i];
  }
}

template <class T>
__global__ void round_kernel(const float* x, std::size_t count, T* out) {
  wait_for_kernel_before();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) store_act(out + i, x[i]);
}

__device__ float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < blockDim.x / 32; ++w) total += shared[w];
  return total;
}

template <class T>
__global__ void rms_norm_kernel(const float* x, int width, const float* gain, float eps, T* out,
                                std::size_t out_stride) {
  wait_for_kernel_before();
  __shared__ float shared[kThreads / 32];
  const float* row = x + static_cast<std::size_t>(blockIdx.x) * width;
  T* to = out + static_cast<std::size_t>(blockIdx.x) * out_stride;
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += kThreads) sum += row[i] * row[i];
  const float scale = 1.0f / sqrtf(block_sum(sum, shared) / static_cast<float>(width) + eps);
  for (int i = threadIdx.x; i < width; i += kThreads) store_act(to + i, row[i] * scale * gain[i]);
}

__device__ void store_four(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }
__device__ void store_four(__nv_bfloat16* to, float4 x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x.z, x.w);
  *reinterpret_cast<uint2*>(to) = {*reinterpret_cast<const std::uint32_t*>(&low),
                                   *reinterpret_cast<const std::uint32_t*>(&high)};
}

// The same for at most kThreads * kFours fours of columns, aligned to 16 bytes: a row is read once.
template <class T, int kThreads, int kFours>
__global__ void __launch_bounds__(kThreads)
    rms_norm_fours(const float* x, int width, const float* gain, float eps, T* out, std::size_t out_stride) {
  __shared__ float shared[kThreads / 32];
  const int fours = width / 4;
  float4 g[kFours];
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int at = i * kThreads + threadIdx.x;
    g[i] = at < fours ? reinterpret_cast<const float4*>(gain)[at] : make_float4(0, 0, 0, 0);
  }
  wait_for_kernel_before();
  const auto* row = reinterpret_cast<const float4*>(x + static_cast<std::size_t>(blockIdx.x) * width);
  float4 v[kFours];
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int at = i * kThreads + threadIdx.x;
    v[i] = at < fours ? row[at] : make_float4(0, 0, 0, 0);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kFours; ++i)
    sum += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
  const float scale = 1.0f / sqrtf(block_sum(sum, shared) / static_cast<float>(width) + eps);
  T* to = out + static_cast<std::size_t>(blockIdx.x) * out_stride;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int at = i * kThreads + threadIdx.x;
    if (at >= fours) continue;
    store_four(to + at * 4, make_float4(v[i].x * scale * g[i].x, v[i].y * scale * g[i].y,
                                        v[i].z * scale * g[i].z, v[i].w * scale * g[i].w));
  }
}

// A warp a head.
template <class T>
__global__ void rms_norm_heads_kernel(T* x, std::size_t row_stride, int heads, int total, int width,
                                      const float* gain, float eps) {
  wait_for_kernel_before();
  const int index = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  if (index >= total) return;
  T* head = x + static_cast<std::size_t>(index / heads) * row_stride +
            static_cast<std::size_t>(index % heads) * width;
  float sum = 0;
  for (int i = threadIdx.x % 32; i < width; i += 32) sum += load_act(head + i) * load_act(head + i);
  const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(width) + eps);
  for (int i = threadIdx.x % 32; i < width; i += 32)
    store_act(head + i, load_act(head + i) * scale * gain[i]);
}

// Stores `count` values of one head, a warp together.
template <class T>
__device__ void store_head(const T* x, int count, float multiplier, void* to, float* scale_at, bool fp8,
                           std::size_t slot) {
  const int lane = threadIdx.x % 32;
  if (!fp8) {
    auto* out = static_cast<__nv_bfloat16*>(to) + slot * count;
    for (int i = lane; i < count; i += 32) out[i] = __float2bfloat16_rn(load_act(x + i) * multiplier);
    return;
  }
  float top = 1e-10f;
  for (int i = lane; i < count; i += 32) top = fmaxf(top, fabsf(load_act(x + i) * multiplier));
  const float scale = warp_max(top) / 448.0f;
  auto* out = static_cast<std::uint8_t*>(to) + slot * count;
  for (int i = lane; i < count; i += 32) {
    out[i] = __nv_cvt_float_to_fp8(load_act(x + i) * multiplier / scale, __NV_SATFINITE, __NV_E4M3);
  }
  if (lane == 0) scale_at[slot] = scale;
}

// A warp a head of a row: queries, then keys, then values.
template <class T>
__global__ void rope_and_store_kernel(RopeStoreArgs args) {
  wait_for_kernel_before();
  const int row = blockIdx.x;
  const int sequence = args.sequences.row_sequence[row];
  if (sequence < 0) return;
  const int position = args.sequences.position[sequence] + row - args.sequences.row_begin[sequence];
  const int heads = args.q_heads + 2 * args.kv.kv_heads;
  const int page_size = args.kv.page_size;
  const std::int64_t page =
      args.sequences
          .pages[static_cast<std::int64_t>(sequence) * args.sequences.page_stride + position / page_size];
  T* x = static_cast<T*>(args.qkv) + static_cast<std::size_t>(row) * args.row_stride;
  const int half = args.rotary_dims / 2;
  const int lane = threadIdx.x % 32;
  for (int h = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32; h < heads;
       h += gridDim.y * (blockDim.x / 32)) {
    const int kv_head =
        h < args.q_heads + args.kv.kv_heads ? h - args.q_heads : h - args.q_heads - args.kv.kv_heads;
    const std::size_t slot =
        (static_cast<std::size_t>(page) * args.kv.kv_heads + kv_head) * page_size + position % page_size;
    if (h >= args.q_heads + args.kv.kv_heads) {
      const T* value = x + static_cast<std::size_t>(args.q_heads + args.kv.kv_heads) * args.kv.qk_dim +
                       static_cast<std::size_t>(kv_head) * args.kv.v_dim;
      store_head(value, args.kv.v_dim, args.value_scale, args.kv.v, args.kv.v_scale, args.kv.fp8, slot);
      continue;
    }
    T* head = x + static_cast<std::size_t>(h) * args.kv.qk_dim;
    for (int i = lane; i < half; i += 32) {
      const float angle = static_cast<float>(position) * args.inverse_frequencies[i];
      const float cos = cosf(angle);
      const float sin = sinf(angle);
      const float a = load_act(head + i);
      const float b = load_act(head + i + half);
      store_act(head + i, a * cos - b * sin);
      store_act(head + i + half, b * cos + a * sin);
    }
    __syncwarp();
    if (h >= args.q_heads) {
      store_head(head, args.kv.qk_dim, 1.0f, args.kv.k, args.kv.k_scale, args.kv.fp8, slot);
    }
  }
}

// A value as it is after it has been stored.
__device__ float rounded(const float*, float x) { return x; }
__device__ float rounded(const __nv_bfloat16*, float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

// store_head of values in registers: lane l has x[i] of element l + 32 i.
template <int kEach>
__device__ void store_head_from(const float (&x)[kEach], void* to, float* scale_at, bool fp8,
                                std::size_t slot) {
  const int lane = threadIdx.x % 32;
  if (!fp8) {
    auto* out = static_cast<__nv_bfloat16*>(to) + slot * (kEach * 32) + lane;
#pragma unroll
    for (int i = 0; i < kEach; ++i) out[i * 32] = __float2bfloat16_rn(x[i]);
    return;
  }
  float top = 1e-10f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) top = fmaxf(top, fabsf(x[i]));
  const float scale = warp_max(top) / 448.0f;
  auto* out = static_cast<std::uint8_t*>(to) + slot * (kEach * 32) + lane;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    out[i * 32] = __nv_cvt_float_to_fp8(x[i] / scale, __NV_SATFINITE, __NV_E4M3);
  if (lane == 0) scale_at[slot] = scale;
}

// rope_and_store for heads of kQk * 32 and kV * 32 elements of which kHalf * 64 are rotated: a head is read once, while
// the tables are looked up.
template <class T, int kQk, int kV, int kHalf>
__global__ void __launch_bounds__(kThreads) rope_and_store_registers(RopeStoreArgs args) {
  const int lane = threadIdx.x % 32;
  float frequency[kHalf];
#pragma unroll
  for (int i = 0; i < kHalf; ++i) frequency[i] = args.inverse_frequencies[lane + i * 32];
  wait_for_kernel_before();
  const int row = blockIdx.x;
  const int keys_end = args.q_heads + args.kv.kv_heads;
  const int h = blockIdx.y * (kThreads / 32) + threadIdx.x / 32;
  if (h >= keys_end + args.kv.kv_heads) return;
  const int sequence = args.sequences.row_sequence[row];
  T* x = static_cast<T*>(args.qkv) + static_cast<std::size_t>(row) * args.row_stride + lane;
  const bool is_value = h >= keys_end;
  x += is_value ? static_cast<std::size_t>(keys_end) * (kQk * 32) +
                      static_cast<std::size_t>(h - keys_end) * (kV * 32)
                : static_cast<std::size_t>(h) * (kQk * 32);
  // All of a key, what is rotated of a query.
  float v[kQk];
#pragma unroll
  for (int i = 0; i < kQk; ++i) {
    const bool wanted = is_value ? i < kV : i < 2 * kHalf || h >= args.q_heads;
    v[i] = wanted ? load_act(x + i * 32) : 0.0f;
  }
  if (sequence < 0) return;
  const int position = args.sequences.position[sequence] + row - args.sequences.row_begin[sequence];
  std::size_t slot = 0;
  if (h >= args.q_heads) {
    const int page_size = args.kv.page_size;
    const std::int64_t page =
        args.sequences
            .pages[static_cast<std::int64_t>(sequence) * args.sequences.page_stride + position / page_size];
    const int kv_head = h - (is_value ? keys_end : args.q_heads);
    slot = (static_cast<std::size_t>(page) * args.kv.kv_heads + kv_head) * page_size + position % page_size;
  }
  if (is_value) {
    float scaled[kV];
#pragma unroll
    for (int i = 0; i < kV; ++i) scaled[i] = v[i] * args.value_scale;
    store_head_from(scaled, args.kv.v, args.kv.v_scale, args.kv.fp8, slot);
    return;
  }
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float angle = static_cast<float>(position) * frequency[i];
    const float cos = cosf(angle);
    const float sin = sinf(angle);
    const float a = v[i];
    const float b = v[i + kHalf];
    v[i] = rounded(x, a * cos - b * sin);
    v[i + kHalf] = rounded(x, b * cos + a * sin);
    store_act(x + i * 32, v[i]);
    store_act(x + (i + kHalf) * 32, v[i + kHalf]);
  }
  if (h >= args.q_heads) store_head_from(v, args.kv.k, args.kv.k_scale, args.kv.fp8, slot);
}

template <class T>
bool launch_rope_registers(const RopeStoreArgs& args, cudaStream_t stream) {
  const int heads = args.q_heads + 2 * args.kv.kv_heads;
  const dim3 grid(args.sequences.total_rows, blocks_of_warps(heads));
  const auto is = [&](int qk, int v, int rotary) {
    return args.kv.qk_dim == qk && args.kv.v_dim == v && args.rotary_dims == rotary;
  };
  if (is(192, 128, 64)) {
    launch_overlapped(rope_and_store_registers<T, 6, 4, 1>, grid, kThreads, stream, args);
  } else if (is(128, 128, 128)) {
    launch_overlapped(rope_and_store_registers<T, 4, 4, 2>, grid, kThreads, stream, args);
  } else if (is(128, 128, 64)) {
    launch_overlapped(rope_and_store_registers<T, 4, 4, 1>, grid, kThreads, stream, args);
  } else {
    return false;
  }
  return true;
}

template <class T>
__global__ void silu_mul_kernel(const T* gate_up, int inter, T* out) {
  wait_for_kernel_before();
  const std::size_t row = blockIdx.y;
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= inter) return;
  const float gate = load_act(gate_up + row * 2 * inter + i);
  const float up = load_act(gate_up + row * 2 * inter + inter + i);
  store_act(out + row * inter + i, gate / (1.0f + expf(-gate)) * up);
}

struct Best {
  float value;
  int id;
};
__device__ Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

constexpr int kBestThreads = 1024;

__global__ void best_tokens_kernel(const float* logits, std::size_t row_stride, int count, std::int32_t* ids,
                                   float* probabilities) {
  __shared__ Best bests[kBestThreads / 32];
  __shared__ float sums[kBestThreads / 32];
  __shared__ int finite;
  const float* row = logits + static_cast<std::size_t>(blockIdx.x) * row_stride;
  if (threadIdx.x == 0) finite = 1;
  __syncthreads();
  Best best{-INFINITY, count};
  bool all = true;
  for (int i = threadIdx.x; i < count; i += kBestThreads) {
    const float x = row[i];
    all = all && isfinite(x);
    if (x > best.value || best.id == count) best = better(best, {x, i});
  }
  if (!all) atomicAnd(&finite, 0);
  for (int step = 16; step > 0; step /= 2) {
    best = better(
        best, {__shfl_xor_sync(0xffffffffu, best.value, step), __shfl_xor_sync(0xffffffffu, best.id, step)});
  }
  if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
  __syncthreads();
  for (int w = 0; w < kBestThreads / 32; ++w) best = better(best, bests[w]);
  if (threadIdx.x == 0) ids[blockIdx.x] = finite != 0 ? best.id : -1;
  if (probabilities == nullptr) return;
  float sum = 0;
  for (int i = threadIdx.x; i < count; i += kBestThreads) sum += expf(row[i] - best.value);
  const float total = block_sum(sum, sums);
  if (threadIdx.x == 0) {
    probabilities[blockIdx.x] = finite != 0 ? 1.0f / total : NAN;
  }
}

}  // namespace

void embed_rows(const LinearWeight& table, const std::int32_t* ids, int count, float* out,
                cudaStream_t stream) {
  if (count == 0) return;
  const int pieces = (table.cols * linear_element_bytes(table.format) + 15) / 16;
  launch_overlapped(embed_kernel, dim3(blocks_for(pieces), count), kThreads, stream, table, ids, out);
}

void gather_rows(void* to, const void* from, std::size_t bytes, const std::int32_t* index, int count,
                 cudaStream_t stream) {
  if (count == 0) return;
  const auto launch = [&](auto* word) {
    using Word = std::remove_pointer_t<decltype(word)>;
    const std::size_t words = bytes / sizeof(Word);
    launch_overlapped(gather_kernel<Word>, dim3(std::min(blocks_for(words), 64), count), kThreads, stream,
                      static_cast<Word*>(to), static_cast<const Word*>(from), words, index);
  };
  if (aligned(to) && aligned(from) && bytes % 16 == 0) {
    launch(static_cast<uint4*>(nullptr));
  } else {
    launch(static_cast<std::uint32_t*>(nullptr));
  }
}

void round_to_act(const float* x, std::size_t count, void* out, ActType type, cudaStream_t stream) {
  if (count == 0) return;
  with_act(type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    launch_overlapped(round_kernel<Element>, blocks_for(count), kThreads, stream, x, count,
                      static_cast<Element*>(out));
  });
}

void rms_norm(const float* x, int rows, int width, const float* gain, float eps, void* out, ActType type,
              std::size_t out_stride, cudaStream_t stream) {
  if (rows == 0) return;
  with_act(type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    const auto launch = [&](auto kernel, int threads) {
      launch_overlapped(kernel, rows, threads, stream, x, width, gain, eps, static_cast<Element*>(out),
                        out_stride);
    };
    const bool fours = width % 4 == 0 && out_stride % 4 == 0 && aligned(x) && aligned(gain) && aligned(out);
    if (!fours || width > 16384) return launch(rms_norm_kernel<Element>, kThreads);
    if (width <= 1024) return launch(rms_norm_fours<Element, 256, 1>, 256);
    if (width <= 4096) return launch(rms_norm_fours<Element, 512, 2>, 512);
    if (width <= 8192) return launch(rms_norm_fours<Element, 512, 4>, 512);
    launch(rms_norm_fours<Element, 1024, 4>, 1024);
  });
}

void rms_norm_heads(void* x, ActType type, std::size_t row_stride, int rows, int heads, int width,
                    const float* gain, float eps, cudaStream_t stream) {
  const int total = rows * heads;
  if (total == 0) return;
  with_act(type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    launch_overlapped(rms_norm_heads_kernel<Element>, blocks_of_warps(total), kThreads, stream,
                      static_cast<Element*>(x), row_stride, heads, total, width, gain, eps);
  });
}

void rope_and_store(const RopeStoreArgs& args, cudaStream_t stream) {
  if (args.sequences.total_rows == 0) return;
  const int heads = args.q_heads + 2 * args.kv.kv_heads;
  const dim3 grid(args.sequences.total_rows, std::min(blocks_of_warps(heads), 8));
  with_act(args.type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    if (launch_rope_registers<Element>(args, stream)) return;
    launch_overlapped(rope_and_store_kernel<Element>, grid, kThreads, stream, args);
  });
}

void silu_mul(const void* gate_up, int rows, int inter, void* out, ActType type, cudaStream_t stream) {
  if (rows == 0) return;
  with_act(type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    launch_overlapped(silu_mul_kernel<Element>, dim3(blocks_for(inter), rows), kThreads, stream,
                      static_cast<const Element*>(gate_up), inter, static_cast<Element*>(out));
  });
}

void best_tokens(const float* logits, std::size_t row_stride, int rows, int count, std::int32_t* ids,
                 float* probabilities, cudaStream_t stream) {
  if (rows == 0) return;
  best_tokens_kernel<<<rows, kBestThreads, 0, stream>>>(logits, row_stride, count, ids, probabilities);
  MIMO_CUDA_LAUNCHED();
}

}  // namespace mimo::cuda
