// What the timing of steps with drafts asks of a drafter, and what its rows say.
#include "engine/model_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "checkpoint/dflash_config.h"
#include "engine/generator_fixture.h"
#include "engine/scripted_drafter.h"
#include "model/dflash.h"
#include "model/mtp.h"
#include "support/golden.h"
#include "support/tiny_drafter.h"

namespace mimo {
namespace {

using mimo::testing::DrafterShape;
using mimo::testing::ScriptedDrafter;
using mimo::testing::TinyDrafter;
using mimo::testing::value_or_throw;

class ModelBenchTest : public ::testing::Test {
 protected:
  ModelBenchTest() {
    ModelConfig config = value_or_throw(load_config(golden_directory("v26_tiny")));
    config.mtp_heads = 3;
    ops_ = value_or_throw(make_cpu_ops({.threads = 1, .pin = false}));
    source_ = value_or_throw(open_random(config, 11));
    model_ = std::make_unique<TargetModel>(value_or_throw(TargetModel::load(*source_, *ops_, {})));
    options_.generate = 5;
    options_.depths = {0, 90};
    options_.batches = {1, 3};
    options_.repeats = 2;
    options_.chunk = 48;
    options_.page_size = 16;
    options_.head_bytes = 1000;
  }
  std::unique_ptr<DFlashDrafter> random_dflash(std::uint64_t seed) {
    const std::string text = json::serialize(TinyDrafter(DrafterShape{}).config);
    DFlashConfig config = value_or_throw(parse_dflash_config(text, "test", model_->config()));
    return value_or_throw(DFlashDrafter::load_random(std::move(config), seed, *model_, *ops_,
                                                     {.max_requests = 3, .page_size = 16, .poison = true}));
  }
  ModelBenchResult run(Drafter* drafter) {
    return value_or_throw(run_model_bench(*model_, *ops_, drafter, options_));
  }
  static std::vector<std::string> names(const ModelBenchResult& result) {
    std::vector<std::string> names;
    for (const DraftBenchRow& row : result.drafts) names.push_back(row.test);
    return names;
  }

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<WeightSource> source_;
  std::unique_ptr<TargetModel> model_;
  ModelBenchOptions options_;
};

TEST_F(ModelBenchTest, KeepsWhatDraftersArePromised) {
  // ScriptedDrafter checks positions, anchors and tokens. States: of three passes over the steps and one for their
  // parts, at two depths.
  std::vector<std::vector<std::int32_t>> sequences(2 * 4 * (1 + 3), std::vector<std::int32_t>(200, 5));
  ScriptedDrafter drafter({.vocab = model_->config().vocab, .taps = {0, 7}}, sequences);
  drafter.hidden = static_cast<std::size_t>(model_->config().hidden);
  std::set<std::int64_t> positions;
  drafter.on_taps = [&](std::size_t /*index*/, std::int64_t position, std::span<const float> row) {
    positions.insert(position);
    double squares = 0;
    for (const float x : row) squares += static_cast<double>(x) * x;
    EXPECT_GT(squares, 0);
    EXPECT_TRUE(std::isfinite(squares));
  };
  const ModelBenchResult result = run(&drafter);
  EXPECT_EQ(drafter.alive(), 0);
  EXPECT_EQ(drafter.largest_batch, 3u);
  EXPECT_EQ(drafter.left_out, 0);
  // A step gives 2, 3, 4, 5 and 6 tokens, in some order: 20 of five steps.
  EXPECT_EQ(*positions.rbegin(), 90 + 20 - 1);
  EXPECT_EQ(drafter.observed_rows, 4 * (1 + 3) * (1 + 90 + 2 * 20));
  EXPECT_THAT(names(result), ::testing::ElementsAre("SCRIPTED8 @ d0 b1", "SCRIPTED8 @ d0 b3",
                                                    "SCRIPTED8 @ d90 b1", "SCRIPTED8 @ d90 b3"));
}

TEST_F(ModelBenchTest, ShortBlocksAcceptNoMoreThanTheyHave) {
  std::vector<std::vector<std::int32_t>> sequences(100, std::vector<std::int32_t>(200, 5));
  ScriptedDrafter drafter({.max_drafts = 1, .vocab = model_->config().vocab}, sequences);
  const ModelBenchResult result = run(&drafter);
  EXPECT_EQ(drafter.observed_rows, 4 * (1 + 3) * (1 + 90 + 2 * 5 * 2));
  ASSERT_EQ(result.drafts.front().gains.size(), 1u);
  EXPECT_EQ(result.drafts.front().gains[0].accept_length, 2);
}

TEST_F(ModelBenchTest, RowsOfARandomDFlashDrafter) {
  options_.widths = {8};  // the plain step is timed all the same
  const auto drafter = random_dflash(3);
  const ModelBenchResult result = run(drafter.get());
  EXPECT_EQ(result.rows.size(), 4u);
  ASSERT_THAT(names(result), ::testing::ElementsAre("DFLASH8 @ d0 b1", "DFLASH8 @ d0 b3", "DFLASH8 @ d90 b1",
                                                    "DFLASH8 @ d90 b3"));
  for (const DraftBenchRow& row : result.drafts) {
    EXPECT_GT(row.times.draft, 0);
    EXPECT_GT(row.times.verify, 0);
    EXPECT_GT(row.times.observe, 0);
    EXPECT_GT(row.times.step, 0);
    EXPECT_GT(row.decode, 0);
    EXPECT_DOUBLE_EQ(row.even(), row.times.step / row.decode);
    ASSERT_EQ(row.gains.size(), 5u);
    for (const DraftBenchRow::Gain& gain : row.gains) {
      EXPECT_DOUBLE_EQ(gain.speedup, gain.accept_length * row.decode / row.times.step);
    }
    EXPECT_DOUBLE_EQ(row.drafter_bytes, static_cast<double>(drafter->weight_bytes()) + 1000);
    EXPECT_GT(row.bytes, row.drafter_bytes + static_cast<double>(model_->bytes_per_token()) - 1);
  }
}

TEST_F(ModelBenchTest, MtpHeadsToo) {
  const auto drafter = value_or_throw(MtpDrafter::load(
      *source_, *model_, *ops_, {.heads = 3, .max_requests = 3, .page_size = 16, .poison = true}));
  const ModelBenchResult result = run(drafter.get());
  EXPECT_THAT(names(result),
              ::testing::ElementsAre("MTP4 @ d0 b1", "MTP4 @ d0 b3", "MTP4 @ d90 b1", "MTP4 @ d90 b3"));
  EXPECT_EQ(result.drafts[0].gains.size(), 3u);
}

TEST_F(ModelBenchTest, TooFewStatesAreAnError) {
  options_.batches = {4};
  const auto drafter = random_dflash(3);
  const Result<ModelBenchResult> result = run_model_bench(*model_, *ops_, drafter.get(), options_);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("drafter KV cache"), std::string::npos) << result.error().message;
}

TEST_F(ModelBenchTest, PromptsHaveATime) {
  options_.prompt_lengths = {100};
  options_.generate = 0;
  const ModelBenchResult result = run(nullptr);
  ASSERT_EQ(result.rows.size(), 1u);
  EXPECT_EQ(result.rows[0].test, "pp100");
  EXPECT_DOUBLE_EQ(result.rows[0].prompt_seconds, 100 / result.rows[0].median);
  EXPECT_TRUE(result.drafts.empty());
}

}  // namespace
}  // namespace mimo
