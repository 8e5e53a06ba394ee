// Times one mixture-of-experts layer in MXFP4 and compares its rate with what memory delivers.
//   bench_moe_layer [threads] [experts] [hidden] [intermediate] [top_k]
// Default: 256 experts of 4096 x 2048, 8 a token (V2.6-Flash). Rows are routed at random, so that few rows read
// few experts and many rows read all of them.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "core/check.h"
#include "core/memory_bandwidth.h"
#include "ops/cpu/cpu_ops.h"

namespace {

// Random nibbles with scales near 2^-7: the same bytes serve as every expert's weights before packing.
struct StoredMatrix {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  mimo::WeightView view;

  StoredMatrix(std::int64_t rows, std::int64_t cols, std::mt19937& random)
      : codes(static_cast<std::size_t>(rows * cols / 2)), scales(static_cast<std::size_t>(rows * cols / 32)) {
    for (std::uint8_t& byte : codes) byte = static_cast<std::uint8_t>(random());
    for (std::uint8_t& scale : scales) scale = static_cast<std::uint8_t>(118 + random() % 4);
    view.name = "random";
    view.format = mimo::WeightFormat::kMxfp4;
    view.rows = rows;
    view.cols = cols;
    mimo::WeightSegment segment;
    segment.rows = rows;
    segment.data = codes.data();
    segment.row_stride = static_cast<std::size_t>(cols / 2);
    segment.scales_u8 = scales.data();
    segment.scale_stride = static_cast<std::size_t>(cols / 32);
    view.segments.push_back(segment);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int index, int fallback) {
    return argc > index ? std::atoi(argv[index]) : fallback;
  };
  const int threads = argument(1, mimo::available_cpus());
  const int experts = argument(2, 256);
  const int hidden = argument(3, 4096);
  const int intermediate = argument(4, 2048);
  const int top_k = argument(5, 8);
  double roof = 0;
  {
    mimo::ThreadPool pool({.threads = threads});
    roof = mimo::measure_read_bandwidth(pool, 1024);
  }
  auto ops = mimo::make_cpu_ops({.threads = threads});
  if (!ops) {
    std::fprintf(stderr, "%s\n", ops.error().message.c_str());
    return 1;
  }
  std::mt19937 random(3);
  const StoredMatrix gate(intermediate, hidden, random);
  const StoredMatrix up(intermediate, hidden, random);
  const StoredMatrix down(hidden, intermediate, random);
  const std::vector<mimo::MlpViews> views(static_cast<std::size_t>(experts),
                                          {&gate.view, &up.view, &down.view});
  auto bank = (*ops)->pack_mlps(views);
  MIMO_CHECK(bank, "pack");
  std::printf("# %s, %d threads, %.1f GB/s read, %d experts of %d x %d, %d a row\n",
              mimo::cpu_description().c_str(), threads, roof / 1e9, experts, hidden, intermediate, top_k);
  std::printf("| rows | experts read | ms | GB/s | of the roof | Gop/s |\n|---|---|---|---|---|---|\n");
  for (const int rows : {1, 8, 64, 512}) {
    const auto slots = static_cast<std::size_t>(rows * top_k);
    std::vector<float> x(static_cast<std::size_t>(rows * hidden), 0.5f);
    std::vector<float> y(x.size());
    const std::vector<float> weights(slots, 1.0f / static_cast<float>(top_k));
    std::vector<double> seconds;
    std::size_t touched = 0;
    for (int repeat = 0; repeat < 9; ++repeat) {
      // New experts every time: the ones just read would lie in a cache.
      std::vector<std::int32_t> ids;
      std::vector<std::int32_t> all(static_cast<std::size_t>(experts));
      std::iota(all.begin(), all.end(), 0);
      for (int r = 0; r < rows; ++r) {
        std::shuffle(all.begin(), all.end(), random);
        std::sort(all.begin(), all.begin() + top_k);
        ids.insert(ids.end(), all.begin(), all.begin() + top_k);
      }
      touched = std::set<std::int32_t>(ids.begin(), ids.end()).size();
      const auto start = std::chrono::steady_clock::now();
      (*ops)->experts(reinterpret_cast<const mimo::Act*>(x.data()), rows, **bank, top_k, ids.data(),
                      weights.data(), y.data());
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    const double bytes = static_cast<double>(touched) * static_cast<double>((*bank)->expert_bytes());
    const double operations = 6.0 * hidden * intermediate * static_cast<double>(slots);
    std::printf("| %d | %zu | %.2f | %.1f | %.0f%% | %.0f |\n", rows, touched, 1e3 * median,
                bytes / median / 1e9, 100 * bytes / median / roof, operations / median / 1e9);
  }
  return 0;
}
