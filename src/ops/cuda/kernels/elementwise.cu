#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/activation.cuh"
#include "ops/cuda/kernels/elementwise.h"

namespace mimo::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void embed_kernel(LinearWeight table, const std::int32_t* ids, float* out) {
  const int row = ids[blockIdx.x];
  const int element = linear_element_bytes(table.format);
  const int k_blocks = linear_k_blocks(table.format, table.cols);
  const auto* data = static_cast<const std::uint8_t*>(table.data);
  for (int c = threadIdx.x; c < table.cols; c += blockDim.x) {
    const std::uint8_t* at = data + linear_offset(row, c * element, k_blocks);
    out[static_cast<std::size_t>(blockIdx.x) * table.cols + c] =
        table.format == LinearFormat::kF32 ? *reinterpret_cast<const float*>(at)
                                           : __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(at));
  }
}

__global__ void gather_kernel(std::uint32_t* to, const std::uint32_t* from, std::size_t words,
                              const std::int32_t* index) {
  const std::size_t row = index[blockIdx.y];
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    to[blockIdx.y * words + i] = from[row * words + i];
  }
}

template <class T>
__global__ void round_kernel(const float* x, std::size_t count, T* out) {
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
  __shared__ float shared[kThreads / 32];
  const float* row = x + static_cast<std::size_t>(blockIdx.x) * width;
  T* to = out + static_cast<std::size_t>(blockIdx.x) * out_stride;
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += kThreads) sum += row[i] * row[i];
  const float scale = 1.0f / sqrtf(block_sum(sum, shared) / static_cast<float>(width) + eps);
  for (int i = threadIdx.x; i < width; i += kThreads) store_act(to + i, row[i] * scale * gain[i]);
}

// A warp a head.
template <class T>
__global__ void rms_norm_heads_kernel(T* x, std::size_t row_stride, int heads, int total, int width,
                                      const float* gain, float eps) {
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

template <class T>
__global__ void silu_mul_kernel(const T* gate_up, int inter, T* out) {
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

int blocks_for(std::size_t count) { return static_cast<int>((count + kThreads - 1) / kThreads); }

}  // namespace

void embed_rows(const LinearWeight& table, const std::int32_t* ids, int count, float* out,
                cudaStream_t stream) {
  if (count == 0) return;
  embed_kernel<<<count, kThreads, 0, stream>>>(table, ids, out);
  MIMO_CUDA_LAUNCHED();
}

void gather_rows(void* to, const void* from, std::size_t bytes, const std::int32_t* index, int count,
                 cudaStream_t stream) {
  if (count == 0) return;
  const std::size_t words = bytes / 4;
  const dim3 grid(std::min(blocks_for(words), 64), count);
  gather_kernel<<<grid, kThreads, 0, stream>>>(static_cast<std::uint32_t*>(to),
                                               static_cast<const std::uint32_t*>(from), words, index);
  MIMO_CUDA_LAUNCHED();
}

void round_to_act(const float* x, std::size_t count, void* out, ActType type, cudaStream_t stream) {
  if (count == 0) return;
  with_act(type, [&](auto* element) {
    round_kernel<<<blocks_for(count), kThreads, 0, stream>>>(x, count, static_cast<decltype(element)>(out));
  });
  MIMO_CUDA_LAUNCHED();
}

void rms_norm(const float* x, int rows, int width, const float* gain, float eps, void* out, ActType type,
              std::size_t out_stride, cudaStream_t stream) {
  if (rows == 0) return;
  with_act(type, [&](auto* element) {
    rms_norm_kernel<<<rows, kThreads, 0, stream>>>(x, width, gain, eps, static_cast<decltype(element)>(out),
                                                   out_stride);
  });
  MIMO_CUDA_LAUNCHED();
}

void rms_norm_heads(void* x, ActType type, std::size_t row_stride, int rows, int heads, int width,
                    const float* gain, float eps, cudaStream_t stream) {
  const int total = rows * heads;
  if (total == 0) return;
  with_act(type, [&](auto* element) {
    rms_norm_heads_kernel<<<(total + 7) / 8, kThreads, 0, stream>>>(
        static_cast<decltype(element)>(x), row_stride, heads, total, width, gain, eps);
  });
  MIMO_CUDA_LAUNCHED();
}

void rope_and_store(const RopeStoreArgs& args, cudaStream_t stream) {
  if (args.sequences.total_rows == 0) return;
  const int heads = args.q_heads + 2 * args.kv.kv_heads;
  const dim3 grid(args.sequences.total_rows, std::min((heads + 7) / 8, 8));
  with_act(args.type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    rope_and_store_kernel<Element><<<grid, kThreads, 0, stream>>>(args);
  });
  MIMO_CUDA_LAUNCHED();
}

void silu_mul(const void* gate_up, int rows, int inter, void* out, ActType type, cudaStream_t stream) {
  if (rows == 0) return;
  const dim3 grid(blocks_for(inter), rows);
  with_act(type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    silu_mul_kernel<<<grid, kThreads, 0, stream>>>(static_cast<const Element*>(gate_up), inter,
                                                   static_cast<Element*>(out));
  });
  MIMO_CUDA_LAUNCHED();
}

void best_tokens(const float* logits, std::size_t row_stride, int rows, int count, std::int32_t* ids,
                 float* probabilities, cudaStream_t stream) {
  if (rows == 0) return;
  best_tokens_kernel<<<rows, kBestThreads, 0, stream>>>(logits, row_stride, count, ids, probabilities);
  MIMO_CUDA_LAUNCHED();
}

}  // namespace mimo::cuda
