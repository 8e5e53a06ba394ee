// The engine with its prefix cache: what is reused, and that nobody can tell from the tokens.
#include <gtest/gtest.h>

#include "engine/engine_rig.h"

namespace mimo::testing {
namespace {

std::vector<std::int32_t> first(const std::vector<std::int32_t>& ids, std::size_t count) {
  return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::vector<std::int32_t> joined(std::vector<std::int32_t> a, const std::vector<std::int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(EngineCore, C39WarmAnswersAreColdAnswersForEverySplit) {
  for (const int page : {1, 16, 64}) {
    const std::vector<std::int32_t> prompt = random_prompt(700, 7);
    const std::vector<std::int32_t> expected = cold_ids(greedy(prompt, 8), page);
    for (const std::size_t k :
         {std::size_t{1}, static_cast<std::size_t>(page) + 1, std::size_t{64}, std::size_t{127},
          std::size_t{128}, std::size_t{129}, std::size_t{333}, std::size_t{699}, std::size_t{700}}) {
      EngineRig rig({.page_size = page});
      rig.add(greedy(first(prompt, k), 1));
      rig.finish();
      Outcome& warm = rig.add(greedy(prompt, 8));
      rig.finish();
      EXPECT_EQ(warm.ids, expected) << "page " << page << ", split " << k;
      EXPECT_LE(warm.usage.cached_tokens, static_cast<std::int64_t>(k));
      rig.expect_balance();
    }
  }
}

TEST(EngineCore, C43RepeatingExtendingAndEditingReuseAllButAWindowAndAPage) {
  const std::int64_t window = tiny().model->config().window.window;
  for (const int page : {1, 16, 64, 128}) {
    const std::vector<std::int32_t> prompt = random_prompt(1500, 11);
    EngineRig rig({.page_size = page, .tokens = 8192, .window_tails = 16});
    Outcome& cold = rig.add(greedy(prompt, 40));
    rig.finish();
    EXPECT_EQ(cold.usage.cached_tokens, 0);

    Outcome& again = rig.add(greedy(prompt, 4));
    rig.finish();
    EXPECT_GE(again.usage.cached_tokens, 1500 - window - page);
    EXPECT_EQ(again.ids, first(cold.ids, 4));

    const std::vector<std::int32_t> next_turn = joined(joined(prompt, cold.ids), random_prompt(30, 12));
    Outcome& extended = rig.add(greedy(next_turn, 4));
    rig.finish();
    EXPECT_GE(extended.usage.cached_tokens, 1540 - window - page) << "page " << page;
    EXPECT_EQ(extended.ids, cold_ids(greedy(next_turn, 4), page));

    const std::vector<std::int32_t> edited = joined(first(prompt, 1450), random_prompt(50, 13));
    Outcome& changed = rig.add(greedy(edited, 4));
    rig.finish();
    EXPECT_GE(changed.usage.cached_tokens, 1450 - window - page) << "page " << page;
    EXPECT_EQ(changed.ids, cold_ids(greedy(edited, 4), page));
    rig.expect_balance();
  }
}

TEST(EngineCore, C44PagesAndLengthsAroundTheWindow) {
  const int window = tiny().model->config().window.window;
  for (const int page : {1, 16, 64, 128, 256}) {
    for (const int length : {window - 1, window, window + 1, window + page, window + 2 * page}) {
      EngineRig rig({.page_size = page, .window_tails = 4});
      const std::vector<std::int32_t> prompt = random_prompt(static_cast<std::size_t>(length), 5);
      Outcome& one = rig.add(greedy(prompt, 20));
      rig.finish();
      const std::vector<std::int32_t> longer = joined(joined(prompt, one.ids), {1, 2, 3});
      Outcome& two = rig.add(greedy(longer, 20));
      rig.finish();
      EXPECT_EQ(one.ids, cold_ids(greedy(prompt, 20), page));
      EXPECT_EQ(two.ids, cold_ids(greedy(longer, 20), page)) << "page " << page << ", length " << length;
      rig.expect_balance();
    }
  }
}

// Sixteen prompts with shared beginnings in a pool for three: pages are evicted and requests sent back all the time.
TEST(EngineCore, C36TinyPoolsChangeNoAnswer) {
  const SharedPrompts prompts;
  std::int64_t retractions = 0;
  for (unsigned round = 0; round < 6; ++round) {
    EngineRig rig(
        {.page_size = round % 2 == 0 ? 16 : 1, .max_running = 6, .tokens = 3 * 272, .window_tails = 2});
    prompts.run(rig, round);
    retractions += rig.core->status().retractions;
  }
  EXPECT_GT(retractions, 0) << "the pools were not tight";
}

TEST(EngineCore, C35AbortsInEveryStateGiveAllPagesBack) {
  EngineRig rig({.tokens = 2048, .window_tails = 4});
  const std::vector<std::int32_t> prompt = random_prompt(600, 3);
  const std::vector<std::int32_t> expected = cold_ids(greedy(prompt, 12));
  for (int steps = 0; steps < 40; ++steps) {
    const RequestId id = rig.next_id;
    Outcome& aborted = rig.add(greedy(random_prompt(600, 100 + static_cast<unsigned>(steps)), 50));
    Outcome& other = rig.add(greedy(prompt, 12));
    for (int i = 0; i < steps && !rig.core->idle(); ++i) rig.core->step();
    rig.core->abort(id);
    rig.core->abort(id);
    rig.finish();
    ASSERT_EQ(aborted.last_steps, 1);
    if (!aborted.finish) {
      ASSERT_TRUE(aborted.error);
      EXPECT_EQ(aborted.error->code, ErrorCode::kCancelled);
    }
    EXPECT_EQ(other.ids, expected);
    rig.expect_balance();
  }
}

TEST(EngineCore, C34WhatCanNeverFitIsRefusedAtOnce) {
  EngineRig rig({.tokens = 512});
  const Status refused = rig.core->submit(99, greedy(random_prompt(600, 1), 4), nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kLimit);
  EXPECT_NE(refused.error().message.find("maximum context length is 512 tokens"), std::string::npos)
      << refused.error().message;
  Outcome& next = rig.add(greedy(random_prompt(20, 2), 4));
  rig.finish();
  EXPECT_EQ(next.ids.size(), 4u);
  // As long as the pool: runs alone.
  Outcome& longest = rig.add(greedy(random_prompt(500, 3), 12));
  rig.finish();
  EXPECT_EQ(longest.ids.size(), 12u);
  rig.expect_balance();
}

TEST(EngineCore, ASharedPrefixIsComputedOnceForRequestsThatComeTogether) {
  EngineRig rig({.rows = 64, .max_running = 8, .window_tails = 32});
  const std::vector<std::int32_t> system = random_prompt(512, 21);
  std::vector<Outcome*> outcomes;
  std::int64_t prompts = 0;
  for (unsigned i = 0; i < 6; ++i) {
    std::vector<std::int32_t> prompt = joined(system, random_prompt(200, 30 + i));
    prompts += std::ssize(prompt);
    outcomes.push_back(&rig.add(greedy(prompt, 4)));
  }
  rig.finish();
  std::int64_t cached = 0;
  for (unsigned i = 0; i < 6; ++i) {
    cached += outcomes[i]->usage.cached_tokens;
    EXPECT_EQ(outcomes[i]->ids, cold_ids(greedy(joined(system, random_prompt(200, 30 + i)), 4)));
  }
  EXPECT_EQ(cached, 5 * 512);
  rig.expect_balance();
}

// Prompts that part behind a prefix whose window pages are gone: the second one makes the point, the third uses it.
TEST(EngineCore, ABranchBecomesAReusePoint) {
  EngineRig rig({.tokens = 8192, .window_tails = 32});
  const std::vector<std::int32_t> system = random_prompt(512, 21);
  std::vector<std::int64_t> cached;
  for (unsigned i = 0; i < 3; ++i) {
    Outcome& outcome = rig.add(greedy(joined(system, random_prompt(600, 30 + i)), 2));
    rig.finish();
    cached.push_back(outcome.usage.cached_tokens);
  }
  EXPECT_EQ(cached, (std::vector<std::int64_t>{0, 0, 512}));
}

// The end of a system prompt is known beforehand: the second conversation uses it.
TEST(EngineCore, MarksAreReusePoints) {
  EngineRig rig({.tokens = 8192, .window_tails = 32});
  const std::vector<std::int32_t> system = random_prompt(520, 21);
  std::vector<std::int64_t> cached;
  for (unsigned i = 0; i < 2; ++i) {
    EngineRequest request = greedy(joined(system, random_prompt(600, 30 + i)), 4);
    request.marks = {520, 900};
    Outcome& outcome = rig.add(request);
    rig.finish();
    cached.push_back(outcome.usage.cached_tokens);
    EXPECT_EQ(outcome.ids, cold_ids(request));
  }
  EXPECT_EQ(cached, (std::vector<std::int64_t>{0, 512}));
}

TEST(EngineCore, SaltsShareNothing) {
  EngineRig rig;
  EngineRequest request = greedy(random_prompt(300, 1), 4);
  request.cache_salt = "a";
  rig.add(request);
  rig.finish();
  request.cache_salt = "b";
  Outcome& other = rig.add(request);
  rig.finish();
  EXPECT_EQ(other.usage.cached_tokens, 0);
  request.cache_salt = "a";
  Outcome& same = rig.add(request);
  rig.finish();
  EXPECT_GT(same.usage.cached_tokens, 0);
}

TEST(EngineCore, FlushNeedsAnIdleEngineAndForgetsEverything) {
  EngineRig rig;
  const EngineRequest request = greedy(random_prompt(300, 1), 4);
  rig.add(request);
  rig.core->step();
  const Status busy = rig.core->flush_cache();
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code, ErrorCode::kBusy);
  rig.finish();
  ASSERT_TRUE(rig.core->flush_cache());
  EXPECT_EQ(rig.core->status().full.free, rig.core->status().full.total);
  Outcome& again = rig.add(request);
  rig.finish();
  EXPECT_EQ(again.usage.cached_tokens, 0);
}

TEST(EngineCore, ChoicesDrawFromStreamsOfTheirOwnAndShareThePrompt) {
  EngineRig rig;
  EngineRequest request = greedy(random_prompt(300, 1), 12);
  request.params.temperature = 1;
  request.params.seed = 5;
  std::vector<Outcome*> outcomes;
  for (std::uint32_t choice = 0; choice < 3; ++choice) {
    request.choice = choice;
    outcomes.push_back(&rig.add(request));
  }
  rig.finish();
  EXPECT_NE(outcomes[0]->ids, outcomes[1]->ids);
  EXPECT_NE(outcomes[1]->ids, outcomes[2]->ids);
  EXPECT_GT(outcomes[2]->usage.cached_tokens, 200);
  request.choice = 1;
  Outcome& again = rig.add(request);
  rig.finish();
  EXPECT_EQ(again.ids, outcomes[1]->ids);
}

}  // namespace
}  // namespace mimo::testing
