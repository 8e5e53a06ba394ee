#include "bench/rate_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace mimo {
namespace {

// A server that is quick below its capacity.
RateProbe probe_at(double rate, double capacity) {
  RateProbe probe;
  probe.rate = rate;
  probe.kept = rate <= capacity;
  return probe;
}

TEST(RateSearch, FindsTheCapacityFromBelowAndFromAbove) {
  for (const double start : {0.1, 1.0, 7.0, 100.0, 3000.0}) {
    int probes = 0;
    const auto found = search_rate({.target = 1, .start = start}, [&](double rate) -> Result<RateProbe> {
      ++probes;
      return probe_at(rate, 10);
    });
    ASSERT_TRUE(found && found->rate);
    EXPECT_LE(*found->rate, 10);
    EXPECT_GE(*found->rate, 10 / 1.05);
    EXPECT_LE(probes, 20 + 8 + 2);
    ASSERT_TRUE(found->best);
    EXPECT_EQ(*found->best, found->probes.size() - 1);
  }
}

TEST(RateSearch, ARateThatIsNotConfirmedIsLowered) {
  int calls_at_best = 0;
  double best = 0;
  const auto found = search_rate({.target = 1, .start = 4}, [&](double rate) -> Result<RateProbe> {
    RateProbe probe = probe_at(rate, 10);
    if (probe.kept && rate > 9) {
      best = rate;
      probe.kept = ++calls_at_best == 1;  // lucky once
    }
    return probe;
  });
  ASSERT_TRUE(found && found->rate);
  EXPECT_LT(*found->rate, 9);
  EXPECT_GT(best, 9);
}

TEST(RateSearch, GoesNoFurtherThanItIsTold) {
  for (const double start : {1.0, 8.0, 100.0}) {
    std::vector<double> rates;
    const auto found =
        search_rate({.target = 1, .start = start, .most = 8}, [&](double rate) -> Result<RateProbe> {
          rates.push_back(rate);
          return probe_at(rate, 1000);
        });
    ASSERT_TRUE(found && found->rate);
    EXPECT_EQ(*found->rate, 8);
    EXPECT_EQ(*std::max_element(rates.begin(), rates.end()), 8);
    EXPECT_LE(rates.size(), 4U + 2U);
  }
}

TEST(RateSearch, NoRateAtAll) {
  const auto found = search_rate({.target = 1, .start = 4},
                                 [](double rate) -> Result<RateProbe> { return probe_at(rate, 0); });
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->rate);
  EXPECT_FALSE(search_rate(
      {.target = 1}, [](double) -> Result<RateProbe> { return fail(ErrorCode::kUnavailable, "gone"); }));
}

std::vector<SentRequest> queue_of(int count, double first, double slope) {
  std::vector<SentRequest> records;
  for (int i = 0; i < count; ++i) {
    SentRequest record;
    record.due = record.t0 = i;
    record.t1 = i + first + slope * i;
    record.t_end = record.t1 + 1;
    record.n_in = record.n_out = 1;
    record.wanted_out = 1;
    records.push_back(record);
  }
  return records;
}

TEST(RateSearch, AGrowingQueueIsUnstableWhateverItsStatistic) {
  EXPECT_FALSE(queue_grows(queue_of(90, 1, 0)));
  EXPECT_TRUE(queue_grows(queue_of(90, 0, 0.1)));   // thirds: 4.45 and 7.45
  EXPECT_FALSE(queue_grows(queue_of(90, 3, 0.1)));  // 7.45 and 10.45
  EXPECT_FALSE(queue_grows(queue_of(12, 0, 0.1)));  // too few to say
  const RateProbe probe = judge_probe(1, queue_of(90, 0, 0.1), {.target = 100, .statistic = "p99"});
  EXPECT_TRUE(probe.unstable);
  EXPECT_FALSE(probe.kept);
  const RateProbe steady = judge_probe(1, queue_of(90, 1, 0), {.target = 1.5, .statistic = "p99"});
  EXPECT_TRUE(steady.kept);
  EXPECT_DOUBLE_EQ(steady.value, 1);
  std::vector<SentRequest> failed = queue_of(90, 1, 0);
  failed[3].error = "no";
  EXPECT_FALSE(judge_probe(1, failed, {.target = 100}).kept);
}

}  // namespace
}  // namespace mimo
