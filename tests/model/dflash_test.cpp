// The DFlash drafter against the plain equations, and what must not matter: how its context was cut into
// chunks, which drafts were rejected, who shares the batch, and what its pages held before.

#include "model/dflash.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "model/dflash_rig.h"
#include "model/plain_drafter.h"
#include "ops/backends.h"
#include "ops/reference/reference_ops.h"

namespace mimo {
namespace {

using namespace mimo::testing;

constexpr std::int32_t kAnchor = 77;

std::vector<float> random_taps(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> taps(count);
  for (float& tap : taps) tap = normal(random);
  return taps;
}

std::unique_ptr<Ops> fast_cpu(int threads = 2) {
  return unwrap(make_cpu_ops({.threads = threads, .pin = false}));
}
std::unique_ptr<Ops> exact_cpu() {
  return unwrap(make_cpu_ops({.threads = 2, .pin = false, .precision = ActivationPrecision::kExact}));
}

double relative_error(const std::vector<float>& got, const std::vector<PlainDrafter::Row>& expected) {
  double error = 0;
  double total = 0;
  std::size_t at = 0;
  for (const PlainDrafter::Row& row : expected) {
    for (const double value : row) {
      const double difference = got.at(at++) - value;
      error += difference * difference;
      total += value * value;
    }
  }
  EXPECT_EQ(at, got.size());
  return std::sqrt(error / total);
}

struct Variant {
  const char* name;
  DrafterShape shape;
  bool per_anchor = false;
};

std::vector<Variant> variants() {
  std::vector<Variant> all = {{"MiMo", {}}, {"MiMo per anchor", {}, true}};
  all.push_back(
      {"plain public drafter", {.rotary_factor = 1.0, .window = 0, .sinks = false, .value_scale = 1.0}});
  all.push_back({"causal sliding", {.layers = 2, .q_heads = 2, .kv_heads = 2, .window = 24, .causal = true}});
  all.push_back({"16 rows, one tap", {.layers = 1, .block = 16, .window = 16, .taps = {6}}});
  return all;
}

// Largest relative errors measured: reference 2.5e-7, exact 8e-7, fast 3.1% (int8, BF16 cache).
void compare_with_equations(const std::function<std::unique_ptr<Ops>()>& make, KvDType kv, double bound,
                            const std::vector<int>& page_sizes) {
  for (const Variant& variant : variants()) {
    const TinyDrafter tiny(variant.shape);
    for (const int page_size : page_sizes) {
      DFlashRig rig(make(), tiny,
                    {.page_size = page_size,
                     .kv = kv,
                     .window_start = variant.per_anchor ? WindowStart::kAnchor : WindowStart::kRow,
                     .poison = true});
      PlainDrafter plain(tiny);
      plain.per_anchor = variant.per_anchor;
      const std::vector<float> taps = random_taps(5, 70 * rig.tap_width());
      const std::unique_ptr<DraftState> state = rig.open();
      for (const int length : {0, 1, 5, 38, 39, 40, 41, 47, 48, 70}) {
        rig.observe(*state, taps, plain.length(), length, 3);
        while (plain.length() < length)
          plain.observe(taps.data() + static_cast<std::size_t>(plain.length()) * rig.tap_width());
        EXPECT_LT(relative_error(rig.block(*state, kAnchor, length), plain.block(rig.embedding(kAnchor))),
                  bound)
            << variant.name << " page " << page_size << " length " << length;
      }
    }
  }
}

TEST(DFlash, ReferenceFollowsTheEquations) {
  compare_with_equations([] { return make_reference_ops(); }, KvDType::kF32, 2e-6, {7});
}
TEST(DFlash, CpuExactFollowsTheEquations) { compare_with_equations(exact_cpu, KvDType::kF32, 5e-6, {5, 16}); }
TEST(DFlash, CpuFastFollowsTheEquations) {
  // Every matrix rounds weights to a 96th and activations to a 127th of the largest of 64 (0.7% and 0.6% of its
  // output), and errors add up over layers; the kernels are held to their own bounds in tests/ops.
  compare_with_equations([] { return fast_cpu(); }, KvDType::kBF16, 0.035, {16});
}

// Traps 9 and 10: context and block turn their keys by the same angles at every position of a long request.
TEST(DFlash, HighPositions) {
  const TinyDrafter tiny{DrafterShape{.layers = 2}};
  DFlashRig rig(make_reference_ops(), tiny, {.max_tokens = 1 << 21, .kv = KvDType::kF32, .poison = true});
  const std::vector<float> taps = random_taps(5, 44 * rig.tap_width());
  for (const int origin : {1, 1023, 32760, 262143 - 40, 1048568 - 40}) {
    PlainDrafter plain(tiny);
    plain.origin = origin;
    for (int i = 0; i < 44; ++i) plain.observe(taps.data() + static_cast<std::size_t>(i) * rig.tap_width());
    const std::unique_ptr<DraftState> state = rig.open(1 << 20);
    const DraftObservation seen{state.get(), 0, 44, origin, {}};
    rig.drafter().observe({&seen, 1}, taps);
    EXPECT_LT(relative_error(rig.block(*state, kAnchor, origin + 44), plain.block(rig.embedding(kAnchor))),
              2e-6)
        << origin;
  }
}

// What would be wrong by the equations is far outside the bounds above.
TEST(DFlashControl, EveryFeatureShows) {
  const TinyDrafter tiny{DrafterShape{}};
  DFlashRig rig(exact_cpu(), tiny, {.kv = KvDType::kF32});
  const std::vector<float> taps = random_taps(5, 60 * rig.tap_width());
  const std::unique_ptr<DraftState> state = rig.open();
  rig.observe(*state, taps, 0, 60);
  const std::vector<float> got = rig.block(*state, kAnchor, 60);
  const auto error = [&](const std::function<void(TinyDrafter&)>& change, bool per_anchor = false) {
    TinyDrafter wrong = tiny;
    change(wrong);
    PlainDrafter plain(wrong);
    plain.per_anchor = per_anchor;
    for (int i = 0; i < 60; ++i) plain.observe(taps.data() + static_cast<std::size_t>(i) * rig.tap_width());
    return relative_error(got, plain.block(rig.embedding(kAnchor)));
  };
  EXPECT_LT(error([](TinyDrafter&) {}), 5e-6);
  EXPECT_GT(error([](TinyDrafter& d) { d.shape.sinks = false; }), 1e-2);
  EXPECT_GT(error([](TinyDrafter& d) { d.shape.value_scale = 1.0; }), 1e-2);
  EXPECT_GT(error([](TinyDrafter& d) { d.shape.value_scale = 0.6133; }), 1e-4);  // the constant in BF16
  EXPECT_GT(error([](TinyDrafter& d) { d.shape.rotary_factor = 1.0; }), 1e-2);
  EXPECT_GT(error([](TinyDrafter& d) { d.shape.rope_theta = 5e6; }), 1e-2);
  EXPECT_GT(error([](TinyDrafter& d) { d.shape.causal = true; }), 1e-2);
  EXPECT_GT(error([](TinyDrafter& d) { d.shape.window = 41; }), 1e-3);
  EXPECT_GT(error([](TinyDrafter& d) { d.shape.window = 39; }), 1e-3);
  EXPECT_GT(error([](TinyDrafter&) {}, true), 1e-3);
  EXPECT_GT(error([](TinyDrafter& d) { std::fill(d.mask.begin(), d.mask.end(), 0.0f); }), 1e-2);
}

// Position p - (W - 1) is seen by the row at p and p - W by none (or p - W by all, read per anchor): changing
// what was tapped there tells, bit for bit.
TEST(DFlash, WindowEdges) {
  const TinyDrafter tiny{DrafterShape{}};
  for (const WindowStart start : {WindowStart::kRow, WindowStart::kAnchor}) {
    DFlashRig rig(fast_cpu(), tiny, {.window_start = start});
    const std::vector<float> taps = random_taps(6, 300 * rig.tap_width());
    for (const int length : {45, 60, 64, 257, 300}) {
      const auto run = [&](int changed) {
        std::vector<float> mine = taps;
        if (changed >= 0) mine[static_cast<std::size_t>(changed) * rig.tap_width() + 3] += 5.0f;
        const std::unique_ptr<DraftState> state = rig.open();
        rig.observe(*state, mine, 0, length);
        return rig.block(*state, kAnchor, length);
      };
      const std::vector<float> clean = run(-1);
      const int oldest = start == WindowStart::kRow ? length - 39 : length - 40;
      EXPECT_FALSE(same_bits(clean, run(oldest))) << length;
      EXPECT_TRUE(same_bits(clean, run(oldest - 1))) << length;
      EXPECT_FALSE(same_bits(clean, run(length - 1))) << length;
    }
  }
}

// Random accepts over many windows, with drafts in between that leave block keys behind: at every step the same
// bits as a fresh state that saw the committed rows only, all of them or just those that are needed.
TEST(DFlash, AcceptPatternsLeaveNoTrace) {
  for (const int page_size : {7, 16, 32}) {
    DrafterShape shape;
    shape.window = 24;
    DFlashRig rig(fast_cpu(), TinyDrafter(shape),
                  {.max_requests = 3, .page_size = page_size, .poison = true});
    const std::vector<float> taps = random_taps(7, 400 * rig.tap_width());
    std::mt19937_64 random(static_cast<std::uint64_t>(page_size));
    const std::unique_ptr<DraftState> state = rig.open();
    std::int64_t length = 11;
    rig.observe(*state, taps, 0, length, 4);
    int step = 0;
    for (; length < 24 * 6 + 40; ++step) {
      const auto anchor = static_cast<std::int32_t>(step % 900);
      const std::vector<float> got = rig.block(*state, anchor, length);
      for (const std::int64_t first : {std::int64_t{0}, rig.drafter().first_needed(length)}) {
        const std::unique_ptr<DraftState> fresh = rig.open();
        rig.observe(*fresh, taps, first, length);
        ASSERT_TRUE(same_bits(rig.block(*fresh, anchor, length), got))
            << "page " << page_size << " length " << length << " from " << first;
      }
      // Every number of accepted drafts in turn, then at random.
      const auto accepted = step < 8 ? step : static_cast<int>(random() % 8);
      rig.observe(*state, taps, length, length + accepted + 1);
      length += accepted + 1;
    }
    EXPECT_GT(step, 20);
  }
}

// Positions that are never observed: the same bits as a state that begins behind them.
TEST(DFlash, LeftOutPositionsStartTheContextAgain) {
  for (const int page_size : {7, 16, 32}) {
    DrafterShape shape;
    shape.window = 24;
    DFlashRig rig(fast_cpu(), TinyDrafter(shape),
                  {.max_requests = 2, .page_size = page_size, .poison = true});
    const std::vector<float> taps = random_taps(17, 700 * rig.tap_width());
    const std::unique_ptr<DraftState> state = rig.open();
    std::int64_t length = 0;
    for (const int gap : {1, 6, 23, 24, 33, 70, 150}) {
      rig.observe(*state, taps, length, length + 40, 9);
      length += 40;
      (void)rig.block(*state, kAnchor, length);
      const std::int64_t first = length + gap;
      length = first + 1 + gap % 30;
      rig.observe(*state, taps, first, length, 5);
      const std::unique_ptr<DraftState> fresh = rig.open();
      rig.observe(*fresh, taps, first, length);
      ASSERT_TRUE(same_bits(rig.block(*fresh, kAnchor, length), rig.block(*state, kAnchor, length)))
          << "page " << page_size << " gap " << gap << " length " << length;
    }
  }
}

TEST(DFlash, ChunksOfTheContextDoNotMatter) {
  const TinyDrafter tiny{DrafterShape{}};
  for (const bool full : {false, true}) {
    DrafterShape shape;
    shape.window = full ? 0 : 300;
    DFlashRig rig(fast_cpu(), TinyDrafter(shape), {.max_requests = 2, .max_tokens = 1000});
    const std::vector<float> taps = random_taps(8, 700 * rig.tap_width());
    const auto run = [&](std::int64_t chunk) {
      const std::unique_ptr<DraftState> state = rig.open(900);
      rig.observe(*state, taps, 0, 700, chunk);
      return rig.block(*state, kAnchor, 700);
    };
    const std::vector<float> whole = run(1000);  // cut into pieces inside
    for (const int chunk : {1, 7, 64, 255, 256, 400}) EXPECT_TRUE(same_bits(run(chunk), whole)) << chunk;
  }
}

// Requests of different lengths in one draft, observed together: the bits of each alone.
TEST(DFlash, RequestsDoNotDependOnEachOther) {
  const TinyDrafter tiny{DrafterShape{}};
  for (const int threads : {1, 2, 3}) {
    DFlashRig rig(fast_cpu(threads), tiny, {.max_requests = 12, .poison = true});
    const std::vector<float> taps = random_taps(9, 400 * rig.tap_width());
    const std::vector<int> lengths = {1, 40, 41, 130, 255, 300};
    const std::vector<std::size_t> counts = {7, 1, 3, 7, 2, 5};
    std::vector<std::unique_ptr<DraftState>> states;
    std::vector<DraftObservation> seen;
    std::vector<float> step_taps;
    for (const int length : lengths) {
      states.push_back(rig.open());
      rig.observe(*states.back(), taps, 0, length - 1);
      // The last row of all of them in one call, in a step with a foreign row before each.
      step_taps.resize(step_taps.size() + rig.tap_width(), std::nanf(""));
      const auto at = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(length - 1) * rig.tap_width());
      seen.push_back({states.back().get(), static_cast<int>(2 * seen.size() + 1), 1, length - 1, {}});
      step_taps.insert(step_taps.end(), taps.begin() + at,
                       taps.begin() + at + static_cast<std::ptrdiff_t>(rig.tap_width()));
    }
    rig.drafter().observe(seen, step_taps);
    std::vector<std::vector<std::int32_t>> drafts;
    std::vector<std::vector<float>> confidence;
    std::vector<DraftRequest> requests;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      drafts.emplace_back(counts[i], -1);
      confidence.emplace_back(counts[i], -1.0f);
    }
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      requests.push_back(
          {states[i].get(), static_cast<std::int32_t>(i), lengths[i], drafts[i], confidence[i]});
    }
    rig.drafter().draft(requests);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      EXPECT_FALSE(requests[i].failed);
      const std::unique_ptr<DraftState> alone = rig.open();
      rig.observe(*alone, taps, 0, lengths[i]);
      std::vector<std::int32_t> ids(7);
      std::vector<float> p(7);
      DraftRequest one{alone.get(), static_cast<std::int32_t>(i), lengths[i], ids, p};
      rig.drafter().draft({&one, 1});
      ids.resize(counts[i]);
      p.resize(counts[i]);
      EXPECT_EQ(drafts[i], ids);
      EXPECT_TRUE(same_bits(confidence[i], p));
    }
  }
}

