// Sampled answers with drafts have the distribution of the sampler: counts of whole answers over many seeds,
// against the exact probabilities, with everything that can look at earlier tokens switched on. The target is a
// table of logits for each last token, so that the exact distribution of an answer can be written down.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "core/philox.h"
#include "engine/live_answer.h"

namespace mimo {
namespace {

constexpr int kVocab = 8;
constexpr int kAnswer = 3;
using Answer = std::vector<std::int32_t>;

struct Table {
  Table() {
    for (int from = 0; from < kVocab; ++from) {
      for (int to = 0; to < kVocab; ++to) {
        logits.push_back(static_cast<float>(4 * philox_uniform(from, to) - 2));
      }
    }
  }
  std::span<const float> row(std::int32_t last) const {
    return std::span(logits).subspan(static_cast<std::size_t>(last) * kVocab, kVocab);
  }
  // What a good drafter proposes, which makes acceptance frequent.
  std::int32_t favourite(std::int32_t last) const {
    const auto r = row(last);
    return static_cast<std::int32_t>(std::max_element(r.begin(), r.end()) - r.begin());
  }
  std::vector<float> logits;
};

struct Case {
  const char* name;
  SamplingParams params;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  SamplingParams p;
  p.max_tokens = kAnswer;
  p.ignore_eos = true;
  all.push_back({"plain", p});
  p.top_p = 0.9;
  all.push_back({"top_p", p});
  p.top_p = 1;
  p.min_p = 0.1;
  all.push_back({"min_p", p});
  p.min_p = 0;
  p.presence_penalty = 1;
  all.push_back({"presence", p});
  p.repetition_penalty = 1.5;
  p.frequency_penalty = 0.7;
  p.top_k = 6;
  p.temperature = 1.3;
  p.logit_bias = {{2, 0.8}};
  all.push_back({"everything", p});
  return all;
}

const std::vector<std::int32_t> kPrompt = {1, 5, 5};
const std::vector<int> kEos = {0};

class Distribution : public ::testing::Test {
 protected:
  // Exact probability of every answer, by the sampler's own account of each step.
  std::map<Answer, double> exact(const SamplingParams& params) {
    std::map<Answer, double> all;
    const auto extend = [&](auto&& self, const Answer& answer, double probability) -> void {
      if (answer.size() == kAnswer) {
        all[answer] = probability;
        return;
      }
      TokenHistory history;
      history.add_prompt(kPrompt);
      for (const std::int32_t id : answer) history.add_generated(id);
      const std::int32_t last = answer.empty() ? kPrompt.back() : answer.back();
      const auto next = sampler_.distribution(table_.row(last), params, history, 0);
      ASSERT_TRUE(next);
      for (const TokenProbability& token : *next) {
        Answer longer = answer;
        longer.push_back(token.id);
        self(self, longer, probability * token.probability);
      }
    };
    extend(extend, {}, 1);
    return all;
  }

  // One answer with a block of `drafts` drafts after every token, through the engine's own commit.
  Answer generate(const SamplingParams& params, std::uint64_t seed, int drafts, int& accepted) {
    EngineRequest request;
    request.prompt = kPrompt;
    request.params = params;
    LiveAnswer::Setup setup;
    setup.request = &request;
    setup.max_tokens = *params.max_tokens;
    setup.seed = seed;
    setup.eos_ids = kEos;
    setup.allowed_vocab = kVocab;
    LiveAnswer running(setup);
    Answer answer;
    const auto take = [&] {
      const AnswerStep step = running.take_step();
      for (const SampledToken& token : step.tokens) answer.push_back(token.id);
    };
    running.commit({}, 2, table_.row(kPrompt.back()), sampler_);
    take();
    std::int64_t position = 3;
    while (!running.done()) {
      std::vector<std::int32_t> block;
      std::int32_t last = answer.back();
      std::vector<float> logits(table_.row(last).begin(), table_.row(last).end());
      for (int i = 0; i < drafts; ++i) {
        block.push_back(last = table_.favourite(last));
        logits.insert(logits.end(), table_.row(last).begin(), table_.row(last).end());
      }
      const BlockResult result = running.commit(block, position, logits, sampler_);
      take();
      position += result.emitted;
      accepted += result.accepted;
    }
    return answer;
  }

