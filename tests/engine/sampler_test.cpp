#include "engine/sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "core/philox.h"

namespace mimo {
namespace {

using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Sampler make_sampler(std::size_t vocab, std::vector<int> eos = {}) {
  return Sampler({.vocab = static_cast<int>(vocab),
                  .allowed_vocab = static_cast<int>(vocab),
                  .eos_ids = std::move(eos)});
}

std::vector<float> random_logits(std::mt19937& random, std::size_t n, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(random);
  return logits;
}

std::vector<TokenProbability> distribution_of(const std::vector<float>& logits, const SamplingParams& params,
                                              const TokenHistory& history = {}) {
  Sampler sampler = make_sampler(logits.size());
  auto result = sampler.distribution(logits, params, history, 0);
  EXPECT_TRUE(result) << result.error().message;
  return result.value_or(std::vector<TokenProbability>{});
}

std::vector<int> ids_of(const std::vector<TokenProbability>& distribution) {
  std::vector<int> ids;
  for (const auto& token : distribution) ids.push_back(token.id);
  return ids;
}

// ---- The slow reference: everything sorted, double precision after the adjustments

struct Reference {
  std::vector<TokenProbability> kept;  // ids ascending
  // Relative error of a probability: a weight is exp(t), and t = (x - max) / T has four float roundings of x
  // (each penalty, the difference) that the division enlarges, and two of its own. Twice, for the sum over
  // all weights.
  double tolerance = 0;
  bool knife_edge = false;  // top_p or min_p falls on a border within rounding: either side is right
};

Reference reference(const std::vector<float>& logits, int allowed, const SamplingParams& p,
                    const TokenHistory& history, const std::vector<int>& eos) {
  std::vector<double> x(logits.begin(), logits.begin() + allowed);
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < allowed) x[id] += bias;
  }
  if (history.generated() < p.min_tokens) {
    for (const int id : eos) x[id] = -INFINITY;
    for (const auto id : p.stop_token_ids) x[id] = -INFINITY;
  }
  for (const auto& entry : history.entries()) {
    if (entry.id >= allowed) continue;
    double& v = x[entry.id];
    v = v > 0 ? v / p.repetition_penalty : v * p.repetition_penalty;
    v -= p.frequency_penalty * entry.generated + (entry.generated > 0 ? p.presence_penalty : 0.0);
  }
  for (double& v : x) v = static_cast<float>(v);  // so that ties are those of float logits

  std::vector<int> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
  Reference result;
  if (is_greedy(p)) {
    result.kept = {{order[0], 1.0}};
    return result;
  }
  double largest = 0;
  for (const double v : x) largest = std::max(largest, std::isfinite(v) ? std::abs(v) : 0.0);
  result.tolerance = 2 * 0x1p-24 * (4 * largest / p.temperature + 2 * 88) + 4e-7;
  std::vector<double> w;
  for (const int id : order) w.push_back(std::exp((x[id] - x[order[0]]) / p.temperature));
  std::size_t n = w.size();
  const auto near = [&](double a, double b) { return std::abs(a - b) < result.tolerance * b; };
  if (p.min_p > 0) {
    while (n > 1 && w[n - 1] < p.min_p) --n;
    for (const double weight : w) result.knife_edge |= weight < 1 && near(weight, p.min_p);
  }
  if (p.top_k > 0) n = std::min<std::size_t>(n, p.top_k);
  if (p.top_p < 1) {
    const double total = std::accumulate(w.begin(), w.begin() + n, 0.0);
    double sum = 0;
    std::size_t i = 0;
    while (i < n && sum < p.top_p * total) {
      sum += w[i++];
      result.knife_edge |= near(sum, p.top_p * total);
    }
    n = i;
  }
  const double total = std::accumulate(w.begin(), w.begin() + n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    result.kept.push_back({order[i], w[i] / total});
  }
  std::sort(result.kept.begin(), result.kept.end(), [](auto& a, auto& b) { return a.id < b.id; });
  return result;
}

// A random request over a random row. Half of the rows are multiples of 1/4, so that ties are everywhere;
// their penalties are powers of two, so that float arithmetic is exact there.
struct RandomCase {
  std::vector<float> logits;
  int allowed = 0;
  SamplingParams params;
  TokenHistory history;
  std::vector<int> eos;
};