// The head is the target's; ids stop at the vocabulary that was allowed; confidence is the softmax there.
TEST(DFlash, DraftsAreTheBestOfTheTargetsHead) {
  const TinyDrafter tiny{DrafterShape{}};
  for (const int vocab : {0, 1000, 100, 1}) {
    DFlashRig rig(make_reference_ops(), tiny, {.vocab = vocab});
    const std::vector<float> taps = random_taps(10, 20 * rig.tap_width());
    const std::unique_ptr<DraftState> state = rig.open();
    rig.observe(*state, taps, 0, 20);
    const std::vector<float> rows = rig.block(*state, kAnchor, 20);
    std::vector<float> logits(7 * 1024);
    rig.target().lm_head(reinterpret_cast<const Act*>(rows.data()), 7, logits.data());
    std::vector<std::int32_t> ids(7);
    std::vector<float> confidence(7);
    DraftRequest request{state.get(), kAnchor, 20, ids, confidence};
    rig.drafter().draft({&request, 1});
    EXPECT_FALSE(request.failed);
    for (std::size_t i = 0; i < 7; ++i) {
      const float* row = logits.data() + i * 1024;
      const int limit = vocab == 0 ? 1024 : vocab;
      const auto best = std::max_element(row, row + limit);
      double total = 0;
      for (int j = 0; j < limit; ++j) total += std::exp(static_cast<double>(row[j]) - *best);
      EXPECT_EQ(ids[i], best - row);
      EXPECT_NEAR(confidence[i], 1.0 / total, 1e-6);
    }
  }
}

