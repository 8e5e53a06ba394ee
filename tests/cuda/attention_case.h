// Random attention problems with everything that must not be read filled with NaN, and their results in double.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda/small_cases.h"
#include "ops/cuda/kernels/views.h"

namespace mimo::cuda::test {

#define CUDA_OK(call) ASSERT_EQ(cudaSuccess, (call)) << cudaGetErrorString(cudaGetLastError())

struct SequenceShape {
  int rows = 1;
  int position = 0;
  int first_key = 0;
};

struct AttentionShape {
  int q_heads = 16;
  int kv_heads = 1;
  int qk_dim = 192;
  int v_dim = 128;
  int page_size = 16;
  bool fp8 = false;
  int window = 0;
  bool anchor = false;
  bool bidirectional = false;
  bool sinks = false;
  ActType type = ActType::kBF16;
  bool loud = true;  // large values where masks begin and end: a key too many or too few shows
  std::vector<SequenceShape> sequences;
  int max_sequences = 0;  // 0: as many as there are
  int max_rows = 0;       // of one sequence; 0: as there are
  int max_keys = 0;

  std::string text() const {
    std::string s = std::to_string(q_heads) + "/" + std::to_string(kv_heads) + " heads, dims " +
                    std::to_string(qk_dim) + "/" + std::to_string(v_dim) + ", page " +
                    std::to_string(page_size) + (fp8 ? ", fp8" : ", bf16") + ", window " +
                    std::to_string(window) + (anchor ? " anchor" : "") +
                    (bidirectional ? ", bidirectional" : "") + (sinks ? ", sinks" : "") +
                    (type == ActType::kF32 ? ", f32" : "") + ";";
    for (const SequenceShape& q : sequences) {
      s += " " + std::to_string(q.rows) + "@" + std::to_string(q.position);
      if (q.first_key > 0) s += "(from " + std::to_string(q.first_key) + ")";
    }
    return s;
  }
};

struct Range {
  int first = 0;
  int last = 0;
};

inline Range visible(const AttentionShape& shape, const SequenceShape& q, int row) {
  Range keys{q.first_key, shape.bidirectional ? q.position + q.rows : q.position + row + 1};
  if (shape.window > 0) {
    keys.first = std::max(keys.first,
                          shape.anchor ? q.position - shape.window : q.position + row - (shape.window - 1));
  }
  if (shape.bidirectional) keys.first = std::min(keys.first, q.position);
  return keys;
}

inline float bf16(float x) { return __bfloat162float(__float2bfloat16(x)); }

template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  // Keeps its address as long as the data fit into what was reserved.
  void upload(const std::vector<T>& from, std::size_t reserve = 0) {
    if (from.size() > capacity_ || data_ == nullptr) {
      cudaFree(data_);
      capacity_ = std::max({from.size(), reserve, std::size_t{1}});
      CUDA_OK(cudaMalloc(&data_, capacity_ * sizeof(T)));
    }
    CUDA_OK(cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> download(std::size_t count) const {
    std::vector<T> to(count);
    EXPECT_EQ(cudaSuccess, cudaMemcpy(to.data(), data_, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
  }
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
  std::size_t capacity_ = 0;
};

// A problem in host memory: values as stored (already rounded), keyed by sequence and position, so that a
// sequence's data do not depend on what else is in the batch.
class AttentionCase {
 public:
  AttentionCase(AttentionShape shape, unsigned seed) : shape_(std::move(shape)), seed_(seed) { build(); }

  const AttentionShape& shape() const { return shape_; }
  int rows() const { return rows_; }
  int row_begin(int s) const { return row_begin_[static_cast<std::size_t>(s)]; }
  const std::vector<double>& expected() const { return expected_; }
  // Bound of the sum of |weight * value| of every element of the result: what rounding errors scale with.
  const std::vector<double>& magnitude() const { return magnitude_; }

  // Another problem in the same device memory, which must have room for it.
  void change(AttentionShape shape, unsigned seed) {
    shape_ = std::move(shape);
    seed_ = seed;
    build();
  }
  void upload();
  AttentionArgs args() const { return args_; }

  // Results as floats [rows()][q_heads * v_dim]; checks that nothing was written behind them.
  std::vector<float> download() const;

  void reference();

 private:
  static constexpr std::size_t kGuard = 64;

  float random_value(std::uint64_t a, std::uint64_t b, std::uint64_t c) const;
  void build();

  AttentionShape shape_;
  unsigned seed_;
  int rows_ = 0;
  int page_stride_ = 1;
  int pages_ = 0;
  std::vector<std::int32_t> row_begin_, seq_rows_, position_, first_key_, page_table_, row_sequence_;
  std::vector<float> q_, sinks_, k_scale_, v_scale_;
  std::vector<std::uint16_t> k16_, v16_;
  std::vector<std::uint8_t> k8_, v8_;
  std::int64_t q_stride_ = 0;
  std::vector<double> expected_, magnitude_;

  AttentionArgs args_;
  DeviceArray<std::int32_t> d_row_begin_, d_rows_, d_position_, d_first_key_, d_pages_, d_row_sequence_;
  DeviceArray<float> d_q32_, d_out32_, d_sinks_, d_k_scale_, d_v_scale_;
  DeviceArray<std::uint16_t> d_q16_, d_out16_, d_k16_, d_v16_;
  DeviceArray<std::uint8_t> d_k8_, d_v8_;
};

inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Near normal, standard deviation 1.
inline float AttentionCase::random_value(std::uint64_t a, std::uint64_t b, std::uint64_t c) const {
  const std::uint64_t h = mix(mix(mix(a + seed_) ^ b) ^ c);
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<double>((h >> (16 * i)) & 0xffff) / 65536.0;
  return static_cast<float>((sum - 2.0) * 1.7320508);
}

inline std::uint16_t bf16_bits(float x) {
  const __nv_bfloat16 b = __float2bfloat16(x);
  std::uint16_t bits;
  std::memcpy(&bits, &b, 2);
  return bits;
}
inline float from_bf16_bits(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}
inline std::uint8_t fp8_bits(float x) {
  return static_cast<std::uint8_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
}
inline float from_fp8_bits(std::uint8_t bits) {
  __nv_fp8_e4m3 x;
  std::memcpy(&x, &bits, 1);
  return static_cast<float>(x);
}

inline void AttentionCase::build() {
  const AttentionShape& a = shape_;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::mt19937 random(seed_);
  const auto count = static_cast<int>(a.sequences.size());
  const int places = std::max(count, a.max_sequences);
  int max_rows = a.max_rows;
  int max_keys = a.max_keys;
  for (const SequenceShape& q : a.sequences) {
    max_rows = std::max(max_rows, q.rows);
    max_keys = std::max(max_keys, q.position + q.rows);
  }
  page_stride_ = (max_keys + a.page_size - 1) / a.page_size;
  row_begin_.assign(static_cast<std::size_t>(places), 0);
  seq_rows_.assign(static_cast<std::size_t>(places), 0);
  position_.assign(static_cast<std::size_t>(places), 0);
  first_key_.assign(static_cast<std::size_t>(places), 0);
  page_table_.assign(static_cast<std::size_t>(places) * static_cast<std::size_t>(page_stride_), -1);

  // Rows: some belong to nobody.
  row_sequence_.clear();
  int used_pages = 0;
  for (int s = 0; s < count; ++s) {
    const SequenceShape& q = a.sequences[static_cast<std::size_t>(s)];
    if (random() % 4 == 0) row_sequence_.push_back(-1);
    const auto at = static_cast<std::size_t>(s);
    row_begin_[at] = static_cast<std::int32_t>(row_sequence_.size());
    seq_rows_[at] = q.rows;
    position_[at] = q.position;
    first_key_[at] = q.first_key;
    row_sequence_.insert(row_sequence_.end(), static_cast<std::size_t>(q.rows), s);
    if (q.rows == 0) continue;
    int first = q.position + q.rows;
    for (int r = 0; r < q.rows; ++r) first = std::min(first, visible(a, q, r).first);
    used_pages += (q.position + q.rows - 1) / a.page_size - first / a.page_size + 1;
  }
  rows_ = static_cast<int>(row_sequence_.size());
  pages_ = used_pages + 3;
  std::vector<std::int32_t> free_pages(static_cast<std::size_t>(pages_));
  for (int p = 0; p < pages_; ++p) free_pages[static_cast<std::size_t>(p)] = p;
  std::shuffle(free_pages.begin(), free_pages.end(), random);

  const auto slots = static_cast<std::size_t>(pages_) * static_cast<std::size_t>(a.kv_heads * a.page_size);
  const auto qk = static_cast<std::size_t>(a.qk_dim);
  const auto vd = static_cast<std::size_t>(a.v_dim);
  if (a.fp8) {
    k8_.assign(slots * qk, 0x7f);
    v8_.assign(slots * vd, 0x7f);
    k_scale_.assign(slots, nan);
    v_scale_.assign(slots, nan);
  } else {
    k16_.assign(slots * qk, 0x7fff);
    v16_.assign(slots * vd, 0x7fff);
  }
  for (int s = 0; s < count; ++s) {
    const SequenceShape& q = a.sequences[static_cast<std::size_t>(s)];
    if (q.rows == 0) continue;
    int first = q.position + q.rows;
    for (int r = 0; r < q.rows; ++r) first = std::min(first, visible(a, q, r).first);
    for (int j = first; j < q.position + q.rows; ++j) {
      std::int32_t& page = page_table_[static_cast<std::size_t>(s) * static_cast<std::size_t>(page_stride_) +
                                       static_cast<std::size_t>(j / a.page_size)];
      if (page < 0) {
        page = free_pages.back();
        free_pages.pop_back();
      }
      const bool edge = a.loud && (j - first < q.rows + 2 || j >= q.position - 2);
      for (int h = 0; h < a.kv_heads; ++h) {
        const std::size_t slot = (static_cast<std::size_t>(page) * static_cast<std::size_t>(a.kv_heads) +
                                  static_cast<std::size_t>(h)) *
                                     static_cast<std::size_t>(a.page_size) +
                                 static_cast<std::size_t>(j % a.page_size);
        const std::uint64_t id = (static_cast<std::uint64_t>(s) << 40) +
                                 (static_cast<std::uint64_t>(h) << 32) + static_cast<std::uint64_t>(j);
        const float loud = edge ? 8.0f : 1.0f;
        if (a.fp8) {
          k_scale_[slot] = 0.02f * (1.5f + 0.3f * random_value(id, 1, 0));
          v_scale_[slot] = loud * 0.02f * (1.5f + 0.3f * random_value(id, 2, 0));
        }
        for (std::size_t d = 0; d < qk; ++d) {
          const float x = random_value(id, 3, d);
          if (a.fp8) {
            k8_[slot * qk + d] = fp8_bits(30.0f * x);
          } else {
            k16_[slot * qk + d] = bf16_bits(x);
          }
        }
        for (std::size_t d = 0; d < vd; ++d) {
          const float x = random_value(id, 4, d);
          if (a.fp8) {
            v8_[slot * vd + d] = fp8_bits(30.0f * x);
          } else {
            v16_[slot * vd + d] = bf16_bits(loud * x);
          }
        }
      }
    }
  }

  q_stride_ = static_cast<std::int64_t>(a.q_heads) * a.qk_dim + 8;
  q_.assign(static_cast<std::size_t>(rows_ * q_stride_), nan);
  for (int row = 0; row < rows_; ++row) {
    const int s = row_sequence_[static_cast<std::size_t>(row)];
    if (s < 0) continue;
    const int own = row - row_begin_[static_cast<std::size_t>(s)];
    const auto p = static_cast<std::uint64_t>(position_[static_cast<std::size_t>(s)] + own);
    for (int i = 0; i < a.q_heads * a.qk_dim; ++i) {
      const float x =
          random_value((static_cast<std::uint64_t>(s) << 40) + p, 5, static_cast<std::uint64_t>(i));
      q_[static_cast<std::size_t>(row * q_stride_ + i)] = a.type == ActType::kF32 ? x : bf16(x);
    }
  }
  sinks_.clear();
  for (int h = 0; a.sinks && h < a.q_heads; ++h) {
    sinks_.push_back(2.0f + 2.0f * random_value(static_cast<std::uint64_t>(h), 6, 0));
  }

  args_ = {};
  args_.q_stride = q_stride_;
  args_.kv.pages = pages_;
  args_.kv.page_size = a.page_size;
  args_.kv.kv_heads = a.kv_heads;
  args_.kv.qk_dim = a.qk_dim;
  args_.kv.v_dim = a.v_dim;
  args_.kv.fp8 = a.fp8;
  args_.sequences.page_stride = page_stride_;
  args_.sequences.sequences = places;
  args_.sequences.total_rows = rows_;
  args_.sequences.max_rows = max_rows;
  args_.sequences.max_keys = max_keys;
  args_.q_heads = a.q_heads;
  args_.window = a.window;
  args_.anchor_window = a.anchor;
  args_.scale = 1.0f / std::sqrt(static_cast<float>(a.qk_dim));
  args_.mask = a.bidirectional ? Mask::kBidirectional : Mask::kCausal;
  args_.type = a.type;
}

inline void AttentionCase::upload() {
  const std::size_t outputs =
      static_cast<std::size_t>(rows_) * static_cast<std::size_t>(shape_.q_heads * shape_.v_dim) + kGuard;
  d_row_begin_.upload(row_begin_);
  d_rows_.upload(seq_rows_);
  d_position_.upload(position_);
  d_first_key_.upload(first_key_);
  d_pages_.upload(page_table_);
  d_row_sequence_.upload(row_sequence_);
  if (shape_.type == ActType::kF32) {
    d_q32_.upload(q_);
    d_out32_.upload(std::vector<float>(outputs, std::numeric_limits<float>::quiet_NaN()));
    args_.q = d_q32_.get();
    args_.out = d_out32_.get();
  } else {
    std::vector<std::uint16_t> bits(q_.size());
    for (std::size_t i = 0; i < q_.size(); ++i) bits[i] = bf16_bits(q_[i]);
    d_q16_.upload(bits);
    d_out16_.upload(std::vector<std::uint16_t>(outputs, 0x7fff));
    args_.q = d_q16_.get();
    args_.out = d_out16_.get();
  }
  if (shape_.fp8) {
    d_k8_.upload(k8_);
    d_v8_.upload(v8_);
    d_k_scale_.upload(k_scale_);
    d_v_scale_.upload(v_scale_);
    args_.kv.k = d_k8_.get();
    args_.kv.v = d_v8_.get();
    args_.kv.k_scale = d_k_scale_.get();
    args_.kv.v_scale = d_v_scale_.get();
  } else {
    d_k16_.upload(k16_);
    d_v16_.upload(v16_);
    args_.kv.k = d_k16_.get();
    args_.kv.v = d_v16_.get();
  }
  if (shape_.sinks) {
    d_sinks_.upload(sinks_);
    args_.sinks = d_sinks_.get();
  }
  args_.sequences.row_begin = d_row_begin_.get();
  args_.sequences.rows = d_rows_.get();
  args_.sequences.position = d_position_.get();
  args_.sequences.first_key = d_first_key_.get();
  args_.sequences.pages = d_pages_.get();
  args_.sequences.row_sequence = d_row_sequence_.get();
}

inline std::vector<float> AttentionCase::download() const {
  const std::size_t count =
      static_cast<std::size_t>(rows_) * static_cast<std::size_t>(shape_.q_heads * shape_.v_dim);
  std::vector<float> out(count);
  if (shape_.type == ActType::kF32) {
    const std::vector<float> all = d_out32_.download(count + kGuard);
    for (std::size_t i = 0; i < count; ++i) out[i] = all[i];
    for (std::size_t i = count; i < count + kGuard; ++i)
      EXPECT_TRUE(std::isnan(all[i])) << "written past the end";
  } else {
    const std::vector<std::uint16_t> all = d_out16_.download(count + kGuard);
    for (std::size_t i = 0; i < count; ++i) out[i] = from_bf16_bits(all[i]);
    for (std::size_t i = count; i < count + kGuard; ++i) EXPECT_EQ(0x7fff, all[i]) << "written past the end";
  }
  return out;
}

inline void AttentionCase::reference() {
  const AttentionShape& a = shape_;
  const int group = a.q_heads / a.kv_heads;
  const auto qk = static_cast<std::size_t>(a.qk_dim);
  const auto vd = static_cast<std::size_t>(a.v_dim);
  expected_.assign(static_cast<std::size_t>(rows_) * static_cast<std::size_t>(a.q_heads) * vd,
                   std::numeric_limits<double>::quiet_NaN());
  magnitude_ = expected_;
  std::vector<float> k(qk), v(vd);
  for (std::size_t s = 0; s < a.sequences.size(); ++s) {
    const SequenceShape& q = a.sequences[s];
    int begin = q.position + q.rows;
    for (int r = 0; r < q.rows; ++r) begin = std::min(begin, visible(a, q, r).first);
    const int count = q.position + q.rows - begin;
    std::vector<float> keys(static_cast<std::size_t>(count) * qk),
        values(static_cast<std::size_t>(count) * vd);
    for (int kv_head = 0; kv_head < a.kv_heads && q.rows > 0; ++kv_head) {
      for (int j = begin; j < begin + count; ++j) {
        const std::int32_t page = page_table_[s * static_cast<std::size_t>(page_stride_) +
                                              static_cast<std::size_t>(j / a.page_size)];
        const std::size_t slot = (static_cast<std::size_t>(page) * static_cast<std::size_t>(a.kv_heads) +
                                  static_cast<std::size_t>(kv_head)) *
                                     static_cast<std::size_t>(a.page_size) +
                                 static_cast<std::size_t>(j % a.page_size);
        const auto at = static_cast<std::size_t>(j - begin);
        for (std::size_t d = 0; d < qk; ++d) {
          keys[at * qk + d] = a.fp8 ? from_fp8_bits(k8_[slot * qk + d]) : from_bf16_bits(k16_[slot * qk + d]);
        }
        for (std::size_t d = 0; d < vd; ++d) {
          values[at * vd + d] =
              a.fp8 ? from_fp8_bits(v8_[slot * vd + d]) : from_bf16_bits(v16_[slot * vd + d]);
        }
        if (a.fp8) {
          for (std::size_t d = 0; d < qk; ++d) keys[at * qk + d] *= k_scale_[slot];
          for (std::size_t d = 0; d < vd; ++d) values[at * vd + d] *= v_scale_[slot];
        }
      }
      for (int r = 0; r < q.rows; ++r) {
        const auto row = static_cast<std::size_t>(row_begin_[s] + r);
        const Range range = visible(a, q, r);
        for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          const float* from =
              q_.data() + row * static_cast<std::size_t>(q_stride_) + static_cast<std::size_t>(h) * qk;
          std::vector<double> score;
          double top = a.sinks ? sinks_[static_cast<std::size_t>(h)] : -1e30;
          for (int j = range.first; j < range.last; ++j) {
            double dot = 0;
            const float* key = keys.data() + static_cast<std::size_t>(j - begin) * qk;
            for (std::size_t d = 0; d < qk; ++d) dot += static_cast<double>(from[d]) * key[d];
            score.push_back(dot * args_.scale);
            top = std::max(top, score.back());
          }
          double total = a.sinks ? std::exp(sinks_[static_cast<std::size_t>(h)] - top) : 0;
          double* to = expected_.data() +
                       (row * static_cast<std::size_t>(a.q_heads) + static_cast<std::size_t>(h)) * vd;
          double* size = magnitude_.data() +
                         (row * static_cast<std::size_t>(a.q_heads) + static_cast<std::size_t>(h)) * vd;
          std::fill(to, to + vd, 0.0);
          std::fill(size, size + vd, 0.0);
          for (int j = range.first; j < range.last; ++j) {
            const double p = std::exp(score[static_cast<std::size_t>(j - range.first)] - top);
            total += p;
            const float* value = values.data() + static_cast<std::size_t>(j - begin) * vd;
            for (std::size_t d = 0; d < vd; ++d) {
              to[d] += p * value[d];
              size[d] += p * std::fabs(value[d]);
            }
          }
          for (std::size_t d = 0; d < vd; ++d) {
            to[d] /= total;
            size[d] /= total;
          }
        }
      }
    }
  }
}

// Largest |out - expected| / magnitude over the rows of sequences; rows of nobody must hold the poison still.
inline double worst_error(const AttentionCase& problem, const std::vector<float>& out) {
  double worst = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::isnan(problem.expected()[i])) {
      EXPECT_TRUE(std::isnan(out[i])) << "a row of no sequence was written";
      continue;
    }
    const double error = std::fabs(out[i] - problem.expected()[i]) / (problem.magnitude()[i] + 1e-30);
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  return worst;
}

}  // namespace mimo::cuda::test
