// The MTP drafter, which keeps and repairs what it has computed, against a plain version that starts over for
// every draft.

#include "model/mtp.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <random>
#include <stdexcept>

#include "model/plain_mtp.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/reference/reference_ops.h"

namespace mimo {
namespace {

using mimo::testing::PlainMtp;

constexpr int kHeads = 3;
constexpr int kWindow = 16;
constexpr int kVocab = 200;

ModelConfig small_config() {
  ModelConfig config = load_config(std::string(MIMO_SOURCE_DIR) + "/models/tiny").value();
  config.vocab = kVocab;
  config.mtp_heads = kHeads;
  config.window.window = kWindow;
  config.layers = 1;
  config.layer_kinds.resize(1);
  config.layer_is_moe.resize(1);
  config.intermediate = 256;
  return config;
}

struct World {
  explicit World(std::unique_ptr<Ops> backend, MtpDrafter::Options options = {}) : ops(std::move(backend)) {
    source = open_random(small_config(), 7).value();
    target = std::make_unique<TargetModel>(TargetModel::load(*source, *ops, {}).value());
    drafter = MtpDrafter::load(*source, *target, *ops, options).value();
  }
  std::unique_ptr<Ops> ops;
  std::unique_ptr<WeightSource> source;
  std::unique_ptr<TargetModel> target;
  std::unique_ptr<MtpDrafter> drafter;
};

// One request: made-up states and tokens of every position, and how far it has got.
struct Sequence {
  Sequence(unsigned seed, int length, std::size_t hidden) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    for (int i = 0; i < length; ++i) {
      tokens.push_back(static_cast<std::int32_t>(random() % kVocab));
      g.emplace_back(hidden);
      for (float& x : g.back()) x = normal(random);
    }
  }

  // Observes positions [at, at + rows); `junk` rows stand before them in the taps.
  void observe(MtpDrafter& drafter, int rows, int junk = 0) {
    const std::size_t hidden = g.front().size();
    std::vector<float> taps(static_cast<std::size_t>(junk) * hidden, std::numeric_limits<float>::quiet_NaN());
    for (int i = 0; i < rows; ++i) {
      const auto& row = g[at + static_cast<std::size_t>(i)];
      taps.insert(taps.end(), row.begin(), row.end());
    }
    DraftObservation seen;
    seen.state = state.get();
    seen.row_begin = junk;
    seen.rows = rows;
    seen.position = static_cast<std::int64_t>(at);
    seen.tokens = std::span(tokens).subspan(at, static_cast<std::size_t>(rows) + 1);
    drafter.observe({&seen, 1}, taps);
    at += static_cast<std::size_t>(rows);
  }

  DraftRequest ask(int count) {
    drafts.assign(static_cast<std::size_t>(count), -1);
    confidence.assign(static_cast<std::size_t>(count), -1.0f);
    return {state.get(), tokens[at], static_cast<std::int64_t>(at), drafts, confidence};
  }

  // Skips what the drafter does not want of a prompt and `missing` rows more, then observes the rest of it in
  // chunks.
  void prefill(MtpDrafter& drafter, int prompt, int chunk, int missing = 0) {
    state = drafter.open(static_cast<std::int64_t>(tokens.size())).value();
    first = static_cast<std::size_t>(drafter.first_needed(prompt) + missing);
    at = first;
    while (at < static_cast<std::size_t>(prompt)) {
      observe(drafter, std::min(chunk, prompt - static_cast<int>(at)), chunk % 3);
    }
  }

