// Expert choice: against the rule in double, over every option of the interface.

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

struct Choice {
  std::vector<std::int32_t> ids;
  std::vector<double> weights;
  double gap = 0;  // between the last score taken and the first one left
};

// spec model 2.8 in double.
Choice exact_choice(const std::vector<double>& logits, const RouteSpec& spec, std::span<const float> bias) {
  const std::size_t experts = logits.size();
  std::vector<double> score(experts);
  std::vector<double> biased(experts);
  for (std::size_t e = 0; e < experts; ++e) {
    score[e] = 1.0 / (1.0 + std::exp(-logits[e]));
    biased[e] = score[e] + (bias.empty() ? 0.0 : static_cast<double>(bias[e]));
  }
  std::vector<std::int32_t> order(experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return biased[static_cast<std::size_t>(a)] > biased[static_cast<std::size_t>(b)];
  });
  const auto k = static_cast<std::size_t>(spec.top_k);
  Choice choice;
  choice.ids.assign(order.begin(), order.begin() + spec.top_k);
  std::sort(choice.ids.begin(), choice.ids.end());
  if (k < experts)
    choice.gap = biased[static_cast<std::size_t>(order[k - 1])] - biased[static_cast<std::size_t>(order[k])];
  double sum = 0;
  for (const std::int32_t id : choice.ids) sum += score[static_cast<std::size_t>(id)];
  for (const std::int32_t id : choice.ids) {
    double weight = score[static_cast<std::size_t>(id)];
    if (spec.normalize) weight /= sum + 1e-20;
    choice.weights.push_back(weight * spec.scale);
  }
  return choice;
}

std::unique_ptr<Matrix> pack_router(Ops& ops, const StoredMatrix& router) {
  Result<std::unique_ptr<Matrix>> matrix = ops.pack_router(router.view());
  if (!matrix) throw std::runtime_error(matrix.error().message);
  return std::move(*matrix);
}

std::vector<double> logits_of(const std::vector<float>& dense, const float* x, std::size_t experts,
                              std::size_t hidden) {
  std::vector<double> logits(experts);
  for (std::size_t e = 0; e < experts; ++e) {
    for (std::size_t i = 0; i < hidden; ++i) logits[e] += static_cast<double>(dense[e * hidden + i]) * x[i];
  }
  return logits;
}

std::vector<Ops*> all_ops(const std::unique_ptr<Ops>& reference) {
  std::vector<Ops*> ops = {reference.get()};
  for (const Backend& backend : cpu_backends()) ops.push_back(backend.ops);
  return ops;
}

// C53: biases around 10 that differ by 1e-4, where bf16 anywhere would decide by index. Ids equal those of
// fp64 except where its gap is below what fp32 resolves: half an ulp of 10 for each of the two sums, and the
// error of two scores (logit error / 4, and 4 ulp of the sigmoid).
TEST(Route, ChoosesAsFp64OverManyTokens) {
  constexpr std::size_t kExperts = 32;
  constexpr std::size_t kHidden = 16;
  constexpr int kTokens = 100000;
  Random random(1);
  const StoredMatrix router = bf16_matrix(random, kExperts, kHidden, 0.002f);
  const std::vector<float> dense = router.dense();
  std::vector<float> bias(kExperts);
  std::vector<int> order(kExperts);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (std::size_t e = 0; e < kExperts; ++e) bias[e] = 10.0f + 1e-4f * static_cast<float>(order[e]);
  const RouteSpec spec{.experts = kExperts, .top_k = 8};
  const std::vector<float> x = normal_values(random, kTokens * kHidden, 1.0f);
  std::vector<Choice> expected;
  std::vector<double> resolution;
  std::vector<float> coarse_bias = bias;
  for (float& b : coarse_bias) b = round_to_bf16(b);
  int coarse_differs = 0;
  for (std::size_t t = 0; t < kTokens; ++t) {
    const std::vector<double> logits = logits_of(dense, x.data() + t * kHidden, kExperts, kHidden);
    expected.push_back(exact_choice(logits, spec, bias));
    coarse_differs += exact_choice(logits, spec, coarse_bias).ids != expected.back().ids;
    double size = 0;
    for (const double logit : logits) size = std::max(size, std::fabs(logit));
    // fp32 sum of 16 products, each below about |logit| + noise of 0.05: the rigorous 16 u sum|wx| <= 16 u *
    // 0.1.
    resolution.push_back(0x1p-20 + 2 * (16 * kUnit * 0.1 / 4 + 4 * kUnit));
  }
  EXPECT_GT(coarse_differs, kTokens / 2) << "the control: a bf16 bias chooses others";
  const std::unique_ptr<Ops> reference = make_reference_ops();
  for (Ops* ops : all_ops(reference)) {
    const std::unique_ptr<Matrix> matrix = pack_router(*ops, router);
    std::vector<std::int32_t> ids(kTokens * 8);
    std::vector<float> weights(kTokens * 8);
    HostCalls(*ops).route(x.data(), kTokens, *matrix, spec, bias, ids.data(), weights.data());
    int differ = 0;
    int below = 0;
    for (std::size_t t = 0; t < kTokens; ++t) {
      below += expected[t].gap <= resolution[t];
      if (std::equal(expected[t].ids.begin(), expected[t].ids.end(),
                     ids.begin() + static_cast<std::ptrdiff_t>(8 * t))) {
        continue;
      }
      EXPECT_LE(expected[t].gap, resolution[t]) << "token " << t << " " << ops->describe().front();
      ++differ;
    }
    EXPECT_LT(below, kTokens / 20) << "the exception must stay an exception";
    EXPECT_LE(differ, below);
  }
}

