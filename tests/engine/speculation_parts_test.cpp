// The pure parts of speculation: acceptance, widths, the watch over acceptance, counters, options.

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "engine/draft_policy.h"
#include "engine/speculation_options.h"
#include "engine/speculation_stats.h"
#include "engine/verify_block.h"
#include "engine/width_tuner.h"

namespace mimo {
namespace {

struct Walked {
  BlockResult block;
  std::vector<std::int32_t> delivered;
  int rows_sampled = 0;
};

// `error_row` and `last` (tokens until the answer ends): -1 is never.
Walked walk(const std::vector<std::int32_t>& drafts, const std::vector<std::int32_t>& targets, int error_row,
            int last) {
  Walked out;
  const auto sample = [&](std::size_t row) -> std::optional<std::int32_t> {
    EXPECT_EQ(row, static_cast<std::size_t>(out.rows_sampled)) << "rows are sampled once and in order";
    EXPECT_EQ(row, out.delivered.size()) << "after the tokens before them";
    ++out.rows_sampled;
    if (static_cast<int>(row) == error_row) return {};
    return targets.at(row);
  };
  const auto deliver = [&](std::int32_t token) {
    out.delivered.push_back(token);
    return static_cast<int>(out.delivered.size()) == last;
  };
  out.block = verify_block(drafts, sample, deliver);
  return out;
}

// Every pattern of agreement of up to 7 drafts, every place where the answer may end and every row that may be
// an error, against the rule written down directly.
TEST(VerifyBlock, EveryPattern) {
  int cases = 0;
  for (int m = 0; m <= 7; ++m) {
    for (unsigned pattern = 0; pattern < (1u << m); ++pattern) {
      std::vector<std::int32_t> targets;
      std::vector<std::int32_t> drafts;
      for (int i = 0; i <= m; ++i) targets.push_back(100 + i);
      for (int i = 0; i < m; ++i) drafts.push_back((pattern >> i & 1) != 0 ? 100 + i : 7);
      int matches = 0;
      while (matches < m && (pattern >> matches & 1) != 0) ++matches;
      for (int error = -1; error <= m; ++error) {
        for (int last = -1; last <= m + 1; ++last) {
          if (last == 0) continue;
          int emitted = matches + 1;
          bool ended = false;
          int accepted = matches;
          if (error >= 0 && error < emitted) {
            emitted = error;
            accepted = error;
            ended = true;
          }
          if (last > 0 && last <= emitted) {
            emitted = last;
            accepted = std::min(matches, last);
            ended = true;
          }
          const Walked got = walk(drafts, targets, error, last);
          ASSERT_EQ(got.block.accepted, accepted) << m << " " << pattern << " " << error << " " << last;
          ASSERT_EQ(got.block.emitted, emitted);
          ASSERT_EQ(got.block.ended, ended);
          ASSERT_EQ(got.delivered, std::vector<std::int32_t>(targets.begin(), targets.begin() + emitted));
          ++cases;
        }
      }
    }
  }
  EXPECT_GT(cases, 10000);
}

// Spec dflash 11.5: two of seven drafts accepted, three tokens gained.
TEST(VerifyBlock, WorkedExample) {
  const Walked got = walk({11, 12, 13, 14, 15, 16, 17}, {11, 12, 99, 5, 5, 5, 5, 5}, -1, -1);
  EXPECT_EQ(got.delivered, (std::vector<std::int32_t>{11, 12, 99}));
  EXPECT_EQ(got.block.accepted, 2);
  EXPECT_EQ(got.block.emitted, 3);
  EXPECT_EQ(got.rows_sampled, 3);  // rows after the first rejection are not looked at
  SpeculationStats stats;
  stats.record(7, got.block.accepted, got.block.emitted);
  EXPECT_EQ(stats.verify_steps, 1);
  EXPECT_EQ(stats.accepted, 2);
  EXPECT_EQ(stats.accepted_histogram, (std::vector<std::int64_t>{0, 0, 1}));
  EXPECT_DOUBLE_EQ(stats.accept_length(), 3);
}

TEST(SpeculationStats, PoolsCountersAndNotRatios) {
  SpeculationStats a;
  EXPECT_DOUBLE_EQ(a.accept_length(), 1);
  EXPECT_DOUBLE_EQ(a.accept_rate(), 0);
  EXPECT_DOUBLE_EQ(a.survival(1), 0);
  for (int i = 0; i < 3; ++i) a.record(7, 7, 8);
  a.record(2, 1, 2);
  a.record(0, 0, 1);
  SpeculationStats b;
  b.record(7, 0, 1);
  b.add(a);
  EXPECT_EQ(b.verify_steps, 5);
  EXPECT_EQ(b.plain_steps, 1);
  EXPECT_EQ(b.proposed, 30);
  EXPECT_EQ(b.accepted, 22);
  EXPECT_EQ(b.emitted, 27);
  EXPECT_EQ(b.accepted_histogram, (std::vector<std::int64_t>{1, 1, 0, 0, 0, 0, 0, 3}));
  EXPECT_EQ(b.proposed_histogram, (std::vector<std::int64_t>{0, 0, 1, 0, 0, 0, 0, 4}));
  EXPECT_DOUBLE_EQ(b.accept_length(), 1 + 22.0 / 5);
  EXPECT_DOUBLE_EQ(b.accept_rate(), 22.0 / 30);
  EXPECT_DOUBLE_EQ(b.survival(1), 4.0 / 5);
  EXPECT_DOUBLE_EQ(b.survival(3), 3.0 / 4);  // only four steps verified a third draft
  EXPECT_DOUBLE_EQ(b.survival(8), 0);
}

TEST(DraftPolicy, WidthByBatch) {
  const std::vector<BatchWidth> table = {{1, 7}, {4, 5}, {16, 3}, {32, 0}};
  const auto width = [&](int batch) { return batch_width(table, batch, 7); };
  EXPECT_EQ(width(1), 7);
  EXPECT_EQ(width(3), 7);
  EXPECT_EQ(width(4), 5);
  EXPECT_EQ(width(15), 5);
  EXPECT_EQ(width(16), 3);
  EXPECT_EQ(width(31), 3);
  EXPECT_EQ(width(1000), 0);
  EXPECT_EQ(batch_width(table, 1, 2), 2);
  EXPECT_EQ(batch_width({}, 64, 7), 7);
  EXPECT_EQ(batch_width(std::vector<BatchWidth>{{8, 1}}, 7, 7), 7);
}

TEST(DraftPolicy, RowsLeftForDrafts) {
  EXPECT_EQ(drafts_per_request(1, false, 512), 511);
  EXPECT_EQ(drafts_per_request(16, false, 128), 7);
  EXPECT_EQ(drafts_per_request(16, true, 128), 3);  // half of 112 rows stays for prompts
  EXPECT_EQ(drafts_per_request(3, false, 8), 1);
  EXPECT_EQ(drafts_per_request(8, false, 8), 0);
  EXPECT_EQ(drafts_per_request(9, true, 8), 0);
  EXPECT_EQ(drafts_per_request(0, true, 8), 0);
}

TEST(DraftPolicy, ConfidentPrefix) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> confidence = {0.9f, 0.5f, 1.0f, 0.5f};
  EXPECT_EQ(confident_prefix(confidence, 0), 4);
  EXPECT_EQ(confident_prefix(confidence, 0.2), 4);
  EXPECT_EQ(confident_prefix(confidence, 0.4), 3);
  EXPECT_EQ(confident_prefix(confidence, 0.5), 1);
  EXPECT_EQ(confident_prefix(confidence, 0.95), 0);
  EXPECT_EQ(confident_prefix({}, 0.5), 0);
  EXPECT_EQ(confident_prefix(std::vector<float>{1.0f, kNan, 1.0f}, 0.5), 1);
  EXPECT_EQ(confident_prefix(std::vector<float>{1.0f, kNan, 1.0f}, 0), 3);
}

// What a request with a useless drafter does: pauses that grow, a short probe between them.
TEST(AcceptanceWatch, PausesGrowWhileProbesFail) {
  AcceptanceWatch watch(1.3);
  std::vector<int> drafted;  // steps between pauses
  std::vector<int> paused;
  for (int step = 0, run = 0; step < 6000; ++step) {
    const bool was = watch.paused();
    watch.record(was ? 0 : 7, 0);
    ++run;
    if (watch.paused() != was) {
      (was ? paused : drafted).push_back(run);
      run = 0;
    }
  }
  ASSERT_GE(paused.size(), 6u);
  EXPECT_EQ(drafted[0], kJudgedSteps);
  for (std::size_t i = 1; i < drafted.size(); ++i) EXPECT_EQ(drafted[i], kProbeSteps);
  for (std::size_t i = 0; i < paused.size(); ++i) {
    EXPECT_EQ(paused[i], std::min(kFirstPause << i, kLongestPause));
  }
}

TEST(AcceptanceWatch, RecoversAndForgets) {
  AcceptanceWatch watch(1.3);
  int pauses = 0;
  const auto steps = [&](int count, int accepted) {
    for (int i = 0; i < count; ++i) pauses += watch.record(watch.paused() ? 0 : 7, accepted) ? 1 : 0;
  };
  steps(kJudgedSteps, 0);
  ASSERT_TRUE(watch.paused());
  steps(kFirstPause, 0);
  ASSERT_FALSE(watch.paused());
  steps(1000, 3);  // now it helps
  EXPECT_EQ(pauses, 1);
  EXPECT_FALSE(watch.paused());
  steps(2 * kJudgedSteps - 1, 0);
  EXPECT_EQ(pauses, 2);
  EXPECT_TRUE(watch.paused());
  while (watch.paused()) steps(1, 0);
}

TEST(AcceptanceWatch, TheLimitIsTheAcceptLength) {
  for (const auto& [limit, accepted_of_ten, pauses] :
       {std::tuple{1.3, 3, false}, {1.3, 2, true}, {1.0, 0, false}, {0.0, 0, false}, {2.0, 9, true}}) {
    AcceptanceWatch watch(limit);
    bool paused = false;
    for (int i = 0; i < 500; ++i) paused |= watch.record(3, i % 10 < accepted_of_ten ? 1 : 0);
    EXPECT_EQ(paused, pauses) << limit << " " << accepted_of_ten;
  }
  AcceptanceWatch watch(1.3);
  for (int i = 0; i < 500; ++i) EXPECT_FALSE(watch.record(0, 0)) << "steps without drafts say nothing";
}

// A machine on which a step takes fixed + per_row * rows and drafting draft for each request, and a drafter whose
// drafts are right with probability `right` each. Returns tokens a second, the choices' settled width in `width`.
double simulate(double fixed, double per_row, double draft, double right, int batch, int steps, int& width) {
  WidthTuner tuner(7);
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform;
  double seconds = 0;
  double tokens = 0;
  std::vector<int> chosen(8, 0);
  for (int step = 0; step < steps; ++step) {
    const int m = tuner.choose(batch);
    EXPECT_GE(m, 0);
    EXPECT_LE(m, 7);
    if (step > steps / 2) ++chosen[static_cast<std::size_t>(m)];
    for (int b = 0; b < batch; ++b) {
      int accepted = 0;
      while (accepted < m && uniform(random) < right) ++accepted;
      tokens += 1 + accepted;
      if (m > 0) tuner.record_block(m, accepted);
    }
    // Ten per cent of noise.
    const double target = (fixed + per_row * batch * (m + 1)) * (0.95 + 0.1 * uniform(random));
    const double drafting = m > 0 ? draft * batch : 0;
    tuner.record_step(batch * (m + 1), target, m > 0 ? batch : 0, drafting);
    seconds += target + drafting;
  }
  width = static_cast<int>(std::max_element(chosen.begin(), chosen.end()) - chosen.begin());
  return tokens / seconds;
}

TEST(WidthTuner, FindsTheWidthThatPays) {
  struct {
    double fixed, per_row, draft, right;
    int batch, low, high;
  } const cases[] = {
      {1.0, 0.01, 0.05, 0.90, 1, 7, 7},  // rows almost free: all of the block
      {1.0, 0.01, 0.05, 0.00, 1, 0, 0},  // never right
      {0.7, 0.30, 0.10, 0.95, 1, 6, 7},  // a small model on a CPU
      {0.7, 0.30, 0.10, 0.60, 1, 1, 3},  {0.7, 0.30, 0.10, 0.20, 1, 0, 0},
      {1.0, 0.01, 0.01, 0.80, 64, 3, 6},  // a large batch pays for every row
      {1.0, 0.30, 0.30, 0.50, 16, 0, 0},
  };
  for (const auto& c : cases) {
    int width = -1;
    const double rate = simulate(c.fixed, c.per_row, c.draft, c.right, c.batch, 2000, width);
    EXPECT_GE(width, c.low) << c.fixed << " " << c.per_row << " " << c.right << " " << c.batch;
    EXPECT_LE(width, c.high) << c.fixed << " " << c.per_row << " " << c.right << " " << c.batch;
    // C31: never much below what no speculation gives, whatever the drafter is.
    const double plain = c.batch / (c.fixed + c.per_row * c.batch);
    EXPECT_GE(rate, 0.95 * plain) << c.right;
  }
}

// Where drafts do not pay, probes are rare and most of them are for a few requests only.
TEST(WidthTuner, ProbesWithoutDraftsAreCheap) {
  WidthTuner tuner(7);
  int whole = 0;
  int few = 0;
  for (int step = 0; step < 8000; ++step) {
    const int m = tuner.choose(16);
    const int drafted = m == 0 ? 0 : (tuner.probes_few() ? 4 : 16);
    EXPECT_TRUE(m == 0 || !tuner.probes_few() || tuner.probing());
    for (int b = 0; b < drafted; ++b) tuner.record_block(m, 2);
    const int rows = 16 + m * drafted;
    tuner.record_step(rows, 0.1 + 0.13 * rows, drafted, 0.2 * drafted);
    if (step < 100) continue;
    whole += drafted == 16 ? 1 : 0;
    few += drafted == 4 ? 1 : 0;
  }
  EXPECT_GE(few, 10);
  EXPECT_LE(few, 20);
  EXPECT_GE(whole, 3);
  EXPECT_LE(whole, 6);
}

TEST(WidthTuner, FollowsADrafterThatChanges) {
  WidthTuner tuner(7);
  std::mt19937 random(2);
  std::uniform_real_distribution<double> uniform;
  const auto run = [&](double right, int steps) {
    for (int step = 0; step < steps; ++step) {
      const int m = tuner.choose(1);
      int accepted = 0;
      while (accepted < m && uniform(random) < right) ++accepted;
      if (m > 0) tuner.record_block(m, accepted);
      tuner.record_step(m + 1, 1 + 0.05 * (m + 1), m > 0 ? 1 : 0, 0.1);
    }
    return tuner.best(1);
  };
  EXPECT_EQ(run(0.95, 300), 7);
  EXPECT_EQ(run(0.0, 300), 0);
  EXPECT_EQ(run(0.95, 40000), 7) << "probes find out, however rare they have become";
}

// Other processes take the CPU away in one step of five: a drafter that is never right is still found out, and a
// good one is not given up.
TEST(WidthTuner, StepsThatAreHeldUp) {
  for (const double right : {0.0, 0.95}) {
    int wrong = 0;
    for (unsigned seed = 0; seed < 50; ++seed) {
      WidthTuner tuner(7);
      std::mt19937 random(seed);
      std::uniform_real_distribution<double> uniform;
      int drafted = 0;
      for (int step = 0; step < 400; ++step) {
        const int m = tuner.choose(1);
        drafted += m > 0 ? 1 : 0;
        int accepted = 0;
        while (accepted < m && uniform(random) < right) ++accepted;
        if (m > 0) tuner.record_block(m, accepted);
        const double held_up = uniform(random) < 0.2 ? 3 + 6 * uniform(random) : 1;
        tuner.record_step(m + 1, held_up * (0.7 + 0.3 * (m + 1)), m > 0 ? 1 : 0, 0.1 * held_up);
      }
      wrong += right > 0 ? (drafted < 320 ? 1 : 0) : (drafted > 60 ? 1 : 0);
    }
    EXPECT_LE(wrong, 2) << "of 50 runs, drafts right " << right;
  }
}

TEST(StepCost, LinesBetweenTheShortestSteps) {
  StepCost cost;
  EXPECT_EQ(cost.at(4), 0);
  for (int i = 0; i < 50; ++i) cost.add(8, 3.0);
  EXPECT_FALSE(cost.known());
  EXPECT_NEAR(cost.at(8), 3, 1e-9);
  for (int i = 0; i < 3; ++i) cost.add(2, 1.2);
  EXPECT_TRUE(cost.known());
  EXPECT_NEAR(cost.at(5), 2.1, 1e-9) << "between";
  EXPECT_NEAR(cost.at(10), 3.6, 1e-9) << "beyond";
  EXPECT_NEAR(cost.at(1), 0.9, 1e-9) << "before";
  cost.add(8, 20);
  EXPECT_NEAR(cost.at(8), 3, 1e-9) << "one step that was held up says nothing";
  for (int i = 0; i < 8; ++i) cost.add(8, 6);
  EXPECT_NEAR(cost.at(8), 6, 1e-9) << "many do";
  StepCost noise;
  for (int i = 0; i < 50; ++i) noise.add(1 + i % 2, i % 2 == 0 ? 2.0 : 1.0);
  EXPECT_NEAR(noise.at(1), 1, 1e-9) << "not more than a larger step";
  EXPECT_NEAR(noise.at(100), 1, 1e-9);
}

TEST(SpeculationOptions, BatchWidthsAreParsed) {
  const auto widths = parse_batch_widths("1:7,4:5,16:3,32:0");
  ASSERT_TRUE(widths);
  EXPECT_EQ(*widths, (std::vector<BatchWidth>{{1, 7}, {4, 5}, {16, 3}, {32, 0}}));
  EXPECT_EQ(parse_batch_widths("8:0").value(), (std::vector<BatchWidth>{{8, 0}}));
  for (const char* bad : {"", "7", "1:7,", ",1:7", "1:7,1:5", "4:5,1:7", "0:7", "-1:7", "1:-7", "a:b",
                          "1:7:3", "1 :7", "1:99999999999", "1:7;4:5", ":", "1:"}) {
    const auto result = parse_batch_widths(bad);
    ASSERT_FALSE(result) << bad;
    EXPECT_NE(result.error().message.find("expected"), std::string::npos) << result.error().message;
  }
}

TEST(SpeculationOptions, RangesNameTheFlag) {
  const auto refused = [](const SpeculationOptions& options, const std::string& named) {
    const Status status = validate(options, 7);
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find(named), std::string::npos) << status.error().message;
  };
  EXPECT_TRUE(validate({}, 7));
  EXPECT_TRUE(validate({.num_draft_tokens = 7, .batch_widths = {{1, 7}}, .confidence_threshold = 0.99}, 7));
  refused({.num_draft_tokens = 8}, "--speculative-num-draft-tokens: got 8, expected 1 to 7");
  refused({.num_draft_tokens = -1}, "--speculative-num-draft-tokens");
  refused({.batch_widths = {{4, 8}}}, "--speculative-batch-widths 4:8");
  refused({.confidence_threshold = 1}, "--speculative-confidence-threshold: got 1");
  refused({.confidence_threshold = -0.1}, "--speculative-confidence-threshold");
  refused({.confidence_threshold = std::numeric_limits<double>::quiet_NaN()},
          "--speculative-confidence-threshold");
  refused({.max_context = -1}, "--speculative-max-context: got -1");
  refused({.min_accept_length = -1}, "--speculative-min-accept-length");
  refused({.min_accept_length = 9}, "--speculative-min-accept-length: got 9, expected a number from 0 to 8");
}

}  // namespace
}  // namespace mimo
