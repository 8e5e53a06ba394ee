// What speculation does when things go wrong or do not pay: failing drafters, useless drafters, errors of the
// target, limits. In all cases the answers are those without a drafter.

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "engine/generator_fixture.h"
#include "ops/reference/reference_ops.h"

namespace mimo {
namespace {

using mimo::testing::expect_counted;
using mimo::testing::expect_same_answers;
using mimo::testing::ids_of;
using mimo::testing::make_request;
using mimo::testing::random_prompt;
using mimo::testing::run_all;
using mimo::testing::Script;
using mimo::testing::ScriptedDrafter;
using mimo::testing::sequences_of;
using mimo::testing::tiny;
using mimo::testing::value_or_throw;
using mimo::testing::vary_sampling;

class GeneratorRobustness : public ::testing::Test {
 protected:
  void make(std::size_t count, std::int64_t max_tokens, std::size_t prompt = 8) {
    for (unsigned i = 0; i < count; ++i) {
      requests_.push_back(make_request(random_prompt(prompt + 3 * i, i), max_tokens));
      vary_sampling(requests_.back(), i);
    }
    plain_ = run_all(requests_, {});
  }
  ScriptedDrafter drafter(ScriptedDrafter::Options options) const {
    options.vocab = tiny().model->config().vocab;
    return ScriptedDrafter(std::move(options), sequences_of(requests_, plain_));
  }
  std::vector<GenerateResult> run(Drafter& drafter, GeneratorOptions options = {}) {
    options.drafter = &drafter;
    options.log = [this](std::string_view line) { log_.emplace_back(line); };
    return run_all(requests_, options);
  }
  std::vector<GenerateRequest> requests_;
  std::vector<GenerateResult> plain_;
  std::vector<std::string> log_;
};

TEST_F(GeneratorRobustness, AFailureSwitchesOffOneRequest) {
  make(3, 30);
  ScriptedDrafter broken = drafter(
      {.fails = [](std::size_t index, std::int64_t position) { return index == 1 && position > 20; }});
  const std::vector<GenerateResult> got = run(broken);
  expect_same_answers(got, plain_);
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_NE(log_[0].find("request 1 goes on without SCRIPTED"), std::string::npos) << log_[0];
  EXPECT_NE(log_[0].find("not finite"), std::string::npos) << log_[0];
  EXPECT_EQ(got[1].speculation.failures, 1);
  EXPECT_GT(got[1].speculation.verify_steps, 0) << "until it failed";
  EXPECT_GT(got[1].speculation.plain_steps, 5);
  EXPECT_EQ(got[0].speculation.failures + got[2].speculation.failures, 0);
  EXPECT_EQ(got[0].speculation.plain_steps + got[2].speculation.plain_steps, 0);
  for (const GenerateResult& result : got) expect_counted(result);
}

TEST_F(GeneratorRobustness, IdsOutsideTheVocabularyNeverReachTheTarget) {
  make(3, 20);
  for (const std::int32_t bad : {-1, tiny().model->config().vocab, std::numeric_limits<std::int32_t>::max(),
                                 std::numeric_limits<std::int32_t>::min()}) {
    log_.clear();
    ScriptedDrafter broken = drafter({.token = [&](std::size_t index, std::int64_t position) {
      return index == 2 && position == 20 ? std::optional(bad) : std::nullopt;
    }});
    const std::vector<GenerateResult> got = run(broken);
    expect_same_answers(got, plain_);
    ASSERT_EQ(log_.size(), 1u);
    EXPECT_NE(log_[0].find(fmt::format("token id {}, expected 0 to 1023", bad)), std::string::npos)
        << log_[0];
  }
}

TEST_F(GeneratorRobustness, AStateThatCannotBeHad) {
  make(3, 12);
  ScriptedDrafter broken = drafter({.refuses = [](std::size_t index) { return index == 0; }});
  const std::vector<GenerateResult> got = run(broken);
  expect_same_answers(got, plain_);
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_NE(log_[0].find("request 0 goes on without SCRIPTED: no memory"), std::string::npos) << log_[0];
  EXPECT_EQ(got[0].speculation.verify_steps, 0);
  EXPECT_GT(got[1].speculation.verify_steps, 0);
}

// C33: drafting shrinks to nothing within the steps that are judged, and is tried again.
TEST_F(GeneratorRobustness, AUselessDrafterIsPaused) {
  make(2, 320);
  ScriptedDrafter useless = drafter({.script = Script::kWrong});
  const std::vector<GenerateResult> got = run(useless);
  expect_same_answers(got, plain_);
  for (const GenerateResult& result : got) {
    expect_counted(result);
    const SpeculationStats& stats = result.speculation;
    EXPECT_EQ(stats.accepted, 0);
    // 319 steps: 50 judged, 64 without drafts, a probe of 16, 128 without, a probe, the rest without.
    EXPECT_EQ(stats.verify_steps, kJudgedSteps + 2 * kProbeSteps);
    EXPECT_EQ(stats.plain_steps, 319 - stats.verify_steps);
    EXPECT_EQ(stats.pauses, 3);
  }
  ScriptedDrafter forced = drafter({.script = Script::kWrong});
  const std::vector<GenerateResult> always = run(forced, {.speculation = {.min_accept_length = 0}});
  expect_same_answers(always, plain_);
  EXPECT_EQ(always[0].speculation.plain_steps, 1) << "only the last token, which leaves no room for a draft";
  EXPECT_EQ(always[0].speculation.pauses, 0);
}

// C28: said once, by name, with causes; and not of a drafter that works.
TEST_F(GeneratorRobustness, AUselessDrafterIsReported) {
  make(4, 130);
  ScriptedDrafter useless = drafter({.script = Script::kWrong});
  run(useless, {.speculation = {.min_accept_length = 0}});
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_NE(log_[0].find("warning"), std::string::npos) << log_[0];
  for (const char* named : {"SCRIPTED", "mask embedding", "another checkpoint", "NONE", "0 drafts"}) {
    EXPECT_NE(log_[0].find(named), std::string::npos) << named;
  }
  log_.clear();
  ScriptedDrafter good = drafter({.script = Script::kMixed});
  run(good, {.speculation = {.num_draft_tokens = 1}});
  EXPECT_TRUE(log_.empty());
}

TEST_F(GeneratorRobustness, LengthLimitAndRequestSwitch) {
  requests_ = {make_request(random_prompt(600, 1), 12), make_request(random_prompt(40, 2), 60),
               make_request(random_prompt(20, 3), 30)};
  requests_[2].speculation = false;
  plain_ = run_all(requests_, {});
  // A state is opened for request 1 alone.
  std::vector<std::vector<std::int32_t>> sequences = sequences_of(requests_, plain_);
  sequences.erase(sequences.begin());
  ScriptedDrafter limited({.vocab = tiny().model->config().vocab}, sequences);
  const std::vector<GenerateResult> got = run(limited, {.speculation = {.max_context = 64}});
  expect_same_answers(got, plain_);
  EXPECT_EQ(got[0].speculation.proposed, 0) << "the prompt is longer than the limit";
  EXPECT_EQ(got[0].speculation.plain_steps, 11);
  EXPECT_GT(got[1].speculation.verify_steps, 0);
  EXPECT_GT(got[1].speculation.plain_steps, 0) << "it passes the limit on its way";
  EXPECT_LE(40 + 1 + got[1].speculation.emitted, 64 + 8);
  EXPECT_EQ(got[2].speculation.verify_steps + got[2].speculation.plain_steps, 0) << "switched off";
  EXPECT_EQ(limited.most_alive, 1);
}

// C31: found out once for all requests, which then decode without drafts but for a rare probe.
TEST_F(GeneratorRobustness, TheTunerStopsAUselessDrafter) {
  make(8, 100);
  ScriptedDrafter useless = drafter({.script = Script::kWrong});
  const std::vector<GenerateResult> got =
      run(useless, {.max_running = 2, .speculation = {.tune_width = true, .min_accept_length = 0}});
  expect_same_answers(got, plain_);
  SpeculationStats pooled;
  for (const GenerateResult& result : got) {
    expect_counted(result);
    pooled.add(result.speculation);
  }
  EXPECT_GT(pooled.verify_steps, 0);
  EXPECT_LT(pooled.verify_steps, pooled.plain_steps / 4);
}

TEST_F(GeneratorRobustness, WidthByBatchSize) {
  make(6, 25);
  const SpeculationOptions options{.batch_widths = {{1, 7}, {3, 2}, {5, 0}}, .min_accept_length = 0};
  for (const auto& [running, widest] : {std::tuple{1, 7}, {2, 7}, {4, 2}, {6, 7}}) {
    ScriptedDrafter right = drafter({});
    const std::vector<GenerateResult> got = run(right, {.max_running = running, .speculation = options});
    expect_same_answers(got, plain_);
    SpeculationStats pooled;
    for (const GenerateResult& result : got) pooled.add(result.speculation);
    // Six at once draft nothing until fewer are left.
    if (running == 6) {
      EXPECT_GT(pooled.plain_steps, 20);
    } else if (running == 4) {
      EXPECT_GT(pooled.proposed_histogram.at(2), 0);
    } else {
      EXPECT_EQ(static_cast<int>(pooled.proposed_histogram.size()) - 1, widest);
    }
  }
}

TEST_F(GeneratorRobustness, ConfidenceCutsTheVerifiedPrefix) {
  make(2, 25);
  for (const auto& [threshold, widest] : {std::pair{0.0, 7}, {0.6, 4}, {0.85, 1}, {0.95, 0}}) {
    ScriptedDrafter unsure = drafter({.confidence = 0.9f});  // 0.9^4 = 0.656, 0.9^5 = 0.59
    const std::vector<GenerateResult> got = run(unsure, {.speculation = {.confidence_threshold = threshold}});
    expect_same_answers(got, plain_);
    for (const GenerateResult& result : got) {
      expect_counted(result);
      const auto& widths = result.speculation.proposed_histogram;
      EXPECT_EQ(widths.empty() ? 0 : static_cast<int>(widths.size()) - 1, widest) << threshold;
    }
  }
}

// Fewer rows in a step than the requests could use: nobody is left out, prompts go on.
TEST_F(GeneratorRobustness, StepsWithFewRows) {
  make(7, 20, 30);
  for (const int chunk : {1, 2, 7, 8, 9, 20}) {
    for (const int running : {2, 7}) {
      ScriptedDrafter mixed = drafter({.script = Script::kMixed});
      const std::vector<GenerateResult> got = run(mixed, {.chunk = chunk, .max_running = running});
      expect_same_answers(got, plain_);
      EXPECT_LE(mixed.most_alive, running);
    }
  }
}

TEST_F(GeneratorRobustness, AdmissionIsRolling) {
  for (unsigned i = 0; i < 9; ++i) requests_.push_back(make_request(random_prompt(4, i), 3 + 9 * (i % 3)));
  plain_ = run_all(requests_, {.max_running = 1});
  ScriptedDrafter right = drafter({.script = Script::kWrong});
  std::vector<std::size_t> order;
  GenerateCallbacks callbacks;
  callbacks.on_done = [&](std::size_t index, const GenerateResult& result) {
    order.push_back(index);
    EXPECT_EQ(ids_of(result), ids_of(plain_[index]));
    EXPECT_TRUE(result.finish);
  };
  GeneratorOptions options;
  options.max_running = 3;
  options.drafter = &right;
  options.log = [](std::string_view) {};
  Generator generator(*tiny().model, *tiny().ops, options);
  const auto got = generator.run(requests_, callbacks);
  ASSERT_TRUE(got);
  expect_same_answers(*got, plain_);
  EXPECT_EQ(right.most_alive, 3);
  ASSERT_EQ(order.size(), 9u);
  EXPECT_EQ(order[0], 0u) << "the shortest of the first three ends first";
  EXPECT_EQ(order[1], 3u) << "its place was taken at once";
  SpeculationStats pooled;
  for (const GenerateResult& result : *got) pooled.add(result.speculation);
  EXPECT_EQ(generator.speculation().verify_steps, pooled.verify_steps);
  EXPECT_EQ(generator.speculation().proposed, pooled.proposed);
  EXPECT_EQ(generator.speculation().accepted_histogram, pooled.accepted_histogram);
  EXPECT_GT(generator.times().steps, 0);
  EXPECT_GT(generator.times().target_seconds, 0);
}

TEST_F(GeneratorRobustness, OptionsAreChecked) {
  make(1, 5);
  ScriptedDrafter right = drafter({.max_drafts = 3});
  GeneratorOptions options;
  options.drafter = &right;
  options.speculation.num_draft_tokens = 4;
  Generator generator(*tiny().model, *tiny().ops, options);
  const auto refused = generator.run(requests_, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("got 4, expected 1 to 3"), std::string::npos)
      << refused.error().message;
}

// max_tokens 0 runs the prompt; a request without max_tokens goes on to the end of the context.
TEST_F(GeneratorRobustness, PromptOnly) {
  requests_ = {make_request(random_prompt(30, 1), 0), make_request(random_prompt(30, 1), 4)};
  std::vector<float> logits[2];
  GenerateCallbacks callbacks;
  int done = 0;
  callbacks.on_done = [&](std::size_t, const GenerateResult&) { ++done; };
  callbacks.on_prompt_logits = [&](std::size_t index, std::int64_t first, std::span<const float> rows) {
    EXPECT_EQ(logits[index].size(), static_cast<std::size_t>(first) * 1024);
    logits[index].insert(logits[index].end(), rows.begin(), rows.end());
  };
  const std::vector<GenerateResult> got = run_all(requests_, {.chunk = 7}, callbacks);
  EXPECT_TRUE(got[0].tokens.empty());
  EXPECT_FALSE(got[0].finish);
  EXPECT_EQ(got[1].tokens.size(), 4u);
  EXPECT_EQ(done, 2);
  EXPECT_EQ(logits[0].size(), 30u * 1024);
  EXPECT_EQ(logits[0], logits[1]);
}

// ---- Models of their own

// models/tiny's shape with random weights, another context length, and optionally one embedding row that is not
// a number: every sequence that contains the token has logits that are not numbers from there on.
struct RandomModel {
  explicit RandomModel(std::int64_t max_positions, std::int32_t poisoned_token = -1) {
    ModelConfig config = value_or_throw(load_config(std::string(MIMO_SOURCE_DIR) + "/models/tiny"));
    config.max_positions = max_positions;
    ops = value_or_throw(make_cpu_ops({.threads = 1, .pin = false}));
    Poisoned source(value_or_throw(open_random(config, 3)), poisoned_token);
    model = std::make_unique<TargetModel>(value_or_throw(TargetModel::load(source, *ops, {})));
  }
  std::vector<GenerateResult> run(const std::vector<GenerateRequest>& requests, GeneratorOptions options) {
    if (!options.log) options.log = [](std::string_view) {};
    Generator generator(*model, *ops, options);
    return value_or_throw(generator.run(requests, {}));
  }
  std::unique_ptr<Ops> ops;
  std::unique_ptr<TargetModel> model;

