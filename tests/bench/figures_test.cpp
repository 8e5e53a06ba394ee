// Percentiles, arrival times, and the figures of a run from its records.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bench/arrivals.h"
#include "bench/distribution.h"
#include "bench/load_summary.h"
#include "bench/server_counters.h"

namespace mimo {
namespace {

TEST(Distribution, QuantilesInterpolate) {
  const std::vector<double> values = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(quantile(values, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 3.7);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 4);
  EXPECT_DOUBLE_EQ(quantile(std::vector<double>{7}, 0.99), 7);
  EXPECT_DOUBLE_EQ(quantile({}, 0.5), 0);
}

TEST(Distribution, OfAHundredValues) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Distribution d = describe(values);
  EXPECT_EQ(d.n, 100);
  EXPECT_DOUBLE_EQ(d.mean, 50.5);
  EXPECT_DOUBLE_EQ(d.median, 50.5);
  EXPECT_DOUBLE_EQ(d.p90, 90.1);
  EXPECT_DOUBLE_EQ(d.p95, 95.05);
  EXPECT_DOUBLE_EQ(d.p99, 99.01);
  EXPECT_DOUBLE_EQ(d.max, 100);
  EXPECT_DOUBLE_EQ(d.get("p99"), d.p99);
  EXPECT_TRUE(distribution_json(describe({}), 1).is_null());
}

TEST(Arrivals, EndExactlyAtCountOverRate) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const std::vector<double> times = arrival_times(200, 8, burstiness, 3);
    ASSERT_EQ(times.size(), 200U);
    EXPECT_DOUBLE_EQ(times.back(), 25);
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
    EXPECT_GT(times.front(), 0);
    EXPECT_EQ(times, arrival_times(200, 8, burstiness, 3));
    EXPECT_NE(times, arrival_times(200, 8, burstiness, 4));
  }
}

TEST(Arrivals, GapsHaveTheVariationOfTheirBurstiness) {
  for (const double burstiness : {0.5, 1.0, 9.0}) {
    const std::vector<double> times = arrival_times(20000, 100, burstiness, 1);
    double sum = 0;
    double squares = 0;
    for (std::size_t i = 1; i < times.size(); ++i) {
      const double gap = times[i] - times[i - 1];
      sum += gap;
      squares += gap * gap;
    }
    const auto n = static_cast<double>(times.size() - 1);
    const double mean = sum / n;
    const double deviation = std::sqrt(squares / n - mean * mean);
    // Of a gamma distribution: 1 / sqrt(shape). Its own deviation over 20,000 samples is near 1%.
    EXPECT_NEAR(deviation / mean, 1 / std::sqrt(burstiness), 0.05 / std::sqrt(burstiness));
  }
}

TEST(Arrivals, AnInfiniteRateIsAllAtOnce) {
  EXPECT_EQ(arrival_times(3, std::numeric_limits<double>::infinity(), 1, 0), (std::vector<double>{0, 0, 0}));
}

// `events`: (time, tokens).
SentRequest record(double t0, double t1, double t_end, std::int64_t n_in, std::int64_t n_out,
                   std::vector<TextEvent> events = {}) {
  SentRequest r;
  r.due = t0;
  r.t0 = t0;
  r.t1 = t1;
  r.t_end = t_end;
  r.n_in = n_in;
  r.n_out = n_out;
  r.wanted_out = n_out;
  r.n_cached = 0;
  r.finish = "length";
  r.events = std::move(events);
  return r;
}

