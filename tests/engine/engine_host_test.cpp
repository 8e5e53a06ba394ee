// The engine with a host tier: what was evicted comes back, and nobody can tell from the tokens.
#include <gtest/gtest.h>

#include "engine/engine_rig.h"

namespace mimo::testing {
namespace {

std::vector<std::int32_t> joined(std::vector<std::int32_t> a, const std::vector<std::int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Bytes of a host tier for `tokens` tokens of full layers; its windows get a quarter of all.
std::uint64_t host_bytes(std::int64_t tokens) {
  const ModelConfig& config = tiny().model->config();
  const auto layers = std::count(config.layer_kinds.begin(), config.layer_kinds.end(), LayerKind::kFull);
  const std::int64_t token =
      layers * config.full.kv_heads * (config.full.qk_dim + config.full.v_dim) * 2;  // BF16
  return static_cast<std::uint64_t>(tokens * token * 4 / 3 + 4096);
}

// Conversations one after another in a pool for two of them: each second turn finds its first one evicted.
TEST(EngineHostTier, SecondTurnsComeBackFromHostMemory) {
  for (const int page : {1, 16, 64}) {
    EngineRig rig(
        {.page_size = page, .tokens = 2 * 640, .window_tails = 8, .host_bytes = host_bytes(64 * 1024)});
    std::vector<std::vector<std::int32_t>> turns;
    for (unsigned i = 0; i < 6; ++i) {
      const std::vector<std::int32_t> prompt = random_prompt(500, 50 + i);
      const Outcome& answer = rig.add(greedy(prompt, 10));
      rig.finish();
      turns.push_back(joined(joined(prompt, answer.ids), random_prompt(20, 70 + i)));
    }
    std::int64_t from_host = 0;
    for (const std::vector<std::int32_t>& turn : turns) {
      const Outcome& next = rig.add(greedy(turn, 10));
      rig.finish();
      from_host += next.usage.cached_host_tokens;
      EXPECT_LE(next.usage.cached_host_tokens, next.usage.cached_tokens);
      EXPECT_GE(next.usage.cached_tokens, 510 - page - 1) << "page " << page;
      EXPECT_EQ(next.ids, cold_ids(greedy(turn, 10), page)) << "page " << page;
      rig.expect_balance();
    }
    EXPECT_GT(from_host, 4 * 400) << "page " << page;
    EXPECT_GT(rig.core->host_tier()->stats().restores, 3);
  }
}

// Everything at once: pools and host tier too small, prompts that share, more requests than can run.
TEST(EngineHostTier, C36TinyPoolsAndATinyHostTierChangeNoAnswer) {
  const SharedPrompts prompts;
  std::int64_t retractions = 0;
  std::int64_t restores = 0;
  for (unsigned round = 0; round < 4; ++round) {
    EngineRig rig({.page_size = round % 2 == 0 ? 16 : 1,
                   .max_running = 6,
                   .tokens = 3 * 272,
                   .window_tails = 2,
                   .host_bytes = host_bytes(round < 2 ? 100000 : 2500)});
    prompts.run(rig, round);
    retractions += rig.core->status().retractions;
    restores += rig.core->host_tier()->stats().restores;
    ASSERT_TRUE(rig.core->flush_cache());
    EXPECT_EQ(rig.core->status().full.free, rig.core->status().full.total);
    EXPECT_EQ(rig.core->status().window.free, rig.core->status().window.total);
    EXPECT_EQ(rig.core->status().host_used, 0);
  }
  EXPECT_GT(retractions, 0) << "the pools were not tight";
  EXPECT_GT(restores, 0) << "nothing came back";
}

TEST(EngineHostTier, C35AbortsWhileAPrefixComesBackGiveAllPagesBack) {
  EngineRig rig({.tokens = 1400, .window_tails = 4, .host_bytes = host_bytes(64 * 1024)});
  const std::vector<std::int32_t> prompt = random_prompt(600, 3);
  const std::vector<std::int32_t> expected = cold_ids(greedy(prompt, 12));
  for (int steps = 0; steps < 12; ++steps) {
    rig.add(greedy(random_prompt(600, 100 + static_cast<unsigned>(steps % 3)), 30));
    rig.finish();
    const RequestId id = rig.next_id;
    Outcome& aborted = rig.add(greedy(random_prompt(600, 100 + static_cast<unsigned>((steps + 1) % 3)), 30));
    for (int i = 0; i < steps && !rig.core->idle(); ++i) rig.core->step();
    rig.core->abort(id);
    Outcome& other = rig.add(greedy(prompt, 12));
    rig.finish();
    ASSERT_EQ(aborted.last_steps, 1);
    EXPECT_EQ(other.ids, expected);
    rig.expect_balance();
  }
}

TEST(EngineHostTier, NeedsThePrefixCacheAndRoomForAPage) {
  const auto error_of = [](const RigOptions& options) -> std::string {
    try {
      const EngineRig rig(options);
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  EXPECT_NE(error_of({.prefix_cache = false, .host_bytes = 1 << 20}).find("the prefix cache is off"),
            std::string::npos);
  EXPECT_NE(error_of({.host_bytes = 100}).find("expected at least"), std::string::npos);
}

}  // namespace
}  // namespace mimo::testing
