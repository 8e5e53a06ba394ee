// Activations in device memory for the kernels that run on tensor cores.
#pragma once

#include "cuda/linear_testing.h"
#include "ops/cuda/kernels/activation_quant.h"

namespace mimo::cuda::testing {

// Activations as the kernels read them, and the values that they then have.
struct Input {
  Input(bool fp8, int rows, int cols, const std::vector<float>& x)
      : stride(fp8 ? cols : (cols + 7) / 8 * 8), values(static_cast<std::size_t>(rows + 3) * stride) {
    std::vector<float> wide((rows + 3) * stride, std::nanf(""));
    for (int r = 0; r < rows; ++r)
      std::copy_n(&x[static_cast<std::size_t>(r) * cols], cols, &wide[r * stride]);
    values.upload(as_bf16(wide));
    meaning = x;
    if (!fp8) return;
    quant.stride = quant_stride(cols) + 16;
    quant.scale_stride = quant_scale_stride(rows);
    codes = std::make_unique<DeviceArray<std::uint8_t>>(static_cast<std::size_t>(rows + 3) * quant.stride);
    scales = std::make_unique<DeviceArray<float>>(static_cast<std::size_t>((cols + 127) / 128) *
                                                  quant.scale_stride);
    quant.values = codes->get();
    quant.scales = scales->get();
    launch_quant(values.get(), stride, rows, cols, quant, false, nullptr);
    MIMO_CUDA(cudaDeviceSynchronize());
    const std::vector<std::uint8_t> c = codes->download();
    const std::vector<float> s = scales->download();
    for (int r = 0; r < rows; ++r) {
      for (int k = 0; k < cols; ++k) {
        meaning[static_cast<std::size_t>(r) * cols + k] =
            from_e4m3(c[r * quant.stride + k]) * s[k / 128 * quant.scale_stride + r];
      }
    }
  }

  std::int64_t stride;
  DeviceArray<std::uint16_t> values;
  std::unique_ptr<DeviceArray<std::uint8_t>> codes;
  std::unique_ptr<DeviceArray<float>> scales;
  QuantRows quant;
  std::vector<float> meaning;
};

inline LinearArgs args_of(Input& input, float* y, std::int64_t y_stride, int rows) {
  LinearArgs args;
  args.x = input.values.get();
  args.x_stride = input.stride;
  args.y = y;
  args.y_stride = y_stride;
  args.rows = rows;
  return args;
}

}  // namespace mimo::cuda::testing
