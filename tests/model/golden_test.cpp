// The forward pass against logits, hidden states and greedy continuations of an independent implementation.

#include <gtest/gtest.h>

#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/reference/reference_ops.h"
#include "support/golden.h"
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
  static std::unique_ptr<Ops> cpu() {
    Result<std::unique_ptr<Ops>> ops = make_cpu_ops({.threads = 2});
    EXPECT_TRUE(ops) << ops.error().message;
    return std::move(*ops);
  }
  std::vector<float> all_logits(ModelDriver& driver) { return driver.step({driver.add_sequence()}, {golden_.input_ids}); }
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
  double worst = 0;
  const auto tap = [&](int index, std::span<const float> state) {
    for (std::size_t p = 0; p < positions; ++p) {
      const float* expected = golden_.hidden_states.data() + (static_cast<std::size_t>(index) * positions + p) * hidden;
      const float* got = state.data() + static_cast<std::size_t>(golden_.hidden_positions[p]) * hidden;
      worst = std::max(worst, largest_relative({got, hidden}, {expected, hidden}));
    }
  };
  const std::vector<float> logits = driver.step({driver.add_sequence()}, {golden_.input_ids}, tap);
  EXPECT_LT(worst, 1e-4);
  EXPECT_LT(largest_relative(logits, golden_.logits), 1e-4);
  RecordProperty("largest_relative", std::to_string(largest_relative(logits, golden_.logits)));
}

TEST_P(GoldenTest, ReferenceContinuesGreedily) {
  ModelDriver driver(golden_directory(GetParam()), make_reference_ops(), {.kv = KvDType::kF32, .page_size = 7});
  const std::vector<std::int32_t> expected = continuation();
  EXPECT_EQ(driver.greedy(prompt(), static_cast<int>(expected.size()), 64), expected);
}

// Bounds of the CPU backend's formats (docs/architecture.md): measured error times two.
TEST_P(GoldenTest, CpuStaysWithinItsFormats) {
  ModelDriver driver(golden_directory(GetParam()), cpu(), {});
  const std::vector<float> logits = all_logits(driver);
  const double error = relative_rms(logits, golden_.logits);
  std::cout << GetParam() << " cpu relative rms " << error << "\n";
  EXPECT_LT(error, 0.02);
}

TEST_P(GoldenTest, CpuContinuesGreedily) {
  ModelDriver driver(golden_directory(GetParam()), cpu(), {});
  const std::vector<std::int32_t> expected = continuation();
  EXPECT_EQ(driver.greedy(prompt(), static_cast<int>(expected.size()), 64), expected);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenTest, ::testing::Values("v26_tiny", "v2flash_tiny"));

}  // namespace
}  // namespace mimo
