// Expert and dense MLPs of the CPU backend: against the reference within bounds that follow the rounding
// through both matrix products, and bit for bit between batches.

#include <gtest/gtest.h>

#include <numeric>

#include "ops/backends.h"
#include "ops/host_calls.h"
#include "ops/linear_bound.h"
#include "ops/reference/reference_ops.h"
#include "ops/stored_matrix.h"

namespace mimo {
namespace {

using namespace mimo::testing;

struct Expert {
  StoredMatrix gate, up, down;
};

StoredMatrix stored(WeightFormat format, Random& random, std::int64_t rows, std::int64_t cols) {
  switch (format) {
    case WeightFormat::kF32:
      return f32_matrix(random, rows, cols, 0.1f);
    case WeightFormat::kBF16:
      return bf16_matrix(random, rows, cols, 0.1f);
    case WeightFormat::kFp8:
      return fp8_matrix(random, rows, cols);
    case WeightFormat::kMxfp4:
      return mxfp4_matrix(random, rows, cols, ScaleGap::kMixed);
  }
  return {};
}

// Experts of one layer with the matrices that are packed and those that bounds are computed from.
class Layer {
 public:
  Layer(WeightFormat format, int experts, std::int64_t hidden, std::int64_t intermediate, Random& random,
        MatrixUse use = MatrixUse::kProjection)
      : use_(use), hidden_(hidden), intermediate_(intermediate) {
    for (int e = 0; e < experts; ++e) {
      experts_.push_back({stored(format, random, intermediate, hidden),
                          stored(format, random, intermediate, hidden),
                          stored(format, random, hidden, intermediate)});
    }
    for (const Expert& e : experts_) dense_.push_back({e.gate.dense(), e.up.dense(), e.down.dense()});
  }

  std::unique_ptr<MlpBank> pack(Ops& ops) const {
    std::vector<WeightView> views;
    for (const Expert& e : experts_) {
      views.push_back(e.gate.view());
      views.push_back(e.up.view());
      views.push_back(e.down.view());
    }
    std::vector<MlpViews> mlps;
    for (std::size_t e = 0; e < experts_.size(); ++e)
      mlps.push_back({&views[3 * e], &views[3 * e + 1], &views[3 * e + 2]});
    Result<std::unique_ptr<MlpBank>> bank = ops.pack_mlps(mlps, use_);
    if (!bank) throw std::runtime_error(bank.error().message);
    return std::move(*bank);
  }

  struct Exact {
    std::vector<double> y;  // [hidden]
    std::vector<double> bound;
    double largest_inner = 0;  // of |gate| and |up|: what a clamp would have cut
  };

  // Adds weight * mlp(x) of one row and what the CPU backend may be off:
  //   gate and up      LinearBound
  //   inner            silu' <= 1.1: 1.1 Bg |u| + |silu(g)| Bu + both, and the rounding of exp and products
  //   down             LinearBound on the inner row, plus inner errors through |down| (independent: in
  //   quadrature)
  // Clamp is the limit of a control that must not fit the bound; 0: none.
  void add(int expert, const float* x, double weight, ActivationPrecision precision, Exact& exact,
           double clamp = 0) const {
    const auto e = static_cast<std::size_t>(expert);
    const std::vector<double> gate_bound = bound(e, 0, precision).row(x);
    const std::vector<double> up_bound = bound(e, 1, precision).row(x);
    std::vector<double> inner;
    std::vector<double> inner_error;
    std::vector<float> inner_float;
    for (std::int64_t i = 0; i < intermediate_; ++i) {
      double g = dot(dense_[e].gate.data() + i * hidden_, x, hidden_);
      double u = dot(dense_[e].up.data() + i * hidden_, x, hidden_);
      exact.largest_inner = std::max({exact.largest_inner, std::fabs(g), std::fabs(u)});
      if (clamp > 0) {
        g = std::min(g, clamp);
        u = std::clamp(u, -clamp, clamp);
      }
      const double s = g / (1 + std::exp(-g));
      const double bg = 1.1 * gate_bound[static_cast<std::size_t>(i)];
      const double bu = up_bound[static_cast<std::size_t>(i)];
      inner.push_back(s * u);
      inner_float.push_back(static_cast<float>(s * u));
      inner_error.push_back(bg * std::fabs(u) + std::fabs(s) * bu + bg * bu + 8 * kUnit * std::fabs(s * u));
    }
    const std::vector<double> down_bound = bound(e, 2, precision).row(inner_float.data());
    for (std::int64_t n = 0; n < hidden_; ++n) {
      const float* row = dense_[e].down.data() + n * intermediate_;
      double sum = 0;
      double variance = 0;
      for (std::int64_t i = 0; i < intermediate_; ++i) {
        sum += static_cast<double>(row[i]) * inner[static_cast<std::size_t>(i)];
        const double error = row[i] * inner_error[static_cast<std::size_t>(i)];
        variance += error * error;
      }
      const auto at = static_cast<std::size_t>(n);
      exact.y[at] += weight * sum;
      // Steps follow the largest inner value, which may itself be off: hence 1.05.
      exact.bound[at] += std::fabs(weight) * (1.05 * down_bound[at] + std::sqrt(variance)) +
                         4 * kUnit * (std::fabs(exact.y[at]) + std::fabs(weight * sum));
    }
  }