 private:
  class Poisoned : public WeightSource {
   public:
    Poisoned(std::unique_ptr<WeightSource> inner, std::int32_t token)
        : inner_(std::move(inner)), token_(token) {}
    const ModelConfig& config() const override { return inner_->config(); }
    int mtp_heads() const override { return 0; }
    Result<GlobalWeights> globals() override {
      Result<GlobalWeights> globals = inner_->globals();
      if (!globals || token_ < 0) return globals;
      // BF16 rows in one segment.
      WeightSegment& segment = globals->embed.segments.front();
      const auto row = static_cast<std::size_t>(globals->embed.cols) * 2;
      bytes_.assign(segment.data, segment.data + row * static_cast<std::size_t>(globals->embed.rows));
      for (std::size_t i = 0; i < row; ++i) bytes_[row * static_cast<std::size_t>(token_) + i] = 0x7F;
      for (std::size_t i = 0; i < row; i += 2) bytes_[row * static_cast<std::size_t>(token_) + i] = 0xC0;
      segment.data = bytes_.data();
      return globals;
    }
    Result<LayerWeights> layer(int index, Shard shard) override { return inner_->layer(index, shard); }
    Result<MtpWeights> mtp(int head, Shard shard) override { return inner_->mtp(head, shard); }
    void release_layer(int index) override { inner_->release_layer(index); }
    void release_globals() override { inner_->release_globals(); }
    std::uint64_t total_bytes() const override { return inner_->total_bytes(); }

