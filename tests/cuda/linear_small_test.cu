#include <cstdio>
#include <string>

#include "cuda/linear_input.h"
#include "ops/cuda/kernels/linear_large.h"
#include "ops/cuda/kernels/linear_small.h"

namespace mimo::cuda {
namespace {

using namespace testing;

struct Workspace {
  Workspace(const LinearWeight& weight, bool best)
      : bytes(linear_small_workspace(weight, best)), counters(linear_small_counter_bytes()) {
    MIMO_CUDA(cudaMemset(bytes.get(), 0, counters));
  }
  bool clean() const {
    const std::vector<std::uint8_t> now = bytes.download();
    return std::all_of(now.begin(), now.begin() + static_cast<std::ptrdiff_t>(counters),
                       [](std::uint8_t b) { return b == 0; });
  }
  DeviceArray<std::uint8_t> bytes;
  std::size_t counters;
};

struct Shape {
  std::vector<Run> runs;
  int cols;
};

// Odd sizes, shares that cut through rows (few row blocks, long rows), more row blocks than thread blocks.
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {{{1, 0}}, 8},
      {{{128, 0}}, 128},
      {{{64, 64}, {200, 0}}, 384},
      {{{131, 0}, {70, 13}, {3, 127}}, 200},
      {{{129, 0}}, 8192},
      {{{1000, 0}}, 4096},
      {{{3072, 0}, {192, 64}, {128, 0}}, 1536},
      {{{20000, 0}}, 264},
      {{{69000, 0}}, 72},
  };
  return all;
}

TEST(LinearSmall, MatchesDouble) {
  std::mt19937 random(1);
  for (const LinearFormat format : {LinearFormat::kBF16, LinearFormat::kFp8}) {
    const bool fp8 = format == LinearFormat::kFp8;
    for (const Shape& shape : shapes()) {
      if (small_cases() && (shape.cols > 384 || shape.runs[0].rows > 200)) continue;
      const HostMatrix m = random_matrix(format, shape.runs, shape.cols, random);
      const PackedMatrix packed(m);
      Workspace workspace(packed.weight(), false);
      for (const int rows : {1, 5, 16, 27, 64, 101, 128}) {
        if (small_cases() && rows > 27) continue;
        for (const int mode : {0, 1, 2}) {  // fp32, fp32 added, bf16
          if (mode != 0 && rows % 2 == 0) continue;
          SCOPED_TRACE(std::string(fp8 ? "fp8 " : "bf16 ") + std::to_string(m.rows) + "x" +
                       std::to_string(m.cols) + " rows " + std::to_string(rows) + " mode " +
                       std::to_string(mode));
          Input input(fp8, rows, m.cols, random_activations(rows, m.cols, random));
          const int y_stride = m.rows + 5;
          const std::size_t y_count = static_cast<std::size_t>(rows + 1) * y_stride;
          DeviceArray<float> y32(y_count);
          DeviceArray<std::uint16_t> y16(y_count);
          std::vector<float> before(y_count, std::nanf(""));
          if (mode == 1) {
            for (float& v : before) v = std::normal_distribution<float>()(random);
            y32.upload(before);
          }
          LinearArgs args = args_of(input, y32.get(), y_stride, rows);
          args.add = mode == 1;
          if (mode == 2) {
            args.y = y16.get();
            args.y_type = ActType::kBF16;
          }
          launch_linear_small(args, fp8 ? &input.quant : nullptr, packed.weight(), workspace.bytes.get(),
                              rows % 3 == 0, nullptr);
          MIMO_CUDA(cudaDeviceSynchronize());
          EXPECT_TRUE(workspace.clean());
          const std::vector<float> got32 = y32.download();
          const std::vector<std::uint16_t> got16 = y16.download();
          int bad = 0;
          double worst = 0;
          // A sample of the larger products.
          const int step = std::max<std::int64_t>(1, std::int64_t{m.rows} * m.cols * rows / 8'000'000) | 1;
          for (int r = 0; r <= rows; ++r) {
            for (int n = 0; n < y_stride; ++n) {
              const std::size_t at = static_cast<std::size_t>(r) * y_stride + n;
              const float got = mode == 2 ? from_bf16(got16[at]) : got32[at];
              if (n >= m.rows || r == rows) {
                bad += (mode == 1 ? got == before[at] : std::isnan(got)) ? 0 : 1;
                continue;
              }
              if (at % step != 0) {
                bad += std::isnan(got) ? 1 : 0;
                continue;
              }
              const Product p = product(m, input.meaning, r, n);
              const double want = p.value + (mode == 1 ? before[at] : 0);
              const double error = std::fabs(got - want) - std::fabs(want) * (mode == 2 ? 0x1p-8 : 1e-6);
              worst = std::max(worst, error / p.size);
              // The tensor core adds up FP8 products with 14 bits or so.
              bad += error <= p.size * (fp8 ? 1e-3 : 2e-6) + 1e-30 ? 0 : 1;
            }
          }
          EXPECT_EQ(bad, 0);
          if (mode == 0 && (bad != 0 || rows == 27)) {
            std::printf("  %s %dx%d rows %d: error %.2e of the terms' sizes\n", fp8 ? "fp8" : "bf16", m.rows,
                        m.cols, rows, worst);
          }
        }
      }
    }
  }
}