// A tap that is not finite ends drafting of its request until the window has passed it, and touches no other.
TEST(DFlash, NonFiniteContextFailsItsRequestOnly) {
  const TinyDrafter tiny{DrafterShape{}};
  for (const float bad : {std::nanf(""), INFINITY}) {
    DFlashRig rig(fast_cpu(), tiny, {.max_requests = 3});
    const std::vector<float> taps = random_taps(11, 200 * rig.tap_width());
    std::vector<float> poisoned = taps;
    poisoned[20 * rig.tap_width() + 9] = bad;
    const std::unique_ptr<DraftState> good = rig.open();
    const std::unique_ptr<DraftState> ill = rig.open();
    rig.observe(*good, taps, 0, 30);
    rig.observe(*ill, poisoned, 0, 30);
    std::vector<std::int32_t> a(7, -1);
    std::vector<std::int32_t> b(7, -1);
    std::vector<std::int32_t> expected(7);
    std::vector<float> confidence(7);
    DraftRequest requests[] = {{ill.get(), kAnchor, 30, a, confidence},
                               {good.get(), kAnchor, 30, b, confidence}};
    rig.drafter().draft(requests);
    EXPECT_TRUE(requests[0].failed);
    EXPECT_EQ(a, std::vector<std::int32_t>(7, -1));
    EXPECT_FALSE(requests[1].failed);
    DraftRequest alone{good.get(), kAnchor, 30, expected, confidence};
    rig.drafter().draft({&alone, 1});
    EXPECT_EQ(b, expected);
    rig.observe(*ill, poisoned, 30, 100);
    const std::unique_ptr<DraftState> fresh = rig.open();
    rig.observe(*fresh, taps, 0, 100);
    EXPECT_TRUE(same_bits(rig.block(*ill, kAnchor, 100), rig.block(*fresh, kAnchor, 100)));
  }
}