TEST(LoadSummary, FiguresByTheirDefinitions) {
  // Two requests: one token at 0.5 and four more at 1.5; four at 1.0 and one at 2.0.
  const std::vector<SentRequest> records = {
      record(0, 0.5, 1.5, 100, 5, {{0.5, 1}, {1.5, 4}}),
      record(0.5, 1.0, 2.0, 50, 5, {{1.0, 4}, {2.0, 1}}),
  };
  const LoadSummary s = summarise_load(records, {});
  EXPECT_EQ(s.failed, 0);
  EXPECT_DOUBLE_EQ(s.wall, 2);
  EXPECT_EQ(s.n_in, 150);
  EXPECT_EQ(s.n_out, 10);
  EXPECT_DOUBLE_EQ(s.request_rate, 1);
  EXPECT_DOUBLE_EQ(s.output_rate, 5);
  EXPECT_DOUBLE_EQ(s.total_rate, 80);
  EXPECT_DOUBLE_EQ(s.concurrency, 1.5);
  EXPECT_DOUBLE_EQ(s.ttft.mean, 0.5);
  EXPECT_DOUBLE_EQ(s.tpot.mean, 0.25);
  EXPECT_DOUBLE_EQ(s.latency.max, 1.5);
  EXPECT_DOUBLE_EQ(s.event_gap.mean, 1);
  EXPECT_EQ(s.event_gap.n, 2);
  // Four gaps of 0.25 and one of 1.
  EXPECT_EQ(s.token_gap.n, 5);
  EXPECT_DOUBLE_EQ(s.token_gap.mean, 0.4);
  EXPECT_DOUBLE_EQ(s.token_gap.median, 0.25);
  // The run's seconds have 1 and 9 tokens; the token at 1.0 is in the second one.
  EXPECT_DOUBLE_EQ(s.peak_output_rate, 9);
  EXPECT_FALSE(s.single_decode_rate);
  EXPECT_THAT(s.warnings, testing::IsEmpty());
}

TEST(LoadSummary, DecodeRateOfOneStreamIsThatOfThePublishedTables) {
  // (1024 - 1) / (6.63736 - 0.22252) = 159.47 tokens a second.
  std::vector<SentRequest> records;
  for (int i = 0; i < 12; ++i) {
    const double t0 = i * 7.0;
    records.push_back(record(t0, t0 + 0.22252, t0 + 6.63736, 8192, 1024));
  }
  const LoadSummary s = summarise_load(records, {});
  ASSERT_TRUE(s.single_decode_rate);
  EXPECT_NEAR(*s.single_decode_rate, 159.47, 0.005);
}

TEST(LoadSummary, AnswersOfOneTokenHaveNoTimeAToken) {
  const LoadSummary s = summarise_load(std::vector{record(0, 1, 1, 10, 1), record(0, 1, 3, 10, 3)}, {});
  EXPECT_EQ(s.tpot.n, 1);
  EXPECT_EQ(s.without_tpot, 1);
  EXPECT_DOUBLE_EQ(s.tpot.mean, 1);
}

TEST(LoadSummary, EventsWithoutCountsAreTokensOnlyIfThatAddsUp) {
  SentRequest adds = record(0, 1, 3, 1, 3, {{1, -1}, {2, -1}, {3, -1}});
  SentRequest not_so = record(0, 1, 3, 1, 12, {{1, -1}, {2, -1}, {3, -1}});
  const LoadSummary good = summarise_load(std::vector{adds}, {});
  EXPECT_EQ(good.token_gap.n, 2);
  EXPECT_EQ(good.without_token_gap, 0);
  const LoadSummary unknown = summarise_load(std::vector{not_so}, {});
  EXPECT_EQ(unknown.token_gap.n, 0);
  EXPECT_EQ(unknown.without_token_gap, 1);
  EXPECT_EQ(unknown.event_gap.n, 2);
  EXPECT_DOUBLE_EQ(unknown.peak_output_rate, 0);
}

TEST(LoadSummary, FailuresAreNamedAndNeverAveraged) {
  std::vector<SentRequest> records = {record(0, 1, 2, 10, 4), record(0, -1, 9, 0, 0)};
  records[1].error = "status 500: no";
  const LoadSummary s = summarise_load(records, {});
  EXPECT_EQ(s.failed, 1);
  EXPECT_THAT(summary_text(s), testing::StartsWith("FAILED: 1 of 2 requests; the first: status 500: no"));
  const json::object out = summary_json(s);
  EXPECT_EQ(out.at("status"), "FAILED");
  EXPECT_FALSE(out.contains("output_throughput"));
}