RandomCase random_case(unsigned seed) {
  std::mt19937 random(seed);
  const auto chance = [&](int one_in) { return random() % one_in == 0; };
  const auto pick = [&](std::initializer_list<double> values) {
    return values.begin()[random() % values.size()];
  };
  RandomCase c;
  const int sizes[] = {1, 2, 7, 63, 64, 65, 300, 1000, 5000};
  c.allowed = sizes[random() % std::size(sizes)];
  const int padding = chance(2) ? static_cast<int>(random() % 70) : 0;
  const bool coarse = chance(2);
  c.logits = random_logits(random, static_cast<std::size_t>(c.allowed + padding),
                           static_cast<float>(pick({0.1, 1, 3, 8})));
  for (float& x : c.logits) {
    if (coarse) x = std::round(x * 4) / 4;
    if (chance(20)) x = -kInf;
  }
  if (*std::max_element(c.logits.begin(), c.logits.begin() + c.allowed) == -kInf) c.logits[0] = 0.5f;
  for (int i = c.allowed; i < c.allowed + padding; ++i) c.logits[i] = chance(2) ? 1000.0f : kNan;

  SamplingParams& p = c.params;
  p.temperature = pick({0, 0.02, 0.3, 0.7, 1, 1, 1, 2});
  if (chance(2)) p.top_p = pick({1e-9, 0.1, 0.5, 0.8, 0.9, 0.95, 0.999, 1 - 1e-12});
  if (chance(3)) p.top_k = static_cast<std::int64_t>(pick({-1, 1, 2, 5, 20, 50, 200, 3000, 1e6}));
  if (chance(3)) p.min_p = pick({1e-12, 0.01, 0.05, 0.3, 1});
  const auto token = [&] { return static_cast<int>(random() % static_cast<unsigned>(c.allowed)); };
  if (chance(2)) {
    if (coarse) {
      p.repetition_penalty = pick({1, 0.5, 2});
      p.presence_penalty = pick({0, 0.5, -1});
      p.frequency_penalty = pick({0, 0.25, -0.5});
    } else {
      p.repetition_penalty = pick({1, 0.8, 1.1, 1.3});
      p.presence_penalty = pick({0, 0.7, -1.9});
      p.frequency_penalty = pick({0, 0.3, -0.1});
    }
  }
  for (unsigned i = random() % 40; i > 0; --i) c.history.add_prompt(std::vector<int>{token()});
  for (unsigned i = random() % 40; i > 0; --i) c.history.add_generated(token());
  c.history.add_prompt(std::vector<int>{c.allowed + padding + 5});  // an id without a logit
  if (chance(3)) {
    for (int i = 0; i < 3; ++i) p.logit_bias[token()] = pick({-100, -1, 0.5, 100});
    p.logit_bias[c.allowed + padding / 2] = 100;
  }
  if (chance(4) && c.allowed > 60) {
    p.min_tokens = 20;
    c.eos = {0, 5};
    p.stop_token_ids = {7};
  }
  return c;
}