// A tail taken at any position is as good as having observed everything before it; a new state goes on from there.
TEST(DFlash, ATailIsAsGoodAsTheContext) {
  for (const int page_size : {1, 5, 16, 64}) {
    const TinyDrafter tiny{DrafterShape{}};
    DFlashRig rig(exact_cpu(), tiny,
                  {.max_requests = 2, .page_size = page_size, .kv = KvDType::kF32, .poison = true});
    const std::vector<float> taps = random_taps(5, 150 * rig.tap_width());
    for (const std::int64_t position : {1, 7, 39, 40, 41, 64, 100, 128}) {
      const std::unique_ptr<DraftState> all = rig.open();
      rig.observe(*all, taps, 0, position + 3, 4);  // the drafter has gone a little further
      const std::shared_ptr<const DraftTail> tail = rig.drafter().save(*all, position);
      ASSERT_NE(tail, nullptr) << "page " << page_size << ", position " << position;
      EXPECT_LE(tail->bytes(), rig.drafter().tail_bytes());
      const std::unique_ptr<DraftState> resumed = rig.open();
      rig.drafter().restore(*resumed, *tail);
      rig.observe(*resumed, taps, position, position + 3);
      EXPECT_TRUE(
          same_bits(rig.block(*resumed, kAnchor, position + 3), rig.block(*all, kAnchor, position + 3)))
          << "page " << page_size << ", position " << position;
      rig.observe(*all, taps, position + 3, 140);
      rig.observe(*resumed, taps, position + 3, 140);
      EXPECT_TRUE(same_bits(rig.block(*resumed, kAnchor, 140), rig.block(*all, kAnchor, 140)));
      // What is no longer in the ring, or was never observed, is not handed out.
      EXPECT_EQ(rig.drafter().save(*all, 141), nullptr);
      if (position + 60 < 140 && page_size < 16) {
        EXPECT_EQ(rig.drafter().save(*all, position), nullptr);
      }
    }
    const std::unique_ptr<DraftState> fresh = rig.open();
    EXPECT_EQ(rig.drafter().save(*fresh, 5), nullptr);
  }
}