// Every row has the bits that it has alone, whichever width of the kernel it went through.
TEST(LinearSmall, RowsAreIndependent) {
  std::mt19937 random(2);
  for (const bool fp8 : {false, true}) {
    for (const Shape& shape : {Shape{{{192, 0}}, 4096}, Shape{{{3000, 0}}, 1024}}) {
      const HostMatrix m =
          random_matrix(fp8 ? LinearFormat::kFp8 : LinearFormat::kBF16, shape.runs, shape.cols, random);
      const PackedMatrix packed(m);
      Workspace workspace(packed.weight(), false);
      constexpr int kRows = 128;
      const std::vector<float> x = random_activations(kRows, m.cols, random);
      DeviceArray<float> alone(static_cast<std::size_t>(kRows) * m.rows);
      for (int r = 0; r < kRows; ++r) {
        Input one(fp8, 1, m.cols, std::vector<float>(x.begin() + r * m.cols, x.begin() + (r + 1) * m.cols));
        launch_linear_small(args_of(one, alone.get() + static_cast<std::size_t>(r) * m.rows, m.rows, 1),
                            fp8 ? &one.quant : nullptr, packed.weight(), workspace.bytes.get(), false,
                            nullptr);
        MIMO_CUDA(cudaDeviceSynchronize());
      }
      const std::vector<float> want = alone.download();
      for (const int rows : {2, 8, 13, 32, 50, 100, 128}) {
        Input input(fp8, rows, m.cols, std::vector<float>(x.begin(), x.begin() + rows * m.cols));
        DeviceArray<float> y(static_cast<std::size_t>(rows) * m.rows);
        launch_linear_small(args_of(input, y.get(), m.rows, rows), fp8 ? &input.quant : nullptr,
                            packed.weight(), workspace.bytes.get(), false, nullptr);
        MIMO_CUDA(cudaDeviceSynchronize());
        const std::vector<float> got = y.download();
        EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0)
            << fp8 << " " << m.rows << " " << rows;
      }
    }
  }
}

