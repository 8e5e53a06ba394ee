// Matrix products of the CPU backend: against the reference within computed bounds, and bit for bit between
// batch sizes, thread counts and store modes.

#include <gtest/gtest.h>

#include <functional>

#include "ops/backends.h"
#include "ops/host_calls.h"
#include "ops/linear_bound.h"
#include "ops/reference/reference_ops.h"
#include "ops/stored_matrix.h"

namespace mimo {
namespace {

using namespace mimo::testing;

struct Format {
  const char* name;
  MatrixUse use;
  std::function<StoredMatrix(Random&, std::int64_t rows, std::int64_t cols)> make;
};

const std::vector<Format>& formats() {
  static const auto mxfp4 = [](ScaleGap gap) {
    return [gap](Random& r, std::int64_t n, std::int64_t k) { return mxfp4_matrix(r, n, k, gap); };
  };
  static const std::vector<Format> all = {
      {"f32", MatrixUse::kProjection, [](Random& r, auto n, auto k) { return f32_matrix(r, n, k); }},
      {"f32 vocabulary", MatrixUse::kVocabulary,
       [](Random& r, auto n, auto k) { return f32_matrix(r, n, k); }},
      {"bf16", MatrixUse::kProjection, [](Random& r, auto n, auto k) { return bf16_matrix(r, n, k, 0.02f); }},
      {"bf16 wide range", MatrixUse::kProjection,
       [](Random& r, auto n, auto k) { return bf16_matrix(r, n, k, 1.0f, 14); }},
      {"bf16 drafter", MatrixUse::kDrafter,
       [](Random& r, auto n, auto k) { return bf16_matrix(r, n, k, 0.02f); }},
      {"bf16 drafter wide range", MatrixUse::kDrafter,
       [](Random& r, auto n, auto k) { return bf16_matrix(r, n, k, 1.0f, 14); }},
      {"bf16 vocabulary", MatrixUse::kVocabulary,
       [](Random& r, auto n, auto k) { return bf16_matrix(r, n, k, 0.02f, 14); }},
      {"fp8", MatrixUse::kProjection, [](Random& r, auto n, auto k) { return fp8_matrix(r, n, k); }},
      {"mxfp4 near", MatrixUse::kProjection, mxfp4(ScaleGap::kNear)},
      {"mxfp4 middle", MatrixUse::kProjection, mxfp4(ScaleGap::kMiddle)},
      {"mxfp4 far", MatrixUse::kProjection, mxfp4(ScaleGap::kFar)},
      {"mxfp4 mixed", MatrixUse::kProjection, mxfp4(ScaleGap::kMixed)},
      {"bf16 shard", MatrixUse::kProjection,
       [](Random& r, auto n, auto k) {
         return bf16_matrix(r, n, k, 1.0f, 0, {128, 64});
       }},
      {"fp8 shard", MatrixUse::kProjection,
       [](Random& r, auto n, auto k) {
         return fp8_matrix(r, n, k, {128, 64});
       }},
      {"mxfp4 shard", MatrixUse::kProjection,
       [](Random& r, auto n, auto k) {
         return mxfp4_matrix(r, n, k, ScaleGap::kMixed, {128, 64});
       }},
  };
  return all;
}

std::unique_ptr<Matrix> pack(Ops& ops, const WeightView& view, MatrixUse use) {
  Result<std::unique_ptr<Matrix>> matrix = ops.pack_matrix(view, use);
  if (!matrix) throw std::runtime_error(matrix.error().message);
  return std::move(*matrix);
}

std::vector<float> multiply(Ops& ops, const Matrix& matrix, const float* x, int rows) {
  std::vector<float> y(static_cast<std::size_t>(rows * matrix.rows()), std::nanf(""));
  HostCalls(ops).linear(x, rows, matrix, y.data(), Store::kOverwrite);
  return y;
}

std::vector<float> reference_product(const StoredMatrix& stored, const std::vector<float>& x, int rows) {
  const std::unique_ptr<Ops> ops = make_reference_ops();
  return multiply(*ops, *pack(*ops, stored.view(), MatrixUse::kProjection), x.data(), rows);
}

// Largest |got - expected| / bound over all outputs; NaN counts as infinite.
double worst_ratio(const LinearBound& bound, const std::vector<float>& x, std::int64_t cols, int rows,
                   const std::vector<float>& got, const std::vector<float>& expected) {
  double worst = 0;
  for (int r = 0; r < rows; ++r) {
    const std::vector<double> limits = bound.row(x.data() + r * cols);
    for (std::size_t n = 0; n < limits.size(); ++n) {
      const std::size_t at = static_cast<std::size_t>(r) * limits.size() + n;
      const double error = std::fabs(static_cast<double>(got[at]) - expected[at]);
      const double ratio = error / (limits[n] + 2 * kUnit * std::fabs(static_cast<double>(expected[at])));
      worst = std::isnan(ratio) ? INFINITY : std::max(worst, ratio);
    }
  }
  return worst;
}

bool same_bits(const std::vector<float>& a, const float* b) {
  return std::memcmp(a.data(), b, a.size() * sizeof(float)) == 0;
}

constexpr int kRowCounts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,  12,
                              13, 14, 15, 16, 17, 18, 19, 20, 33, 64, 129, 130};
constexpr int kMaxRows = 130;

TEST(Linear, EveryFormatAndShapeAgainstReference) {
  Random random(1);
  double worst[2] = {0, 0};
  for (const Format& format : formats()) {
    // The last is longer than what kernels take at a time.
    for (const std::int64_t cols : {32, 64, 96, 128, 160, 1184}) {
      const std::int64_t rows =
          cols > 160 ? 17
                     : std::vector<std::int64_t>{1, 15, 16, 17, 40}[static_cast<std::size_t>(cols / 32 - 1)];
      for (const std::int64_t outputs : {rows, std::int64_t{36}}) {
        const StoredMatrix stored = format.make(random, outputs, cols);
        const std::vector<float> x = activations(random, kMaxRows, cols);
        const std::vector<float> expected = reference_product(stored, x, kMaxRows);
        for (const Backend& backend : cpu_backends()) {
          SCOPED_TRACE(fmt::format("{} [{}, {}] {}", format.name, outputs, cols, backend.name()));
          const std::unique_ptr<Matrix> matrix = pack(*backend.ops, stored.view(), format.use);
          EXPECT_EQ(matrix->rows(), outputs);
          EXPECT_EQ(matrix->cols(), cols);
          const std::vector<float> y = multiply(*backend.ops, *matrix, x.data(), kMaxRows);
          const LinearBound bound(stored.view(), format.use, backend.precision);
          const double ratio = worst_ratio(bound, x, cols, kMaxRows, y, expected);
          EXPECT_LE(ratio, 1.0);
          double& top = worst[backend.precision == ActivationPrecision::kExact ? 1 : 0];
          top = std::max(top, ratio);
          // A row's bits do not depend on the batch: any count, and any place in the batch.
          for (const int count : kRowCounts) {
            ASSERT_TRUE(same_bits(multiply(*backend.ops, *matrix, x.data(), count), y.data()))
                << count << " rows";
          }
          for (const int first : {1, 77, 129}) {
            const int count = std::min(3, kMaxRows - first);
            ASSERT_TRUE(same_bits(multiply(*backend.ops, *matrix, x.data() + first * cols, count),
                                  y.data() + first * outputs))
                << "from row " << first;
          }
        }
      }
    }
  }
  RecordProperty("worst_ratio_fast", std::to_string(worst[0]));
  RecordProperty("worst_ratio_exact", std::to_string(worst[1]));
}

TEST(Linear, AddsToWhatIsThere) {
  Random random(2);
  for (const Format& format : formats()) {
    const StoredMatrix stored = format.make(random, 37, 96);
    for (const int rows : {1, 4, 5, 21}) {
      const std::vector<float> x = activations(random, rows, 96);
      const std::vector<float> before = normal_values(random, static_cast<std::size_t>(rows) * 37, 3.0f);
      for (const Backend& backend : cpu_backends()) {
        const std::unique_ptr<Matrix> matrix = pack(*backend.ops, stored.view(), format.use);
        const std::vector<float> product = multiply(*backend.ops, *matrix, x.data(), rows);
        std::vector<float> y = before;
        HostCalls(*backend.ops).linear(x.data(), rows, *matrix, y.data(), Store::kAdd);
        for (std::size_t i = 0; i < y.size(); ++i) {
          ASSERT_EQ(y[i], before[i] + product[i])
              << format.name << " " << backend.name() << " row count " << rows;
        }
      }
    }
  }
}

// Nothing past the last output row or the last row is touched.
TEST(Linear, WritesOnlyItsOutputs) {
  Random random(3);
  for (const Format& format : formats()) {
    for (const int outputs : {1, 17, 31}) {
      const StoredMatrix stored = format.make(random, outputs, 64);
      for (const int rows : {1, 4, 5, 13}) {
        const std::vector<float> x = activations(random, rows, 64);
        for (const Backend& backend : cpu_backends()) {
          const std::unique_ptr<Matrix> matrix = pack(*backend.ops, stored.view(), format.use);
          std::vector<float> y(static_cast<std::size_t>(rows * outputs) + 32, 123.0f);
          HostCalls(*backend.ops).linear(x.data(), rows, *matrix, y.data() + 16, Store::kOverwrite);
          for (std::size_t i = 0; i < 16; ++i) {
            ASSERT_EQ(y[i], 123.0f) << format.name << " " << backend.name();
            ASSERT_EQ(y[y.size() - 1 - i], 123.0f) << format.name << " " << backend.name();
          }
        }
      }
    }
  }
}

TEST(Linear, ThreadsDoNotChangeBits) {
  Random random(4);
  for (const Format& format : formats()) {
    const StoredMatrix stored = format.make(random, 300, 160);
    for (const int rows : {1, 5, 40, 130}) {
      const std::vector<float> x = activations(random, rows, 160);
      const std::vector<Backend> one = cpu_backends(1);
      for (const int threads : {2, 3}) {
        const std::vector<Backend> many = cpu_backends(threads);
        for (std::size_t b = 0; b < one.size(); ++b) {
          const std::vector<float> a =
              multiply(*one[b].ops, *pack(*one[b].ops, stored.view(), format.use), x.data(), rows);
          const std::vector<float> c =
              multiply(*many[b].ops, *pack(*many[b].ops, stored.view(), format.use), x.data(), rows);
          ASSERT_TRUE(same_bits(a, c.data())) << format.name << " " << many[b].name() << " rows " << rows;
        }
      }
    }
  }
}

// A fused QKV matrix whose chunks have their own scale grids: sections start and end inside 128-row blocks.
TEST(Linear, FusedFp8SegmentsOnOddGrids) {
  Random random(5);
  // 400 rows a chunk: 4 scale rows of which the last has 16; k starts at grid row 208, v at 320.
  for (const std::int64_t cols : {64, 128, 272}) {
    const StoredMatrix stored = fused_fp8_matrix(random, {.chunks = 3, .q = 208, .k = 112, .v = 80}, cols);
    const int rows = 9;
    const std::vector<float> x = activations(random, rows, cols);
    const std::vector<float> expected = reference_product(stored, x, rows);
    for (const Backend& backend : cpu_backends()) {
      SCOPED_TRACE(backend.name());
      const std::unique_ptr<Matrix> matrix = pack(*backend.ops, stored.view(), MatrixUse::kProjection);
      const LinearBound bound(stored.view(), MatrixUse::kProjection, backend.precision);
      EXPECT_LE(worst_ratio(bound, x, cols, rows, multiply(*backend.ops, *matrix, x.data(), rows), expected),
                1.0);
    }
    // Control: the grid of a plain matrix (row / 128 over all rows) is far outside.
    StoredMatrix wrong = stored;
    WeightView plain = wrong.view();
    for (WeightSegment& segment : plain.segments) segment.grid_row = segment.grid_row / 128 * 128;
    const std::unique_ptr<Ops> reference = make_reference_ops();
    const std::vector<float> other =
        multiply(*reference, *pack(*reference, plain, MatrixUse::kProjection), x.data(), rows);
    const LinearBound bound(stored.view(), MatrixUse::kProjection, ActivationPrecision::kFast);
    EXPECT_GT(worst_ratio(bound, x, cols, rows, other, expected), 10.0);
  }
}

TEST(Linear, RefusesWhatItCannotRun) {
  Random random(6);
  Ops& ops = *cpu_backends().front().ops;
  // 200-row sections: a panel of 16 rows would straddle two scale blocks.
  const StoredMatrix odd = fused_fp8_matrix(random, {.chunks = 2, .q = 200, .k = 100, .v = 84}, 128);
  const Result<std::unique_ptr<Matrix>> fp8 = ops.pack_matrix(odd.view(), MatrixUse::kProjection);
  ASSERT_FALSE(fp8);
  EXPECT_EQ(fp8.error().code, ErrorCode::kUnsupported);
  StoredMatrix narrow = mxfp4_matrix(random, 16, 64);
  WeightView view = narrow.view();
  view.cols = 48;
  const Result<std::unique_ptr<Matrix>> mxfp4 = ops.pack_matrix(view, MatrixUse::kProjection);
  ASSERT_FALSE(mxfp4);
  EXPECT_NE(mxfp4.error().message.find("48 columns"), std::string::npos) << mxfp4.error().message;
}

// Weights that become integers must be finite: NaN and infinities would vanish. Elsewhere they reach the
// output.
TEST(Linear, NonFiniteWeightsAreRefusedOrSeen) {
  Random random(13);
  StoredMatrix fp8 = fp8_matrix(random, 40, 160);
  fp8.bytes[33 * fp8.row_stride + 150] = 0xFF;
  std::vector<StoredMatrix> broken = {fp8};
  for (const std::uint16_t bits : {0x7FC0, 0xFFC1, 0x7F80, 0xFF80}) {
    for (const std::size_t column : {std::size_t{0}, std::size_t{150}}) {
      StoredMatrix bf16 = bf16_matrix(random, 40, 160);
      std::memcpy(bf16.bytes.data() + 33 * bf16.row_stride + 2 * column, &bits, 2);
      broken.push_back(std::move(bf16));
    }
  }
  for (const StoredMatrix& stored : broken) {
    for (const Backend& backend : cpu_backends()) {
      const Result<std::unique_ptr<Matrix>> matrix =
          backend.ops->pack_matrix(stored.view(), MatrixUse::kProjection);
      if (stored.format == WeightFormat::kBF16 && backend.precision == ActivationPrecision::kExact) {
        ASSERT_TRUE(matrix);
        const std::vector<float> x(6 * 160, 1.0f);
        EXPECT_FALSE(std::isfinite(multiply(*backend.ops, **matrix, x.data(), 6)[33])) << backend.name();
        continue;
      }
      ASSERT_FALSE(matrix) << backend.name();
      EXPECT_EQ(matrix.error().code, ErrorCode::kCorrupt);
      EXPECT_NE(matrix.error().message.find("test: "), std::string::npos) << matrix.error().message;
    }
  }
}

// The bound is worth nothing if mistakes fit into it: each of these must stand out in every precision.
class LinearControl : public ::testing::Test {
 protected:
  static constexpr int kRows = 64;
  static constexpr std::int64_t kCols = 128;
  static constexpr std::int64_t kOutputs = 32;