TEST(DFlash, ADrafterWithoutAWindowKeepsNoTails) {
  const TinyDrafter tiny{DrafterShape{.rotary_factor = 1.0, .window = 0, .sinks = false}};
  DFlashRig rig(exact_cpu(), tiny, {.kv = KvDType::kF32});
  const std::unique_ptr<DraftState> state = rig.open();
  rig.observe(*state, random_taps(5, 20 * rig.tap_width()), 0, 20);
  EXPECT_EQ(rig.drafter().save(*state, 16), nullptr);
  EXPECT_EQ(rig.drafter().tail_bytes(), 0u);
}

// C32: who had the pages before does not matter. Also context that begins in the middle (a cached prefix that
// was never observed).
TEST(DFlash, PagesOfAnEarlierRequestDoNotMatter) {
  const TinyDrafter tiny{DrafterShape{}};
  DFlashRig rig(fast_cpu(), tiny, {});
  const std::vector<float> taps = random_taps(12, 300 * rig.tap_width());
  const auto run = [&](DFlashRig& where, std::int64_t first) {
    const std::unique_ptr<DraftState> state = where.open();
    where.observe(*state, taps, first, 250);
    return where.block(*state, kAnchor, 250);
  };
  DFlashRig other(fast_cpu(), tiny, {.poison = true});
  for (const std::int64_t first : {0, 245, 220}) {
    const std::vector<float> expected = run(other, first);
    for (const float value : expected) ASSERT_TRUE(std::isfinite(value));
    EXPECT_TRUE(same_bits(run(rig, first), expected));
    const std::unique_ptr<DraftState> earlier = rig.open();
    rig.observe(*earlier, taps, 0, 300);
  }
}

