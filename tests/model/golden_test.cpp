// The forward pass against logits, hidden states and greedy continuations of an independent implementation.

#include "support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/reference/reference_ops.h"
#include "support/model_driver.h"

namespace mimo {
namespace {

// Root mean square of the difference over the root mean square of the expected values.
double relative_rms(std::span<const float> got, std::span<const float> expected) {
  double error = 0;
  double total = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - expected[i], 2);
    total += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(error / total);
}

double largest_relative(std::span<const float> got, std::span<const float> expected) {
  double top = 0;
  double error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    top = std::max(top, std::fabs(static_cast<double>(expected[i])));
    const double difference = std::fabs(static_cast<double>(got[i]) - expected[i]);
    if (!(difference <= error)) error = difference;  // keeps NaN
  }
  return error / top;
}

class GoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    Result<Golden> golden = load_golden(golden_directory(GetParam()));
    ASSERT_TRUE(golden) << golden.error().message;
    golden_ = std::move(*golden);
  }
  static std::unique_ptr<Ops> cpu(ActivationPrecision precision) {
    Result<std::unique_ptr<Ops>> ops = make_cpu_ops({.threads = 2, .precision = precision});
    EXPECT_TRUE(ops) << ops.error().message;
    return std::move(*ops);
  }
  std::vector<float> all_logits(ModelDriver& driver) {
    return driver.step({driver.add_sequence()}, {golden_.input_ids});
  }
  std::vector<std::int32_t> continuation() const {
    return {golden_.greedy_ids.begin() + golden_.greedy_prompt_len, golden_.greedy_ids.end()};
  }
  std::span<const std::int32_t> prompt() const {
    return {golden_.greedy_ids.data(), static_cast<std::size_t>(golden_.greedy_prompt_len)};
  }
  Golden golden_;
};

TEST_P(GoldenTest, ReferenceReproducesLogitsAndHiddenStates) {
  ModelDriver driver(golden_directory(GetParam()), make_reference_ops(), {.kv = KvDType::kF32});
  const auto hidden = static_cast<std::size_t>(driver.model().config().hidden);
  const std::size_t positions = golden_.hidden_positions.size();
  // transformers numbers the embedding 0 and gives the last layer's state after the final norm only.
  const int layers = driver.model().config().layers;
  std::vector<int> indices(static_cast<std::size_t>(layers) + 1);
  for (int i = 0; i < layers; ++i) indices[static_cast<std::size_t>(i)] = i;
  indices.back() = layers + 1;
  std::vector<float> states(golden_.input_ids.size() * indices.size() * hidden);
  const std::vector<float> logits =
      driver.step({driver.add_sequence()}, {golden_.input_ids}, {.indices = indices, .out = states});
  double worst = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    for (std::size_t p = 0; p < positions; ++p) {
      const float* expected = golden_.hidden_states.data() + (i * positions + p) * hidden;
      const auto row = static_cast<std::size_t>(golden_.hidden_positions[p]);
      const float* got = states.data() + (row * indices.size() + i) * hidden;
      worst = std::max(worst, largest_relative({got, hidden}, {expected, hidden}));
    }
  }
  EXPECT_LT(worst, 1e-4);
  EXPECT_LT(largest_relative(logits, golden_.logits), 1e-4);
  RecordProperty("largest_relative", std::to_string(largest_relative(logits, golden_.logits)));
}

TEST_P(GoldenTest, ReferenceContinuesGreedily) {
  ModelDriver driver(golden_directory(GetParam()), make_reference_ops(),
                     {.kv = KvDType::kF32, .page_size = 7});
  const std::vector<std::int32_t> expected = continuation();
  EXPECT_EQ(driver.greedy(prompt(), static_cast<int>(expected.size()), 64), expected);
}

// The exact mode of the CPU backend is fp32 up to 15 and 21 bit activations and FP8 weights to within 3.5e-5
// of the largest code: the same continuation as the reference, and logits as close as those roundings.
TEST_P(GoldenTest, CpuExactReproducesLogits) {
  ModelDriver driver(golden_directory(GetParam()), cpu(ActivationPrecision::kExact), {.kv = KvDType::kF32});
  EXPECT_LT(largest_relative(all_logits(driver), golden_.logits), 1e-4);
}

TEST_P(GoldenTest, CpuExactContinuesGreedily) {
  ModelDriver driver(golden_directory(GetParam()), cpu(ActivationPrecision::kExact), {.kv = KvDType::kF32});
  const std::vector<std::int32_t> expected = continuation();
  EXPECT_EQ(driver.greedy(prompt(), static_cast<int>(expected.size()), 64), expected);
}

// int8 activations and BF16 KV. The reference itself is off by the median 0.3% (v26_tiny) and 0.8%
// (v2flash_tiny) when only its KV is rounded to BF16: in these random models a rounding now and then sends a
// token to another expert, which is why the median counts and single rows may be far off. Bounds: twice the
// measured 1.6% and 0.4%, rounded up.
TEST_P(GoldenTest, CpuFastStaysWithinItsFormats) {
  ModelDriver driver(golden_directory(GetParam()), cpu(ActivationPrecision::kFast), {});
  const std::vector<float> logits = all_logits(driver);
  const auto width = static_cast<std::size_t>(driver.vocab());
  std::vector<double> errors;
  int different = 0;
  for (std::size_t row = 0; row < golden_.input_ids.size(); ++row) {
    const std::span<const float> got(logits.data() + row * width, width);
    const std::span<const float> expected(golden_.logits.data() + row * width, width);
    errors.push_back(relative_rms(got, expected));
    ASSERT_TRUE(std::isfinite(errors.back())) << "row " << row;
    if (argmax(got) != argmax(expected)) ++different;
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.035);
  EXPECT_LT(different, static_cast<int>(golden_.input_ids.size()) / 10);
}

// Teacher-forced over the golden continuation: the chosen token may differ only where the two best are close.
TEST_P(GoldenTest, CpuFastDiffersOnlyAtNearTies) {
  ModelDriver driver(golden_directory(GetParam()), cpu(ActivationPrecision::kFast), {});
  const std::vector<float> logits = driver.step({driver.add_sequence()}, {golden_.greedy_ids});
  const auto width = static_cast<std::size_t>(driver.vocab());
  for (std::size_t row = prompt().size() - 1; row + 1 < golden_.greedy_ids.size(); ++row) {
    const std::span<const float> got(logits.data() + row * width, width);
    const auto expected = static_cast<std::size_t>(golden_.greedy_ids[row + 1]);
    double square = 0;
    for (const float x : got) square += static_cast<double>(x) * x;
    const double spread = std::sqrt(square / static_cast<double>(width));
    const auto best = static_cast<std::size_t>(argmax(got));
    EXPECT_LE(got[best] - got[expected], 0.35 * spread) << "row " << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenTest, ::testing::Values("v26_tiny", "v2flash_tiny"));

}  // namespace
}  // namespace mimo