TEST(Sampler, DistributionEqualsTheSortedReference) {
  int knife_edges = 0;
  int masked = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    const RandomCase c = random_case(seed);
    Sampler sampler(
        {.vocab = static_cast<int>(c.logits.size()), .allowed_vocab = c.allowed, .eos_ids = c.eos});
    const std::vector<float> before = c.logits;
    auto result = sampler.distribution(c.logits, c.params, c.history, 3);
    ASSERT_TRUE(result) << seed << ": " << result.error().message;
    ASSERT_EQ(std::memcmp(before.data(), c.logits.data(), before.size() * sizeof(float)), 0);
    Reference expected = reference(c.logits, c.allowed, c.params, c.history, c.eos);
    if (expected.knife_edge) {
      ++knife_edges;
      continue;
    }
    // Weights leave the range of float at 1e-38; what is so unlikely is not compared.
    for (auto* list : {&*result, &expected.kept}) {
      std::erase_if(*list, [](const auto& token) { return token.probability < 1e-36; });
    }
    ASSERT_EQ(ids_of(*result), ids_of(expected.kept)) << seed;
    double sum = 0;
    for (std::size_t i = 0; i < expected.kept.size(); ++i) {
      const double p = expected.kept[i].probability;
      ASSERT_NEAR((*result)[i].probability, p, p * expected.tolerance + 1e-35) << seed;
      sum += (*result)[i].probability;
    }
    ASSERT_NEAR(sum, 1, 1e-12);
    masked += c.history.generated() < c.params.min_tokens ? 1 : 0;

    // sample() draws from that distribution by inverting its cumulative sum in id order.
    for (std::int64_t position = 0; position < 5; ++position) {
      const auto token = sampler.sample(c.logits, c.params, c.history, seed, position);
      ASSERT_TRUE(token);
      const double u = philox_uniform(seed, position);
      double below = 0;
      std::size_t i = 0;
      while (i < result->size() && (*result)[i].id != token->id) below += (*result)[i++].probability;
      ASSERT_LT(i, result->size()) << "seed " << seed << " drew " << token->id << ", which is not kept";
      ASSERT_GE(u, below - expected.tolerance) << seed;
      ASSERT_LE(u, below + (*result)[i].probability + expected.tolerance) << seed;
    }
  }
  EXPECT_LT(knife_edges, 400);
  EXPECT_GT(masked, 20);
}

TEST(Sampler, FrequenciesFollowTheDistribution) {
  std::mt19937 random(5);
  const std::vector<float> logits = random_logits(random, 200, 1.5f);
  const struct {
    const char* name;
    SamplingParams params;
  } cases[] = {
      {"temperature", {.temperature = 1.3}},
      {"top_p", {.top_p = 0.9}},
      {"top_k", {.top_k = 20}},
      {"min_p", {.min_p = 0.1}},
      {"presence", {.temperature = 0.8, .top_k = 100, .top_p = 0.95, .presence_penalty = 1}},
  };
  TokenHistory history;
  for (int id = 0; id < 200; id += 3) history.add_generated(id);
  for (const auto& c : cases) {
    Sampler sampler = make_sampler(logits.size());
    const auto distribution = sampler.distribution(logits, c.params, history, 0);
    constexpr int kDraws = 50000;
    std::vector<int> count(logits.size());
    for (int i = 0; i < kDraws; ++i) ++count[sampler.sample(logits, c.params, history, 99, i)->id];
    double chi2 = 0;
    double rare = 0;
    int rare_count = 0;
    int freedom = -1;
    for (const auto& token : *distribution) {
      const double expected = token.probability * kDraws;
      if (expected < 10) {
        rare += expected;
        rare_count += count[token.id];
      } else {
        chi2 += std::pow(count[token.id] - expected, 2) / expected;
        ++freedom;
      }
      count[token.id] = 0;
    }
    if (rare > 1) {
      chi2 += std::pow(rare_count - rare, 2) / rare;
      ++freedom;
    }
    EXPECT_LT(chi2, freedom + 4 * std::sqrt(2.0 * freedom)) << c.name;
    EXPECT_EQ(std::accumulate(count.begin(), count.end(), 0), 0)
        << c.name << ": drew tokens that are not kept";
  }
}

// ---- Single rules

TEST(Sampler, GreedyTakesTheLowestIdOnTies) {
  std::vector<float> logits(300, 1.0f);
  logits[70] = logits[71] = logits[299] = 2.0f;
  Sampler sampler = make_sampler(logits.size());
  EXPECT_EQ(sampler.sample(logits, {.temperature = 0}, {}, 1, 0)->id, 70);
  EXPECT_EQ(sampler.sample(logits, {.temperature = 0.9e-5}, {}, 1, 0)->id, 70);
  EXPECT_EQ(make_sampler(4).sample(std::vector<float>{-1, -0.0f, 0.0f, -1}, {.temperature = 0}, {}, 1, 0)->id,
            1);
  EXPECT_EQ(make_sampler(3).sample(std::vector<float>{-kInf, -5, -kInf}, {.temperature = 0}, {}, 1, 0)->id,
            1);
  // Filters do not matter to greedy, top_k 1 is greedy.
  EXPECT_EQ(ids_of(distribution_of(logits, {.temperature = 0, .top_k = 7, .top_p = 0.1, .min_p = 1})),
            (std::vector<int>{70}));
  EXPECT_EQ(ids_of(distribution_of(logits, {.temperature = 2, .top_k = 1})), (std::vector<int>{70}));
}