// Angles are relative: the same context 4096 positions later drafts the same up to the rounding of fp32 angles.
TEST(DFlash, PositionsShiftTogether) {
  const TinyDrafter tiny{DrafterShape{}};
  DFlashRig rig(exact_cpu(), tiny, {.kv = KvDType::kF32});
  const std::vector<float> taps = random_taps(13, 50 * rig.tap_width());
  std::vector<std::vector<float>> rows;
  for (const std::int64_t shift : {0, 4096}) {
    const std::unique_ptr<DraftState> state = rig.open(8000);
    const DraftObservation seen{state.get(), 0, 50, shift, {}};
    rig.drafter().observe({&seen, 1}, taps);
    rows.push_back(rig.block(*state, kAnchor, 50 + shift));
  }
  double error = 0;
  double total = 0;
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    error += std::pow(static_cast<double>(rows[0][i]) - rows[1][i], 2);
    total += std::pow(static_cast<double>(rows[0][i]), 2);
  }
  EXPECT_LT(std::sqrt(error / total), 2e-3);
  EXPECT_GT(error, 0);
}

TEST(DFlash, StatesAreCountedAndComeBack) {
  const TinyDrafter tiny{DrafterShape{}};
  DFlashRig rig(fast_cpu(), tiny, {.max_requests = 2, .max_tokens = 500});
  // ceil((40 + 8) / 16) + 1 pages of 3 layers, 2 heads, 128 + 128 values in BF16.
  EXPECT_EQ(rig.drafter().state_bytes(), 4u * 16 * 3 * 2 * 256 * 2);
  EXPECT_GT(rig.drafter().weight_bytes(), 0u);
  EXPECT_STREQ(rig.drafter().name(), "DFLASH");
  EXPECT_EQ(rig.drafter().max_drafts(), 7);
  EXPECT_EQ(rig.drafter().first_needed(1000), 1000 - 48);
  EXPECT_EQ(rig.drafter().first_needed(30), 0);
  std::unique_ptr<DraftState> a = rig.open(500);
  std::unique_ptr<DraftState> b = rig.open(500);
  const auto none = rig.drafter().open(500);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kLimit);
  EXPECT_NE(none.error().message.find("0 pages are free"), std::string::npos) << none.error().message;
  a.reset();
  b.reset();
  // Short requests take what they need: 4 pages are four requests of one page.
  std::vector<std::unique_ptr<DraftState>> small;
  for (int i = 0; i < 8; ++i) small.push_back(rig.open(8));
  EXPECT_FALSE(rig.drafter().open(8));
  EXPECT_FALSE(rig.drafter().open(501));
  EXPECT_FALSE(rig.drafter().open(0));
}

