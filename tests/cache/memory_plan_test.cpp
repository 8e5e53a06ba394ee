#include "cache/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/file.h"

namespace mimo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig released(const std::string& name) {
  const std::string path = std::string(MIMO_SOURCE_DIR) + "/tests/checkpoint/data/configs/" + name + ".json";
  return *parse_config(*read_file(path, 1 << 20), path);
}

std::uint64_t rank_group(const ModelConfig& config, int size, TensorGroup group) {
  return rank_weight_bytes(config, size, 0)[static_cast<std::size_t>(group)];
}

MemoryPlan plan(const ModelConfig& config, const MemoryPlanInput& input) {
  auto result = plan_memory(config, input);
  EXPECT_TRUE(result) << (result ? "" : result.error().message);
  return *result;
}

std::uint64_t weights(const MemoryPlan& plan) {
  std::uint64_t bytes = 0;
  for (const MemoryPlanRow& row : plan.rows) {
    if (row.name.starts_with("weights:")) bytes += row.bytes;
  }
  return bytes;
}

MemoryPlanInput large() {
  MemoryPlanInput input;
  input.memory_bytes = 2'000'000'000'000;
  return input;
}

// Spec model 6.2.
TEST(MemoryPlan, WeightTotals) {
  EXPECT_NEAR(static_cast<double>(weights(plan(released("v2_6_flash"), large()))), 169.75e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(weights(plan(released("v2_6_pro"), large()))), 561.5e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(weights(plan(released("v2_5"), large()))), 311.9e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(weights(plan(released("v2_5_pro"), large()))), 1030.9e9, 0.1e9);
  MemoryPlanInput mtp = large();
  mtp.mtp_heads = 3;
  EXPECT_NEAR(static_cast<double>(weights(plan(released("v2_6_flash"), mtp))) -
                  static_cast<double>(weights(plan(released("v2_6_flash"), large()))),
              3 * 396.5e6, 0.2e6);
}

