// Tokens that the backend chooses, as where its memory is not the CPU's: the same answers, and no logits where they
// are not needed.
#include <gtest/gtest.h>

#include "engine/engine_rig.h"
#include "engine/live_answer.h"

namespace mimo::testing {
namespace {

LiveAnswer answer_of(const EngineRequest& request) {
  LiveAnswer::Setup setup;
  setup.request = &request;
  setup.max_tokens = *request.params.max_tokens;
  setup.allowed_vocab = 100;
  return LiveAnswer(setup);
}

TEST(BackendChoice, AnswersAreThoseOfTheSampler) {
  static const SharedPrompts prompts;
  for (const bool on_backend : {false, true}) {
    EngineRig rig({.choose_on_backend = on_backend});
    prompts.run(rig, 5);
    rig.expect_balance();
  }
}

// Requests that need logits and those that do not share steps.
TEST(BackendChoice, MixedStepsGiveEveryoneTheirOwn) {
  std::vector<EngineRequest> requests;
  for (unsigned i = 0; i < 12; ++i) {
    EngineRequest request = greedy(random_prompt(10 + 13 * i, i), 24);
    if (i % 3 == 1) {
      request.params.temperature = 0.8;
      request.params.seed = i;
    }
    if (i % 4 == 2) request.params.repetition_penalty = 1.3;
    if (i % 4 == 3) request.params.logprobs = 2;
    requests.push_back(std::move(request));
  }
  std::vector<std::vector<std::int32_t>> expected;
  for (const bool on_backend : {false, true}) {
    EngineRig rig({.prefix_cache = false, .choose_on_backend = on_backend});
    std::vector<Outcome*> outcomes;
    for (const EngineRequest& request : requests) outcomes.push_back(&rig.add(request));
    rig.finish();
    std::vector<std::vector<std::int32_t>> ids;
    for (const Outcome* outcome : outcomes) ids.push_back(outcome->ids);
    if (!on_backend) expected = ids;
    EXPECT_EQ(ids, expected);
  }
}

TEST(BackendChoice, WhatTheBackendMayChoose) {
  using Choice = LiveAnswer::Choice;
  const auto choice = [](auto&& change) {
    EngineRequest request = greedy({1, 2, 3}, 5);
    change(request.params);
    return answer_of(request).choice();
  };
  EXPECT_EQ(choice([](SamplingParams&) {}), Choice::kBest);
  EXPECT_EQ(choice([](SamplingParams& p) { p.stop_token_ids = {7}; }), Choice::kBest);
  EXPECT_EQ(choice([](SamplingParams& p) { p.top_k = 5; }), Choice::kBest);
  EXPECT_EQ(choice([](SamplingParams& p) { p.temperature = 0.5; }), Choice::kDraw);
  EXPECT_EQ(choice([](SamplingParams& p) { p.repetition_penalty = 1.1; }), Choice::kSampler);
  EXPECT_EQ(choice([](SamplingParams& p) { p.presence_penalty = 0.1; }), Choice::kSampler);
  EXPECT_EQ(choice([](SamplingParams& p) { p.logit_bias = {{3, 1.0}}; }), Choice::kSampler);
  EXPECT_EQ(choice([](SamplingParams& p) { p.min_tokens = 2; }), Choice::kSampler);
  EXPECT_EQ(choice([](SamplingParams& p) { p.logprobs = 0; }), Choice::kSampler);
}

// Filters, seeds and several choices: the ids of the engine's own sampler.
TEST(BackendChoice, DrawsAreThoseOfTheSampler) {
  std::vector<std::vector<std::int32_t>> expected;
  for (const bool on_backend : {false, true}) {
    EngineRig rig({.choose_on_backend = on_backend});
    std::vector<Outcome*> outcomes;
    for (unsigned i = 0; i < 12; ++i) {
      EngineRequest request = greedy(random_prompt(10 + 7 * i, i), 20);
      request.params.temperature = 0.5 + 0.1 * i;
      request.params.seed = i;
      request.choice = i % 3;
      if (i % 2 == 1) request.params.top_k = static_cast<int>(2 + i);
      if (i % 3 == 1) request.params.top_p = 0.8;
      if (i % 4 == 2) request.params.min_p = 0.05;
      outcomes.push_back(&rig.add(request));
    }
    rig.finish();
    std::vector<std::vector<std::int32_t>> ids;
    for (const Outcome* outcome : outcomes) ids.push_back(outcome->ids);
    if (!on_backend) expected = ids;
    EXPECT_EQ(ids, expected);
  }
}

TEST(BackendChoice, DraftsAreVerifiedAndBadLogitsEndTheRequest) {
  const EngineRequest request = greedy({1, 2, 3}, 50);
  LiveAnswer answer = answer_of(request);
  const std::vector<std::int32_t> drafts = {11, 12, 13};
  const BlockResult block = answer.commit(drafts, 2, std::vector<std::int32_t>{11, 12, 99, 5});
  EXPECT_EQ(block.accepted, 2);
  EXPECT_EQ(block.emitted, 3);
  EXPECT_FALSE(block.ended);
  const AnswerStep step = answer.take_step();
  ASSERT_EQ(step.tokens.size(), 3u);
  EXPECT_EQ(step.tokens[2].id, 99);

  const BlockResult bad =
      answer.commit(std::vector<std::int32_t>{8, 9}, 5, std::vector<std::int32_t>{8, -1, 3});
  EXPECT_TRUE(bad.ended);
  const AnswerStep last = answer.take_step();
  ASSERT_EQ(last.tokens.size(), 1u);
  ASSERT_TRUE(last.error);
  EXPECT_NE(last.error->message.find("position 7"), std::string::npos) << last.error->message;
}

}  // namespace
}  // namespace mimo::testing