  // The product of `right` against the reference product of `wrong`, in bounds of `right`.
  double distance(const StoredMatrix& right, const StoredMatrix& wrong) {
    const std::vector<float> x = normal_values(random_, kRows * kCols, 1.0f);
    const std::vector<float> expected = reference_product(wrong, x, kRows);
    double least = INFINITY;
    for (const Backend& backend : cpu_backends()) {
      const std::unique_ptr<Matrix> matrix = pack(*backend.ops, right.view(), MatrixUse::kProjection);
      const LinearBound bound(right.view(), MatrixUse::kProjection, backend.precision);
      least = std::min(least, worst_ratio(bound, x, kCols, kRows,
                                          multiply(*backend.ops, *matrix, x.data(), kRows), expected));
    }
    return least;
  }
  Random random_{7};
};

TEST_F(LinearControl, OneSwappedNibbleShows) {
  const StoredMatrix right = mxfp4_matrix(random_, kOutputs, kCols, ScaleGap::kEqual);
  StoredMatrix wrong = right;
  std::uint8_t& byte = wrong.bytes[17 * wrong.row_stride + 20];
  byte = 0x7A;  // 6 and -1
  StoredMatrix original = right;
  original.bytes[17 * wrong.row_stride + 20] = 0xA7;
  EXPECT_GT(distance(original, wrong), 1.0);
  EXPECT_LE(distance(right, right), 1.0);
}

TEST_F(LinearControl, OneWrongScaleShows) {
  const StoredMatrix mxfp4 = mxfp4_matrix(random_, kOutputs, kCols, ScaleGap::kNear);
  StoredMatrix wrong = mxfp4;
  wrong.scales_u8[9 * wrong.scale_stride + 2] += 1;
  EXPECT_GT(distance(mxfp4, wrong), 1.0);
  const StoredMatrix fp8 = fp8_matrix(random_, kOutputs, kCols);
  wrong = fp8;
  wrong.scales_f32[0] *= 1.05f;
  EXPECT_GT(distance(fp8, wrong), 1.0);
}

TEST_F(LinearControl, ShiftedColumnsShow) {
  for (StoredMatrix right :
       {mxfp4_matrix(random_, kOutputs, kCols, ScaleGap::kEqual), fp8_matrix(random_, kOutputs, kCols),
        bf16_matrix(random_, kOutputs, kCols), f32_matrix(random_, kOutputs, kCols)}) {
    StoredMatrix wrong = right;
    const std::size_t unit = std::max<std::size_t>(1, weight_row_bytes(right.format, 1));
    std::rotate(wrong.bytes.begin() + 5 * static_cast<std::ptrdiff_t>(wrong.row_stride),
                wrong.bytes.begin() + 5 * static_cast<std::ptrdiff_t>(wrong.row_stride) +
                    static_cast<std::ptrdiff_t>(unit),
                wrong.bytes.begin() + 6 * static_cast<std::ptrdiff_t>(wrong.row_stride));
    EXPECT_GT(distance(right, wrong), 5.0);
  }
}

// The matrices of one rank of eight of the released models.
struct RankShape {
  const char* name;
  WeightFormat format;
  std::int64_t rows;
  std::int64_t cols;
  int batch;
};

TEST(Linear, RankShapesOfTheReleasedModels) {
  const RankShape shapes[] = {
      {"4096 qkv", WeightFormat::kFp8, 8 * 192 + 192 + 128, 4096, 5},
      {"4096 o_proj", WeightFormat::kBF16, 4096, 1024, 9},
      {"4096 gate", WeightFormat::kMxfp4, 256, 4096, 33},
      {"4096 down", WeightFormat::kMxfp4, 4096, 256, 17},
      {"6144 qkv", WeightFormat::kFp8, 16 * 192 + 192 + 128, 6144, 2},
      {"6144 o_proj", WeightFormat::kBF16, 6144, 2048, 3},
      {"6144 gate", WeightFormat::kMxfp4, 256, 6144, 8},
      {"6144 head", WeightFormat::kBF16, 333, 6144, 4},
  };
  Random random(8);
  for (const RankShape& shape : shapes) {
    const MatrixUse use =
        shape.name == std::string("6144 head") ? MatrixUse::kVocabulary : MatrixUse::kProjection;
    const StoredMatrix stored =
        shape.format == WeightFormat::kFp8    ? fp8_matrix(random, shape.rows, shape.cols)
        : shape.format == WeightFormat::kBF16 ? bf16_matrix(random, shape.rows, shape.cols, 0.02f)
                                              : mxfp4_matrix(random, shape.rows, shape.cols);
    const std::vector<float> x = activations(random, shape.batch, shape.cols);
    const std::vector<float> expected = reference_product(stored, x, shape.batch);
    for (const Backend& backend : cpu_backends()) {
      SCOPED_TRACE(fmt::format("{} {}", shape.name, backend.name()));
      const std::unique_ptr<Matrix> matrix = pack(*backend.ops, stored.view(), use);
      const std::vector<float> y = multiply(*backend.ops, *matrix, x.data(), shape.batch);
      const LinearBound bound(stored.view(), use, backend.precision);
      EXPECT_LE(worst_ratio(bound, x, shape.cols, shape.batch, y, expected), 1.0);
      EXPECT_TRUE(same_bits(multiply(*backend.ops, *matrix, x.data(), 1), y.data()));
    }
  }
}

// The second integer must buy what the documentation says: at least 50 times less error where weights are
// exact.
TEST(Linear, ExactPrecisionIsFarTighter) {
  Random random(9);
  const StoredMatrix stored = mxfp4_matrix(random, 64, 512, ScaleGap::kNear);
  const std::vector<float> x = activations(random, 16, 512);
  const std::vector<float> expected = reference_product(stored, x, 16);
  std::map<CpuLevel, std::map<ActivationPrecision, double>> rms;
  for (const Backend& backend : cpu_backends()) {
    const std::vector<float> y =
        multiply(*backend.ops, *pack(*backend.ops, stored.view(), MatrixUse::kProjection), x.data(), 16);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += std::pow(static_cast<double>(y[i]) - expected[i], 2);
    rms[backend.level][backend.precision] = std::sqrt(sum);
  }
  for (const auto& [level, by_precision] : rms) {
    EXPECT_LT(by_precision.at(ActivationPrecision::kExact) * 50, by_precision.at(ActivationPrecision::kFast));
  }
}

// A non-finite activation reaches every output of its row and no other row.
TEST(Linear, NonFiniteRowsStayNonFiniteAndAlone) {
  Random random(10);
  for (const Format& format : formats()) {
    const StoredMatrix stored = format.make(random, 20, 96);
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
      for (const int rows : {3, 14}) {
        std::vector<float> x = activations(random, rows, 96);
        for (const Backend& backend : cpu_backends()) {
          const std::unique_ptr<Matrix> matrix = pack(*backend.ops, stored.view(), format.use);
          const std::vector<float> clean = multiply(*backend.ops, *matrix, x.data(), rows);
          std::vector<float> poisoned = x;
          poisoned[96 + 40] = bad;
          const std::vector<float> y = multiply(*backend.ops, *matrix, poisoned.data(), rows);
          for (std::size_t n = 0; n < 20; ++n) {
            ASSERT_FALSE(std::isfinite(y[20 + n]))
                << format.name << " " << backend.name() << " input " << bad;
          }
          ASSERT_EQ(std::memcmp(y.data(), clean.data(), 20 * sizeof(float)), 0);
          ASSERT_EQ(
              std::memcmp(y.data() + 40, clean.data() + 40, static_cast<std::size_t>(rows - 2) * 20 * 4), 0);
        }
      }
    }
  }
}