TEST(Sampler, TopKKeepsExactlyKOnTies) {
  const std::vector<float> logits{1, 3, 3, 3, 2, 3};
  EXPECT_EQ(ids_of(distribution_of(logits, {.top_k = 2})), (std::vector<int>{1, 2}));
  EXPECT_EQ(ids_of(distribution_of(logits, {.top_k = 5})), (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_EQ(distribution_of(logits, {.top_k = 6}).size(), 6u);
  EXPECT_EQ(distribution_of(logits, {.top_k = 1000000}).size(), 6u);
  EXPECT_EQ(distribution_of(std::vector<float>(1000, 0.0f), {.top_k = 999}).back().id, 998);
}

TEST(Sampler, TopPKeepsTheShortestRunThatReachesIt) {
  const std::vector<float> logits{std::log(0.1f), std::log(0.4f), std::log(0.3f), std::log(0.2f)};
  EXPECT_EQ(ids_of(distribution_of(logits, {.top_p = 1e-300})), (std::vector<int>{1}));
  EXPECT_EQ(ids_of(distribution_of(logits, {.top_p = 0.39})), (std::vector<int>{1}));
  EXPECT_EQ(ids_of(distribution_of(logits, {.top_p = 0.41})), (std::vector<int>{1, 2}));
  EXPECT_EQ(ids_of(distribution_of(logits, {.top_p = 0.71})), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(ids_of(distribution_of(logits, {.top_p = 0.91})), (std::vector<int>{0, 1, 2, 3}));
  // After top_k 2 the two have 4/7 and 3/7: top_p 0.5 is reached by the first.
  EXPECT_EQ(ids_of(distribution_of(logits, {.top_k = 2, .top_p = 0.5})), (std::vector<int>{1}));
  // After min_p 0.6 (0.24) the same two are left.
  EXPECT_EQ(ids_of(distribution_of(logits, {.top_p = 0.5, .min_p = 0.6})), (std::vector<int>{1}));
  EXPECT_EQ(ids_of(distribution_of(logits, {.top_p = 0.5})), (std::vector<int>{1, 2}));
  // All equal: the lowest ids.
  EXPECT_EQ(ids_of(distribution_of(std::vector<float>(8, 1.0f), {.top_p = 0.5})),
            (std::vector<int>{0, 1, 2, 3}));
}

TEST(Sampler, MinPOneKeepsAllMaxima) {
  EXPECT_EQ(ids_of(distribution_of({1, 3, 2.9999f, 3, 2}, {.min_p = 1})), (std::vector<int>{1, 3}));
  const std::vector<float> logits{0, std::log(0.5f), std::log(0.1f)};
  EXPECT_EQ(distribution_of(logits, {.min_p = 0.51}).size(), 1u);
  EXPECT_EQ(distribution_of(logits, {.min_p = 0.49}).size(), 2u);
  // Relative to probabilities after the temperature: 0.1 becomes sqrt(0.1) = 0.316.
  EXPECT_EQ(distribution_of(logits, {.temperature = 2, .min_p = 0.3}).size(), 3u);
}

TEST(Sampler, ExtremeTemperaturesAndLogits) {
  const std::vector<float> logits{1, 2, 1.999f, -kInf};
  EXPECT_EQ(ids_of(distribution_of(logits, {.temperature = 1.1e-5})), (std::vector<int>{1}));
  const float huge = std::numeric_limits<float>::max();
  for (const auto& params : {SamplingParams{}, SamplingParams{.top_p = 0.9}, SamplingParams{.top_k = 2},
                             SamplingParams{.temperature = 1.1e-5, .min_p = 1e-9}}) {
    EXPECT_EQ(ids_of(distribution_of({-huge, huge, 0, 1e38f}, params)), (std::vector<int>{1}));
    EXPECT_EQ(make_sampler(4).sample(std::vector<float>{-huge, huge, 0, 1e38f}, params, {}, 1, 1)->id, 1);
  }
  EXPECT_EQ(ids_of(distribution_of({-huge, -huge, -kInf}, {.top_p = 0.99})), (std::vector<int>{0, 1}));
}

TEST(Sampler, PenaltiesByHand) {
  // Token 0: prompt only. 1: twice in the answer. 2: prompt and once in the answer. 3: never.
  TokenHistory history;
  history.add_prompt(std::vector<int>{0, 0, 2});
  for (const int id : {1, 2, 1}) history.add_generated(id);
  const std::vector<float> logits{2, 2, -1, 1};
  const SamplingParams params{.repetition_penalty = 2, .presence_penalty = 0.5, .frequency_penalty = 0.25};
  // 0: 2/2 = 1. 1: 2/2 - 2*0.25 - 0.5 = 0. 2: -1*2 - 0.25 - 0.5 = -2.75. 3: 1.
  const std::vector<double> expected{1, 0, -2.75, 1};
  double total = 0;
  for (const double x : expected) total += std::exp(x);
  const auto distribution = distribution_of(logits, params, history);
  ASSERT_EQ(distribution.size(), 4u);
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(distribution[i].probability, std::exp(expected[i]) / total, 1e-6) << i;

  // Negative penalties reward; the prompt alone earns nothing.
  const auto rewarded = distribution_of({0, 0, 0, 0}, {.presence_penalty = -1}, history);
  EXPECT_NEAR(rewarded[1].probability / rewarded[0].probability, std::exp(1), 1e-5);
  EXPECT_NEAR(rewarded[2].probability / rewarded[3].probability, std::exp(1), 1e-5);

  // Penalties are finite and do not undo a mask.
  const float huge = std::numeric_limits<float>::max();
  EXPECT_EQ(ids_of(distribution_of({huge, -kInf, -huge, 1},
                                   {.repetition_penalty = 1e-9, .frequency_penalty = -2}, history)),
            (std::vector<int>{0}));
}

TEST(Sampler, BiasDecidesAndComesBeforePenalties) {
  const std::vector<float> logits{5, 4, 3, 2};
  Sampler sampler = make_sampler(4);
  for (const double temperature : {0.0, 1.0}) {
    SamplingParams ban{.temperature = temperature};
    ban.logit_bias = {{0, -100}};
    SamplingParams force{.temperature = temperature};
    force.logit_bias = {{3, 100}};
    for (int i = 0; i < 300; ++i) {
      EXPECT_NE(sampler.sample(logits, ban, {}, 1, i)->id, 0);
      EXPECT_EQ(sampler.sample(logits, force, {}, 1, i)->id, 3);
    }
  }
  // (1 + 1) / 2 = 1 and not 1 / 2 + 1.
  SamplingParams params{.repetition_penalty = 2};
  params.logit_bias = {{0, 1}};
  TokenHistory history;
  history.add_prompt(std::vector<int>{0});
  const auto distribution = distribution_of({1, 1}, params, history);
  EXPECT_NEAR(distribution[0].probability, 0.5, 1e-7);
}

TEST(Sampler, MinTokensMasksEndTokensUntilReached) {
  const std::vector<float> logits{0, 50, 40, 30};
  Sampler sampler = make_sampler(4, {1});
  SamplingParams params{.temperature = 0, .min_tokens = 2};
  params.stop_token_ids = {2};
  TokenHistory history;
  history.add_prompt(std::vector<int>{0, 0, 0});
  EXPECT_EQ(sampler.sample(logits, params, history, 1, 3)->id, 3);
  history.add_generated(3);
  EXPECT_EQ(sampler.sample(logits, params, history, 1, 4)->id, 3);
  history.add_generated(3);
  EXPECT_EQ(sampler.sample(logits, params, history, 1, 5)->id, 1);
  // Nothing but end tokens: the request fails, no token is made up.
  const auto result = sampler.sample(std::vector<float>{-kInf, 1, 1, -kInf}, params, {}, 1, 0);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(result.error().message, HasSubstr("min_tokens"));
  // Penalties do not lift the mask.
  SamplingParams penalised{.repetition_penalty = 1.1, .min_tokens = 1};
  TokenHistory prompt;
  prompt.add_prompt(std::vector<int>{1});
  EXPECT_FALSE(sampler.sample(std::vector<float>{-kInf, 1, -kInf, -kInf}, penalised, prompt, 1, 0));
}

// C26: a bad row is an error of its request, whatever the parameters and wherever the number is.
TEST(Sampler, BadLogitsAreErrors) {
  constexpr std::size_t kVocab = 200;
  Sampler sampler = make_sampler(kVocab);
  const SamplingParams params[] = {{.temperature = 0}, {}, {.top_p = 0.9}, {.top_k = 3}, {.min_p = 0.5}};
  for (const float bad : {kNan, -kNan, kInf}) {
    for (const std::size_t place : {0u, 1u, 63u, 64u, 127u, 192u, 199u}) {
      std::vector<float> logits(kVocab, 1.0f);
      logits[place] = bad;
      for (const auto& p : params) {
        const auto token = sampler.sample(logits, p, {}, 1, 17);
        ASSERT_FALSE(token);
        EXPECT_EQ(token.error().code, ErrorCode::kInternal);
        EXPECT_THAT(token.error().message, HasSubstr("position 17"));
        EXPECT_THAT(token.error().message, HasSubstr("token " + std::to_string(place)));
        EXPECT_FALSE(sampler.distribution(logits, p, {}, 17));
      }
      // A mask by bias does not hide it either, and the sampler goes on with the next row.
      SamplingParams bias;
      bias.logit_bias = {{static_cast<std::int64_t>(place), -100}};
      EXPECT_FALSE(sampler.sample(logits, bias, {}, 1, 17));
      logits[place] = -kInf;
      const auto token = sampler.sample(logits, {}, {}, 1, 17);
      ASSERT_TRUE(token);
      EXPECT_NE(token->id, static_cast<int>(place));
    }
  }
  for (const auto& p : params) {
    const auto token = sampler.sample(std::vector<float>(kVocab, -kInf), p, {}, 1, 17);
    ASSERT_FALSE(token);
    EXPECT_THAT(token.error().message, HasSubstr("-inf"));
  }
  EXPECT_FALSE(sampler.sample(std::vector<float>(kVocab - 1, 1.0f), {}, {}, 1, 17));
}

TEST(Sampler, PaddingIsNeverLookedAt) {
  for (const float padding : {1e30f, kNan, kInf}) {
    std::vector<float> logits(130, 0.0f);
    std::fill(logits.begin() + 100, logits.end(), padding);
    Sampler sampler({.vocab = 130, .allowed_vocab = 100, .eos_ids = {}});
    SamplingParams params{.logprobs = 20};
    params.logit_bias = {{110, 100}};
    for (int i = 0; i < 500; ++i) {
      const auto token = sampler.sample(logits, params, {}, 3, i);
      ASSERT_TRUE(token);
      ASSERT_LT(token->id, 100);
      ASSERT_NEAR(token->logprob, -std::log(100.0), 1e-5);
    }
  }
}

TEST(Sampler, LogprobsAreOfTheRawDistribution) {
  std::mt19937 random(9);
  for (const std::size_t n : {3u, 64u, 1000u, 20000u}) {
    std::vector<float> logits = random_logits(random, n, 3);
    if (n == 1000) {
      for (float& x : logits) x = std::round(x);
    }
    logits[1] = -kInf;
    double total = 0;
    for (const float x : logits) total += std::exp(static_cast<double>(x));
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });

    SamplingParams params{.temperature = 0.5, .top_k = 2, .repetition_penalty = 1.5, .logprobs = 20};
    params.logit_bias = {{2, 3}};
    TokenHistory history;
    history.add_generated(0);
    Sampler sampler = make_sampler(n);
    const auto token = sampler.sample(logits, params, history, 4, 4);
    ASSERT_TRUE(token);
    EXPECT_NEAR(token->logprob, logits[token->id] - std::log(total), 1e-5);
    ASSERT_EQ(token->top.size(), std::min<std::size_t>(n, 20));
    for (std::size_t i = 0; i < token->top.size(); ++i) {
      EXPECT_EQ(token->top[i].id, order[i]);
      if (i + 1 == 3 && n == 3) {
        EXPECT_EQ(token->top[i].logprob, -kInf);
      } else {
        EXPECT_NEAR(token->top[i].logprob, logits[order[i]] - std::log(total), 1e-5);
      }
    }

    // Asking for logprobs changes no token, and with none asked for none is given.
    params.logprobs.reset();
    const auto silent = sampler.sample(logits, params, history, 4, 4);
    EXPECT_EQ(silent->id, token->id);
    EXPECT_TRUE(silent->top.empty());
    params.logprobs = 0;
    const auto own = sampler.sample(logits, params, history, 4, 4);
    EXPECT_EQ(own->logprob, token->logprob);
    EXPECT_TRUE(own->top.empty());
  }
}

TEST(Sampler, LogprobsSumToOne) {
  std::mt19937 random(2);
  const std::vector<float> logits = random_logits(random, 20, 2);
  const auto token = make_sampler(20).sample(logits, {.logprobs = 20}, {}, 1, 1);
  double sum = 0;
  for (const auto& top : token->top) sum += std::exp(static_cast<double>(top.logprob));
  EXPECT_NEAR(sum, 1, 1e-6);
}

// ---- Seeds

TEST(Sampler, SeedAndPositionDecideWhateverHappensBetween) {
  std::mt19937 random(3);
  const std::vector<float> logits = random_logits(random, 3000, 2);
  const std::vector<float> other = random_logits(random, 3000, 5);
  TokenHistory history;
  for (int i = 0; i < 50; ++i) history.add_generated(i * 7);
  const SamplingParams params[] = {
      {},
      {.top_p = 0.95},
      {.top_k = 50},
      {.temperature = 0.7, .top_k = 100, .min_p = 0.01, .frequency_penalty = 0.3}};
  for (const auto& p : params) {
    Sampler alone = make_sampler(3000);
    std::vector<int> expected;
    for (int i = 0; i < 50; ++i) expected.push_back(alone.sample(logits, p, history, 1234, i)->id);
    // Another sampler, other requests in between, positions in the opposite order.
    Sampler busy = make_sampler(3000);
    for (int i = 49; i >= 0; --i) {
      for (const auto& q : params) ASSERT_TRUE(busy.sample(other, q, history, random(), i));
      ASSERT_EQ(busy.sample(logits, p, history, 1234, i)->id, expected[i]);
    }
    EXPECT_GT(std::set<int>(expected.begin(), expected.end()).size(), 15u);  // positions are not all alike
  }
}

TEST(Sampler, PositionsAndSeedsAreIndependent) {
  // Two equally likely tokens: the next position, or the next seed, agrees half of the time.
  const std::vector<float> logits{1, 1};
  Sampler sampler = make_sampler(2);
  constexpr int kDraws = 20000;
  int same_as_next = 0;
  int same_as_other_seed = 0;
  for (int i = 0; i < kDraws; ++i) {
    const int id = sampler.sample(logits, {}, {}, 5, i)->id;
    same_as_next += id == sampler.sample(logits, {}, {}, 5, i + 1)->id ? 1 : 0;
    same_as_other_seed += id == sampler.sample(logits, {}, {}, 6, i)->id ? 1 : 0;
  }
  const double deviation = std::sqrt(kDraws * 0.25);
  EXPECT_NEAR(same_as_next, kDraws / 2, 5 * deviation);
  EXPECT_NEAR(same_as_other_seed, kDraws / 2, 5 * deviation);
}

// The promise that a seed gives the same answer in a later release: change this only with a note to users.
TEST(Sampler, PinnedDraws) {
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 37 % 101) * 0.0625f;
  Sampler sampler = make_sampler(logits.size());
  std::vector<int> all;
  std::vector<int> top_p;
  for (int i = 0; i < 6; ++i) {
    all.push_back(sampler.sample(logits, {}, {}, 2024, i)->id);
    top_p.push_back(sampler.sample(logits, {.top_p = 0.5}, {}, 2024, i)->id);
  }
  EXPECT_EQ(all, (std::vector<int>{267, 434, 49, 483, 442, 494}));
  EXPECT_EQ(top_p, (std::vector<int>{262, 434, 49, 483, 434, 494}));
}

}  // namespace
}  // namespace mimo
