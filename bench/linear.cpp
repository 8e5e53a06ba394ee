// Times one matrix of each stored format: GB/s of packed weights and Gop/s, over rows and sizes.
//   bench_linear [threads] [rows] [N] [K] [copies]
// With several copies the weights do not stay in a cache: copies x bytes should exceed it to see memory.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "core/check.h"
#include "ops/cpu/cpu_ops.h"

namespace {

using mimo::MatrixUse;
using mimo::WeightFormat;

struct Stored {
  std::vector<std::uint8_t> bytes;
  std::vector<float> scales_f32;
  std::vector<std::uint8_t> scales_u8;
  mimo::WeightView view;
};

Stored random_matrix(WeightFormat format, std::int64_t rows, std::int64_t cols) {
  Stored stored;
  std::mt19937 random(7);
  stored.bytes.resize(static_cast<std::size_t>(rows) * mimo::weight_row_bytes(format, cols));
  for (std::uint8_t& byte : stored.bytes) byte = static_cast<std::uint8_t>(random());
  if (format == WeightFormat::kBF16) {
    for (std::size_t i = 1; i < stored.bytes.size(); i += 2)
      stored.bytes[i] = static_cast<std::uint8_t>(0x3C | (random() & 0x81));
  }
  if (format == WeightFormat::kFp8) {
    for (std::uint8_t& byte : stored.bytes) byte = (byte & 0x7F) == 0x7F ? 0 : byte;
  }
  stored.scales_f32.assign(static_cast<std::size_t>((rows + 127) / 128 * ((cols + 127) / 128)), 0.001f);
  stored.scales_u8.assign(static_cast<std::size_t>(rows * (cols / 32)), 120);
  for (std::uint8_t& scale : stored.scales_u8) scale = static_cast<std::uint8_t>(scale + random() % 3);
  stored.view.name = "random";
  stored.view.format = format;
  stored.view.rows = rows;
  stored.view.cols = cols;
  mimo::WeightSegment segment;
  segment.rows = rows;
  segment.data = stored.bytes.data();
  segment.row_stride = mimo::weight_row_bytes(format, cols);
  segment.scales_f32 = stored.scales_f32.data();
  segment.scales_u8 = stored.scales_u8.data();
  segment.scale_stride =
      static_cast<std::size_t>(format == WeightFormat::kFp8 ? (cols + 127) / 128 : cols / 32);
  stored.view.segments.push_back(segment);
  return stored;
}

double best_seconds(const std::function<void()>& body, int repeats) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int index, int fallback) {
    return argc > index ? std::atoi(argv[index]) : fallback;
  };
  const int threads = argument(1, 1);
  const int rows = argument(2, 1);
  const std::int64_t n = argument(3, 2048);
  const std::int64_t k = argument(4, 2048);
  const int copies = argument(5, 1);
  auto ops = mimo::make_cpu_ops({.threads = threads});
  if (!ops) {
    std::fprintf(stderr, "%s\n", ops.error().message.c_str());
    return 1;
  }
  for (const std::string& line : (*ops)->describe()) std::printf("# %s\n", line.c_str());
  std::printf("| format | rows | N | K | GB/s | Gop/s |\n|---|---|---|---|---|---|\n");
  const struct {
    const char* name;
    WeightFormat format;
    MatrixUse use;
  } kinds[] = {{"mxfp4", WeightFormat::kMxfp4, MatrixUse::kProjection},
               {"fp8", WeightFormat::kFp8, MatrixUse::kProjection},
               {"bf16 as int16", WeightFormat::kBF16, MatrixUse::kProjection},
               {"bf16", WeightFormat::kBF16, MatrixUse::kVocabulary}};
  for (const auto& kind : kinds) {
    const Stored stored = random_matrix(kind.format, n, k);
    std::vector<std::unique_ptr<mimo::Matrix>> matrices;
    for (int c = 0; c < copies; ++c) {
      auto packed = (*ops)->pack_matrix(stored.view, kind.use);
      MIMO_CHECK(packed, "pack");
      matrices.push_back(std::move(*packed));
    }
    std::vector<float> x(static_cast<std::size_t>(rows * k), 0.5f);
    std::vector<float> y(static_cast<std::size_t>(rows * n));
    const double seconds = best_seconds(
        [&] {
          for (const auto& matrix : matrices) {
            (*ops)->linear(reinterpret_cast<const mimo::Act*>(x.data()), rows, *matrix, y.data(),
                           mimo::Store::kOverwrite);
          }
        },
        30);
    const double bytes = static_cast<double>(matrices[0]->bytes()) * copies;
    const double operations = 2.0 * static_cast<double>(n * k) * rows * copies;
    std::printf("| %s | %d | %ld | %ld | %.1f | %.0f |\n", kind.name, rows, static_cast<long>(n),
                static_cast<long>(k), bytes / seconds / 1e9, operations / seconds / 1e9);
  }
  return 0;
}
