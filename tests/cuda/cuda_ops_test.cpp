// Operations of the CUDA backend against the oracle.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "cuda/device_ops.h"
#include "ops/attention_case.h"
#include "ops/rotation.h"

namespace mimo::testing {
namespace {

class CudaOpsTest : public ::testing::TestWithParam<bool> {
 protected:
  Ops& ops() const { return cuda_ops(GetParam()); }
  HostCalls calls() const { return HostCalls(ops()); }
  static HostCalls reference() { return HostCalls(reference_ops()); }
  // Of an operation whose result is an activation.
  double act_bound() const { return GetParam() ? kExactBound : kRoundedBound; }

  // Of a product with weights of this format, beside a reference that gets multiplied(x).
  double product_bound(WeightFormat format) const {
    if (GetParam() || format == WeightFormat::kF32) return kExactBound;
    return format == WeightFormat::kFp8 ? kFp8TensorBound : kTensorBound;
  }
  std::vector<float> multiplied(const std::vector<float>& x, std::size_t cols, WeightFormat format) const {
    return GetParam() || format != WeightFormat::kFp8 ? x : fp8_rows(x, cols);
  }

  Random random_{17};
};

template <class T>
std::unique_ptr<T> unwrapped(Result<std::unique_ptr<T>> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

std::vector<StoredMatrix> matrices(Random& random, std::int64_t rows, std::int64_t cols) {
  std::vector<StoredMatrix> all;
  all.push_back(f32_matrix(random, rows, cols));
  all.push_back(bf16_matrix(random, rows, cols));
  all.push_back(fp8_matrix(random, rows, cols));
  return all;
}

TEST_P(CudaOpsTest, Linear) {
  for (const auto& [n, k] : {std::pair{1, 32}, {130, 128}, {257, 384}, {64, 1000}, {96, 4096}}) {
    for (const StoredMatrix& stored : matrices(random_, n, k)) {
      const auto matrix = unwrapped(ops().pack_matrix(stored.view(), MatrixUse::kProjection));
      const auto oracle = unwrapped(reference_ops().pack_matrix(stored.view(), MatrixUse::kProjection));
      for (const int rows : {1, 3, 8, 65, 128, 129, 300}) {
        const std::vector<float> x = bf16_values(random_, static_cast<std::size_t>(rows * k), 1.0f);
        const std::vector<float> before = normal_values(random_, static_cast<std::size_t>(rows * n), 1.0f);
        for (const Store store : {Store::kOverwrite, Store::kAdd}) {
          std::vector<float> got = before;
          std::vector<float> expected = before;
          calls().linear(x.data(), rows, *matrix, got.data(), store);
          const std::vector<float> used = multiplied(x, static_cast<std::size_t>(k), stored.format);
          reference().linear(used.data(), rows, *oracle, expected.data(), store);
          EXPECT_LT(relative_error(got, expected), product_bound(stored.format))
              << n << "x" << k << " rows " << rows << " format " << static_cast<int>(stored.format);
        }
      }
    }
  }
}

// The scale grid begins anew in every chunk of a fused projection.
TEST_P(CudaOpsTest, LinearOfFusedChunks) {
  for (const StoredMatrix::Fused& fused :
       {StoredMatrix::Fused{4, 256, 48, 32}, StoredMatrix::Fused{2, 384, 192, 128},
        StoredMatrix::Fused{3, 100, 20, 12}}) {
    const StoredMatrix stored = fused_fp8_matrix(random_, fused, 384);
    const auto matrix = unwrapped(ops().pack_matrix(stored.view(), MatrixUse::kProjection));
    const auto oracle = unwrapped(reference_ops().pack_matrix(stored.view(), MatrixUse::kProjection));
    const std::vector<float> x = bf16_values(random_, 5 * 384, 1.0f);
    std::vector<float> got(5 * static_cast<std::size_t>(stored.rows), NAN);
    std::vector<float> expected = got;
    calls().linear(x.data(), 5, *matrix, got.data(), Store::kOverwrite);
    const std::vector<float> used = multiplied(x, 384, WeightFormat::kFp8);
    reference().linear(used.data(), 5, *oracle, expected.data(), Store::kOverwrite);
    EXPECT_LT(relative_error(got, expected), product_bound(WeightFormat::kFp8)) << fused.chunks;
  }
}

TEST_P(CudaOpsTest, EmbedIsExact) {
  for (const StoredMatrix& stored : {f32_matrix(random_, 300, 200), bf16_matrix(random_, 300, 200)}) {
    const auto table = unwrapped(ops().pack_matrix(stored.view(), MatrixUse::kVocabulary));
    const std::vector<std::int32_t> ids = {299, 0, 127, 128, 5, 5};
    std::vector<float> out(ids.size() * 200);
    calls().embed(*table, ids, out.data());
    const std::vector<float> dense = stored.dense();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(std::memcmp(out.data() + i * 200, dense.data() + ids[i] * 200, 800), 0) << i;
    }
  }
}

TEST_P(CudaOpsTest, Norms) {
  for (const int width : {32, 128, 1000, 4096}) {
    const auto w = static_cast<std::size_t>(width);
    const std::vector<float> weight = normal_values(random_, w, 1.0f);
    const std::vector<float> x = normal_values(random_, 7 * w, 3.0f);
    std::vector<float> got(x.size());
    std::vector<float> expected(x.size());
    calls().rms_norm(x.data(), 7, weight, 1e-6f, got.data());
    reference().rms_norm(x.data(), 7, weight, 1e-6f, expected.data());
    EXPECT_LT(relative_error(got, expected), kExactBound) << width;
  }
  const std::vector<float> weight = normal_values(random_, 128, 1.0f);
  const std::size_t row = 128 * 9 + 40;
  const std::vector<float> x = bf16_values(random_, 5 * row, 3.0f);
  std::vector<float> got = x;
  std::vector<float> expected = x;
  calls().rms_norm_heads(got.data() + 16, row, 5, 8, weight, 1e-6f);
  reference().rms_norm_heads(expected.data() + 16, row, 5, 8, weight, 1e-6f);
  EXPECT_LT(relative_error(got, expected), act_bound());
  for (std::size_t i = 16 + 8 * 128; i < row; ++i) EXPECT_EQ(got[i], x[i]) << "behind the heads";
}

TEST_P(CudaOpsTest, BestTokens) {
  std::vector<float> logits = normal_values(random_, 6 * 2000, 3.0f);
  logits[1200] = logits[700] = 50.0f;  // row 0: the lower id
  logits[2 * 2000 + 999] = 60.0f;      // behind `count`
  logits[3 * 2000 + 17] = NAN;
  logits[4 * 2000 + 17] = INFINITY;
  logits[5 * 2000 + 17] = -INFINITY;
  for (const int count : {1, 900, 1500}) {
    std::vector<std::int32_t> ids(6), expected_ids(6);
    std::vector<float> p(6), expected_p(6);
    calls().best_tokens(logits.data(), 2000, 6, count, ids.data(), p.data());
    reference().best_tokens(logits.data(), 2000, 6, count, expected_ids.data(), expected_p.data());
    EXPECT_EQ(ids, expected_ids) << count;
    for (std::size_t r = 0; r < 6; ++r) {
      EXPECT_EQ(std::isnan(p[r]), std::isnan(expected_p[r])) << r;
      if (!std::isnan(p[r])) {
        EXPECT_NEAR(p[r], expected_p[r], 1e-5) << r;
      }
    }
  }
}

// Rotation and store, seen through the queries and through a page's bytes.
TEST_P(CudaOpsTest, RopeAndStore) {
  const AttentionSpec spec{.q_heads = 3, .kv_heads = 2, .qk_dim = 192, .v_dim = 128, .scale = 1.0f};
  const std::size_t width = 5 * 192 + 2 * 128;
  for (const float theta : {1e4f, 1e7f}) {
    for (const std::int64_t position : {0, 1, 127, 4095, 131071, 262143, 1048000}) {
      const auto kv = unwrapped(ops().make_kv({2, 192, 128, 16, 2, KvDType::kBF16}));
      const auto oracle = unwrapped(reference_ops().make_kv({2, 192, 128, 16, 2, KvDType::kBF16}));
      std::vector<std::int32_t> pages(static_cast<std::size_t>(position / 16 + 2), -1);
      pages[static_cast<std::size_t>(position / 16)] = 1;
      pages[static_cast<std::size_t>(position / 16 + 1)] = 0;
      const SequenceRows rows{0, 3, position, pages};
      const std::vector<float> before = bf16_values(random_, 3 * width, 1.0f);
      std::vector<float> got = before;
      std::vector<float> expected = before;
      calls().rope_and_store_kv(got.data(), width, {&rows, 1}, spec, {theta, 64}, 0.707f, *kv);
      reference().rope_and_store_kv(expected.data(), width, {&rows, 1}, spec, {theta, 64}, 0.707f, *oracle);
      EXPECT_LT(relative_error(got, expected), act_bound()) << position;
    }
  }
}

TEST_P(CudaOpsTest, Attention) {
  for (int round = 0; round < 40; ++round) {
    const bool drafter = uniform_int(random_, 0, 2) == 0;
    AttentionCase c;
    c.kv_heads = uniform_int(random_, 1, 3);
    c.q_heads =
        c.kv_heads * std::vector<int>{1, 4, 8, 16}[static_cast<std::size_t>(uniform_int(random_, 0, 3))];
    c.qk_dim = drafter ? 128 : 192;
    c.window = uniform_int(random_, 0, 1) == 0 ? 0 : uniform_int(random_, 1, 140);
    c.sinks = uniform_int(random_, 0, 1) == 1;
    c.page_size = std::vector<int>{1, 3, 16, 64, 128}[static_cast<std::size_t>(uniform_int(random_, 0, 4))];
    c.dtype = uniform_int(random_, 0, 1) == 0 ? KvDType::kBF16 : KvDType::kFp8;
    c.bidirectional = drafter;
    c.per_anchor = drafter && uniform_int(random_, 0, 1) == 1;
    for (int s = uniform_int(random_, 1, 4); s > 0; --s) {
      const int rows = uniform_int(random_, 1, 9);
      c.spans.push_back({rows + uniform_int(random_, 0, 400), rows});
    }
    AttentionData data(c, random_);
    // What the bf16 mode rounds on the way in is rounded for both.
    for (std::vector<float>& tokens : data.tokens) {
      for (float& value : tokens) value = round_to_bf16(value);
    }
    const std::vector<float> got = FilledCache(ops(), data).attend();
    const std::vector<float> expected = FilledCache(reference_ops(), data).attend();
    // FP8 scales are computed from the same values; a quotient may round to the neighbouring code.
    const double bound = c.dtype == KvDType::kFp8 ? std::max(act_bound(), 5e-4) : act_bound();
    EXPECT_LT(relative_error(got, expected), bound)
        << round << " window " << c.window << " page " << c.page_size;
  }
}

TEST_P(CudaOpsTest, Route) {
  for (const int experts : {8, 33, 256, 384}) {
    for (const bool bf16 : {false, true}) {
      const StoredMatrix stored =
          bf16 ? bf16_matrix(random_, experts, 256, 0.1f) : f32_matrix(random_, experts, 256, 0.1f);
      const auto router = unwrapped(ops().pack_router(stored.view()));
      const auto oracle = unwrapped(reference_ops().pack_router(stored.view()));
      const std::vector<float> bias = normal_values(random_, static_cast<std::size_t>(experts), 1.0f);
      const std::vector<float> x = bf16_values(random_, 9 * 256, 1.0f);
      for (const bool normalize : {false, true}) {
        RouteSpec spec{.experts = experts, .top_k = 8};
        spec.normalize = normalize;
        spec.scale = 2.5f;
        std::vector<std::int32_t> ids(72), expected_ids(72);
        std::vector<float> weights(72), expected(72);
        calls().route(x.data(), 9, *router, spec, bias, ids.data(), weights.data());
        reference().route(x.data(), 9, *oracle, spec, bias, expected_ids.data(), expected.data());
        EXPECT_EQ(ids, expected_ids) << experts;
        EXPECT_LT(relative_error(weights, expected), 1e-5) << experts;
      }
    }
  }
}

TEST_P(CudaOpsTest, ExpertsAndMlp) {
  // The second shape is one that packs.
  for (const auto& [kHidden, kInter] : {std::pair<std::int64_t, std::int64_t>{128, 96}, {256, 128}})
    for (const WeightFormat format :
         {WeightFormat::kMxfp4, WeightFormat::kFp8, WeightFormat::kBF16, WeightFormat::kF32}) {
      const auto make = [&](std::int64_t rows, std::int64_t cols) {
        return format == WeightFormat::kMxfp4  ? mxfp4_matrix(random_, rows, cols, ScaleGap::kNear)
               : format == WeightFormat::kFp8  ? fp8_matrix(random_, rows, cols)
               : format == WeightFormat::kBF16 ? bf16_matrix(random_, rows, cols, 0.1f)
                                               : f32_matrix(random_, rows, cols, 0.1f);
      };
      std::vector<StoredMatrix> stored;
      for (int e = 0; e < 5; ++e) {
        stored.push_back(make(kInter, kHidden));
        stored.push_back(make(kInter, kHidden));
        stored.push_back(make(kHidden, kInter));
      }
      std::vector<WeightView> views;
      for (const StoredMatrix& matrix : stored) views.push_back(matrix.view());
      std::vector<MlpViews> experts;
      for (std::size_t e = 0; e < 5; ++e)
        experts.push_back({&views[3 * e], &views[3 * e + 1], &views[3 * e + 2]});
      for (const int count : {5, 1}) {
        const std::span<const MlpViews> some(experts.data(), static_cast<std::size_t>(count));
        const auto bank = unwrapped(ops().pack_mlps(some));
        const auto oracle = unwrapped(reference_ops().pack_mlps(some));
        for (const int rows : {1, 4, 40}) {
          const std::vector<float> x = bf16_values(random_, static_cast<std::size_t>(rows * kHidden), 1.0f);
          const std::vector<float> before(x.size(), 0.0f);
          std::vector<float> got = before;
          std::vector<float> expected = before;
          if (count == 1) {
            calls().mlp(x.data(), rows, kHidden, *bank, got.data());
            reference().mlp(x.data(), rows, kHidden, *oracle, expected.data());
          } else {
            std::vector<std::int32_t> ids;
            std::vector<float> weights;
            for (int r = 0; r < rows; ++r) {
              ids.insert(ids.end(), {r % 3, 3, 4});
              for (int k = 0; k < 3; ++k) weights.push_back(uniform(random_, 0.1f, 1.0f));
            }
            calls().experts(x.data(), rows, kHidden, *bank, 3, ids.data(), weights.data(), got.data());
            reference().experts(x.data(), rows, kHidden, *oracle, 3, ids.data(), weights.data(),
                                expected.data());
          }
          // The inner product is rounded to an activation; a dense one's gate and up are too, and before FP8 weights
          // the activations are FP8.
          const bool fp8_rounded = !GetParam() && count == 1 && format == WeightFormat::kFp8;
          EXPECT_LT(relative_error(got, expected), fp8_rounded ? 6e-2 : 2 * act_bound())
              << static_cast<int>(format) << " " << rows;
        }
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaOpsTest, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "Exact" : "Bf16"; });

// A page that is copied out and back into another place gives the same attention.
TEST(CudaKv, PagesMoveThroughTheHost) {
  Random random(5);
  for (const KvDType dtype : {KvDType::kBF16, KvDType::kFp8}) {
    const AttentionCase c{.page_size = 7, .dtype = dtype, .spans = {{50, 3}}};
    const AttentionData data(c, random);
    FilledCache cache(cuda_ops(false), data);
    const std::vector<float> before = cache.attend();
    std::vector<std::vector<std::byte>> kept;
    for (const std::int32_t page : cache.tables[0]) {
      kept.emplace_back(cache.kv->page_bytes());
      cache.kv->read_page(page, kept.back());
    }
    std::reverse(cache.tables[0].begin(), cache.tables[0].end());
    for (std::size_t i = 0; i < kept.size(); ++i) cache.kv->write_page(cache.tables[0][i], kept[i]);
    EXPECT_EQ(cache.attend(), before);
  }
}

TEST(CudaOps, RefusesWhatItCannotRun) {
  Random random(6);
  const StoredMatrix stored = mxfp4_matrix(random, 64, 64, ScaleGap::kNear);
  const auto matrix = cuda_ops(false).pack_matrix(stored.view(), MatrixUse::kProjection);
  ASSERT_FALSE(matrix);
  EXPECT_NE(matrix.error().message.find("MXFP4"), std::string::npos);
  const auto kv = cuda_ops(false).make_kv({1, 192, 128, 16, 4, KvDType::kF32});
  ASSERT_FALSE(kv);
  EXPECT_NE(kv.error().message.find("float32"), std::string::npos);
  const auto device = make_cuda_ops({.device = 99});
  ASSERT_FALSE(device);
  EXPECT_NE(device.error().message.find("cuda:99"), std::string::npos);
  const auto memory = cuda_ops(false).allocate(std::size_t{1} << 50);
  ASSERT_FALSE(memory);
  EXPECT_NE(memory.error().message.find("no GPU memory"), std::string::npos);
}

}  // namespace
}  // namespace mimo::testing
