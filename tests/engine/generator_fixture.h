// The bundled random model, loaded once, and the ways in which tests run requests on it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint/weight_source.h"
#include "engine/generator.h"
#include "engine/scripted_drafter.h"
#include "ops/cpu/cpu_ops.h"

namespace mimo::testing {

struct LoadedTiny {
  std::unique_ptr<Ops> ops;
  std::unique_ptr<TargetModel> model;
  std::unique_ptr<Tokenizer> tokenizer;
};

template <class T>
T value_or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

inline LoadedTiny& tiny() {
  static LoadedTiny loaded = [] {
    const std::string directory = std::string(MIMO_SOURCE_DIR) + "/models/tiny";
    LoadedTiny tiny;
    tiny.ops = value_or_throw(make_cpu_ops({.threads = 1, .pin = false}));
    const std::unique_ptr<WeightSource> source = value_or_throw(open_checkpoint(directory, {}));
    tiny.model = std::make_unique<TargetModel>(value_or_throw(TargetModel::load(*source, *tiny.ops, {})));
    tiny.tokenizer =
        std::make_unique<Tokenizer>(value_or_throw(Tokenizer::load(directory + "/tokenizer.json")));
    return tiny;
  }();
  return loaded;
}

inline std::vector<std::int32_t> random_prompt(std::size_t length, unsigned seed, int vocab = 900) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids(length);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab));
  return ids;
}

inline GenerateRequest make_request(std::vector<std::int32_t> prompt, std::int64_t max_tokens) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.params.temperature = 0;
  request.params.max_tokens = max_tokens;
  request.params.ignore_eos = true;
  return request;
}

// Greedy, sampled, and sampled with everything that looks at earlier tokens, in turn.
inline void vary_sampling(GenerateRequest& request, unsigned number) {
  if (number % 3 == 0) return;
  request.params.temperature = 0.9;
  request.params.seed = 1000 + number;
  if (number % 3 == 1) return;
  request.params.top_p = 0.9;
  request.params.top_k = 40;
  request.params.repetition_penalty = 1.2;
  request.params.presence_penalty = 0.5;
  request.params.frequency_penalty = 0.3;
  request.params.logit_bias = {{3, 4.0}, {17, -100.0}};
}

inline std::vector<std::int32_t> ids_of(const GenerateResult& result) {
  std::vector<std::int32_t> ids;
  for (const SampledToken& token : result.tokens) ids.push_back(token.id);
  return ids;
}

inline std::vector<GenerateResult> run_all(const std::vector<GenerateRequest>& requests,
                                           GeneratorOptions options,
                                           const GenerateCallbacks& callbacks = {}) {
  if (!options.log) options.log = [](std::string_view) {};
  Generator generator(*tiny().model, *tiny().ops, options);
  return value_or_throw(generator.run(requests, callbacks));
}

// Prompt and answer of each request: what a scripted drafter draws from.
inline std::vector<std::vector<std::int32_t>> sequences_of(const std::vector<GenerateRequest>& requests,
                                                           const std::vector<GenerateResult>& results) {
  std::vector<std::vector<std::int32_t>> sequences;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    sequences.push_back(requests[i].prompt);
    const std::vector<std::int32_t> ids = ids_of(results[i]);
    sequences.back().insert(sequences.back().end(), ids.begin(), ids.end());
  }
  return sequences;
}

// The counters of a request agree with each other and with what was delivered.
inline void expect_counted(const GenerateResult& result) {
  const SpeculationStats& stats = result.speculation;
  // The first token comes out of the prefill, every other one out of a step.
  EXPECT_EQ(stats.emitted + stats.plain_steps + 1, std::ssize(result.tokens));
  EXPECT_LE(stats.emitted, stats.accepted + stats.verify_steps);
  EXPECT_GE(stats.emitted, stats.accepted + stats.verify_steps - 1) << "only the last block can be cut";
  std::int64_t steps = 0;
  std::int64_t accepted = 0;
  for (std::size_t n = 0; n < stats.accepted_histogram.size(); ++n) {
    steps += stats.accepted_histogram[n];
    accepted += stats.accepted_histogram[n] * static_cast<std::int64_t>(n);
  }
  EXPECT_EQ(steps, stats.verify_steps);
  EXPECT_EQ(accepted, stats.accepted);
}

inline void expect_same_answers(const std::vector<GenerateResult>& got,
                                const std::vector<GenerateResult>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(ids_of(got[i]), ids_of(expected[i])) << "request " << i;
    EXPECT_EQ(got[i].text, expected[i].text) << "request " << i;
    EXPECT_EQ(got[i].error.has_value(), expected[i].error.has_value());
    ASSERT_EQ(got[i].finish.has_value(), expected[i].finish.has_value());
    if (got[i].finish) {
      EXPECT_EQ(got[i].finish->reason, expected[i].finish->reason) << "request " << i;
      EXPECT_EQ(got[i].finish->token_id, expected[i].finish->token_id);
      EXPECT_EQ(got[i].finish->stop_index, expected[i].finish->stop_index);
    }
  }
}

}  // namespace mimo::testing
