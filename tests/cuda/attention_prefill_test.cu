#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "cuda/attention_case.cuh"
#include "ops/cuda/kernels/attention_prefill.h"

namespace mimo::cuda {
namespace {

using testing::Case;
using testing::CaseSequence;
using testing::CaseSpec;
using testing::DeviceArray;

void run(Case& problem) {
  ASSERT_TRUE(attention_prefill_supports(problem.args));
  DeviceArray<std::uint8_t> workspace(attention_prefill_workspace(problem.args));
  workspace.fill(0xff);
  attention_prefill_plan(problem.args, workspace.get(), nullptr);
  // Twice: a plan serves all layers of a kind.
  attention_prefill(problem.args, workspace.get(), nullptr);
  problem.poison_output();
  attention_prefill(problem.args, workspace.get(), nullptr);
  MIMO_CUDA(cudaDeviceSynchronize());
}

void expect_right(const CaseSpec& spec, int samples) {
  Case problem(spec);
  run(problem);
  double worst = 0;
  EXPECT_EQ(testing::wrong_elements(problem, spec, samples, &worst), 0) << "worst error / bound " << worst;
}

CaseSpec random_spec(std::mt19937& rng, bool window, bool fp8) {
  const auto pick = [&](std::initializer_list<int> values) { return values.begin()[rng() % values.size()]; };
  CaseSpec spec;
  const int group = pick({8, 16, 16, 32});
  spec.kv_heads = pick({1, 2, 4});
  spec.q_heads = spec.kv_heads * group;
  spec.page_size = pick({1, 3, 7, 8, 16, 16, 24, 64, 96, 128, 256});
  spec.window = window ? 128 : 0;
  spec.sinks = window;
  spec.fp8 = fp8;
  spec.pad_rows = static_cast<int>(rng() % 3);
  const int count = 1 + static_cast<int>(rng() % 5);
  for (int s = 0; s < count; ++s) {
    CaseSequence one;
    one.rows = static_cast<int>(rng() % 8 == 0 ? 0 : 1 + rng() % (rng() % 2 ? 300 : 40));
    one.position = rng() % 3 == 0 ? 0 : static_cast<int>(rng() % 900);
    one.first_key = rng() % 3 == 0 ? static_cast<int>(rng() % (one.position + 1)) : 0;
    one.content = s + 1;
    spec.sequences.push_back(one);
  }
  if (spec.sequences[0].rows == 0) spec.sequences[0].rows = 17;
  return spec;
}

class AttentionPrefill : public ::testing::TestWithParam<int> {};

TEST_P(AttentionPrefill, RandomShapesMatchDouble) {
  std::mt19937 rng(GetParam());
  for (int i = 0; i < (small_cases() ? 3 : 6); ++i) {
    const CaseSpec spec = random_spec(rng, i % 2 == 1, i % 3 == 2);
    SCOPED_TRACE("case " + std::to_string(i) + ", page " + std::to_string(spec.page_size) + ", heads " +
                 std::to_string(spec.q_heads) + "/" + std::to_string(spec.kv_heads));
    expect_right(spec, 250);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AttentionPrefill, ::testing::Range(1, 7));

TEST(AttentionPrefillMasks, AnchoredAndBidirectional) {
  for (const bool anchor : {false, true}) {
    for (const bool bidirectional : {false, true}) {
      for (const int window : {0, 40, 128}) {
        CaseSpec spec{.q_heads = 16, .kv_heads = 2, .page_size = 16, .window = window, .sinks = true};
        spec.anchor = anchor && window > 0;
        spec.bidirectional = bidirectional;
        spec.sequences = {{16, 777, 0, 1}, {40, 90, 7, 2}, {200, 0, 0, 3}};
        expect_right(spec, 200);
      }
    }
  }
}

TEST(AttentionPrefillSizes, LongContextAndManyHeads) {
  expect_right(
      {.q_heads = 64, .kv_heads = 4, .page_size = 16, .sequences = {{1000, 9000, 0, 1}, {16, 30000, 0, 2}}},
      16);
  expect_right({.q_heads = 64,
                .kv_heads = 8,
                .page_size = 16,
                .window = 128,
                .sinks = true,
                .sequences = {{3000, 9000, 0, 1}, {16, 30000, 0, 2}}},
               300);
}

// The rows of one sequence, as bits.
std::vector<std::uint16_t> bits(const Case& problem, const CaseSpec& spec, int s, int first, int count) {
  const auto out = problem.output();
  const std::size_t width = static_cast<std::size_t>(spec.q_heads) * 128;
  std::vector<std::uint16_t> rows(count * width);
  std::memcpy(rows.data(), out.data() + (problem.row_begin(s) + first) * width, rows.size() * 2);
  return rows;
}

TEST(AttentionPrefillInvariance, RowsDependOnTheirOwnSequenceOnly) {
  for (const bool window : {false, true}) {
    for (const bool fp8 : {false, true}) {
      for (const int page : {16, 7}) {
        CaseSpec base{
            .q_heads = 32, .kv_heads = 2, .page_size = page, .window = window ? 128 : 0, .sinks = window};
        base.fp8 = fp8;
        CaseSpec alone = base, among = base, parts = base, one = base;
        alone.sequences = {{400, 333, 0, 5}};
        among.sequences = {{90, 10, 0, 1}, {400, 333, 0, 5}, {3000, 1000, 0, 2}};
        parts.sequences = {{150, 333, 0, 5}, {250, 483, 0, 5}};
        one.sequences = {{1, 733 - 1, 0, 5}};
        Case a(alone), b(among), c(parts), d(one);
        run(a), run(b), run(c), run(d);
        const auto want = bits(a, alone, 0, 0, 400);
        EXPECT_EQ(bits(b, among, 1, 0, 400), want);
        auto cut = bits(c, parts, 0, 0, 150);
        const auto rest = bits(c, parts, 1, 0, 250);
        cut.insert(cut.end(), rest.begin(), rest.end());
        EXPECT_EQ(cut, want);
        EXPECT_EQ(bits(d, one, 0, 0, 1), bits(a, alone, 0, 399, 1));
      }
    }
  }
}

// Scales below f16's normal numbers keep their digits: values 2^-12 as large give a result 2^-12 as large.
TEST(AttentionPrefillFp8, SmallScales) {
  CaseSpec spec{.q_heads = 32, .kv_heads = 2, .page_size = 16, .fp8 = true, .sequences = {{100, 200, 0, 1}}};
  Case problem(spec);
  run(problem);
  const auto want = problem.output();
  const KvView& kv = problem.args.kv;
  std::vector<float> scales(static_cast<std::size_t>(kv.pages) * kv.kv_heads * kv.page_size);
  MIMO_CUDA(cudaMemcpy(scales.data(), kv.v_scale, scales.size() * 4, cudaMemcpyDeviceToHost));
  for (float& scale : scales) scale *= 0x1p-12f;
  MIMO_CUDA(cudaMemcpy(kv.v_scale, scales.data(), scales.size() * 4, cudaMemcpyHostToDevice));
  problem.poison_output();
  run(problem);
  const auto got = problem.output();
  int wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float expected = __bfloat162float(want[i]), here = __bfloat162float(got[i]) * 0x1p12f;
    wrong += !(std::abs(here - expected) <= std::abs(expected) / 128 + 1e-3f);
  }
  EXPECT_EQ(wrong, 0);
}

// Many short items a thread block, which is when the warps of a producer can drift apart: nothing may wait for ever, and
// all launches give the same bits.
TEST(AttentionPrefillInvariance, ManyLaunches) {
  for (const bool window : {false, true}) {
    for (const bool fp8 : {false, true}) {
      for (const int page : {1, 16}) {
        CaseSpec spec{.q_heads = 64, .kv_heads = 8, .page_size = page, .window = window ? 128 : 0};
        spec.fp8 = fp8;
        for (int s = 0; s < 24; ++s) spec.sequences.push_back({40 + 5 * s, 16 * s, 0, 1});
        Case problem(spec);
        DeviceArray<std::uint8_t> workspace(attention_prefill_workspace(problem.args));
        attention_prefill_plan(problem.args, workspace.get(), nullptr);
        attention_prefill(problem.args, workspace.get(), nullptr);
        const auto want = problem.output();
        problem.poison_output();
        for (int i = 0; i < 200; ++i) attention_prefill(problem.args, workspace.get(), nullptr);
        const auto got = problem.output();
        EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * 2), 0);
      }
    }
  }
}