TEST(LinearBest, MatchesTheOutputs) {
  std::mt19937 random(3);
  for (const Shape& shape : {Shape{{{1000, 0}}, 512}, Shape{{{300, 0}}, 4096}, Shape{{{25000, 0}}, 136},
                             Shape{{{70000, 0}}, 136}}) {
    HostMatrix m = random_matrix(LinearFormat::kBF16, shape.runs, shape.cols, random);
    // Every row twice or more: the best is always a tie.
    const std::size_t row_bytes = static_cast<std::size_t>(m.cols) * 2;
    for (int n = 1; n < m.rows; ++n) {
      if (n % 3 != 0) std::memcpy(&m.bytes[n * row_bytes], &m.bytes[(n / 3 * 3) * row_bytes], row_bytes);
    }
    const PackedMatrix packed(m);
    Workspace workspace(packed.weight(), true);
    for (const int rows : {1, 7, 20, 64, 128}) {
      std::vector<float> x = random_activations(rows, m.cols, random);
      for (float& v : x) v = from_bf16(to_bf16(v * 0.02F));
      if (rows > 5) x[5 * m.cols + 3] = std::nanf("");
      if (rows > 9) x[9 * m.cols + 4] = INFINITY;
      Input input(false, rows, m.cols, x);
      DeviceArray<float> y(static_cast<std::size_t>(rows) * m.rows);
      launch_linear_small(args_of(input, y.get(), m.rows, rows), nullptr, packed.weight(),
                          workspace.bytes.get(), false, nullptr);
      const int count = m.rows - 77;
      DeviceArray<std::int32_t> ids(rows);
      DeviceArray<float> probabilities(rows);
      BestArgs best;
      best.count = count;
      best.ids = ids.get();
      best.probabilities = probabilities.get();
      launch_linear_best(args_of(input, nullptr, 0, rows), packed.weight(), best, workspace.bytes.get(),
                         false, nullptr);
      MIMO_CUDA(cudaDeviceSynchronize());
      EXPECT_TRUE(workspace.clean());
      const std::vector<float> logits = y.download();
      const std::vector<std::int32_t> got_ids = ids.download();
      const std::vector<float> got = probabilities.download();
      for (int r = 0; r < rows; ++r) {
        if (r == 5 || r == 9) {
          EXPECT_EQ(got_ids[r], -1);
          EXPECT_TRUE(std::isnan(got[r]));
          continue;
        }
        const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(r) * m.rows;
        const auto at = std::max_element(begin, begin + count);
        double sum = 0;
        for (auto it = begin; it != begin + count; ++it) sum += std::exp(static_cast<double>(*it) - *at);
        EXPECT_EQ(got_ids[r], at - begin);
        EXPECT_NEAR(got[r] * sum, 1.0, 1e-4);
      }
    }
  }
}

// Where the kernel for few rows takes whole tiles, it gives the bits of the one for many.
TEST(LinearSmall, WholeTilesHaveTheBitsOfManyRows) {
  std::mt19937 random(4);
  for (const bool fp8 : {false, true}) {
    const HostMatrix m =
        random_matrix(fp8 ? LinearFormat::kFp8 : LinearFormat::kBF16, {{14000, 0}}, 648, random);
    const PackedMatrix packed(m);
    ASSERT_TRUE(linear_small_whole(packed.weight()));
    Workspace workspace(packed.weight(), false);
    for (const int rows : {1, 20, 128}) {
      Input input(fp8, rows, m.cols, random_activations(rows, m.cols, random));
      DeviceArray<float> small(static_cast<std::size_t>(rows) * m.rows);
      DeviceArray<float> large(small.size());
      const QuantRows* quant = fp8 ? &input.quant : nullptr;
      launch_linear_small(args_of(input, small.get(), m.rows, rows), quant, packed.weight(),
                          workspace.bytes.get(), false, nullptr);
      launch_linear_large(args_of(input, large.get(), m.rows, rows), quant, packed.weight(), false, nullptr);
      MIMO_CUDA(cudaDeviceSynchronize());
      EXPECT_TRUE(small.download() == large.download()) << fp8 << " " << rows;
    }
  }
}

