#include <string>

#include "cuda/linear_testing.h"
#include "ops/cuda/kernels/activation_quant.h"

namespace mimo::cuda {
namespace {

using namespace testing;

constexpr int kRows = 9;

// Values, written and not, and scales of rows that should be `x` quantised.
void expect_quantised(const std::vector<std::uint16_t>& x, std::int64_t x_stride, int cols,
                      const QuantRows& quant, const std::vector<std::uint8_t>& codes,
                      const std::vector<float>& scales) {
  for (int r = 0; r < kRows; ++r) {
    for (int block = 0; block * 128 < cols; ++block) {
      const int end = std::min(cols, block * 128 + 128);
      float largest = 1e-10F;
      for (int c = block * 128; c < end; ++c)
        largest = std::max(largest, std::fabs(from_bf16(x[r * x_stride + c])));
      const float scale = largest / 448.0F;
      ASSERT_EQ(scales[block * quant.scale_stride + r], scale) << r << " " << block;
      for (int c = block * 128; c < end; ++c) {
        const std::uint8_t want = to_e4m3(from_bf16(x[r * x_stride + c]) / scale);
        ASSERT_EQ(codes[r * quant.stride + c], want) << r << " " << c;
      }
    }
  }
}

struct Quantised {
  explicit Quantised(int cols)
      : codes(kRows * quant_stride(cols)), scales((cols + 127) / 128 * quant_scale_stride(kRows)) {
    rows.values = codes.get();
    rows.scales = scales.get();
    rows.stride = quant_stride(cols);
    rows.scale_stride = quant_scale_stride(kRows);
  }
  DeviceArray<std::uint8_t> codes;
  DeviceArray<float> scales;
  QuantRows rows;
};

TEST(ActivationQuant, Rows) {
  std::mt19937 random(1);
  for (const int cols : {1, 8, 127, 128, 333, 4096, 16384}) {
    if (small_cases() && cols > 2048) continue;
    SCOPED_TRACE(cols);
    const std::int64_t stride = cols + (cols % 2 == 0 ? 8 : 0);
    std::vector<float> x(kRows * stride, std::nanf(""));
    for (int r = 0; r < kRows; ++r) {
      const float size = std::ldexp(1.0F, static_cast<int>(random() % 40) - 20);
      for (int c = 0; c < cols; ++c)
        x[r * stride + c] = r == 3 ? 0 : size * std::normal_distribution<float>()(random);
    }
    const std::vector<std::uint16_t> bits = as_bf16(x);
    DeviceArray<std::uint16_t> device(bits);
    Quantised q(cols);
    launch_quant(device.get(), stride, kRows, cols, q.rows, false, nullptr);
    MIMO_CUDA(cudaDeviceSynchronize());
    expect_quantised(bits, stride, cols, q.rows, q.codes.download(), q.scales.download());
  }
}

TEST(ActivationQuant, RmsNorm) {
  std::mt19937 random(2);
  for (const int cols : {1, 64, 250, 2048, 4096, 6144, 6152, 16384}) {
    if (small_cases() && cols > 2048) continue;
    SCOPED_TRACE(cols);
    const std::int64_t stride = cols + (cols % 8 == 0 ? 4 : 1);
    std::vector<float> x(kRows * stride, std::nanf(""));
    std::vector<float> weight(cols);
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < cols; ++c) x[r * stride + c] = (r + 1) * std::normal_distribution<float>()(random);
    }
    for (float& w : weight) w = std::normal_distribution<float>(1, 0.2F)(random);
    DeviceArray<float> device(x);
    DeviceArray<float> device_weight(weight);
    DeviceArray<std::uint16_t> out(kRows * stride);
    Quantised q(cols);
    launch_rms_norm_quant(device.get(), stride, kRows, cols, device_weight.get(), 1e-5F, out.get(), stride,
                          q.rows, false, nullptr);
    MIMO_CUDA(cudaDeviceSynchronize());
    const std::vector<std::uint16_t> got = out.download();
    for (int r = 0; r < kRows; ++r) {
      double square = 0;
      for (int c = 0; c < cols; ++c) square += static_cast<double>(x[r * stride + c]) * x[r * stride + c];
      const double factor = 1 / std::sqrt(square / cols + 1e-5);
      for (int c = 0; c < cols; ++c) {
        const double want = x[r * stride + c] * factor * weight[c];
        ASSERT_NEAR(from_bf16(got[r * stride + c]), want, std::fabs(want) * (0x1p-8 + 1e-5)) << r << " " << c;
      }
      for (int c = cols; c < stride; ++c) ASSERT_EQ(got[r * stride + c], 0xffff);
    }
    expect_quantised(got, stride, cols, q.rows, q.codes.download(), q.scales.download());
    // Either output alone has the same bits.
    Quantised alone(cols);
    launch_rms_norm_quant(device.get(), stride, kRows, cols, device_weight.get(), 1e-5F, nullptr, 0,
                          alone.rows, true, nullptr);
    out.poison();
    launch_rms_norm_quant(device.get(), stride, kRows, cols, device_weight.get(), 1e-5F, out.get(), stride,
                          {}, true, nullptr);
    MIMO_CUDA(cudaDeviceSynchronize());
    EXPECT_EQ(out.download(), got);
    expect_quantised(got, stride, cols, alone.rows, alone.codes.download(), alone.scales.download());
  }
}

TEST(ActivationQuant, SiluMul) {
  std::mt19937 random(3);
  for (const int cols : {8, 100, 2048, 16384}) {
    if (small_cases() && cols > 2048) continue;
    SCOPED_TRACE(cols);
    const std::int64_t stride = 2 * cols + 8;
    std::vector<float> x(kRows * stride, std::nanf(""));
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < 2 * cols; ++c) {
        x[r * stride + c] = from_bf16(to_bf16(3 * std::normal_distribution<float>()(random)));
      }
    }
    DeviceArray<std::uint16_t> device(as_bf16(x));
    DeviceArray<std::uint16_t> out(kRows * cols);
    Quantised q(cols);
    launch_silu_mul_quant(device.get(), stride, kRows, cols, out.get(), cols, q.rows, false, nullptr);
    MIMO_CUDA(cudaDeviceSynchronize());
    const std::vector<std::uint16_t> got = out.download();
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < cols; ++c) {
        const double gate = x[r * stride + c];
        const double want = gate / (1 + std::exp(-gate)) * x[r * stride + cols + c];
        ASSERT_NEAR(from_bf16(got[r * cols + c]), want, std::fabs(want) * (0x1p-8 + 1e-5)) << r << " " << c;
      }
    }
    expect_quantised(got, cols, cols, q.rows, q.codes.download(), q.scales.download());
  }
}

}  // namespace
}  // namespace mimo::cuda
