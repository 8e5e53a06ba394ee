// The largest steps of a server, before its cache is made.
#include "engine/rehearsal.h"

#include <gtest/gtest.h>

#include "engine/engine_rig.h"

namespace mimo::testing {
namespace {

EngineOptions options_of(int rows, int running) {
  EngineOptions options;
  options.scheduler.layout = {16, tiny().model->config().window.window};
  options.scheduler.rows = rows;
  options.scheduler.max_running = running;
  options.tokenizer = tiny().tokenizer.get();
  return options;
}

TEST(Rehearsal, RunsTheLargestStepsAndLeavesAnswersAsTheyWere) {
  const EngineRequest request = greedy(random_prompt(50, 3), 20);
  const std::vector<std::int32_t> expected = cold_ids(request);
  for (const auto& [rows, running] : {std::pair{1, 1}, std::pair{64, 8}, std::pair{300, 40}}) {
    const Result<std::uint64_t> reserve =
        rehearse_steps(*tiny().model, *tiny().ops, options_of(rows, running));
    ASSERT_TRUE(reserve) << reserve.error().message;
    EXPECT_EQ(cold_ids(request), expected);
  }
}

TEST(Rehearsal, ChunksBeyondTheContextAreCut) {
  const int beyond = tiny().model->config().max_positions + 100;
  const Result<std::uint64_t> reserve = rehearse_steps(*tiny().model, *tiny().ops, options_of(beyond, 4));
  EXPECT_TRUE(reserve) << reserve.error().message;
}

}  // namespace
}  // namespace mimo::testing