// C54, C55: every option, 1 to 10 experts a token, expert counts that are no multiple of anything.
TEST(Route, OptionsTable) {
  Random random(2);
  const std::unique_ptr<Ops> reference = make_reference_ops();
  constexpr std::size_t kHidden = 48;
  constexpr std::size_t kRows = 5;
  for (const int experts : {10, 12, 17, 33, 100, 256, 384}) {
    for (const bool bf16 : {false, true}) {
      const StoredMatrix router =
          bf16 ? bf16_matrix(random, experts, kHidden, 0.3f) : f32_matrix(random, experts, kHidden, 0.3f);
      const std::vector<float> dense = router.dense();
      const std::vector<float> bias = normal_values(random, static_cast<std::size_t>(experts), 1.0f);
      const std::vector<float> x = normal_values(random, kRows * kHidden, 1.0f);
      for (Ops* ops : all_ops(reference)) {
        const std::unique_ptr<Matrix> matrix = pack_router(*ops, router);
        for (int top_k = 1; top_k <= 10; ++top_k) {
          for (int option = 0; option < 8; ++option) {
            RouteSpec spec{.experts = experts, .top_k = top_k};
            const std::span<const float> used =
                (option & 1) != 0 ? std::span<const float>(bias) : std::span<const float>();
            spec.normalize = (option & 2) != 0;
            spec.scale = (option & 4) != 0 ? 2.5f : 1.0f;
            std::vector<std::int32_t> ids(kRows * static_cast<std::size_t>(top_k));
            std::vector<float> weights(ids.size());
            HostCalls(*ops).route(x.data(), kRows, *matrix, spec, used, ids.data(), weights.data());
            for (std::size_t r = 0; r < kRows; ++r) {
              const Choice exact = exact_choice(
                  logits_of(dense, x.data() + r * kHidden, static_cast<std::size_t>(experts), kHidden), spec,
                  used);
              if (exact.gap < 2e-6 && top_k < experts) continue;
              for (std::size_t k = 0; k < static_cast<std::size_t>(top_k); ++k) {
                const std::size_t at = r * static_cast<std::size_t>(top_k) + k;
                ASSERT_EQ(ids[at], exact.ids[k])
                    << experts << " experts, top " << top_k << " option " << option;
                // Logits to 48 products (their error / 4 moves a score), sigmoid, sum of 10, quotient: 24
                // ulp.
                ASSERT_NEAR(weights[at], exact.weights[k], 24 * kUnit * spec.scale);
              }
            }
          }
        }
      }
    }
  }
}

