// Hidden states that a drafter reads: their numbering, row ranges, and that tapping changes nothing.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/reference/reference_ops.h"
#include "support/golden.h"
#include "support/model_driver.h"

namespace mimo {
namespace {

class TapsTest : public ::testing::Test {
 protected:
  TapsTest() : driver_(golden_directory("v26_tiny"), make_reference_ops(), {.kv = KvDType::kF32}) {
    hidden_ = static_cast<std::size_t>(driver_.model().config().hidden);
    layers_ = driver_.model().config().layers;
  }
  std::vector<float> run(const std::vector<int>& indices, int row_begin, int rows, std::vector<float>& taps) {
    taps.assign(tokens_.size() * indices.size() * hidden_, std::numeric_limits<float>::quiet_NaN());
    return driver_.step({driver_.add_sequence()}, {tokens_},
                        {.indices = indices, .out = taps, .row_begin = row_begin, .rows = rows});
  }
  ModelDriver driver_;
  std::size_t hidden_ = 0;
  int layers_ = 0;
  std::vector<std::int32_t> tokens_{3, 14, 15, 92, 65, 35};
};

TEST_F(TapsTest, StandSideBySideInTheOrderAskedFor) {
  std::vector<float> all;
  std::vector<int> every;
  for (int i = 0; i <= layers_ + 1; ++i) every.push_back(i);
  const std::vector<float> logits = run(every, 0, 0, all);
  const std::vector<int> some = {1, layers_, layers_ + 1};
  std::vector<float> taps;
  const std::vector<float> again = run(some, 0, 0, taps);
  EXPECT_EQ(logits, again);
  EXPECT_EQ(logits, driver_.step({driver_.add_sequence()}, {tokens_}));
  for (std::size_t row = 0; row < tokens_.size(); ++row) {
    for (std::size_t t = 0; t < some.size(); ++t) {
      const float* got = taps.data() + (row * some.size() + t) * hidden_;
      const float* expected = all.data() + (row * every.size() + static_cast<std::size_t>(some[t])) * hidden_;
      EXPECT_TRUE(std::equal(got, got + hidden_, expected)) << row << " " << some[t];
    }
  }
}

// Tap `layers` is before the final norm, layers + 1 is what lm_head reads: the head on it gives the logits.
TEST_F(TapsTest, LastTapIsWhatTheHeadReads) {
  std::vector<float> taps;
  const std::vector<float> logits = run({layers_ + 1}, 0, 0, taps);
  std::vector<float> head(logits.size());
  driver_.model().lm_head(reinterpret_cast<const Act*>(taps.data()), static_cast<int>(tokens_.size()),
                          head.data());
  EXPECT_EQ(head, logits);
  std::vector<float> before;
  run({layers_}, 0, 0, before);
  driver_.model().lm_head(reinterpret_cast<const Act*>(before.data()), static_cast<int>(tokens_.size()),
                          head.data());
  EXPECT_NE(head, logits);
}

TEST_F(TapsTest, TapZeroIsTheEmbedding) {
  std::vector<float> taps;
  run({0}, 0, 0, taps);
  std::vector<float> rows(tokens_.size() * hidden_);
  driver_.model().embed(tokens_.data(), static_cast<int>(tokens_.size()), rows.data());
  EXPECT_EQ(taps, rows);
}

TEST_F(TapsTest, OnlyTheWantedRowsAreWritten) {
  const std::vector<int> indices = {1, layers_ + 1};
  std::vector<float> all;
  run(indices, 0, 0, all);
  std::vector<float> part;
  run(indices, 2, 3, part);
  const std::size_t width = indices.size() * hidden_;
  for (std::size_t i = 0; i < part.size(); ++i) {
    const bool wanted = i / width >= 2 && i / width < 5;
    ASSERT_EQ(std::isnan(part[i]), !wanted) << i;
    if (wanted) {
      ASSERT_EQ(part[i], all[i]) << i;
    }
  }
}

}  // namespace
}  // namespace mimo
