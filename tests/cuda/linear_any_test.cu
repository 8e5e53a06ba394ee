#include <string>

#include "cuda/linear_input.h"
#include "ops/cuda/kernels/linear_any.h"

namespace mimo::cuda {
namespace {

using namespace testing;

// Every way that the choice can go gives the product.
TEST(LinearAny, MatchesDouble) {
  std::mt19937 random(1);
  struct Case {
    LinearFormat format;
    std::vector<testing::Run> runs;
    int cols;
  };
  const std::vector<Case> cases = {
      {LinearFormat::kF32, {{70, 0}}, 200},           {LinearFormat::kBF16, {{300, 0}}, 264},
      {LinearFormat::kBF16, {{10300, 0}}, 64},        {LinearFormat::kFp8, {{256, 64}, {64, 0}}, 384},
      {LinearFormat::kFp8, {{130, 3}, {70, 0}}, 384},
  };
  for (const Case& c : cases) {
    const HostMatrix m = random_matrix(c.format, c.runs, c.cols, random);
    const PackedMatrix packed(m);
    const bool fp8 = c.format == LinearFormat::kFp8;
    DeviceArray<std::uint8_t> workspace(linear_small_workspace(packed.weight(), false));
    MIMO_CUDA(cudaMemset(workspace.get(), 0, linear_small_counter_bytes()));
    for (const int rows : {1, 64, 65, 129, 300}) {
      for (const bool quantised : {true, false}) {
        SCOPED_TRACE(std::to_string(m.rows) + "x" + std::to_string(m.cols) + " rows " + std::to_string(rows));
        Input input(fp8 && quantised, rows, m.cols, random_activations(rows, m.cols, random));
        DeviceArray<float> y(static_cast<std::size_t>(rows) * m.rows);
        launch_linear(args_of(input, y.get(), m.rows, rows), fp8 && quantised ? &input.quant : nullptr,
                      packed.weight(), workspace.get(), false, nullptr);
        MIMO_CUDA(cudaDeviceSynchronize());
        const std::vector<float> got = y.download();
        int bad = 0;
        for (std::size_t i = 0; i < got.size(); i += 7) {
          const Product p =
              product(m, input.meaning, static_cast<int>(i / m.rows), static_cast<int>(i % m.rows));
          bad += std::fabs(got[i] - p.value) <= p.size * (fp8 && quantised ? 1e-3 : 2e-6) + 1e-30 ? 0 : 1;
        }
        EXPECT_EQ(bad, 0);
      }
    }
  }
}

}  // namespace
}  // namespace mimo::cuda