   private:
    std::unique_ptr<WeightSource> inner_;
    std::int32_t token_;
    std::vector<std::uint8_t> bytes_;
  };
};

// Up to the last position of the context, behind which there is neither a page nor an angle.
TEST(GeneratorModels, ContextEnd) {
  constexpr std::size_t kContext = 150;
  RandomModel world(kContext);
  for (const int page : {1, 64}) {
    std::vector<GenerateRequest> requests;
    for (const std::size_t room : {2, 3, 5, 8, 9, 20}) {
      requests.push_back(make_request(random_prompt(kContext - room, 5), 0));
      requests.back().params.max_tokens.reset();  // up to the end
      vary_sampling(requests.back(), static_cast<unsigned>(room));
    }
    const std::vector<GenerateResult> plain = world.run(requests, {.page_size = page});
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(plain[i].tokens.size() + requests[i].prompt.size(), kContext);
      EXPECT_EQ(plain[i].finish->reason, FinishReason::kLength);
    }
    for (const Script script : {Script::kRight, Script::kWrong, Script::kMixed}) {
      ScriptedDrafter drafter({.script = script, .vocab = world.model->config().vocab},
                              sequences_of(requests, plain));
      expect_same_answers(world.run(requests, {.page_size = page, .drafter = &drafter, .poison = true}),
                          plain);
    }
  }
}

// C26: only the request whose own logits are not numbers ends, whoever else is in the step and whatever was
// drafted; a bad row behind a rejected draft is nobody's error.
TEST(GeneratorModels, LogitsThatAreNotNumbers) {
  constexpr std::int32_t kBad = 950;
  RandomModel world(4096, kBad);
  std::vector<GenerateRequest> requests;
  for (unsigned i = 0; i < 8; ++i) {
    requests.push_back(make_request(random_prompt(10 + i, i), 24));
    requests.back().params.logit_bias = {{kBad, -100}};  // never sampled by itself
    vary_sampling(requests.back(), i % 2);
  }
  requests[2].prompt[4] = kBad;                   // in the prompt
  requests[5].params.logit_bias = {{kBad, 100}};  // sampled first, run in the next step
  const std::vector<GenerateResult> plain = world.run(requests, {});
  EXPECT_TRUE(plain[2].tokens.empty());
  EXPECT_EQ(ids_of(plain[5]), (std::vector<std::int32_t>{kBad}));
  for (const std::size_t bad : {2, 5}) {
    ASSERT_TRUE(plain[bad].error);
    EXPECT_EQ(plain[bad].error->code, ErrorCode::kInternal);
    EXPECT_NE(plain[bad].error->message.find("nan"), std::string::npos) << plain[bad].error->message;
    EXPECT_FALSE(plain[bad].finish);
  }
  for (const std::size_t good : {0, 1, 3, 4, 6, 7}) EXPECT_EQ(plain[good].tokens.size(), 24u);

  std::vector<std::vector<std::int32_t>> sequences = sequences_of(requests, plain);
  for (const bool poisoned_drafts : {false, true}) {
    for (const Script script : {Script::kRight, Script::kMixed}) {
      std::vector<std::string> log;
      ScriptedDrafter::Options options{.script = script, .vocab = world.model->config().vocab};
      if (poisoned_drafts) {
        options.token = [&](std::size_t index, std::int64_t position) {
          return (position + static_cast<std::int64_t>(index)) % 4 == 0 ? std::optional(kBad) : std::nullopt;
        };
      }
      ScriptedDrafter drafter(options, sequences);
      const std::vector<GenerateResult> got = world.run(
          requests,
          {.chunk = 60, .drafter = &drafter, .log = [&](std::string_view line) { log.emplace_back(line); }});
      expect_same_answers(got, plain);
      EXPECT_EQ(got[5].error->message, plain[5].error->message);
      ASSERT_EQ(log.size(), 2u) << "one line for each";
      EXPECT_NE(log[0].find("request 2 ended: position"), std::string::npos) << log[0];
    }
  }
}

}  // namespace
}  // namespace mimo