  // Chi-square statistic as a number of standard deviations (Wilson and Hilferty); answers too rare to count
  // are pooled.
  static double deviation(const std::map<Answer, double>& exact, const std::map<Answer, int>& counts,
                          int total) {
    double statistic = 0;
    int cells = 0;
    double rare_expected = 0;
    double rare_count = 0;
    int known = 0;
    for (const auto& [answer, probability] : exact) {
      const double expected = probability * total;
      const auto found = counts.find(answer);
      const double count = found == counts.end() ? 0 : found->second;
      known += static_cast<int>(count);
      if (expected < 8) {
        rare_expected += expected;
        rare_count += count;
        continue;
      }
      statistic += (count - expected) * (count - expected) / expected;
      ++cells;
    }
    EXPECT_EQ(known, total) << "answers of probability 0 were given";
    if (rare_expected > 8) {
      statistic += (rare_count - rare_expected) * (rare_count - rare_expected) / rare_expected;
      ++cells;
    }
    const double freedom = cells - 1;
    EXPECT_GT(freedom, 20);
    const double spread = 2 / (9 * freedom);
    return (std::cbrt(statistic / freedom) - (1 - spread)) / std::sqrt(spread);
  }

  Table table_;
  Sampler sampler_{{.vocab = kVocab, .allowed_vocab = kVocab, .eos_ids = kEos}};
};

constexpr int kSeeds = 40000;

TEST_F(Distribution, AnswersWithDraftsHaveTheSamplersDistribution) {
  for (const Case& one : cases()) {
    const std::map<Answer, double> expected = exact(one.params);
    std::map<Answer, int> counts;
    int accepted = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      int unused = 0;
      const Answer answer = generate(one.params, static_cast<std::uint64_t>(seed), 2, accepted);
      ++counts[answer];
      if (seed % 16 == 0) {
        ASSERT_EQ(answer, generate(one.params, static_cast<std::uint64_t>(seed), 0, unused))
            << one.name << ": the same seed gives the same answer without drafts";
      }
    }
    EXPECT_GT(accepted, kSeeds / 5) << one.name << ": acceptance must be part of what is tested";
    EXPECT_LT(deviation(expected, counts, kSeeds), 4) << one.name;
  }
}

// The test above sees a bias: a rule that keeps likely drafts although the target drew another token ("typical"
// acceptance), and one that forgets what was accepted when it penalises.
TEST_F(Distribution, BiasedRulesAreDetected) {
  const std::vector<Case> all = cases();
  const auto biased = [&](const SamplingParams& params, bool typical, bool forgetful) {
    std::map<Answer, int> counts;
    for (int seed = 0; seed < kSeeds; ++seed) {
      Answer answer;
      TokenHistory history;
      history.add_prompt(kPrompt);
      const auto draw = [&](std::int32_t last) {
        const auto position = static_cast<std::int64_t>(kPrompt.size() + answer.size());
        return sampler_.sample(table_.row(last), params, history, static_cast<std::uint64_t>(seed), position)
            ->id;
      };
      answer.push_back(draw(kPrompt.back()));
      history.add_generated(answer.back());
      std::vector<std::int32_t> drafts = {table_.favourite(answer.back())};
      drafts.push_back(table_.favourite(drafts.back()));
      verify_block(
          drafts,
          [&](std::size_t row) -> std::optional<std::int32_t> {
            const std::int32_t token = draw(answer.back());
            return typical && row < drafts.size() && (seed + static_cast<int>(row)) % 8 == 0 ? drafts[row]
                                                                                             : token;
          },
          [&](std::int32_t token) {
            answer.push_back(token);
            if (!forgetful) history.add_generated(token);
            return answer.size() == kAnswer;
          });
      while (answer.size() < kAnswer) {
        history = TokenHistory();
        history.add_prompt(kPrompt);
        for (const std::int32_t id : answer) history.add_generated(id);
        answer.push_back(draw(answer.back()));
      }
      ++counts[answer];
    }
    return deviation(exact(params), counts, kSeeds);
  };
  EXPECT_LT(biased(all[0].params, false, false), 4) << "the control itself";
  EXPECT_GT(biased(all[0].params, true, false), 8);
  EXPECT_GT(biased(all[3].params, false, true), 8);
}

}  // namespace
}  // namespace mimo
