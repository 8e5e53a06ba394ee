#include <cstdio>
#include <string>

#include "cuda/linear_input.h"
#include "ops/cuda/kernels/linear_large.h"

namespace mimo::cuda {
namespace {

using namespace testing;

struct Case {
  std::vector<Run> runs;
  int cols;
  int rows;
};

TEST(LinearLarge, MatchesDouble) {
  std::mt19937 random(1);
  const std::vector<Case> cases = {
      {{{1, 0}}, 8, 1},
      {{{128, 0}}, 128, 300},
      {{{64, 64}, {200, 0}}, 392, 257},
      {{{320, 0}, {64, 0}, {100, 64}}, 1000, 130},
      {{{3072, 0}, {192, 64}, {128, 0}}, 1536, 515},
      {{{1000, 0}}, 8192, 129},
      {{{136, 0}}, 136, 1500},
      {{{9000, 0}}, 264, 300},
  };
  for (const bool fp8 : {false, true}) {
    for (const Case& c : cases) {
      if (small_cases() && c.cols > 128) continue;
      const HostMatrix m =
          random_matrix(fp8 ? LinearFormat::kFp8 : LinearFormat::kBF16, c.runs, c.cols, random);
      const PackedMatrix packed(m);
      ASSERT_EQ(packed.weight().scale_rows, 64);
      Input input(fp8, c.rows, m.cols, random_activations(c.rows, m.cols, random));
      for (const int mode : {0, 1, 2}) {  // fp32, fp32 added, bf16
        std::vector<std::uint32_t> first;
        for (const int tuning : {0, 1, 2, 3}) {
          for (const int pad : {5, 8}) {
            if (pad == 5 && tuning != 3) continue;
            SCOPED_TRACE(std::string(fp8 ? "fp8 " : "bf16 ") + std::to_string(m.rows) + "x" +
                         std::to_string(m.cols) + " rows " + std::to_string(c.rows) + " mode " +
                         std::to_string(mode) + " tuning " + std::to_string(tuning) + " pad " +
                         std::to_string(pad));
            const int y_stride = (m.rows + 7) / 8 * 8 + pad;
            const std::size_t y_count = static_cast<std::size_t>(c.rows + 1) * y_stride;
            DeviceArray<float> y32(y_count);
            DeviceArray<std::uint16_t> y16(y_count);
            const float filled = mode == 1 ? 3.25F : std::nanf("");
            if (mode == 1) y32.upload(std::vector<float>(y_count, filled));
            LinearArgs args = args_of(input, y32.get(), y_stride, c.rows);
            args.add = mode == 1;
            if (mode == 2) {
              args.y = y16.get();
              args.y_type = ActType::kBF16;
            }
            launch_linear_large(args, fp8 ? &input.quant : nullptr, packed.weight(),
                                {tuning % 2 + 1, tuning / 2 + 1}, pad == 5, nullptr);
            MIMO_CUDA(cudaDeviceSynchronize());
            const std::vector<float> got32 = y32.download();
            const std::vector<std::uint16_t> got16 = y16.download();
            // All ways of cutting into tiles give the same bits.
            std::vector<std::uint32_t> bits;
            int bad = 0;
            for (int r = 0; r <= c.rows; ++r) {
              for (int n = 0; n < y_stride; ++n) {
                const std::size_t at = static_cast<std::size_t>(r) * y_stride + n;
                const float got = mode == 2 ? from_bf16(got16[at]) : got32[at];
                if (n >= m.rows || r == c.rows) {
                  bad += (mode == 1 ? got == filled : std::isnan(got)) ? 0 : 1;
                } else {
                  bits.push_back(std::bit_cast<std::uint32_t>(got));
                }
              }
            }
            EXPECT_EQ(bad, 0);
            if (!first.empty()) {
              EXPECT_TRUE(bits == first);
              continue;
            }
            first = bits;
            double worst = 0;
            const std::size_t step = std::max<std::size_t>(1, bits.size() * m.cols / 1'000'000) | 1;
            for (std::size_t i = 0; i < bits.size(); ++i) {
              const float got = std::bit_cast<float>(bits[i]);
              if (i % step != 0) {
                bad += std::isnan(got) ? 1 : 0;
                continue;
              }
              const Product p =
                  product(m, input.meaning, static_cast<int>(i / m.rows), static_cast<int>(i % m.rows));
              const double want = p.value + (mode == 1 ? filled : 0);
              const double error = std::fabs(got - want) - std::fabs(want) * (mode == 2 ? 0x1p-8 : 1e-6);
              worst = std::max(worst, error / p.size);
              bad += error <= p.size * (fp8 ? 1e-3 : 2e-6) + 1e-30 ? 0 : 1;
            }
            EXPECT_EQ(bad, 0);
            if (mode == 0) {
              std::printf("  %s %dx%d rows %d: error %.2e of the terms' sizes\n", fp8 ? "fp8" : "bf16",
                          m.rows, m.cols, c.rows, worst);
            }
          }
        }
      }
    }
  }
}

TEST(LinearLarge, RowsAreIndependent) {
  std::mt19937 random(2);
  for (const bool fp8 : {false, true}) {
    const HostMatrix m =
        random_matrix(fp8 ? LinearFormat::kFp8 : LinearFormat::kBF16, {{500, 0}}, 2048, random);
    const PackedMatrix packed(m);
    constexpr int kRows = 700;
    const std::vector<float> x = random_activations(kRows, m.cols, random);
    Input all(fp8, kRows, m.cols, x);
    DeviceArray<float> y(static_cast<std::size_t>(kRows) * m.rows);
    launch_linear_large(args_of(all, y.get(), m.rows, kRows), fp8 ? &all.quant : nullptr, packed.weight(),
                        true, nullptr);
    const std::vector<float> want = y.download();
    for (const int first : {0, 1, 63, 300, 699}) {
      for (const int rows : {1, 100, 400}) {
        if (first + rows > kRows) continue;
        Input some(fp8, rows, m.cols,
                   std::vector<float>(x.begin() + first * m.cols, x.begin() + (first + rows) * m.cols));
        DeviceArray<float> part(static_cast<std::size_t>(rows) * m.rows);
        launch_linear_large(args_of(some, part.get(), m.rows, rows), fp8 ? &some.quant : nullptr,
                            packed.weight(), true, nullptr);
        const std::vector<float> got = part.download();
        EXPECT_EQ(
            std::memcmp(got.data(), want.data() + static_cast<std::size_t>(first) * m.rows, got.size() * 4),
            0)
            << first << " " << rows;
      }
    }
  }
}

}  // namespace
}  // namespace mimo::cuda