TEST(DFlash, RefusesAnIncompleteDirectory) {
  const TinyDrafter tiny{DrafterShape{}};
  DFlashRig rig(fast_cpu(), tiny, {});
  const auto message = [&](const TinyDrafter& drafter, const DFlashDrafter::Options& options) {
    const TempDir dir;
    drafter.write(dir.path());
    const auto loaded = DFlashDrafter::load(dir.path(), rig.target(), rig.ops(), options);
    return loaded ? std::string() : loaded.error().message;
  };
  EXPECT_EQ(message(tiny, {}), "");
  TinyDrafter changed = tiny;
  changed.mask_bytes.clear();
  EXPECT_NE(message(changed, {}).find("mask_embedding.pt: missing"), std::string::npos);
  changed = tiny;
  changed.mask_bytes = mask_file(1022, tiny.mask);
  EXPECT_NE(message(changed, {}).find("mask_token_id is 1022, config.json says 1023"), std::string::npos);
  changed = tiny;
  changed.tensors.erase("layers.2.self_attn.attention_sink_bias");
  EXPECT_NE(message(changed, {}).find("tensor layers.2.self_attn.attention_sink_bias is missing"),
            std::string::npos);
  // Trap 48: a matrix with a value that is not finite.
  changed = tiny;
  changed.tensors["layers.1.mlp.up_proj.weight"].bytes[0] = 0xC0;
  changed.tensors["layers.1.mlp.up_proj.weight"].bytes[1] = 0x7F;
  EXPECT_NE(message(changed, {}).find("layers.1.mlp.up_proj.weight"), std::string::npos);
  EXPECT_NE(message(tiny, {.max_requests = 0}), "");
  EXPECT_NE(message(tiny, {.vocab = 1025}), "");
}

TEST(DFlash, TapsFollowTheLayerIds) {
  const TinyDrafter tiny{DrafterShape{}};
  DFlashRig pre(make_reference_ops(), tiny, {});
  EXPECT_EQ(std::vector<int>(pre.drafter().taps().begin(), pre.drafter().taps().end()),
            (std::vector<int>{1, 4, 7}));
  DFlashRig post(make_reference_ops(), tiny, {.final_tap = DFlashDrafter::FinalTap::kPostNorm});
  EXPECT_EQ(std::vector<int>(post.drafter().taps().begin(), post.drafter().taps().end()),
            (std::vector<int>{1, 4, 8}));
}

}  // namespace
}  // namespace mimo