TEST(AttentionPrefillGraph, ReplaysWithOtherContents) {
  CaseSpec spec{
      .q_heads = 16, .kv_heads = 1, .page_size = 16, .sequences = {{200, 100, 0, 1}, {64, 0, 0, 2}}};
  Case problem(spec);
  DeviceArray<std::uint8_t> workspace(attention_prefill_workspace(problem.args));
  cudaStream_t stream;
  MIMO_CUDA(cudaStreamCreate(&stream));
  MIMO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  attention_prefill_plan(problem.args, workspace.get(), stream);
  attention_prefill(problem.args, workspace.get(), stream);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  MIMO_CUDA(cudaStreamEndCapture(stream, &graph));
  MIMO_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  MIMO_CUDA(cudaGraphLaunch(exec, stream));
  MIMO_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(testing::wrong_elements(problem, spec, 200), 0);
  // The first sequence shrinks to its first 50 rows, the second one leaves.
  const std::vector<std::int32_t> rows = {50, 0};
  MIMO_CUDA(cudaMemcpy(const_cast<std::int32_t*>(problem.args.sequences.rows), rows.data(), 8,
                       cudaMemcpyHostToDevice));
  problem.poison_output();
  MIMO_CUDA(cudaGraphLaunch(exec, stream));
  MIMO_CUDA(cudaStreamSynchronize(stream));
  CaseSpec now = spec;
  now.sequences = {{50, 100, 0, 1}, {0, 0, 0, 2}};
  EXPECT_EQ(testing::wrong_elements(problem, now, 200), 0);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(AttentionPrefillSupports, RefusesWhatItCannotDo) {
  CaseSpec spec{.sequences = {{16, 0}}};
  Case problem(spec);
  EXPECT_TRUE(attention_prefill_supports(problem.args));
  AttentionArgs args = problem.args;
  args.kv.qk_dim = 128;
  EXPECT_FALSE(attention_prefill_supports(args));
  args = problem.args;
  args.type = ActType::kF32;
  EXPECT_FALSE(attention_prefill_supports(args));
  args = problem.args;
  args.q_heads = 12;
  EXPECT_FALSE(attention_prefill_supports(args));
  args = problem.args;
  args.q_stride += 1;
  EXPECT_FALSE(attention_prefill_supports(args));
}

}  // namespace
}  // namespace mimo::cuda