  Exact row(const float* x, std::span<const std::int32_t> ids, std::span<const float> weights,
            const float* before, ActivationPrecision precision, double clamp = 0) const {
    Exact exact;
    exact.y.assign(before, before + hidden_);
    exact.bound.assign(static_cast<std::size_t>(hidden_), 1e-30);
    for (std::size_t k = 0; k < ids.size(); ++k) add(ids[k], x, weights[k], precision, exact, clamp);
    return exact;
  }

  int experts() const { return static_cast<int>(experts_.size()); }
  std::int64_t hidden() const { return hidden_; }

 private:
  struct Dense {
    std::vector<float> gate, up, down;
  };
  static double dot(const float* a, const float* b, std::int64_t count) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
  }
  const LinearBound& bound(std::size_t expert, int which, ActivationPrecision precision) const {
    const Expert& e = experts_[expert];
    const StoredMatrix& m = which == 0 ? e.gate : which == 1 ? e.up : e.down;
    return bounds_.try_emplace({expert, which, precision}, m.view(), use_, precision).first->second;
  }

  MatrixUse use_;
  std::int64_t hidden_;
  std::int64_t intermediate_;
  std::vector<Expert> experts_;
  std::vector<Dense> dense_;
  mutable std::map<std::tuple<std::size_t, int, ActivationPrecision>, LinearBound> bounds_;
};

// A routed batch.
struct Batch {
  int rows = 0;
  int top_k = 0;
  std::vector<float> x;
  std::vector<float> before;  // y that the result is added to
  std::vector<std::int32_t> ids;
  std::vector<float> weights;

