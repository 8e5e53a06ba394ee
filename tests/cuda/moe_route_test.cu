#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "cuda/expert_cases.h"
#include "ops/cuda/kernels/moe_plan.h"
#include "ops/cuda/kernels/moe_route.h"

namespace mimo::cuda::testing {
namespace {

struct Case {
  int rows, hidden, experts, top_k;
  ActType x, router;
  bool normalize = true;
  float scale = 1.0f;
};

struct Inputs {
  std::vector<float> x, router, bias;
  std::vector<std::int32_t> sequence;
};

struct Result {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

void check_plan(const MoePlan& plan, const std::vector<std::int32_t>& ids, int experts, int group_rows) {
  std::int32_t groups = 0;
  ok(cudaMemcpy(&groups, plan.group_count, 4, cudaMemcpyDeviceToHost));
  ASSERT_GE(groups, 0);
  ASSERT_LE(groups, plan.max_groups);
  std::vector<MoeGroup> group(groups);
  std::vector<std::int32_t> done(groups), slots(ids.size());
  ok(cudaMemcpy(group.data(), plan.groups, groups * sizeof(MoeGroup), cudaMemcpyDeviceToHost));
  ok(cudaMemcpy(done.data(), plan.done, groups * 4, cudaMemcpyDeviceToHost));
  ok(cudaMemcpy(slots.data(), plan.slot_pair, slots.size() * 4, cudaMemcpyDeviceToHost));
  std::set<int> seen;
  int at = 0, last = -1;
  for (int g = 0; g < groups; ++g) {
    EXPECT_EQ(done[g], 0);
    EXPECT_EQ(group[g].begin, at);
    EXPECT_GE(group[g].expert, last);
    EXPECT_GE(group[g].count, 1);
    EXPECT_LE(group[g].count, group_rows);
    last = group[g].expert;
    for (int i = 0; i < group[g].count; ++i) {
      const int pair = slots[at++];
      EXPECT_EQ(ids[pair], group[g].expert);
      EXPECT_TRUE(seen.insert(pair).second);
    }
  }
  EXPECT_EQ(at, std::count_if(ids.begin(), ids.end(), [&](int id) { return id >= 0 && id < experts; }));
}

// Two launches over the same workspace: the second must find it as the first did.
Result run_route(const Case& c, const Inputs& in, int rows, int first, bool with_plan) {
  const std::vector<float> x(in.x.begin() + static_cast<std::ptrdiff_t>(first) * c.hidden,
                             in.x.begin() + static_cast<std::ptrdiff_t>(first + rows) * c.hidden);
  const DeviceArray<std::uint8_t> dx(as_type(x, c.x)), dr(as_type(in.router, c.router));
  const DeviceArray<float> bias(in.bias);
  const DeviceArray<std::int32_t> sequence(
      std::vector<std::int32_t>(in.sequence.begin() + first, in.sequence.begin() + first + rows));
  DeviceArray<std::int32_t> ids(static_cast<std::size_t>(rows) * c.top_k);
  DeviceArray<float> weights(ids.size());
  DeviceArray<std::uint8_t> workspace(route_workspace(rows, c.hidden, c.experts)),
      plan(moe_plan_bytes(rows, c.top_k, c.experts, 8));
  workspace.fill(0), plan.fill(0xff);
  RouteArgs a;
  a.x = dx.get(), a.type = c.x, a.rows = rows, a.hidden = c.hidden, a.router = dr.get(),
  a.router_type = c.router;
  a.experts = c.experts, a.top_k = c.top_k, a.bias = bias.get(), a.normalize = c.normalize, a.scale = c.scale;
  a.row_sequence = sequence.get(), a.ids = ids.get(), a.weights = weights.get(),
  a.workspace = workspace.get();
  if (with_plan) a.plan = moe_plan_in(plan.get(), rows, c.top_k, c.experts, 8), a.group_rows = 8;
  for (int i = 0; i < 2; ++i) {
    ids.fill(0xff), weights.fill(0xff);
    ok(launch_route(a, nullptr));
    ok(cudaDeviceSynchronize());
  }
  Result out{ids.download(), weights.download()};
  if (with_plan) check_plan(a.plan, out.ids, c.experts, 8);
  return out;
}

void run(const Case& c, unsigned seed) {
  if (small_cases() && (c.rows > 9 || c.hidden > 128)) return;
  SCOPED_TRACE(::testing::Message() << "rows " << c.rows << " hidden " << c.hidden << " experts " << c.experts
                                    << " top_k " << c.top_k << " x " << static_cast<int>(c.x) << " router "
                                    << static_cast<int>(c.router));
  std::mt19937 rng(seed);
  Inputs in;
  in.x = random_values(static_cast<std::size_t>(c.rows) * c.hidden, 1.0f, c.x == ActType::kBF16, rng);
  in.router = random_values(static_cast<std::size_t>(c.experts) * c.hidden,
                            2.0f / std::sqrt(static_cast<float>(c.hidden)), c.router == ActType::kBF16, rng);
  in.bias = random_values(c.experts, 0.3f, false, rng);
  in.sequence.assign(c.rows, 0);
  const int twin = c.experts / 2, broken = c.experts - 1;  // expert 1 and its twin tie always
  std::copy_n(in.router.begin() + c.hidden, c.hidden,
              in.router.begin() + static_cast<std::ptrdiff_t>(twin) * c.hidden);
  in.bias[twin] = in.bias[1] = 0.2f;
  in.bias[broken] = INFINITY;
  int nan_row = -1, padding = -1;
  if (c.rows > 4) {
    nan_row = c.rows / 2, padding = c.rows - 1;
    for (int r : {nan_row, padding}) in.x[static_cast<std::size_t>(r) * c.hidden + 5] = NAN;
    in.sequence[padding] = -1;
  }
  const bool with_plan = c.rows * c.top_k <= kRoutePlanPairs;
  const Result got = run_route(c, in, c.rows, 0, with_plan);
  for (int r = 0; r < c.rows; ++r) {
    const std::int32_t* ids = got.ids.data() + static_cast<std::ptrdiff_t>(r) * c.top_k;
    const float* weights = got.weights.data() + static_cast<std::ptrdiff_t>(r) * c.top_k;
    if (r == padding) {
      for (int k = 0; k < c.top_k; ++k) {
        EXPECT_EQ(ids[k], -1);
        EXPECT_EQ(weights[k], 0);
      }
      continue;
    }
    if (r == nan_row) {
      for (int k = 0; k < c.top_k; ++k) EXPECT_EQ(ids[k], k);
      continue;
    }
    std::vector<double> score(c.experts), biased(c.experts);
    for (int e = 0; e < c.experts; ++e) {
      double z = 0;
      for (int i = 0; i < c.hidden; ++i) {
        z += static_cast<double>(in.x[static_cast<std::size_t>(r) * c.hidden + i]) *
             in.router[static_cast<std::size_t>(e) * c.hidden + i];
      }
      score[e] = 1 / (1 + std::exp(-z));
      biased[e] = score[e] + in.bias[e];
    }
    std::vector<bool> chosen(c.experts);
    double worst = INFINITY, sum = 0;
    for (int k = 0; k < c.top_k; ++k) {
      ASSERT_GE(ids[k], 0);
      ASSERT_LT(ids[k], c.experts);
      if (k > 0) {
        EXPECT_LT(ids[k - 1], ids[k]);
      }
      chosen[ids[k]] = true;
      worst = std::min(worst, biased[ids[k]]);
      sum += score[ids[k]];
    }
    EXPECT_FALSE(chosen[broken] && c.top_k < c.experts);
    EXPECT_TRUE(!chosen[twin] || chosen[1]);
    for (int e = 0; e < c.experts; ++e) {
      if (!chosen[e] && e != broken) {
        EXPECT_LE(biased[e], worst + 2e-6) << "row " << r << " expert " << e;
      }
    }
    for (int k = 0; k < c.top_k; ++k) {
      const double want = score[ids[k]] / (c.normalize ? sum : 1.0) * c.scale;
      EXPECT_NEAR(weights[k], want, 4e-6 * want) << "row " << r;
    }
  }
  for (int r = 0; r < c.rows; r += std::max(1, c.rows / 4)) {
    const Result alone = run_route(c, in, 1, r, false);
    EXPECT_EQ(
        std::memcmp(alone.ids.data(), got.ids.data() + static_cast<std::ptrdiff_t>(r) * c.top_k, c.top_k * 4),
        0)
        << r;
    EXPECT_EQ(std::memcmp(alone.weights.data(), got.weights.data() + static_cast<std::ptrdiff_t>(r) * c.top_k,
                          c.top_k * 4),
              0)
        << r;
  }
}

TEST(Route, MatchesDouble) {
  unsigned seed = 1;
  for (ActType x : {ActType::kBF16, ActType::kF32}) {
    for (ActType w : {ActType::kBF16, ActType::kF32}) {
      for (int rows : {1, 3, 8, 9, 40}) {
        run({rows, 128, 8, 3, x, w}, seed++);
        run({rows, 1032, 33, 8, x, w, false, 2.5f}, seed++);
      }
      run({520, 136, 72, 4, x, w}, seed++);
      run({5, 4096, 256, 8, x, w}, seed++);
      run({70, 512, 384, 8, x, w, true, 1.5f}, seed++);
      run({6, 64, 512, 16, x, w}, seed++);
    }
  }
  run({300, 128, 16, 8, ActType::kBF16, ActType::kF32}, seed++);
}

TEST(Route, Refuses) {
  RouteArgs a;
  a.rows = 1, a.hidden = 12, a.experts = 8, a.top_k = 2;
  EXPECT_EQ(launch_route(a, nullptr), cudaErrorInvalidValue);
  a.hidden = 16, a.top_k = 9;
  EXPECT_EQ(launch_route(a, nullptr), cudaErrorInvalidValue);
}

TEST(MoePlan, SortsManyPairs) {
  std::mt19937 rng(5);
  for (int rows : {1, 100, 1024}) {
    if (small_cases() && rows > 100) continue;
    for (Spread spread : {Spread::kRandom, Spread::kOneSet}) {
      Routing routing = random_routing(rows, 64, 8, spread, rng);
      for (std::size_t i = 3; i < routing.ids.size(); i += 17) routing.ids[i] = i % 2 == 0 ? -1 : 64;
      const DeviceArray<std::int32_t> ids(routing.ids);
      for (int group_rows : {8, 16, 128}) {
        DeviceArray<std::uint8_t> memory(moe_plan_bytes(rows, 8, 64, group_rows));
        memory.fill(0xff);
        const MoePlan plan = moe_plan_in(memory.get(), rows, 8, 64, group_rows);
        ok(launch_moe_plan({ids.get(), rows, 8, 64, group_rows, plan}, nullptr));
        ok(cudaDeviceSynchronize());
        check_plan(plan, routing.ids, 64, group_rows);
      }
    }
  }
}

}  // namespace
}  // namespace mimo::cuda::testing
