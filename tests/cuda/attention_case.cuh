// Random attention problems in device memory, and their result in double on the host. Everything that no row may
// read is NaN; page entries that may not be read are -1.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/small_cases.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/views.h"

namespace mimo::cuda::testing {

template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::size_t size) : size_(size) {
    if (size > 0) MIMO_CUDA(cudaMalloc(&data_, size * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { set(values); }
  DeviceArray(DeviceArray&& other) noexcept { swap(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }
  T* get() const { return data_; }
  std::size_t size() const { return size_; }
  void fill(int byte) {
    if (size_ > 0) MIMO_CUDA(cudaMemset(data_, byte, size_ * sizeof(T)));
  }
  void set(const std::vector<T>& values) {
    if (size_ > 0) MIMO_CUDA(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> values() const {
    std::vector<T> out(size_);
    if (size_ > 0) MIMO_CUDA(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  void swap(DeviceArray& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// The number that stands at a place: about normal, the same on host and device.
__host__ __device__ inline float random_value(std::uint32_t seed, std::uint32_t a, std::uint32_t b,
                                              std::uint32_t c) {
  std::uint64_t x = (static_cast<std::uint64_t>(seed) << 32 | a) * 0x9e3779b97f4a7c15ull;
  x ^= (static_cast<std::uint64_t>(b) << 32 | c) + 0x632be59bd9b4e019ull;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 29;
  x *= 0x94d049bb133111ebull;
  x ^= x >> 32;
  float sum = -2.0f;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(x >> (16 * i) & 0xffff) * (1.0f / 65536);
  return sum * 1.7320508f;
}
__host__ __device__ inline float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

enum : std::uint32_t { kSeedK = 1, kSeedV, kSeedQ, kSeedKScale, kSeedVScale };

__host__ __device__ inline float scale_value(std::uint32_t seed, std::uint32_t content, int position,
                                             int head) {
  return 0.004f * (2.0f + random_value(seed, content, static_cast<std::uint32_t>(position), head) * 0.5f);
}
// What dim `dim` of a head's key (or value) at a position is. FP8 codes span the format's range.
__host__ __device__ inline float kv_value(std::uint32_t seed, std::uint32_t content, int position, int head,
                                          int dim, bool fp8) {
  const float x = random_value(seed + 16 * static_cast<std::uint32_t>(head), content,
                               static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(dim));
  if (!fp8) return rounded(x);
  return static_cast<float>(__nv_fp8_e4m3(x * 100.0f)) *
         scale_value(seed == kSeedK ? kSeedKScale : kSeedVScale, content, position, head);
}

struct FillSequence {
  std::uint32_t content;
  int first;  // positions [first, last) are written
  int last;
};

// One thread block for each (position, head).
static __global__ void fill_kv(KvView kv, const std::int32_t* pages, int page_stride,
                               const FillSequence* sequences) {
  const FillSequence sequence = sequences[blockIdx.z];
  const int head = blockIdx.y;
  for (int position = sequence.first + blockIdx.x; position < sequence.last; position += gridDim.x) {
    const int page = pages[blockIdx.z * page_stride + position / kv.page_size];
    const std::int64_t slot =
        (static_cast<std::int64_t>(page) * kv.kv_heads + head) * kv.page_size + position % kv.page_size;
    for (int which = 0; which < 2; ++which) {
      const int dims = which == 0 ? kv.qk_dim : kv.v_dim;
      const std::uint32_t seed = which == 0 ? kSeedK : kSeedV;
      void* data = which == 0 ? kv.k : kv.v;
      for (int d = threadIdx.x; d < dims; d += blockDim.x) {
        const float x = random_value(seed + 16 * head, sequence.content, position, d);
        if (kv.fp8) {
          static_cast<__nv_fp8_e4m3*>(data)[slot * dims + d] = __nv_fp8_e4m3(x * 100.0f);
        } else {
          static_cast<__nv_bfloat16*>(data)[slot * dims + d] = __float2bfloat16_rn(x);
        }
      }
      if (kv.fp8 && threadIdx.x == 0) {
        (which == 0 ? kv.k_scale : kv.v_scale)[slot] =
            scale_value(which == 0 ? kSeedKScale : kSeedVScale, sequence.content, position, head);
      }
    }
  }
}

__host__ __device__ inline float q_value(std::uint32_t content, int position, int head, int dim) {
  return rounded(1.5f * random_value(kSeedQ + 16 * head, content, position, dim));
}

struct QRow {
  std::uint32_t content;
  int position;
};
static __global__ void fill_q(__nv_bfloat16* q, std::int64_t stride, int heads, int dims, const QRow* rows) {
  const QRow row = rows[blockIdx.x];
  for (int i = threadIdx.x; i < heads * dims; i += blockDim.x) {
    q[blockIdx.x * stride + i] = __float2bfloat16_rn(q_value(row.content, row.position, i / dims, i % dims));
  }
}

struct CaseSequence {
  int rows = 0;
  int position = 0;
  int first_key = 0;
  std::uint32_t content = 0;  // sequences of equal content hold equal numbers at equal positions
};

struct CaseSpec {
  int q_heads = 16;
  int kv_heads = 1;
  int page_size = 16;
  int window = 0;
  bool sinks = false;
  bool anchor = false;
  bool bidirectional = false;
  bool fp8 = false;
  int pad_rows = 0;  // rows of no sequence before the first and after each
  std::vector<CaseSequence> sequences;
  int copies = 1;           // of the caches, in other pages (benchmarks)
  bool contiguous = false;  // pages in order
};

class Case {
 public:
  explicit Case(const CaseSpec& spec, int qk_dim = 192, int v_dim = 128) : spec_(spec) {
    const int count = static_cast<int>(spec.sequences.size());
    std::vector<std::int32_t> row_begin, rows, position, first_key, row_sequence;
    std::vector<QRow> q_rows;
    int max_rows = 0, max_keys = 0, pages_needed = 0;
    const auto add_padding = [&] {
      for (int i = 0; i < spec.pad_rows; ++i) row_sequence.push_back(-1);
    };
    add_padding();
    std::vector<FillSequence> fills;
    for (int s = 0; s < count; ++s) {
      const CaseSequence& one = spec.sequences[s];
      row_begin.push_back(static_cast<int>(row_sequence.size()));
      for (int r = 0; r < one.rows; ++r) row_sequence.push_back(s);
      add_padding();
      rows.push_back(one.rows);
      position.push_back(one.position);
      first_key.push_back(one.first_key);
      max_rows = std::max(max_rows, one.rows);
      max_keys = std::max(max_keys, one.position + one.rows);
      int first = one.first_key;
      if (spec.window > 0) {
        first = std::max(first, spec.anchor ? one.position - spec.window : one.position - spec.window + 1);
      }
      if (spec.bidirectional) first = std::min(first, one.position);
      first = one.rows > 0 ? std::max(first, 0) : 0;
      fills.push_back({one.content, first, one.rows > 0 ? one.position + one.rows : 0});
      pages_needed += (fills.back().last + spec.page_size - 1) / spec.page_size - first / spec.page_size;
    }
    const int stride = (max_keys + spec.page_size - 1) / spec.page_size + 1;
    const int total_rows = static_cast<int>(row_sequence.size());
    const int pool = pages_needed * spec.copies + 3;
    std::vector<std::int32_t> order(pool);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 rng(7);
    if (!spec.contiguous) std::shuffle(order.begin(), order.end(), rng);
    tables_.resize(spec.copies);
    int next = 0;
    for (auto& table : tables_) {
      std::vector<std::int32_t> host(static_cast<std::size_t>(count) * stride, -1);
      for (int s = 0; s < count; ++s) {
        for (int p = fills[s].first / spec.page_size; p * spec.page_size < fills[s].last; ++p) {
          host[static_cast<std::size_t>(s) * stride + p] = order[next++];
        }
      }
      table = DeviceArray<std::int32_t>(host);
    }
    // Caches: NaN all over, then what the sequences hold.
    const std::size_t slots = static_cast<std::size_t>(pool) * spec.kv_heads * spec.page_size;
    const std::size_t bytes = spec.fp8 ? 1 : 2;
    k_ = DeviceArray<std::uint8_t>(slots * qk_dim * bytes);
    v_ = DeviceArray<std::uint8_t>(slots * v_dim * bytes);
    k_.fill(0xff);
    v_.fill(0xff);
    if (spec.fp8) {
      k_scale_ = DeviceArray<float>(slots);
      v_scale_ = DeviceArray<float>(slots);
      k_scale_.fill(0xff);
      v_scale_.fill(0xff);
    }
    args.kv = {k_.get(),       v_.get(),      k_scale_.get(), v_scale_.get(), pool,
               spec.page_size, spec.kv_heads, qk_dim,         v_dim,          spec.fp8};
    DeviceArray<FillSequence> device_fills(fills);
    for (const auto& table : tables_) {
      fill_kv<<<dim3(2048, spec.kv_heads, count), 192>>>(args.kv, table.get(), stride, device_fills.get());
      MIMO_CUDA_LAUNCHED();
    }
    // Queries: rows with room after them, as inside of a fused product.
    args.q_stride = (spec.q_heads + 2) * qk_dim;
    q_ = DeviceArray<__nv_bfloat16>(static_cast<std::size_t>(total_rows) * args.q_stride);
    q_.fill(0xff);
    for (int r = 0; r < total_rows; ++r) {
      const int s = row_sequence[r];
      if (s >= 0)
        q_rows.push_back({spec.sequences[s].content, spec.sequences[s].position + r - row_begin[s]});
    }
    int done = 0;
    DeviceArray<QRow> device_rows(q_rows);
    for (int s = 0; s < count; ++s) {
      if (rows[s] == 0) continue;
      fill_q<<<rows[s], 256>>>(q_.get() + row_begin[s] * args.q_stride, args.q_stride, spec.q_heads, qk_dim,
                               device_rows.get() + done);
      MIMO_CUDA_LAUNCHED();
      done += rows[s];
    }
    out_ = DeviceArray<__nv_bfloat16>(static_cast<std::size_t>(total_rows) * spec.q_heads * v_dim);
    out_.fill(0xff);
    if (spec.sinks) {
      for (int h = 0; h < spec.q_heads; ++h) host_sinks_.push_back(2.0f + random_value(99, 0, 0, h));
      sinks_ = DeviceArray<float>(host_sinks_);
      args.sinks = sinks_.get();
    }
    row_begin_ = DeviceArray<std::int32_t>(row_begin);
    rows_ = DeviceArray<std::int32_t>(rows);
    position_ = DeviceArray<std::int32_t>(position);
    first_key_ = DeviceArray<std::int32_t>(first_key);
    row_sequence_ = DeviceArray<std::int32_t>(row_sequence);
    host_row_begin_ = row_begin;
    args.q = q_.get();
    args.out = out_.get();
    args.sequences = {row_begin_.get(), rows_.get(),
                      position_.get(),  first_key_.get(),
                      tables_[0].get(), row_sequence_.get(),
                      stride,           count,
                      total_rows,       max_rows,
                      max_keys};
    args.q_heads = spec.q_heads;
    args.window = spec.window;
    args.anchor_window = spec.anchor;
    args.scale = 1.0f / std::sqrt(static_cast<float>(qk_dim));
    args.mask = spec.bidirectional ? Mask::kBidirectional : Mask::kCausal;
    MIMO_CUDA(cudaDeviceSynchronize());
  }

  // The same problem over another copy of the caches.
  AttentionArgs copy(int c) const {
    AttentionArgs other = args;
    other.sequences.pages = tables_[c].get();
    return other;
  }

  std::vector<__nv_bfloat16> output() const { return out_.values(); }
  void poison_output() { out_.fill(0xff); }
  int row_begin(int s) const { return host_row_begin_[s]; }
  std::size_t kv_bytes() const { return k_.size() + v_.size(); }

  struct Result {
    double value = 0;
    double bound = 0;  // of the error that rounding weights, values' sums and the output to bf16 can make
  };
  // What row `row` of sequence s gets for a query head: [v_dim].
  std::vector<Result> reference(int s, int row, int head) const {
    const CaseSequence& one = spec_.sequences[s];
    const int dims = args.kv.qk_dim, v_dims = args.kv.v_dim;
    const int position = one.position + row, kv_head = head / (spec_.q_heads / spec_.kv_heads);
    int first = one.first_key;
    if (spec_.window > 0) {
      first = std::max(first, spec_.anchor ? one.position - spec_.window : position - spec_.window + 1);
    }
    if (spec_.bidirectional) first = std::min(first, one.position);
    const int last = spec_.bidirectional ? one.position + one.rows : position + 1;
    std::vector<float> q(dims);
    for (int d = 0; d < dims; ++d) q[d] = q_value(one.content, position, head, d);
    std::vector<double> scores;
    double top = spec_.sinks ? host_sinks_[head] : -INFINITY;
    for (int key = first; key < last; ++key) {
      double dot = 0;
      for (int d = 0; d < dims; ++d)
        dot += double{q[d]} * kv_value(kSeedK, one.content, key, kv_head, d, spec_.fp8);
      scores.push_back(dot * args.scale);
      top = std::max(top, scores.back());
    }
    double sum = spec_.sinks ? std::exp(host_sinks_[head] - top) : 0;
    for (double& score : scores) sum += score = std::exp(score - top);
    std::vector<Result> out(v_dims);
    for (int d = 0; d < v_dims; ++d) {
      double squares = 0;
      for (int key = first; key < last; ++key) {
        const double term =
            scores[key - first] / sum * kv_value(kSeedV, one.content, key, kv_head, d, spec_.fp8);
        out[d].value += term;
        squares += term * term;
      }
      // Weights are rounded to bf16 (relative 2^-9 each, independent), with FP8 keys and values as well (a key's
      // rounding moves its score by at most about 2^-9 of sqrt(192) terms of size 1.5 / sqrt(192)); then the output.
      const double each = spec_.fp8 ? 10.0 / 512 : 4.0 / 512;
      out[d].bound = std::abs(out[d].value) / 256 + each * std::sqrt(squares) + 2e-5;
    }
    return out;
  }

  AttentionArgs args;

 private:
  CaseSpec spec_;
  std::vector<DeviceArray<std::int32_t>> tables_;
  DeviceArray<std::uint8_t> k_, v_;
  DeviceArray<float> k_scale_, v_scale_, sinks_;
  DeviceArray<__nv_bfloat16> q_, out_;
  DeviceArray<std::int32_t> row_begin_, rows_, position_, first_key_, row_sequence_;
  std::vector<std::int32_t> host_row_begin_;
  std::vector<float> host_sinks_;
};

// Compares rows of the output with the reference: all of them if there are at most `samples` (row, head) pairs, else
// the first and last rows and random ones. Returns the number of wrong elements and prints a few.
inline int wrong_elements(const Case& problem, const CaseSpec& spec, int samples, double* worst = nullptr) {
  const auto out = problem.output();
  const int v_dims = problem.args.kv.v_dim, width = spec.q_heads * v_dims;
  std::mt19937 rng(3);
  int wrong = 0, printed = 0;
  double top = 0;
  const auto check = [&](int s, int row, int head) {
    const auto want = problem.reference(s, row, head);
    for (int d = 0; d < v_dims; ++d) {
      const double got = __bfloat162float(
          out[static_cast<std::size_t>(problem.row_begin(s) + row) * width + head * v_dims + d]);
      const double ratio = std::abs(got - want[d].value) / want[d].bound;
      if (ratio > top) top = ratio;
      if (!(ratio <= 1)) {
        ++wrong;
        if (printed++ < 8) {
          std::printf("  sequence %d row %d head %d dim %d: got %g, want %g +- %g\n", s, row, head, d, got,
                      want[d].value, want[d].bound);
        }
      }
    }
  };
  std::size_t pairs = 0;
  for (const auto& one : spec.sequences) pairs += static_cast<std::size_t>(one.rows) * spec.q_heads;
  if (pairs <= static_cast<std::size_t>(samples)) {
    for (int s = 0; s < static_cast<int>(spec.sequences.size()); ++s) {
      for (int row = 0; row < spec.sequences[s].rows; ++row) {
        for (int head = 0; head < spec.q_heads; ++head) check(s, row, head);
      }
    }
  } else {
    for (int i = 0; i < samples;) {
      const int s = static_cast<int>(rng() % spec.sequences.size());
      const int rows = spec.sequences[s].rows;
      if (rows == 0) continue;
      const int row = i % 4 == 0 ? 0 : i % 4 == 1 ? rows - 1 : static_cast<int>(rng() % rows);
      check(s, row, static_cast<int>(rng() % spec.q_heads));
      ++i;
    }
  }
  // Rows of no sequence stay untouched.
  std::vector<bool> owned(problem.args.sequences.total_rows, false);
  for (int s = 0; s < static_cast<int>(spec.sequences.size()); ++s) {
    for (int r = 0; r < spec.sequences[s].rows; ++r) owned[problem.row_begin(s) + r] = true;
  }
  int unwritten = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool nan = std::isnan(__bfloat162float(out[i]));
    if (nan == owned[i / width]) ++unwritten;
  }
  if (unwritten > 0)
    std::printf("  %d elements NaN that should not be, or written that should not be\n", unwritten);
  if (worst != nullptr) *worst = top;
  return wrong + unwritten;
}

}  // namespace mimo::cuda::testing
