// Random expert banks in the formats of a checkpoint, random routing, and the expert layer in double on the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/small_cases.h"
#include "ops/cuda/kernels/experts_plain.h"

namespace mimo::cuda::testing {

inline void ok(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(code));
  std::exit(1);
}

template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::size_t n) : size_(n) {
    ok(cudaMalloc(reinterpret_cast<void**>(&data_), n * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { upload(host); }
  DeviceArray(DeviceArray&& other) noexcept { std::swap(data_, other.data_), std::swap(size_, other.size_); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_), std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }
  T* get() const { return data_; }
  std::size_t size() const { return size_; }
  void upload(const std::vector<T>& host) {
    ok(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  void fill(int byte) { ok(cudaMemset(data_, byte, size_ * sizeof(T))); }  // 0xff: NaN
  std::vector<T> download() const {
    std::vector<T> host(size_);
    ok(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

inline float bf16_round(float v) { return static_cast<float>(__nv_bfloat16(v)); }

// Stored bytes of one matrix of all experts, and what they mean.
struct HostMatrix {
  MlpFormat format;
  int experts, rows, cols;
  std::vector<std::uint8_t> data;
  std::vector<std::uint8_t> scales;  // bytes, floats for kFp8
  std::vector<float> values;         // [experts][rows][cols]

  HostMatrix(MlpFormat f, int e, int r, int c, std::mt19937& rng) : format(f), experts(e), rows(r), cols(c) {
    const std::size_t n = static_cast<std::size_t>(e) * r * c;
    values.resize(n);
    // Sums over `cols` terms come out near 1.
    const float size = 1.0f / std::sqrt(static_cast<float>(c));
    std::normal_distribution<float> normal(0, size);
    if (f == MlpFormat::kMxfp4) {
      static const float kMagnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
      data.assign(n / 2, 0);
      scales.resize(n / 32);
      const int middle = 127 + static_cast<int>(std::lround(std::log2(size / 2.5f)));
      for (std::size_t b = 0; b < n / 32; ++b)
        scales[b] = static_cast<std::uint8_t>(middle - 2 + static_cast<int>(rng() % 5));
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint32_t code = rng() >> 7 & 15;
        data[i / 2] = static_cast<std::uint8_t>(data[i / 2] | code << (i % 2 * 4));
        const float v = std::ldexp(kMagnitude[code & 7], scales[i / 32] - 127);
        values[i] = code & 8 ? -v : v;
      }
    } else if (f == MlpFormat::kFp8) {
      const int grid_cols = (c + 127) / 128, grid_rows = (r + 127) / 128;
      std::vector<float> grid(static_cast<std::size_t>(e) * grid_rows * grid_cols);
      for (float& g : grid) g = size / 100 * (0.5f + static_cast<float>(rng() % 1000) / 1000);
      data.resize(n);
      for (std::size_t i = 0; i < n; ++i) {
        const __nv_fp8_e4m3 v(normal(rng) / size * 100);
        data[i] = v.__x;
        const std::size_t x = i / (static_cast<std::size_t>(r) * c), row = i / c % r, col = i % c;
        values[i] = static_cast<float>(v) * grid[(x * grid_rows + row / 128) * grid_cols + col / 128];
      }
      scales.assign(reinterpret_cast<std::uint8_t*>(grid.data()),
                    reinterpret_cast<std::uint8_t*>(grid.data() + grid.size()));
    } else if (f == MlpFormat::kBF16) {
      data.resize(n * 2);
      for (std::size_t i = 0; i < n; ++i) {
        const __nv_bfloat16 v(normal(rng));
        reinterpret_cast<__nv_bfloat16*>(data.data())[i] = v;
        values[i] = static_cast<float>(v);
      }
    } else {
      data.resize(n * 4);
      for (std::size_t i = 0; i < n; ++i) reinterpret_cast<float*>(data.data())[i] = values[i] = normal(rng);
    }
  }
};

// The same in device memory.
struct DeviceMatrix {
  DeviceArray<std::uint8_t> data, scales;
  MlpWeights view;
  explicit DeviceMatrix(const HostMatrix& h)
      : data(h.data), scales(h.scales.empty() ? std::vector<std::uint8_t>(4) : h.scales) {
    view.format = h.format;
    view.data = data.get();
    view.expert_stride = static_cast<std::int64_t>(h.data.size()) / h.experts;
    view.scales = scales.get();
    if (h.format == MlpFormat::kMxfp4) {
      view.scale_stride = h.cols / 32;
      view.scale_expert_stride = view.scale_stride * h.rows;
    } else if (h.format == MlpFormat::kFp8) {
      view.scale_stride = (h.cols + 127) / 128;
      view.scale_expert_stride = view.scale_stride * ((h.rows + 127) / 128);
    }
  }
};

struct HostBank {
  int experts, hidden, inter;
  HostMatrix gate, up, down;
  HostBank(MlpFormat f, int e, int h, int i, std::mt19937& rng)
      : experts(e), hidden(h), inter(i), gate(f, e, i, h, rng), up(f, e, i, h, rng), down(f, e, h, i, rng) {}
};

struct DeviceBank {
  DeviceMatrix gate, up, down;
  explicit DeviceBank(const HostBank& h) : gate(h.gate), up(h.up), down(h.down) {}
};

enum class Spread {
  kRandom,
  kOneSet,
  kHalf
};  // of the experts: all, the same few for all rows, half of them

struct Routing {
  std::vector<std::int32_t> ids;  // [rows, top_k], ascending and distinct in a row
  std::vector<float> weights;
};

inline Routing random_routing(int rows, int experts, int top_k, Spread spread, std::mt19937& rng) {
  Routing out;
  std::vector<std::int32_t> all(spread == Spread::kHalf ? (experts + 1) / 2 : experts);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), rng);
  for (int r = 0; r < rows; ++r) {
    if (spread != Spread::kOneSet) std::shuffle(all.begin(), all.end(), rng);
    std::vector<std::int32_t> ids(all.begin(), all.begin() + top_k);
    std::sort(ids.begin(), ids.end());
    float sum = 0;
    std::vector<float> w(top_k);
    for (float& v : w) sum += v = 0.2f + static_cast<float>(rng() % 1000) / 1000;
    for (int k = 0; k < top_k; ++k) out.ids.push_back(ids[k]), out.weights.push_back(w[k] / sum);
  }
  return out;
}

// y[row] += ..., and magnitude[row] = sum_k |w_k| * sum_j |down| |h|, which scales rounding errors.
inline void host_experts(const HostBank& bank, const std::vector<float>& x, int rows, int top_k,
                         const Routing& routing, std::vector<double>& y, std::vector<double>& magnitude) {
  const int hidden = bank.hidden, inter = bank.inter;
  std::vector<double> h(inter);
  for (int r = 0; r < rows; ++r) {
    for (int k = 0; k < top_k; ++k) {
      const int e = routing.ids[r * top_k + k];
      if (e < 0) continue;
      const float* xr = x.data() + static_cast<std::size_t>(r) * hidden;
      for (int j = 0; j < inter; ++j) {
        const float* g = bank.gate.values.data() + (static_cast<std::size_t>(e) * inter + j) * hidden;
        const float* u = bank.up.values.data() + (static_cast<std::size_t>(e) * inter + j) * hidden;
        double gs = 0, us = 0;
        for (int c = 0; c < hidden; ++c)
          gs += static_cast<double>(g[c]) * xr[c], us += static_cast<double>(u[c]) * xr[c];
        h[j] = gs / (1 + std::exp(-gs)) * us;
      }
      for (int o = 0; o < hidden; ++o) {
        const float* d = bank.down.values.data() + (static_cast<std::size_t>(e) * hidden + o) * inter;
        double sum = 0, size = 0;
        for (int j = 0; j < inter; ++j) sum += d[j] * h[j], size += std::abs(d[j] * h[j]);
        const double w = routing.weights[r * top_k + k];
        y[static_cast<std::size_t>(r) * hidden + o] += w * sum;
        magnitude[static_cast<std::size_t>(r) * hidden + o] += std::abs(w) * size;
      }
    }
  }
}

inline std::vector<float> random_values(std::size_t n, float size, bool bf16, std::mt19937& rng) {
  std::normal_distribution<float> normal(0, size);
  std::vector<float> out(n);
  for (float& v : out) v = bf16 ? bf16_round(normal(rng)) : normal(rng);
  return out;
}

// As bytes of the type.
inline std::vector<std::uint8_t> as_type(const std::vector<float>& v, ActType type) {
  std::vector<std::uint8_t> out(v.size() * (type == ActType::kF32 ? 4 : 2));
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (type == ActType::kF32) {
      reinterpret_cast<float*>(out.data())[i] = v[i];
    } else {
      reinterpret_cast<__nv_bfloat16*>(out.data())[i] = __nv_bfloat16(v[i]);
    }
  }
  return out;
}

}  // namespace mimo::cuda::testing