  Batch(const Layer& layer, int row_count, int k, Random& random, float size = 1.0f)
      : rows(row_count), top_k(k) {
    const auto values = static_cast<std::size_t>(rows * layer.hidden());
    x = activations(random, rows, layer.hidden());
    for (float& value : x) value *= size;
    before = normal_values(random, values, 1.0f);
    std::vector<std::int32_t> all(static_cast<std::size_t>(layer.experts()));
    std::iota(all.begin(), all.end(), 0);
    for (int r = 0; r < rows; ++r) {
      std::shuffle(all.begin(), all.end(), random);
      std::vector<std::int32_t> chosen(all.begin(), all.begin() + k);
      std::sort(chosen.begin(), chosen.end());
      ids.insert(ids.end(), chosen.begin(), chosen.end());
      for (int i = 0; i < k; ++i) weights.push_back(uniform(random, 0.05f, 1.0f));
    }
  }
  std::span<const std::int32_t> row_ids(int r) const {
    return {ids.data() + r * top_k, static_cast<std::size_t>(top_k)};
  }
  std::span<const float> row_weights(int r) const {
    return {weights.data() + r * top_k, static_cast<std::size_t>(top_k)};
  }
  std::vector<float> run(Ops& ops, const MlpBank& bank) const { return run(ops, bank, 0, rows); }
  std::vector<float> run(Ops& ops, const MlpBank& bank, int first, int count) const {
    const auto hidden = static_cast<std::int64_t>(x.size()) / rows;
    std::vector<float> y(before.begin() + first * hidden, before.begin() + (first + count) * hidden);
    HostCalls(ops).experts(x.data() + first * hidden, count, static_cast<std::size_t>(hidden), bank, top_k,
                           ids.data() + first * top_k, weights.data() + first * top_k, y.data());
    return y;
  }
};

// Largest error over bound of some rows of a batch.
double worst_ratio(const Layer& layer, const Batch& batch, const std::vector<float>& y,
                   std::span<const int> rows, ActivationPrecision precision, double clamp = 0) {
  const auto hidden = static_cast<std::size_t>(layer.hidden());
  double worst = 0;
  for (const int r : rows) {
    const std::size_t at = static_cast<std::size_t>(r) * hidden;
    const Layer::Exact exact = layer.row(batch.x.data() + at, batch.row_ids(r), batch.row_weights(r),
                                         batch.before.data() + at, precision, clamp);
    for (std::size_t n = 0; n < hidden; ++n) {
      const double ratio = std::fabs(y[at + n] - exact.y[n]) / exact.bound[n];
      worst = std::isnan(ratio) ? INFINITY : std::max(worst, ratio);
    }
  }
  return worst;
}

struct Shape {
  WeightFormat format;
  int experts;
  std::int64_t hidden;
  std::int64_t intermediate;
};
// Intermediate sizes that are no multiple of 16, 64 or 128 where the format allows (MXFP4: blocks of 32).
constexpr Shape kShapes[] = {
    {WeightFormat::kMxfp4, 8, 64, 32}, {WeightFormat::kMxfp4, 5, 96, 160}, {WeightFormat::kFp8, 8, 48, 100},
    {WeightFormat::kFp8, 3, 272, 36},  {WeightFormat::kBF16, 8, 40, 50},   {WeightFormat::kBF16, 3, 160, 130},
    {WeightFormat::kF32, 4, 33, 17},
};

TEST(Experts, FormatsShapesAndBatchSizes) {
  Random random(1);
  double worst = 0;
  for (const Shape& shape : kShapes) {
    const Layer layer(shape.format, shape.experts, shape.hidden, shape.intermediate, random);
    const std::unique_ptr<Ops> reference = make_reference_ops();
    const std::unique_ptr<MlpBank> reference_bank = layer.pack(*reference);
    for (const int rows : {1, 2, 8, 33, 300}) {
      const Batch batch(layer, rows, std::min(3, shape.experts), random);
      std::vector<int> checked;
      for (int r = 0; r<rows; r += rows> 33 ? 29 : 1) checked.push_back(r);
      if (rows <= 33) {
        // The oracle itself: fp32 roundings of gate, up, silu and sums only.
        EXPECT_LE(worst_ratio(layer, batch, batch.run(*reference, *reference_bank), checked,
                              ActivationPrecision::kExact),
                  1.0);
      }
      for (const Backend& backend : cpu_backends()) {
        SCOPED_TRACE(fmt::format("format {} hidden {} intermediate {} rows {} {}",
                                 static_cast<int>(shape.format), shape.hidden, shape.intermediate, rows,
                                 backend.name()));
        const std::unique_ptr<MlpBank> bank = layer.pack(*backend.ops);
        const std::vector<float> y = batch.run(*backend.ops, *bank);
        const double ratio = worst_ratio(layer, batch, y, checked, backend.precision);
        EXPECT_LE(ratio, 1.0);
        worst = std::max(worst, ratio);
        // Any row alone, or in a smaller batch, has the same bits.
        for (const int count : {1, 5, 130}) {
          for (const int first : {0, rows / 2, rows - count}) {
            if (first < 0 || first + count > rows) continue;
            const std::vector<float> part = batch.run(*backend.ops, *bank, first, count);
            ASSERT_EQ(std::memcmp(part.data(), y.data() + first * shape.hidden, part.size() * 4), 0)
                << first << " + " << count;
          }
        }
      }
    }
  }
  RecordProperty("worst_ratio", std::to_string(worst));
}

TEST(Experts, ThreadsDoNotChangeBits) {
  Random random(2);
  for (const Shape& shape : kShapes) {
    const Layer layer(shape.format, shape.experts, shape.hidden, shape.intermediate, random);
    const Batch batch(layer, 37, 2, random);
    const std::vector<Backend> one = cpu_backends(1);
    for (const int threads : {2, 3}) {
      const std::vector<Backend> many = cpu_backends(threads);
      for (std::size_t b = 0; b < one.size(); ++b) {
        ASSERT_EQ(batch.run(*one[b].ops, *layer.pack(*one[b].ops)),
                  batch.run(*many[b].ops, *layer.pack(*many[b].ops)))
            << many[b].name();
      }
    }
  }
}

// All tokens on one expert (blocks of 128 rows), and experts that nobody chose.
TEST(Experts, OneExpertTakesAll) {
  Random random(3);
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kFp8, WeightFormat::kBF16}) {
    const Layer layer(format, 6, 64, 96, random);
    for (const int rows : {1, 127, 128, 129, 257}) {
      Batch batch(layer, rows, 1, random);
      std::fill(batch.ids.begin(), batch.ids.end(), 4);
      const int checked[] = {0, rows / 2, rows - 1};
      for (const Backend& backend : cpu_backends()) {
        const std::unique_ptr<MlpBank> bank = layer.pack(*backend.ops);
        EXPECT_LE(worst_ratio(layer, batch, batch.run(*backend.ops, *bank), checked, backend.precision), 1.0)
            << backend.name() << " rows " << rows;
      }
    }
  }
}

