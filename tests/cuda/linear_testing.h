// Random matrices in host memory, packed for the device, and their products in double.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "cuda/small_cases.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/linear.h"

namespace mimo::cuda::testing {

// Device memory, filled with NaN bytes at first.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    MIMO_CUDA(cudaMalloc(&data_, std::max<std::size_t>(count * sizeof(T), 16)));
    poison();
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { upload(host); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* get() { return static_cast<T*>(data_); }
  std::size_t size() const { return count_; }
  void poison() { MIMO_CUDA(cudaMemset(data_, 0xff, count_ * sizeof(T))); }
  void zero() { MIMO_CUDA(cudaMemset(data_, 0, count_ * sizeof(T))); }
  void upload(const std::vector<T>& host) {
    MIMO_CUDA(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> download() const {
    std::vector<T> host(count_);
    MIMO_CUDA(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_ = 0;
};

inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return 0x7fff;
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline float from_e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float size =
      exponent == 0 ? std::ldexp(float(mantissa), -9) : std::ldexp(float(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}

// Nearest code, ties to even; saturates.
inline std::uint8_t to_e4m3(float value) {
  const float size = std::fabs(value);
  int best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const float distance = std::fabs(from_e4m3(static_cast<std::uint8_t>(code)) - size);
    const float best_distance = std::fabs(from_e4m3(static_cast<std::uint8_t>(best)) - size);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

struct Run {
  int rows = 0;
  int grid_row = 0;
};

// A weight as a checkpoint has it, and what it means.
struct HostMatrix {
  LinearFormat format = LinearFormat::kBF16;
  int rows = 0;
  int cols = 0;
  std::vector<std::uint8_t> bytes;  // row-major
  std::vector<Run> runs;
  std::vector<std::vector<float>> grids;  // one a run
  std::vector<float> values;              // [rows][cols]
};

inline HostMatrix random_matrix(LinearFormat format, std::vector<Run> runs, int cols, std::mt19937& random) {
  HostMatrix m;
  m.format = format;
  m.cols = cols;
  m.runs = std::move(runs);
  for (const Run& run : m.runs) m.rows += run.rows;
  const std::size_t count = static_cast<std::size_t>(m.rows) * cols;
  m.values.resize(count);
  m.bytes.resize(count * linear_element_bytes(format));
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::uniform_real_distribution<float> uniform(0.5F, 1.5F);
  const int blocks = (cols + 127) / 128;
  int first = 0;
  for (const Run& run : m.runs) {
    std::vector<float> grid(static_cast<std::size_t>((run.grid_row + run.rows + 127) / 128) * blocks);
    for (float& scale : grid) scale = uniform(random) * 1e-2F;
    for (int r = 0; r < run.rows; ++r) {
      for (int c = 0; c < cols; ++c) {
        const std::size_t at = static_cast<std::size_t>(first + r) * cols + c;
        if (format == LinearFormat::kF32) {
          m.values[at] = normal(random);
          std::memcpy(&m.bytes[at * 4], &m.values[at], 4);
        } else if (format == LinearFormat::kBF16) {
          const std::uint16_t bits = to_bf16(normal(random));
          m.values[at] = from_bf16(bits);
          std::memcpy(&m.bytes[at * 2], &bits, 2);
        } else {
          auto code = static_cast<std::uint8_t>(random());
          if ((code & 0x7f) == 0x7f) code ^= 0x41;
          m.bytes[at] = code;
          m.values[at] =
              from_e4m3(code) * grid[static_cast<std::size_t>((run.grid_row + r) / 128) * blocks + c / 128];
        }
      }
    }
    m.grids.push_back(std::move(grid));
    first += run.rows;
  }
  return m;
}

class PackedMatrix {
 public:
  explicit PackedMatrix(const HostMatrix& m) : weight_(describe(m)), data_(linear_data_bytes(weight_)) {
    scales_ = std::make_unique<DeviceArray<float>>(linear_scale_bytes(weight_) / 4);
    weight_.data = data_.get();
    if (m.format == LinearFormat::kFp8) weight_.scales = scales_->get();
    begin_linear_pack(weight_, nullptr);
    const std::size_t stride = static_cast<std::size_t>(m.cols) * linear_element_bytes(m.format);
    DeviceArray<std::uint8_t> bytes(m.bytes);
    int row = 0;
    for (std::size_t i = 0; i < m.runs.size(); ++i) {
      const Run& run = m.runs[i];
      pack_linear_rows(weight_, row, run.rows, bytes.get() + row * stride, stride, nullptr);
      if (m.format == LinearFormat::kFp8) {
        DeviceArray<float> grid(m.grids[i]);
        pack_linear_scales(weight_, row, run.rows, grid.get(), run.grid_row, (m.cols + 127) / 128, nullptr);
        MIMO_CUDA(cudaDeviceSynchronize());
      }
      row += run.rows;
    }
    MIMO_CUDA(cudaDeviceSynchronize());
  }
  const LinearWeight& weight() const { return weight_; }

 private:
  static LinearWeight describe(const HostMatrix& m) {
    LinearWeight w;
    w.format = m.format;
    w.rows = m.rows;
    w.cols = m.cols;
    w.scale_rows = 64;
    int row = 0;
    for (const Run& run : m.runs) {
      if (!linear_scales_aligned(row, run.rows, m.rows, run.grid_row)) w.scale_rows = 1;
      row += run.rows;
    }
    return w;
  }

  LinearWeight weight_;
  DeviceArray<std::uint8_t> data_;
  std::unique_ptr<DeviceArray<float>> scales_;
};

inline std::vector<float> random_activations(int rows, int cols, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::vector<float> x(static_cast<std::size_t>(rows) * cols);
  for (float& v : x) v = from_bf16(to_bf16(normal(random)));
  return x;
}

inline std::vector<std::uint16_t> as_bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), to_bf16);
  return out;
}

// A product and the sum of the sizes of its terms, which rounding errors are measured by.
struct Product {
  double value = 0;
  double size = 0;
};

inline Product product(const HostMatrix& m, const std::vector<float>& x, int row, int n) {
  Product p;
  for (int c = 0; c < m.cols; ++c) {
    const double term = static_cast<double>(m.values[static_cast<std::size_t>(n) * m.cols + c]) *
                        x[static_cast<std::size_t>(row) * m.cols + c];
    p.value += term;
    p.size += std::fabs(term);
  }
  return p;
}

}  // namespace mimo::cuda::testing