  std::vector<std::int32_t> tokens;
  std::vector<std::vector<float>> g;
  std::unique_ptr<DraftState> state;
  std::size_t first = 0;
  std::size_t at = 0;  // position of the anchor
  std::vector<std::int32_t> drafts;
  std::vector<float> confidence;
};

class MtpTwin : public ::testing::TestWithParam<int> {};

// Prompts shorter and longer than the window, blocks of every length, any number accepted, and stretches
// without drafts, through several turns of the ring. Pages hold NaN before they are written.
TEST_P(MtpTwin, EveryDraftEqualsAFreshComputation) {
  const int page = GetParam();
  World world(make_reference_ops(),
              {.max_requests = 1, .page_size = page, .kv = KvDType::kF32, .poison = true});
  const PlainMtp plain(*world.source);
  const auto hidden = static_cast<std::size_t>(world.target->config().hidden);
  std::mt19937 random(static_cast<unsigned>(page));
  // The last one as after a prompt of which only the end was run: its window fills up as it goes.
  for (const auto& [prompt, missing] : {std::pair{1, 0}, {5, 0}, {16, 0}, {17, 0}, {60, 0}, {61, 11}}) {
    Sequence sequence(static_cast<unsigned>(prompt), 140, hidden);
    sequence.prefill(*world.drafter, prompt, 7, missing);
    for (int round = 0; round < 9; ++round) {
      const int count = 1 + static_cast<int>(random() % kHeads);
      DraftRequest request = sequence.ask(round % 2 == 0 ? kHeads : count);
      world.drafter->draft({&request, 1});
      ASSERT_FALSE(request.failed);
      const auto expected = plain.draft(sequence.g, sequence.tokens, sequence.at, sequence.first,
                                        static_cast<int>(sequence.drafts.size()));
      for (std::size_t k = 0; k < expected.size(); ++k) {
        ASSERT_EQ(sequence.drafts[k], expected[k].token)
            << "prompt " << prompt << " anchor " << sequence.at << " head " << k;
        ASSERT_NEAR(sequence.confidence[k], expected[k].probability, 1e-4 * expected[k].probability);
      }
      // Up to three drafts accepted; once in a while a stretch that was decoded without drafts.
      const int step = 1 + static_cast<int>(random() % (kHeads + 1));
      sequence.observe(*world.drafter, round == 5 ? 23 : step, round);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PageSizes, MtpTwin, ::testing::Values(1, 4, 16, 64));

// Positions that are never observed: as of a request that begins behind them.
TEST_P(MtpTwin, LeftOutPositionsStartAgain) {
  const int page = GetParam();
  World world(make_reference_ops(),
              {.max_requests = 1, .page_size = page, .kv = KvDType::kF32, .poison = true});
  const PlainMtp plain(*world.source);
  Sequence sequence(4, 300, static_cast<std::size_t>(world.target->config().hidden));
  sequence.prefill(*world.drafter, 9, 4);
  for (const int gap : {1, 3, 15, 16, 17, 40, 100}) {
    for (int round = 0; round < 2; ++round) {
      DraftRequest request = sequence.ask(kHeads);
      world.drafter->draft({&request, 1});
      const auto expected = plain.draft(sequence.g, sequence.tokens, sequence.at, sequence.first, kHeads);
      for (std::size_t k = 0; k < kHeads; ++k) {
        ASSERT_EQ(sequence.drafts[k], expected[k].token) << "gap before " << gap << " head " << k;
      }
      sequence.observe(*world.drafter, 2);
    }
    sequence.at += static_cast<std::size_t>(gap);
    sequence.first = sequence.at;
    sequence.observe(*world.drafter, 1 + gap % 7);
  }
}

// Half of the accepted tokens equal the drafts: rows that needed no repair.
TEST(Mtp, AcceptedDraftsNeedNoRepair) {
  World world(make_reference_ops(), {.page_size = 4, .kv = KvDType::kF32});
  const PlainMtp plain(*world.source);
  Sequence sequence(3, 100, static_cast<std::size_t>(world.target->config().hidden));
  sequence.prefill(*world.drafter, 12, 5);
  for (int accepted = 0; accepted <= kHeads; ++accepted) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      DraftRequest request = sequence.ask(kHeads);
      world.drafter->draft({&request, 1});
      const auto expected = plain.draft(sequence.g, sequence.tokens, sequence.at, sequence.first, kHeads);
      for (int k = 0; k < kHeads; ++k) {
        ASSERT_EQ(sequence.drafts[static_cast<std::size_t>(k)], expected[static_cast<std::size_t>(k)].token);
      }
      for (int i = 0; i < accepted; ++i) {
        sequence.tokens[sequence.at + 1 + static_cast<std::size_t>(i)] =
            sequence.drafts[static_cast<std::size_t>(i)];
      }
      sequence.observe(*world.drafter, accepted + 1);
    }
  }
}

// On the CPU kernels, with a request's own results independent of what is drafted beside it.
TEST(Mtp, RequestsOfABatchDoNotTouchEachOther) {
  const auto run = [](bool together) {
    World world(make_cpu_ops({.threads = 2, .pin = false}).value(),
                {.max_requests = 3, .page_size = 8, .kv = KvDType::kBF16, .poison = true});
    const auto hidden = static_cast<std::size_t>(world.target->config().hidden);
    std::vector<Sequence> sequences;
    for (unsigned i = 0; i < 3; ++i) sequences.emplace_back(i, 120, hidden);
    for (int i = 0; i < 3; ++i) sequences[static_cast<std::size_t>(i)].prefill(*world.drafter, 3 + 20 * i, 9);
    std::vector<std::int32_t> ids;
    std::vector<float> confidence;
    for (int round = 0; round < 10; ++round) {
      std::vector<DraftRequest> requests;
      for (int i = 0; i < 3; ++i) {
        requests.push_back(sequences[static_cast<std::size_t>(i)].ask(1 + (round + i) % kHeads));
      }
      if (together) {
        world.drafter->draft(requests);
      } else {
        for (DraftRequest& request : requests) world.drafter->draft({&request, 1});
      }
      for (int i = 0; i < 3; ++i) {
        Sequence& sequence = sequences[static_cast<std::size_t>(i)];
        ids.insert(ids.end(), sequence.drafts.begin(), sequence.drafts.end());
        confidence.insert(confidence.end(), sequence.confidence.begin(), sequence.confidence.end());
        sequence.observe(*world.drafter, 1 + (round * (i + 1)) % 4);
      }
    }
    return std::pair{ids, confidence};
  };
  EXPECT_EQ(run(true), run(false));
}

// The CPU kernels in exact mode give the plain version's drafts.
TEST(Mtp, CpuKernels) {
  World world(make_cpu_ops({.threads = 2, .pin = false, .precision = ActivationPrecision::kExact}).value(),
              {.page_size = 16, .kv = KvDType::kF32});
  const PlainMtp plain(*world.source);
  Sequence sequence(9, 100, static_cast<std::size_t>(world.target->config().hidden));
  sequence.prefill(*world.drafter, 30, 11);
  for (int round = 0; round < 12; ++round) {
    DraftRequest request = sequence.ask(kHeads);
    world.drafter->draft({&request, 1});
    const auto expected = plain.draft(sequence.g, sequence.tokens, sequence.at, sequence.first, kHeads);
    for (std::size_t k = 0; k < kHeads; ++k) {
      EXPECT_EQ(sequence.drafts[k], expected[k].token) << "round " << round << " head " << k;
      EXPECT_NEAR(sequence.confidence[k], expected[k].probability, 0.01 * expected[k].probability);
    }
    sequence.observe(*world.drafter, 1 + round % 4);
  }
}

// C32: a request that takes over the pages of another drafts as on a fresh drafter.
TEST(Mtp, ASlotIsCleanForTheNextRequest) {
  const auto hidden = static_cast<std::size_t>(small_config().hidden);
  const auto drafts_of = [&](MtpDrafter& drafter) {
    Sequence sequence(50, 60, hidden);
    sequence.prefill(drafter, 6, 6);
    std::vector<float> all;
    for (int round = 0; round < 5; ++round) {
      DraftRequest request = sequence.ask(kHeads);
      drafter.draft({&request, 1});
      all.insert(all.end(), sequence.drafts.begin(), sequence.drafts.end());
      all.insert(all.end(), sequence.confidence.begin(), sequence.confidence.end());
      sequence.observe(drafter, 2);
    }
    return all;
  };
  World fresh(make_reference_ops());
  World used(make_reference_ops());
  {
    Sequence before(1, 120, hidden);
    before.prefill(*used.drafter, 90, 30);
    DraftRequest request = before.ask(kHeads);
    used.drafter->draft({&request, 1});
  }
  EXPECT_EQ(drafts_of(*used.drafter), drafts_of(*fresh.drafter));
}

// A request that begins on a tail drafts like one that has observed those rows itself, whatever follows them.
TEST(Mtp, ATailIsAsGoodAsTheContext) {
  for (const int page : {1, 4, 64}) {
    World world(make_reference_ops(),
                {.max_requests = 2, .page_size = page, .kv = KvDType::kF32, .poison = true});
    const PlainMtp plain(*world.source);
    const auto hidden = static_cast<std::size_t>(world.target->config().hidden);
    for (const std::size_t cut : {1u, 7u, 30u, 58u}) {
      Sequence earlier(5, 140, hidden);
      earlier.prefill(*world.drafter, static_cast<int>(cut), 7);
      earlier.observe(*world.drafter, 2);
      const auto tail = world.drafter->save(*earlier.state, static_cast<std::int64_t>(cut));
      ASSERT_NE(tail, nullptr);
      EXPECT_LE(tail->bytes(), world.drafter->tail_bytes());
      EXPECT_EQ(world.drafter->save(*earlier.state, static_cast<std::int64_t>(cut) + 3), nullptr);

      Sequence later(5, 140, hidden);
      const Sequence other(6, 140, hidden);
      std::copy(other.tokens.begin() + static_cast<std::ptrdiff_t>(cut), other.tokens.end(),
                later.tokens.begin() + static_cast<std::ptrdiff_t>(cut));
      std::copy(other.g.begin() + static_cast<std::ptrdiff_t>(cut), other.g.end(),
                later.g.begin() + static_cast<std::ptrdiff_t>(cut));
      later.state = world.drafter->open(140).value();
      world.drafter->restore(*later.state, *tail);
      const int kept = static_cast<int>(cut) + 2 - kWindow;
      later.first = static_cast<std::size_t>(std::max(kept, 0));
      later.at = cut;
      for (int round = 0; round < 12; ++round) {
        later.observe(*world.drafter, 1 + round % 4, round % 2);
        DraftRequest request = later.ask(kHeads);
        world.drafter->draft({&request, 1});
        ASSERT_FALSE(request.failed);
        const auto expected = plain.draft(later.g, later.tokens, later.at, later.first, kHeads);
        for (std::size_t k = 0; k < expected.size(); ++k) {
          ASSERT_EQ(later.drafts[k], expected[k].token)
              << "page " << page << ", cut " << cut << ", round " << round << ", head " << k;
        }
      }
    }
    Sequence fresh(5, 140, hidden);
    fresh.state = world.drafter->open(140).value();
    EXPECT_EQ(world.drafter->save(*fresh.state, 1), nullptr);
  }
}

// A state that is not finite switches off its own request and no other.
TEST(Mtp, NumbersThatAreNotFiniteFailTheirRequestOnly) {
  World world(make_reference_ops(), {.max_requests = 2});
  const auto hidden = static_cast<std::size_t>(world.target->config().hidden);
  Sequence good(1, 60, hidden);
  Sequence bad(2, 60, hidden);
  bad.g[9][3] = std::numeric_limits<float>::quiet_NaN();
  good.prefill(*world.drafter, 10, 10);
  bad.prefill(*world.drafter, 10, 10);
  DraftRequest requests[] = {bad.ask(kHeads), good.ask(kHeads)};
  world.drafter->draft(requests);
  EXPECT_TRUE(requests[0].failed);
  EXPECT_FALSE(requests[1].failed);
  World alone(make_reference_ops());
  Sequence same(1, 60, hidden);
  same.prefill(*alone.drafter, 10, 10);
  DraftRequest request = same.ask(kHeads);
  alone.drafter->draft({&request, 1});
  EXPECT_EQ(good.drafts, same.drafts);
}

TEST(Mtp, OnlyTokensOfTheVocabularyAreDrafted) {
  World world(make_reference_ops(), {.vocab = 5});
  Sequence sequence(4, 60, static_cast<std::size_t>(world.target->config().hidden));
  sequence.prefill(*world.drafter, 10, 10);
  for (int round = 0; round < 8; ++round) {
    DraftRequest request = sequence.ask(kHeads);
    world.drafter->draft({&request, 1});
    for (const std::int32_t id : sequence.drafts) EXPECT_LT(id, 5);
    sequence.observe(*world.drafter, 1);
  }
}

TEST(Mtp, HeadsAndLimits) {
  World world(make_reference_ops(), {.heads = 2, .max_requests = 2});
  EXPECT_EQ(world.drafter->max_drafts(), 2);
  EXPECT_EQ(std::string(world.drafter->name()), "MTP");
  ASSERT_EQ(world.drafter->taps().size(), 1u);
  EXPECT_EQ(world.drafter->taps()[0], world.target->config().layers + 1);
  EXPECT_EQ(world.drafter->first_needed(10), 0);
  EXPECT_EQ(world.drafter->first_needed(100), 100 - kWindow);
  EXPECT_GT(world.drafter->weight_bytes(), 0u);
  EXPECT_GT(world.drafter->state_bytes(), 0u);

  auto first = world.drafter->open(100);
  auto second = world.drafter->open(100);
  ASSERT_TRUE(first && second);
  const auto third = world.drafter->open(100);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, ErrorCode::kLimit);
  first->reset();
  EXPECT_TRUE(world.drafter->open(100));

  const auto more = MtpDrafter::load(*world.source, *world.target, *world.ops, {.heads = 4});
  ASSERT_FALSE(more);
  EXPECT_NE(more.error().message.find("got 4 drafts a step, expected 1 to 3"), std::string::npos)
      << more.error().message;

  ModelConfig without = small_config();
  without.mtp_heads = 0;
  const std::unique_ptr<WeightSource> source = open_random(without, 1).value();
  const auto none = MtpDrafter::load(*source, *world.target, *world.ops, {});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_NE(none.error().message.find("no MTP heads"), std::string::npos);
}

}  // namespace
}  // namespace mimo