// C52: no clamp, however large the inputs; and the bound would notice one.
TEST(Experts, LargeInputsAreNotClamped) {
  Random random(4);
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kFp8, WeightFormat::kBF16}) {
    const Layer layer(format, 3, 64, 96, random);
    for (const int rows : {1, 2, 8, 33}) {
      Batch batch(layer, rows, 2, random);
      for (float& value : batch.x) value = uniform(random, -50.0f, 50.0f);
      const int checked[] = {0, rows - 1};
      const std::size_t last = static_cast<std::size_t>(rows - 1) * 64;
      EXPECT_GT(layer
                    .row(batch.x.data() + last, batch.row_ids(rows - 1), batch.row_weights(rows - 1),
                         batch.before.data() + last, ActivationPrecision::kFast)
                    .largest_inner,
                20.0);
      for (const Backend& backend : cpu_backends()) {
        const std::vector<float> y = batch.run(*backend.ops, *layer.pack(*backend.ops));
        EXPECT_LE(worst_ratio(layer, batch, y, checked, backend.precision), 1.0) << backend.name();
        EXPECT_GT(worst_ratio(layer, batch, y, checked, backend.precision, 7.0), 3.0) << backend.name();
      }
    }
  }
}

TEST(Experts, NanStaysInItsRow) {
  Random random(5);
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kFp8, WeightFormat::kBF16}) {
    const Layer layer(format, 4, 64, 96, random);
    for (const int rows : {3, 20, 140}) {
      const Batch batch(layer, rows, 2, random);
      Batch poisoned = batch;
      poisoned.x[64 + 7] = std::nanf("");
      for (const Backend& backend : cpu_backends()) {
        const std::unique_ptr<MlpBank> bank = layer.pack(*backend.ops);
        const std::vector<float> clean = batch.run(*backend.ops, *bank);
        const std::vector<float> y = poisoned.run(*backend.ops, *bank);
        for (std::size_t i = 64; i < 128; ++i) ASSERT_TRUE(std::isnan(y[i])) << backend.name();
        ASSERT_EQ(std::memcmp(y.data(), clean.data(), 64 * 4), 0);
        ASSERT_EQ(
            std::memcmp(y.data() + 128, clean.data() + 128, static_cast<std::size_t>(rows - 2) * 64 * 4), 0);
      }
    }
  }
}