// Layers one after the other, each on what the one before has just written, with launches that overlap and without.
TEST(LinearSmall, OverlappingLaunchesWaitForWhatTheyRead) {
  std::mt19937 random(5);
  constexpr int kHidden = 256;
  constexpr int kInter = 8192;
  constexpr int kLayers = 30;
  const HostMatrix up = random_matrix(LinearFormat::kFp8, {{2 * kInter, 0}}, kHidden, random);
  const HostMatrix down = random_matrix(LinearFormat::kFp8, {{kHidden, 0}}, kInter, random);
  const HostMatrix other = random_matrix(LinearFormat::kBF16, {{kHidden, 0}}, kHidden, random);
  const HostMatrix head = random_matrix(LinearFormat::kBF16, {{70000, 0}}, kHidden, random);
  const PackedMatrix packed_up(up);
  const PackedMatrix packed_down(down);
  const PackedMatrix packed_other(other);
  const PackedMatrix packed_head(head);
  std::size_t most = 0;
  for (const PackedMatrix* m : {&packed_up, &packed_down, &packed_other})
    most = std::max(most, linear_small_workspace(m->weight(), false));
  most = std::max(most, linear_small_workspace(packed_head.weight(), true));
  DeviceArray<std::uint8_t> workspace(most);
  MIMO_CUDA(cudaMemset(workspace.get(), 0, linear_small_counter_bytes()));
  const std::vector<float> gains(kHidden, 1.0F);
  DeviceArray<float> gain(gains);
  for (const int rows : {1, 7, 40, 128}) {
    const std::vector<float> start = random_activations(rows, kHidden, random);
    DeviceArray<float> x(start);
    DeviceArray<std::uint16_t> normed(static_cast<std::size_t>(rows) * kHidden);
    DeviceArray<std::uint16_t> gate_up(static_cast<std::size_t>(rows) * 2 * kInter);
    DeviceArray<std::uint16_t> act(static_cast<std::size_t>(rows) * kInter);
    DeviceArray<std::uint8_t> codes(static_cast<std::size_t>(rows) * kInter);
    DeviceArray<float> scales(kInter / 128 * quant_scale_stride(rows));
    DeviceArray<std::int32_t> ids(static_cast<std::size_t>(rows) * kLayers);
    DeviceArray<float> probabilities(static_cast<std::size_t>(rows) * kLayers);
    const auto run = [&](bool overlap, cudaStream_t stream) {
      QuantRows narrow = {codes.get(), scales.get(), kHidden, quant_scale_stride(rows)};
      QuantRows wide = {codes.get(), scales.get(), kInter, quant_scale_stride(rows)};
      LinearArgs args;
      args.rows = rows;
      for (int layer = 0; layer < kLayers; ++layer) {
        launch_rms_norm_quant(x.get(), kHidden, rows, kHidden, gain.get(), 1e-5F, normed.get(), kHidden,
                              narrow, overlap, stream);
        args.y = gate_up.get();
        args.y_type = ActType::kBF16;
        args.y_stride = 2 * kInter;
        args.add = false;
        launch_linear_small(args, &narrow, packed_up.weight(), workspace.get(), overlap, stream);
        launch_silu_mul_quant(gate_up.get(), 2 * kInter, rows, kInter, act.get(), kInter, wide, overlap,
                              stream);
        args.y = x.get();
        args.y_type = ActType::kF32;
        args.y_stride = kHidden;
        args.add = true;
        launch_linear_small(args, &wide, packed_down.weight(), workspace.get(), overlap, stream);
        args.x = normed.get();
        args.x_stride = kHidden;
        launch_linear_small(args, nullptr, packed_other.weight(), workspace.get(), overlap, stream);
        BestArgs best;
        best.count = head.rows;
        best.ids = ids.get() + layer * rows;
        best.probabilities = probabilities.get() + layer * rows;
        launch_linear_best(args, packed_head.weight(), best, workspace.get(), overlap, stream);
      }
    };
    run(false, nullptr);
    MIMO_CUDA(cudaDeviceSynchronize());
    const std::vector<float> want = x.download();
    const std::vector<std::int32_t> want_ids = ids.download();
    const std::vector<float> want_probabilities = probabilities.download();
    EXPECT_TRUE(std::all_of(want.begin(), want.end(), [](float v) { return std::isfinite(v); }));
    EXPECT_TRUE(std::all_of(want_ids.begin(), want_ids.end(), [](std::int32_t id) { return id >= 0; }));
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    MIMO_CUDA(cudaStreamCreate(&stream));
    MIMO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    run(true, stream);
    MIMO_CUDA(cudaStreamEndCapture(stream, &graph));
    MIMO_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int replay = 0; replay < 3; ++replay) {
      x.upload(start);
      ids.poison();
      probabilities.poison();
      if (replay == 2) {
        run(true, stream);
      } else {
        MIMO_CUDA(cudaGraphLaunch(exec, stream));
      }
      MIMO_CUDA(cudaStreamSynchronize(stream));
      EXPECT_TRUE(x.download() == want) << rows << " " << replay;
      EXPECT_TRUE(ids.download() == want_ids) << rows << " " << replay;
      EXPECT_TRUE(probabilities.download() == want_probabilities) << rows << " " << replay;
    }
    MIMO_CUDA(cudaGraphExecDestroy(exec));
    MIMO_CUDA(cudaGraphDestroy(graph));
    MIMO_CUDA(cudaStreamDestroy(stream));
  }
}

}  // namespace
}  // namespace mimo::cuda