// Spec model 6.3: the growing part, 256K of it, and the window part.
TEST(MemoryPlan, KvBytes) {
  struct Case {
    const char* name;
    KvFormat format;
    std::uint64_t per_token;
    double at_256k;  // GB, with the rings of 128
  };
  for (const Case& each :
       {Case{"v2_6_flash", KvFormat::kBF16, 23'040, 6.065}, Case{"v2_6_flash", KvFormat::kFp8, 11'520, 3.033},
        Case{"v2_6_pro", KvFormat::kBF16, 51'200, 13.46}, Case{"v2_6_pro", KvFormat::kFp8, 25'600, 6.73}}) {
    MemoryPlanInput input = large();
    input.kv_format = each.format;
    input.context = 262'144;
    const MemoryPlan result = plan(released(each.name), input);
    EXPECT_EQ(result.full_page_bytes, each.per_token * 64);
    const KvBytes kv = kv_bytes(released(each.name), each.format, false);
    const double bytes = static_cast<double>(result.full_page_bytes) * (262'144 / 64) +
                         128.0 * static_cast<double>(kv.window_per_token);
    EXPECT_NEAR(bytes / 1e9, each.at_256k, 0.006) << each.name;
  }
}

// Spec serving 1.10: W = 128, E = 128, B = 8, P = 64, R = 96, C = 8192 with overlap, 4 tails a request.
TEST(MemoryPlan, WindowPoolOfTheWorkedExample) {
  MemoryPlanInput input = large();
  input.page_tokens = 64;
  input.evict_tokens = 128;
  input.block_tokens = 8;
  input.max_running = 96;
  input.chunk_tokens = 8192;
  input.overlap = true;
  input.window_tails = 384;
  const MemoryPlan result = plan(released("v2_6_flash"), input);
  const std::int64_t tokens = 96 * 407 + 2 * 8192 + 384 * 128;
  EXPECT_EQ(result.window_tokens, (tokens + 63) / 64 * 64);
  const auto row = std::find_if(result.rows.begin(), result.rows.end(),
                                [](const MemoryPlanRow& r) { return r.name == "KV: window layers"; });
  ASSERT_NE(row, result.rows.end());
  EXPECT_NEAR(static_cast<double>(row->bytes), 20.9e9, 0.02e9);
}

TEST(MemoryPlan, RowsAndPagesAddUpToTheMemory) {
  for (const std::uint64_t memory : {200'000'000'000ull, 250'000'000'001ull, 999'999'999'999ull}) {
    MemoryPlanInput input;
    input.memory_bytes = memory;
    const MemoryPlan result = plan(released("v2_6_flash"), input);
    std::uint64_t sum = 0;
    for (const MemoryPlanRow& row : result.rows) sum += row.bytes;
    EXPECT_EQ(sum, result.fixed_bytes);
    const std::uint64_t used = sum + static_cast<std::uint64_t>(result.full_pages) * result.full_page_bytes;
    EXPECT_LE(used, memory);
    EXPECT_LT(memory - used, result.full_page_bytes);
    EXPECT_EQ(result.full_tokens, (result.full_pages - 1) * 64);
    EXPECT_EQ(result.requests_at_context(), result.full_tokens / 1'048'576);
  }
}

TEST(MemoryPlan, ExactlyEnoughFitsOneByteLessDoesNot) {
  MemoryPlanInput input;
  input.context = 262'144;
  input.memory_bytes = plan(released("v2_6_flash"), input).needed_bytes;
  const MemoryPlan exact = plan(released("v2_6_flash"), input);
  EXPECT_TRUE(exact.fits);
  EXPECT_TRUE(exact.changes.empty());
  EXPECT_EQ(exact.requests_at_context(), 1);
  EXPECT_GE(exact.full_tokens, 262'144);
  --input.memory_bytes;
  const MemoryPlan less = plan(released("v2_6_flash"), input);
  EXPECT_FALSE(less.fits);
  EXPECT_EQ(less.requests_at_context(), 0);
}

// Every change that is offered fits, and the next smaller change does not.
TEST(MemoryPlan, ChangesAreTheSmallestThatFit) {
  const ModelConfig config = released("v2_6_flash");
  MemoryPlanInput input;
  input.context = 262'144;
  input.max_running = 64;
  input.full_requests = 2;
  input.memory_bytes = plan(config, input).needed_bytes - 3'000'000'000;
  const MemoryPlan result = plan(config, input);
  ASSERT_FALSE(result.fits);
  ASSERT_EQ(result.changes.size(), 4u) << to_text(result);
  EXPECT_TRUE(std::is_sorted(result.changes.begin(), result.changes.end(),
                             [](const auto& a, const auto& b) { return a.size < b.size; }));
  const auto fits_with = [&](const std::string& field, std::int64_t value) {
    MemoryPlanInput changed = input;
    if (field == "context") changed.context = value;
    if (field == "max_running") changed.max_running = static_cast<int>(value);
    if (field == "kv_format") changed.kv_format = KvFormat::kFp8;
    if (field == "memory") changed.memory_bytes = static_cast<std::uint64_t>(value);
    return plan(config, changed).fits;
  };
  for (const MemoryPlanChange& change : result.changes) {
    EXPECT_TRUE(fits_with(change.field, change.value)) << change.text;
    if (change.field == "context") {
      EXPECT_FALSE(fits_with("context", change.value + 64));
    }
    if (change.field == "max_running") {
      EXPECT_FALSE(fits_with("max_running", change.value + 1));
    }
    if (change.field == "memory") {
      EXPECT_FALSE(fits_with("memory", change.value - 1));
    }
  }
  EXPECT_EQ(result.changes.front().field, "memory");  // 3 GB of some 187 is the least of the four
}

TEST(MemoryPlan, WeightsAloneTooLargeOnlyMemoryHelps) {
  MemoryPlanInput input;
  input.memory_bytes = 100'000'000'000;
  const MemoryPlan result = plan(released("v2_6_flash"), input);
  EXPECT_FALSE(result.fits);
  ASSERT_EQ(result.changes.size(), 1u);
  EXPECT_EQ(result.changes[0].field, "memory");
  EXPECT_EQ(result.full_tokens, 0);
}

TEST(MemoryPlan, TensorParallelCutsWeightsAndReplicatesKvHeads) {
  const ModelConfig config = released("v2_6_flash");
  MemoryPlanInput input = large();
  const MemoryPlan one = plan(config, input);
  input.tensor_parallel = 4;
  const MemoryPlan four = plan(config, input);
  EXPECT_EQ(four.full_page_bytes, one.full_page_bytes / 4);
  input.tensor_parallel = 8;  // 4 KV heads: each is on two ranks
  EXPECT_EQ(plan(config, input).full_page_bytes, one.full_page_bytes / 4);
  for (const int size : {2, 4, 8}) {
    EXPECT_EQ(rank_group(config, size, TensorGroup::kExperts),
              rank_group(config, 1, TensorGroup::kExperts) / static_cast<std::uint64_t>(size));
    EXPECT_EQ(rank_group(config, size, TensorGroup::kEmbedding),
              rank_group(config, 1, TensorGroup::kEmbedding));
  }
  // Up to T ranks, attention is cut evenly but for the sinks that every rank is charged whole.
  const auto whole = static_cast<double>(rank_group(config, 1, TensorGroup::kAttention));
  EXPECT_NEAR(static_cast<double>(rank_group(config, 4, TensorGroup::kAttention)), whole / 4, 1e4);
  EXPECT_GT(static_cast<double>(rank_group(config, 8, TensorGroup::kAttention)), whole / 8 + 1e6);
}

TEST(MemoryPlan, DrafterReserveAndRowScalesAreCharged) {
  const ModelConfig config = released("v2_6_flash");
  MemoryPlanInput input = large();
  const MemoryPlan plain = plan(config, input);
  input.draft = DraftPlan{2'940'000'000, 20'480, 1024};
  input.reserve_bytes = 1'000'000'000;
  const MemoryPlan ring = plan(config, input);
  EXPECT_EQ(ring.fixed_bytes - plain.fixed_bytes, 3'940'000'000u + 8u * 18u * 64u * 20'480u);
  input.context = 500;  // the ring is no longer than the longest request
  EXPECT_EQ(plan(config, input).fixed_bytes - plain.fixed_bytes, 3'940'000'000u + 8u * 8u * 64u * 20'480u);
  input.context = 0;
  EXPECT_EQ(ring.full_page_bytes, plain.full_page_bytes);
  input.draft->window = 0;
  EXPECT_EQ(plan(config, input).full_page_bytes, plain.full_page_bytes + 64 * 20'480);
  input.draft.reset();
  input.kv_format = KvFormat::kFp8;
  input.kv_row_scales = true;
  EXPECT_EQ(plan(config, input).full_page_bytes, 64u * 9u * 1312u);
}

TEST(MemoryPlan, DraftPlanOfAConfig) {
  DFlashConfig drafter;
  drafter.hidden = 256;
  drafter.intermediate = 768;
  drafter.layers = 3;
  drafter.q_heads = 4;
  drafter.kv_heads = 2;
  drafter.head_dim = 128;
  drafter.sinks = true;
  drafter.target_layer_ids = {0, 3, 6, 9};
  drafter.attention = {{1024, false}, {1024, false}, {1024, false}};
  const DraftPlan bf16 = draft_plan(drafter, KvFormat::kBF16, false);
  EXPECT_EQ(bf16.window, 1024);
  EXPECT_EQ(bf16.kv_bytes_per_token, 3u * 2u * 2u * 128u * 2u);
  EXPECT_EQ(draft_plan(drafter, KvFormat::kFp8, false).kv_bytes_per_token, bf16.kv_bytes_per_token / 2);
  EXPECT_EQ(draft_plan(drafter, KvFormat::kFp8, true).kv_bytes_per_token, 3u * 2u * (256u + 8u));
  const std::uint64_t layer = 2 * 512 * 256 + 2 * 256 * 256 + 3 * 768 * 256 + 2 * 256 + 2 * 128 + 4;
  const std::uint64_t own = 4 * 256 * 256 + 2 * 256 + 3 * layer;
  EXPECT_EQ(bf16.weight_bytes, 2 * (own + 3u * 2u * 256u * 256u));
  drafter.attention[1].window = 0;
  EXPECT_EQ(draft_plan(drafter, KvFormat::kBF16, false).window, 0);
}

TEST(MemoryPlan, RatioSplitsBothPools) {
  MemoryPlanInput input;
  input.memory_bytes = 250'000'000'000;
  input.window_ratio = 0.03;
  const MemoryPlan result = plan(released("v2_6_flash"), input);
  EXPECT_TRUE(result.fits) << to_text(result);
  EXPECT_EQ(result.window_pages, static_cast<std::int64_t>(0.03 * static_cast<double>(result.full_pages)));
  EXPECT_LE(result.fixed_bytes + static_cast<std::uint64_t>(result.full_pages) * result.full_page_bytes,
            input.memory_bytes);
  input.window_ratio = 0.00001;  // no single request could live in the window pool
  EXPECT_FALSE(plan(released("v2_6_flash"), input).fits);
}

TEST(MemoryPlan, ImpossibleInputsAreNamed) {
  const ModelConfig config = released("v2_6_flash");
  const auto message = [&](auto change) {
    MemoryPlanInput input = large();
    change(input);
    const auto result = plan_memory(config, input);
    return result ? std::string() : result.error().message;
  };
  EXPECT_THAT(message([](auto& in) { in.page_tokens = 48; }), AllOf(HasSubstr("page size"), HasSubstr("48")));
  EXPECT_THAT(message([](auto& in) { in.page_tokens = 0; }), HasSubstr("page size"));
  EXPECT_THAT(message([](auto& in) { in.max_running = 0; }), HasSubstr("max running"));
  EXPECT_THAT(message([](auto& in) { in.context = 1'048'577; }),
              AllOf(HasSubstr("context"), HasSubstr("1048576")));
  EXPECT_THAT(message([](auto& in) { in.chunk_tokens = 0; }), HasSubstr("chunk"));
  EXPECT_THAT(message([](auto& in) { in.tensor_parallel = 3; }),
              HasSubstr("supported: 1, 2, 4, 8, 16, 32, 64"));
  EXPECT_THAT(message([](auto& in) { in.window_ratio = 0.0; }), HasSubstr("ratio"));
  EXPECT_THAT(message([](auto& in) { in.memory_bytes = ~0ull; }), HasSubstr("memory"));
}

TEST(MemoryPlan, TextAndJson) {
  MemoryPlanInput input;
  input.memory_bytes = 176'000'000'000;
  input.context = 262'144;
  const MemoryPlan result = plan(released("v2_6_flash"), input);
  ASSERT_FALSE(result.fits) << to_text(result);
  EXPECT_THAT(to_text(result),
              AllOf(HasSubstr("V2.6-Flash"), HasSubstr("weights: experts"), HasSubstr("activations"),
                    HasSubstr("does not fit"), HasSubstr("smallest change: --")));
  const json::value value = to_json(result);
  EXPECT_EQ(value.at("fits"), false);
  EXPECT_EQ(value.at("context"), 262'144);
  EXPECT_EQ(value.at("changes").as_array().size(), result.changes.size());
  EXPECT_EQ(value.at("rows").as_array().size(), result.rows.size());
  input.memory_bytes = 200'000'000'000;
  EXPECT_THAT(to_text(plan(released("v2_6_flash"), input)), HasSubstr("fits:"));
}

}  // namespace
}  // namespace mimo
