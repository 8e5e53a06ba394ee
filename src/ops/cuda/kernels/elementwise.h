// The small operations between matrices and attention. fp32 arithmetic; results are rounded once to their type. Rows
// do not know each other. Where the GPU can, all but best_tokens start while the kernel before them in the stream ends;
// they read nothing before its end but weights: tables of gains, inverse frequencies.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/kernels/linear.h"
#include "ops/cuda/kernels/views.h"

namespace mimo::cuda {

// out[i] = table[ids[i]], fp32 [count][table.cols]; the table is F32 or BF16.
void embed_rows(const LinearWeight& table, const std::int32_t* ids, int count, float* out,
                cudaStream_t stream);

// Row i of `to` is row index[i] of `from`; rows of `bytes`, a multiple of 4.
void gather_rows(void* to, const void* from, std::size_t bytes, const std::int32_t* index, int count,
                 cudaStream_t stream);

void round_to_act(const float* x, std::size_t count, void* out, ActType type, cudaStream_t stream);

// out = x / sqrt(mean(x^2) + eps) * gain for rows of `width`; rows of x follow each other, rows of out are out_stride
// elements apart. In place where the strides and types agree.
void rms_norm(const float* x, int rows, int width, const float* gain, float eps, void* out, ActType type,
              std::size_t out_stride, cudaStream_t stream);

// The same for heads of `width` (at most 1024) inside rows, in place.
void rms_norm_heads(void* x, ActType type, std::size_t row_stride, int rows, int heads, int width,
                    const float* gain, float eps, cudaStream_t stream);

// Rows [q_heads * qk | kv_heads * qk | kv_heads * v] of activations: rotates the leading `rotary_dims` of queries and
// keys in place, by the angle position * inverse_frequency (pairs (i, i + rotary_dims / 2)), and stores keys and
// values * value_scale. FP8: one scale max(max|x|, 1e-10) / 448 for each key and each value of a head.
struct RopeStoreArgs {
  void* qkv = nullptr;
  ActType type = ActType::kBF16;
  std::size_t row_stride = 0;  // elements
  int q_heads = 0;
  KvView kv;
  SequenceView sequences;
  const float* inverse_frequencies = nullptr;  // [rotary_dims / 2]
  int rotary_dims = 0;
  float value_scale = 1;
};
void rope_and_store(const RopeStoreArgs& args, cudaStream_t stream);

// out [rows][inter] = silu(gate) * up; rows of `gate_up` are [gate | up].
void silu_mul(const void* gate_up, int rows, int inter, void* out, ActType type, cudaStream_t stream);

// The best of the first `count` of each row of logits, the lowest id on ties, and, unless that is null, its softmax
// probability; where a logit is not finite, id -1 and NaN.
void best_tokens(const float* logits, std::size_t row_stride, int rows, int count, std::int32_t* ids,
                 float* probabilities, cudaStream_t stream);

}  // namespace mimo::cuda
