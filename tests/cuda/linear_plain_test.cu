#include <memory>
#include <string>

#include "cuda/linear_testing.h"
#include "ops/cuda/kernels/linear_plain.h"

namespace mimo::cuda {
namespace {

using namespace testing;

struct Case {
  LinearFormat format;
  std::vector<Run> runs;
  int cols;
  int rows;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const LinearFormat format : {LinearFormat::kF32, LinearFormat::kBF16, LinearFormat::kFp8}) {
    all.push_back({format, {{1, 0}}, 1, 1});
    all.push_back({format, {{128, 0}}, 128, 5});
    all.push_back({format, {{64, 64}, {200, 0}}, 384, 33});
    all.push_back({format, {{131, 0}, {70, 13}, {3, 127}}, 197, 17});
    all.push_back({format, {{129, 5}}, 1000, 70});
  }
  return all;
}

TEST(LinearPlain, MatchesDouble) {
  std::mt19937 random(7);
  for (const Case& c : cases()) {
    if (small_cases() && c.rows > 17) continue;
    const HostMatrix m = random_matrix(c.format, c.runs, c.cols, random);
    const PackedMatrix packed(m);
    const std::vector<float> x = random_activations(c.rows, c.cols, random);
    for (const ActType x_type : {ActType::kF32, ActType::kBF16}) {
      for (const int mode : {0, 1, 2}) {  // fp32, fp32 added, bf16
        SCOPED_TRACE(std::to_string(static_cast<int>(c.format)) + " " + std::to_string(m.rows) + "x" +
                     std::to_string(c.cols) + " rows " + std::to_string(c.rows) + " mode " +
                     std::to_string(mode));
        // Rows are wider than the matrix, and what lies between and after them is NaN.
        const int x_stride = c.cols + 3;
        const int y_stride = m.rows + 5;
        std::vector<float> wide(static_cast<std::size_t>(c.rows + 2) * x_stride, std::nanf(""));
        for (int r = 0; r < c.rows; ++r) std::copy_n(&x[r * c.cols], c.cols, &wide[r * x_stride]);
        DeviceArray<float> x32(wide);
        DeviceArray<std::uint16_t> x16(as_bf16(wide));
        const std::size_t y_count = static_cast<std::size_t>(c.rows + 1) * y_stride;
        DeviceArray<float> y32(y_count);
        DeviceArray<std::uint16_t> y16(y_count);
        std::vector<float> before(y_count);
        for (float& v : before) v = std::normal_distribution<float>()(random);
        if (mode == 1) y32.upload(before);
        LinearArgs args;
        args.x = x_type == ActType::kF32 ? static_cast<void*>(x32.get()) : x16.get();
        args.x_type = x_type;
        args.x_stride = x_stride;
        args.y = mode == 2 ? static_cast<void*>(y16.get()) : y32.get();
        args.y_type = mode == 2 ? ActType::kBF16 : ActType::kF32;
        args.y_stride = y_stride;
        args.add = mode == 1;
        args.rows = c.rows;
        launch_linear_plain(args, packed.weight(), nullptr);
        MIMO_CUDA(cudaDeviceSynchronize());
        const std::vector<float> got32 = y32.download();
        const std::vector<std::uint16_t> got16 = y16.download();
        int bad = 0;
        for (int r = 0; r < c.rows; ++r) {
          for (int n = 0; n < y_stride; ++n) {
            const std::size_t at = static_cast<std::size_t>(r) * y_stride + n;
            const float got = mode == 2 ? from_bf16(got16[at]) : got32[at];
            if (n >= m.rows) {
              const bool untouched = mode == 1 ? got == before[at] : std::isnan(got);
              bad += untouched ? 0 : 1;
              continue;
            }
            const Product p = product(m, x, r, n);
            const double want = p.value + (mode == 1 ? before[at] : 0);
            const double tolerance = p.size * 1e-6 + std::fabs(want) * (mode == 2 ? 0x1p-8 : 1e-6) + 1e-30;
            bad += std::fabs(got - want) <= tolerance ? 0 : 1;
          }
        }
        for (int n = 0; n < y_stride; ++n) {
          const std::size_t at = static_cast<std::size_t>(c.rows) * y_stride + n;
          const float got = mode == 2 ? from_bf16(got16[at]) : got32[at];
          bad += (mode == 1 ? got == before[at] : std::isnan(got)) ? 0 : 1;
        }
        EXPECT_EQ(bad, 0);
      }
    }
  }
}

TEST(LinearPlain, RowsAreIndependent) {
  std::mt19937 random(8);
  for (const LinearFormat format : {LinearFormat::kF32, LinearFormat::kBF16, LinearFormat::kFp8}) {
    const HostMatrix m = random_matrix(format, {{300, 0}}, 520, random);
    const PackedMatrix packed(m);
    constexpr int kRows = 75;
    DeviceArray<float> x(random_activations(kRows, 520, random));
    DeviceArray<float> y(kRows * 300);
    DeviceArray<float> one(kRows * 300);
    LinearArgs args;
    args.x = x.get();
    args.x_type = ActType::kF32;
    args.x_stride = 520;
    args.y = y.get();
    args.y_stride = 300;
    args.rows = kRows;
    launch_linear_plain(args, packed.weight(), nullptr);
    args.rows = 1;
    for (int r = 0; r < kRows; ++r) {
      args.x = x.get() + r * 520;
      args.y = one.get() + r * 300;
      launch_linear_plain(args, packed.weight(), nullptr);
    }
    MIMO_CUDA(cudaDeviceSynchronize());
    const std::vector<float> together = y.download();
    const std::vector<float> alone = one.download();
    EXPECT_EQ(std::memcmp(together.data(), alone.data(), together.size() * 4), 0);
  }
}

}  // namespace
}  // namespace mimo::cuda