TEST(Linear, ZeroAndTinyActivations) {
  Random random(11);
  for (const Format& format : formats()) {
    const StoredMatrix stored = format.make(random, 20, 96);
    for (const float value : {0.0f, -0.0f, 1e-38f, 1e-36f, 1e-30f}) {
      const std::vector<float> x(5 * 96, value);
      const std::vector<float> expected = reference_product(stored, x, 5);
      for (const Backend& backend : cpu_backends()) {
        const std::unique_ptr<Matrix> matrix = pack(*backend.ops, stored.view(), format.use);
        const std::vector<float> y = multiply(*backend.ops, *matrix, x.data(), 5);
        for (std::size_t i = 0; i < y.size(); ++i) {
          // Below 1e-35 a group may count as zero; the largest row sum of these weights is under 1e4.
          ASSERT_NEAR(y[i], expected[i], std::fabs(expected[i]) * 0.05 + 1e-31)
              << format.name << " " << value;
        }
      }
    }
  }
}

TEST(Embed, ReturnsStoredRows) {
  Random random(12);
  for (const std::int64_t cols : {32, 96, 130}) {
    const StoredMatrix tables[] = {bf16_matrix(random, 37, cols), f32_matrix(random, 37, cols)};
    for (const StoredMatrix& table : tables) {
      const std::vector<float> dense = table.dense();
      const std::vector<std::int32_t> ids = {36, 0, 15, 16, 0, 31};
      for (const Backend& backend : cpu_backends()) {
        const std::unique_ptr<Matrix> matrix = pack(*backend.ops, table.view(), MatrixUse::kVocabulary);
        std::vector<float> out(ids.size() * static_cast<std::size_t>(cols));
        HostCalls(*backend.ops).embed(*matrix, ids, out.data());
        for (std::size_t i = 0; i < ids.size(); ++i) {
          ASSERT_EQ(std::memcmp(out.data() + i * static_cast<std::size_t>(cols), dense.data() + ids[i] * cols,
                                static_cast<std::size_t>(cols) * 4),
                    0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mimo