TEST(Experts, WrongExpertOrWeightShows) {
  Random random(6);
  const Layer layer(WeightFormat::kMxfp4, 4, 64, 96, random);
  const Batch batch(layer, 6, 2, random);
  Batch other = batch;
  other.weights[3] *= 1.5f;
  Batch stranger = batch;
  stranger.ids[1] = stranger.ids[0] == 0 ? 3 : 0;
  Batch swapped = batch;
  std::swap(swapped.weights[4], swapped.weights[5]);
  const int rows[] = {0, 1, 2, 3, 4, 5};
  for (const Backend& backend : cpu_backends()) {
    const std::vector<float> y = batch.run(*backend.ops, *layer.pack(*backend.ops));
    EXPECT_LE(worst_ratio(layer, batch, y, rows, backend.precision), 1.0);
    EXPECT_GT(worst_ratio(layer, other, y, rows, backend.precision), 1.0) << backend.name();
    EXPECT_GT(worst_ratio(layer, stranger, y, rows, backend.precision), 1.0) << backend.name();
    EXPECT_GT(worst_ratio(layer, swapped, y, rows, backend.precision), 1.0) << backend.name();
  }
}

TEST(Mlp, DenseEqualsOneExpertOfWeightOne) {
  Random random(7);
  for (const Shape& shape : kShapes) {
    const Layer layer(shape.format, 1, shape.hidden, shape.intermediate, random);
    for (const int rows : {1, 7, 150}) {
      Batch batch(layer, rows, 1, random);
      std::fill(batch.weights.begin(), batch.weights.end(), 1.0f);
      const int checked[] = {0, rows - 1};
      for (const Backend& backend : cpu_backends()) {
        const std::unique_ptr<MlpBank> bank = layer.pack(*backend.ops);
        std::vector<float> y = batch.before;
        HostCalls(*backend.ops)
            .mlp(batch.x.data(), rows, static_cast<std::size_t>(shape.hidden), *bank, y.data());
        ASSERT_EQ(y, batch.run(*backend.ops, *bank));
        EXPECT_LE(worst_ratio(layer, batch, y, checked, backend.precision), 1.0);
        const std::vector<float> x_last(batch.x.end() - shape.hidden, batch.x.end());
        std::vector<float> y_last(batch.before.end() - shape.hidden, batch.before.end());
        HostCalls(*backend.ops)
            .mlp(x_last.data(), 1, static_cast<std::size_t>(shape.hidden), *bank, y_last.data());
        ASSERT_EQ(std::memcmp(y_last.data(), y.data() + (rows - 1) * shape.hidden, y_last.size() * 4), 0);
      }
    }
  }
}

// Shapes of one rank of eight: 2048 / 8 = 256 columns of the intermediate, both hidden sizes.
TEST(Mlp, OfADrafter) {
  Random random(10);
  for (const auto& [hidden, intermediate] : {std::pair{40, 50}, {160, 130}, {256, 192}}) {
    const Layer layer(WeightFormat::kBF16, 1, hidden, intermediate, random, MatrixUse::kDrafter);
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 150}) {
      Batch batch(layer, rows, 1, random);
      std::fill(batch.weights.begin(), batch.weights.end(), 1.0f);
      const int checked[] = {0, rows - 1};
      for (const Backend& backend : cpu_backends()) {
        const std::unique_ptr<MlpBank> bank = layer.pack(*backend.ops);
        const std::vector<float> y = batch.run(*backend.ops, *bank);
        EXPECT_LE(worst_ratio(layer, batch, y, checked, backend.precision), 1.0) << backend.name();
        const std::vector<float> last = batch.run(*backend.ops, *bank, rows - 1, 1);
        ASSERT_EQ(std::memcmp(last.data(), y.data() + (rows - 1) * hidden, last.size() * 4), 0)
            << backend.name() << " rows " << rows;
      }
    }
  }
}