TEST(ChooseExperts, TiesGoToTheLowerId) {
  const std::vector<float> logits(12, 0.25f);
  std::vector<std::int32_t> ids(5);
  std::vector<float> weights(5);
  choose_experts(logits, {.experts = 12, .top_k = 5}, {}, ids, weights);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  for (const float weight : weights) EXPECT_FLOAT_EQ(weight, 0.2f);
  // Two winners, then a tie among the rest.
  std::vector<float> some = logits;
  some[7] = 1.0f;
  some[11] = 2.0f;
  choose_experts(some, {.experts = 12, .top_k = 4}, {}, {ids.data(), 4}, {weights.data(), 4});
  EXPECT_EQ((std::vector<std::int32_t>{ids.begin(), ids.begin() + 4}),
            (std::vector<std::int32_t>{0, 1, 7, 11}));
}

TEST(ChooseExperts, NonFiniteScoresNeverWin) {
  std::vector<float> logits = {-5.0f, std::nanf(""), -6.0f, -7.0f, std::nanf(""), -8.0f};
  std::vector<std::int32_t> ids(4);
  std::vector<float> weights(4);
  choose_experts(logits, {.experts = 6, .top_k = 4}, {}, ids, weights);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 2, 3, 5}));
  for (const float weight : weights) EXPECT_TRUE(std::isfinite(weight));
  std::vector<float> bias(6, 0.0f);
  bias[0] = INFINITY;
  bias[2] = std::nanf("");
  choose_experts({logits.data(), 6}, {.experts = 6, .top_k = 2}, bias, {ids.data(), 2}, {weights.data(), 2});
  EXPECT_EQ(ids[0], 3);
  EXPECT_EQ(ids[1], 5);
  // Infinite logits have scores of 0 and 1.
  logits = {INFINITY, -INFINITY, 0.0f};
  choose_experts(logits, {.experts = 3, .top_k = 2}, {}, {ids.data(), 2}, {weights.data(), 2});
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ(ids[1], 2);
  EXPECT_FLOAT_EQ(weights[0], 1.0f / 1.5f);
}

// Ids stay in range and distinct when everything is NaN (what experts() then computes is NaN, not a crash).
TEST(ChooseExperts, AllNanStillNamesExperts) {
  const std::vector<float> logits(9, std::nanf(""));
  std::vector<std::int32_t> ids(8);
  std::vector<float> weights(8);
  choose_experts(logits, {.experts = 9, .top_k = 8}, {}, ids, weights);
  for (std::int32_t i = 0; i < 8; ++i) EXPECT_EQ(ids[static_cast<std::size_t>(i)], i);
  for (const float weight : weights) EXPECT_TRUE(std::isnan(weight));
}

TEST(Route, BitsDoNotDependOnTheBatch) {
  Random random(3);
  const StoredMatrix router = bf16_matrix(random, 33, 96, 0.1f);
  const std::vector<float> bias = normal_values(random, 33, 1.0f);
  const RouteSpec spec{.experts = 33, .top_k = 8};
  constexpr int kRows = 140;
  const std::vector<float> x = activations(random, kRows, 96);
  for (const int threads : {1, 2, 3}) {
    for (const Backend& backend : cpu_backends(threads)) {
      const std::unique_ptr<Matrix> matrix = pack_router(*backend.ops, router);
      std::vector<std::int32_t> ids(kRows * 8);
      std::vector<float> weights(kRows * 8);
      HostCalls(*backend.ops).route(x.data(), kRows, *matrix, spec, bias, ids.data(), weights.data());
      for (const int count : {1, 3, 8, 20}) {
        for (int row = 0; row + count <= kRows; row += 17) {
          std::vector<std::int32_t> part_ids(static_cast<std::size_t>(count) * 8);
          std::vector<float> part_weights(part_ids.size());
          HostCalls(*backend.ops)
              .route(x.data() + row * 96, count, *matrix, spec, bias, part_ids.data(), part_weights.data());
          ASSERT_EQ(std::memcmp(part_ids.data(), ids.data() + row * 8, part_ids.size() * 4), 0);
          ASSERT_EQ(std::memcmp(part_weights.data(), weights.data() + row * 8, part_weights.size() * 4), 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mimo