TEST(LoadSummary, ImpossibleFiguresAreFlagged) {
  // More tokens by event than in all.
  const LoadSummary more = summarise_load(std::vector{record(0, 1, 2, 1, 3, {{1, 2}, {2, 4}})}, {});
  EXPECT_THAT(more.warnings, testing::Contains(testing::HasSubstr("contradict")));
  SentRequest cached = record(0, 1, 2, 10, 2);
  cached.n_cached = 11;
  EXPECT_THAT(summarise_load(std::vector{cached}, {}).warnings,
              testing::Contains(testing::HasSubstr("contradict")));
  SentRequest length = record(0, 1, 2, 10, 2);
  length.wanted_in = 9;
  EXPECT_THAT(summarise_load(std::vector{length}, {}).warnings,
              testing::Contains(testing::HasSubstr("length")));
  SentRequest silent = record(0, 1, 2, 10, 2);
  silent.n_cached.reset();
  EXPECT_THAT(summarise_load(std::vector{silent}, {}).warnings,
              testing::Contains(testing::HasSubstr("cached")));
}

TEST(LoadSummary, GoodputCountsRequestsWithinAllLimits) {
  const std::vector<std::string> terms = {"ttft:1000", "tpot:250"};
  const auto limits = parse_goodput(terms);
  ASSERT_TRUE(limits) << limits.error().message;
  const std::vector<SentRequest> records = {record(0, 1, 2, 1, 5), record(0, 1.1, 2, 1, 5),
                                            record(0, 1, 2.1, 1, 5), record(0, 1, 4, 1, 13)};
  const LoadSummary s = summarise_load(records, *limits);
  ASSERT_TRUE(s.goodput);
  EXPECT_DOUBLE_EQ(*s.goodput, 2 / 4.0);
  for (const char* wrong : {"ttft", "ttft:", "ttft:x", "ttft:-1", "itl:3", "ttft:1s"})
    EXPECT_FALSE(parse_goodput(std::vector<std::string>{wrong})) << wrong;
}

TEST(LoadSummary, RecordsSurviveAFile) {
  SentRequest before = record(0.25, 1, 2, 10, 3, {{1, 1}, {2, 2}});
  before.id = "7";
  before.round = 2;
  before.ids = {1, 2, 3};
  before.text = "abc";
  const json::object line = record_json(before, false);
  EXPECT_FALSE(line.contains("text"));
  EXPECT_TRUE(line.at("ids_hash").is_string());
  const auto parsed = parse_json(json::serialize(line), "line");
  const auto after = record_from_json(parsed->get_object(), "f:1");
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_EQ(json::serialize(summary_json(summarise_load(std::vector{*after}, {}))),
            json::serialize(summary_json(summarise_load(std::vector{before}, {}))));
  EXPECT_EQ(after->id, "7");
  EXPECT_EQ(after->round, 2);
  json::object broken = line;
  broken.erase("tE");
  EXPECT_THAT(record_from_json(broken, "f:1").error().message, testing::HasSubstr("f:1: no field \"tE\""));
  broken = line;
  broken["events"] = json::array{1};
  EXPECT_FALSE(record_from_json(broken, "f:1"));
}

TEST(ServerCounters, AddsUpSeriesAndReadsOtherServersNames) {
  const ServerCounters before(
      "# HELP x y\nvllm:spec_decode_num_drafts_total{model_name=\"a} b\"} 10\n"
      "vllm:spec_decode_num_draft_tokens_total 70\nvllm:spec_decode_num_accepted_tokens_total 20\n"
      "vllm:num_preemptions_total{engine=\"0\"} 1\nvllm:num_preemptions_total{engine=\"1\"} 2\n");
  const ServerCounters after(
      "vllm:spec_decode_num_drafts_total{model_name=\"a} b\"} 20\n"
      "vllm:spec_decode_num_draft_tokens_total 140\nvllm:spec_decode_num_accepted_tokens_total 55 "
      "1700000000\n"
      "vllm:num_preemptions_total{engine=\"0\"} 1\nvllm:num_preemptions_total{engine=\"1\"} 7\n");
  const ServerWork work = work_between(before, after);
  EXPECT_DOUBLE_EQ(work.accept_length().value_or(0), 1 + 35.0 / 10);
  EXPECT_DOUBLE_EQ(work.acceptance_rate().value_or(0), 0.5);
  EXPECT_DOUBLE_EQ(work.retractions.value_or(0), 5);
  EXPECT_FALSE(work.host_restores);
  EXPECT_FALSE(work_between({}, {}).accept_length());
  EXPECT_FALSE(work_between(before, before).accept_length());
  EXPECT_TRUE(ServerCounters("garbage\n\x01\n{}\n").empty());
}

}  // namespace
}  // namespace mimo