TEST(Experts, RankShapesOfTheReleasedModels) {
  Random random(8);
  for (const std::int64_t hidden : {4096, 6144}) {
    const Layer layer(WeightFormat::kMxfp4, 2, hidden, 256, random);
    const Batch batch(layer, 6, 2, random);
    const int checked[] = {0, 5};
    for (const Backend& backend : cpu_backends()) {
      const std::unique_ptr<MlpBank> bank = layer.pack(*backend.ops);
      const std::vector<float> y = batch.run(*backend.ops, *bank);
      EXPECT_LE(worst_ratio(layer, batch, y, checked, backend.precision), 1.0)
          << hidden << " " << backend.name();
      const std::vector<float> alone = batch.run(*backend.ops, *bank, 3, 1);
      EXPECT_EQ(std::memcmp(alone.data(), y.data() + 3 * hidden, alone.size() * 4), 0);
    }
  }
}

TEST(Experts, RefusesMixedFormats) {
  Random random(9);
  const StoredMatrix a = fp8_matrix(random, 32, 64);
  const StoredMatrix b = bf16_matrix(random, 32, 64);
  const StoredMatrix c = fp8_matrix(random, 64, 32);
  const WeightView gate = a.view();
  const WeightView up = b.view();
  const WeightView down = c.view();
  const MlpViews mlp{&gate, &up, &down};
  const Result<std::unique_ptr<MlpBank>> bank = cpu_backends().front().ops->pack_mlps({&mlp, 1});
  ASSERT_FALSE(bank);
  EXPECT_EQ(bank.error().code, ErrorCode::kUnsupported);
}

// exp through silu(g) * u with matrices that pass one number through: F32, gate and up take different
// columns.
TEST(Silu, AccurateOverTheWholeRange) {
  // gate row 0 reads column 0, up row 0 column 1, down writes inner 0 to output 0.
  std::vector<float> gate(16 * 16, 0.0f);
  std::vector<float> up(16 * 16, 0.0f);
  std::vector<float> down(16 * 16, 0.0f);
  gate[0] = 1.0f;
  up[1] = 1.0f;
  down[0] = 1.0f;
  const StoredMatrix g = f32_matrix_of(gate, 16, 16);
  const StoredMatrix u = f32_matrix_of(up, 16, 16);
  const StoredMatrix d = f32_matrix_of(down, 16, 16);
  const WeightView gv = g.view();
  const WeightView uv = u.view();
  const WeightView dv = d.view();
  const MlpViews mlp{&gv, &uv, &dv};
  std::vector<float> points = {0.0f, -0.0f, 1e-30f, 88.0f, -87.0f, 1000.0f, -1000.0f, 3e38f};
  for (float v = -86.0f; v < 90.0f; v += 0.01737f) points.push_back(v);
  for (const Backend& backend : cpu_backends()) {
    const std::unique_ptr<MlpBank> bank = std::move(*backend.ops->pack_mlps({&mlp, 1}));
    double worst = 0;
    for (const float v : points) {
      std::vector<float> x(16, 0.0f);
      x[0] = v;
      x[1] = 1.0f;
      std::vector<float> y(16, 0.0f);
      HostCalls(*backend.ops).mlp(x.data(), 1, 16, *bank, y.data());
      const double exact = static_cast<double>(v) / (1.0 + std::exp(-static_cast<double>(v)));
      if (std::fabs(exact) < 1e-36) {
        EXPECT_NEAR(y[0], exact, 1e-36) << v;
      } else {
        worst = std::max(worst, std::fabs(y[0] - exact) / std::fabs(exact));
      }
    }
    // exp to 2 ulp (2^-22), one rounding each of sum, quotient and two products.
    EXPECT_LT(worst, 0x1p-22 + 5 * kUnit) << backend.name();
    RecordProperty("worst_relative", std::to_string(worst * 1e7) + "e-7");
  }
}

}  // namespace
}  // namespace mimo
