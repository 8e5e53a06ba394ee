// Attention over paged caches: both backends against exact attention, every page size, mask and cache type,
// with NaN in every slot that no query may read.

#include <gtest/gtest.h>

#include "ops/attention_case.h"
#include "ops/backends.h"
#include "ops/reference/reference_ops.h"

namespace mimo {
namespace {

using namespace mimo::testing;

constexpr int kPageSizes[] = {1, 7, 16, 48, 64, 128, 256};
constexpr KvDType kDTypes[] = {KvDType::kF32, KvDType::kBF16, KvDType::kFp8};

struct Mask {
  const char* name;
  int window;
  bool sinks;
};
constexpr Mask kMasks[] = {{"full", 0, false},
                           {"full with sinks", 0, true},
                           {"window", 128, false},
                           {"window with sinks", 128, true}};

// Activation precision does not concern attention: one backend an instruction set.
std::vector<Backend> attention_backends(int threads = 2) {
  std::vector<Backend> backends = cpu_backends(threads);
  std::erase_if(backends, [](const Backend& b) { return b.precision != ActivationPrecision::kFast; });
  return backends;
}

// Documented in ops/cpu/cpu_ops.h: queries and softmax weights are bf16 where the pair-dot is the fast
// instruction.
bool rounds_to_bf16(const Backend& backend) { return backend.level == CpuLevel::kAvx512; }

std::vector<Ops*> cpu_ops(int threads = 2) {
  std::vector<Ops*> ops;
  for (const Backend& backend : attention_backends(threads)) ops.push_back(backend.ops);
  return ops;
}

std::string describe(const AttentionCase& c) {
  return fmt::format("page {} {} window {} sinks {} heads {}/{}", c.page_size, kv_dtype_name(c.dtype),
                     c.window, c.sinks, c.q_heads, c.kv_heads);
}

// Reference and both instruction sets; returns the largest ratio of error and bound.
double check(const AttentionCase& c, Random& random) {
  SCOPED_TRACE(describe(c));
  const AttentionData data(c, random);
  const ExactAttention exact = exact_attention(data);
  double worst = 0;
  for (const Backend& backend : attention_backends()) {
    const FilledCache cache(*backend.ops, data);
    const double ratio = worst_ratio(cache.attend(), exact, rounds_to_bf16(backend));
    EXPECT_LE(ratio, 1.0) << backend.name();
    worst = std::max(worst, ratio);
  }
  return worst;
}

TEST(Attention, ReferenceIsExact) {
  Random random(1);
  const std::unique_ptr<Ops> reference = make_reference_ops();
  for (const KvDType dtype : kDTypes) {
    for (const Mask& mask : kMasks) {
      for (const int page : {1, 7, 64}) {
        AttentionCase c{.window = mask.window, .sinks = mask.sinks, .page_size = page, .dtype = dtype};
        c.spans = {{1, 1}, {5, 5}, {130, 3}, {257, 2}};
        const AttentionData data(c, random);
        const ExactAttention exact = exact_attention(data);
        const std::vector<float> got = FilledCache(*reference, data).attend();
        for (std::size_t i = 0; i < got.size(); ++i) {
          // Sums in double, values in fp32: one rounding of the result (and of an FP8 value).
          ASSERT_NEAR(got[i], exact.out[i], 4e-7 * (std::fabs(exact.out[i]) + 1)) << describe(c);
        }
      }
    }
  }
}

TEST(Attention, PagesMasksAndTypes) {
  Random random(2);
  double worst = 0;
  int turn = 0;
  constexpr int kHeads[][2] = {{8, 1}, {16, 1}, {8, 2}, {8, 8}};
  constexpr int kLengths[] = {126, 127, 128, 129, 255, 256, 257, 511, 512, 513};
  for (const int page : kPageSizes) {
    for (const KvDType dtype : kDTypes) {
      for (const Mask& mask : kMasks) {
        const auto& heads = kHeads[turn % 4];
        AttentionCase c{.q_heads = heads[0],
                        .kv_heads = heads[1],
                        .window = mask.window,
                        .sinks = mask.sinks,
                        .page_size = page,
                        .dtype = dtype};
        c.spans = {{kLengths[turn % 10], 1},
                   {kLengths[(turn + 3) % 10], 8},
                   {uniform_int(random, 1, 300), 1},
                   {1, 1},
                   {17, 17}};
        if (turn % 7 == 0) c.spans.push_back({64 + uniform_int(random, 0, 200), 64});
        worst = std::max(worst, check(c, random));
        ++turn;
      }
    }
  }
  RecordProperty("worst_ratio", std::to_string(worst));
}

TEST(Attention, EveryLengthTo300) {
  Random random(3);
  for (const Mask& mask : {kMasks[0], kMasks[3]}) {
    for (const int page : {7, 16}) {
      AttentionCase c{.q_heads = 4, .window = mask.window, .sinks = mask.sinks, .page_size = page};
      for (int length = page == 7 ? 1 : 2; length <= 300; length += 2) c.spans.push_back({length, 1});
      check(c, random);
    }
  }
}

TEST(Attention, LongContextAndManyHeads) {
  Random random(4);
  for (const KvDType dtype : kDTypes) {
    AttentionCase c{.q_heads = 16, .page_size = 64, .dtype = dtype, .spans = {{1500, 1}, {1300, 8}}};
    check(c, random);
    c = {.q_heads = 64,
         .kv_heads = 8,
         .window = 128,
         .sinks = true,
         .page_size = 16,
         .dtype = dtype,
         .spans = {{1500, 2}, {200, 40}}};
    check(c, random);
    c = {.q_heads = 64, .kv_heads = 4, .page_size = 128, .dtype = dtype, .spans = {{513, 2}}};
    check(c, random);
  }
}

TEST(Attention, PrefillChunks) {
  Random random(5);
  for (const int page : {16, 7}) {
    for (const KvDType dtype : kDTypes) {
      for (const Mask& mask : {kMasks[0], kMasks[3]}) {
        check({.q_heads = 8,
               .window = mask.window,
               .sinks = mask.sinks,
               .page_size = page,
               .dtype = dtype,
               .spans = {{290, 64}, {70, 70}}},
              random);
      }
    }
  }
}

// Scores as large as sharp heads have: the softmax is nearly one-hot, exponents differ by tens.
TEST(Attention, SharpScores) {
  Random random(6);
  for (const KvDType dtype : kDTypes) {
    for (const float size : {8.0f, 40.0f}) {
      check({.sinks = true, .page_size = 16, .dtype = dtype, .key_size = size, .spans = {{300, 1}, {600, 9}}},
            random);
    }
  }
}

// Other head widths: K even, V a multiple of 32.
TEST(Attention, OtherHeadWidths) {
  Random random(7);
  for (const auto& [qk, v] :
       {std::pair{64, 64}, std::pair{128, 128}, std::pair{100, 32}, std::pair{192, 96}}) {
    for (const KvDType dtype : kDTypes) {
      check({.qk_dim = qk, .v_dim = v, .page_size = 16, .dtype = dtype, .spans = {{75, 3}, {260, 20}}},
            random);
    }
  }
}

// spec model 2.5: logits {1, 2} and sink 1.5 give weights {0.186324, 0.506480}; 0.307196 stays on the sink.
TEST(Attention, WorkedSinkExample) {
  std::vector<Backend> backends = attention_backends();
  const std::unique_ptr<Ops> reference = make_reference_ops();
  backends.push_back({.ops = reference.get()});
  for (const Backend& backend : backends) {
    Ops* ops = backend.ops;
    for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16}) {
      AttentionCase c{.q_heads = 1, .page_size = 16, .dtype = dtype, .value_scale = 1.0f, .spans = {{2, 1}}};
      Random random(1);
      AttentionData data(c, random);
      const std::size_t width = data.width();
      std::fill(data.tokens[0].begin(), data.tokens[0].end(), 0.0f);
      // The query has 1 in one dim; keys have 1 and 2 there; the caller's scale is 1. Values are unit
      // vectors.
      data.tokens[0][width + 3] = 1.0f;
      data.tokens[0][192 + 3] = 1.0f;
      data.tokens[0][width + 192 + 3] = 2.0f;
      data.tokens[0][384 + 0] = 1.0f;
      data.tokens[0][width + 384 + 1] = 1.0f;
      const float sink = 1.5f;
      AttentionSpec spec = data.spec();
      spec.scale = 1.0f;
      const std::vector<float> out = FilledCache(*ops, data).attend(spec, {&sink, 1});
      const double tolerance = rounds_to_bf16(backend) && dtype == KvDType::kBF16 ? 0x1p-9 : 6e-7;
      EXPECT_NEAR(out[0], 0.186324, tolerance);
      EXPECT_NEAR(out[1], 0.506480, tolerance);
      EXPECT_NEAR(1.0 - out[0] - out[1], 0.307196, 2 * tolerance);
      EXPECT_EQ(out[2], 0.0f);
    }
  }
}

// Where queries are rounded to bf16 (never for F32 caches), rounding them before changes nothing; elsewhere a
// change below bf16's resolution is seen.
TEST(Attention, QueriesAreRoundedWhereDocumented) {
  Random random(8);
  for (const KvDType dtype : kDTypes) {
    const AttentionCase c{.page_size = 16, .dtype = dtype, .spans = {{140, 20}}};
    const AttentionData rounded(c, random);
    AttentionData fine = rounded;
    for (std::size_t t = 0; t < 140; ++t) {
      for (std::size_t i = 0; i < 8 * 192; ++i) fine.tokens[0][t * fine.width() + i] *= 1.0f + 0x1p-12f;
    }
    for (const Backend& backend : attention_backends()) {
      const std::vector<float> a = FilledCache(*backend.ops, rounded).attend();
      const std::vector<float> b = FilledCache(*backend.ops, fine).attend();
      EXPECT_EQ(a == b, rounds_to_bf16(backend) && dtype != KvDType::kF32)
          << kv_dtype_name(dtype) << " " << backend.name();
    }
  }
}

// Blocks of a drafter: rows see each other both ways, and a window of the context that starts per row or per
// block; positions before first_key do not exist. 128/128 heads.
std::vector<AttentionCase> block_cases(Random& random, int count) {
  std::vector<AttentionCase> cases;
  for (int i = 0; i < count; ++i) {
    constexpr int kHeads[][2] = {{4, 2}, {8, 1}, {16, 2}, {2, 2}};
    const auto& heads = kHeads[uniform_int(random, 0, 3)];
    AttentionCase c{.q_heads = heads[0],
                    .kv_heads = heads[1],
                    .qk_dim = 128,
                    .v_dim = 128,
                    .window = uniform_int(random, 0, 3) == 0 ? 0 : uniform_int(random, 8, 300),
                    .sinks = uniform_int(random, 0, 2) > 0,
                    .page_size = kPageSizes[uniform_int(random, 0, 6)],
                    .dtype = kDTypes[uniform_int(random, 0, 2)],
                    .value_scale = 0.612f};
    c.bidirectional = true;
    c.per_anchor = uniform_int(random, 0, 1) == 1;
    c.first_key = uniform_int(random, 0, 2) == 0 ? uniform_int(random, 1, 90) : 0;
    const int spans = uniform_int(random, 1, 4);
    for (int s = 0; s < spans; ++s) {
      const int rows = uniform_int(random, 0, 4) == 0 ? uniform_int(random, 1, 70) : 8;
      c.spans.push_back({rows + uniform_int(random, 0, 400), rows});
    }
    cases.push_back(c);
  }
  return cases;
}

TEST(AttentionBlock, EveryBackendFollowsTheMask) {
  Random random(20);
  const std::unique_ptr<Ops> reference = make_reference_ops();
  double worst = 0;
  for (const AttentionCase& c : block_cases(random, 60)) {
    worst = std::max(worst, check(c, random));
    const AttentionData data(c, random);
    const ExactAttention exact = exact_attention(data);
    const std::vector<float> got = FilledCache(*reference, data).attend();
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], exact.out[i], 4e-7 * (std::fabs(exact.out[i]) + 1)) << describe(c);
    }
  }
  RecordProperty("worst_ratio", std::to_string(worst));
}

// A block's bits, alone or among others, on any threads and pages.
TEST(AttentionBlock, DoesNotDependOnTheBatch) {
  Random random(21);
  for (const AttentionCase& c : block_cases(random, 12)) {
    const AttentionData data(c, random);
    for (std::size_t level = 0; level < cpu_ops().size(); ++level) {
      const FilledCache cache(*cpu_ops()[level], data);
      const std::vector<float> whole = cache.attend();
      std::size_t begin = 0;
      for (std::size_t s = 0; s < c.spans.size(); ++s) {
        const std::vector<float> alone = cache.attend_part(s, 0, c.spans[s].rows);
        ASSERT_EQ(std::memcmp(alone.data(), whole.data() + begin, alone.size() * sizeof(float)), 0)
            << describe(c);
        begin += alone.size();
      }
      for (const int threads : {1, 3}) {
        ASSERT_EQ(FilledCache(*cpu_ops(threads)[level], data, 2).attend(), whole) << describe(c);
      }
    }
  }
}

// A causal mask, a window one key off, and the other reading of the window must not fit into the bounds.
TEST(AttentionControl, BlockMasksShow) {
  Random random(22);
  for (const KvDType dtype : kDTypes) {
    AttentionCase c{.q_heads = 4,
                    .kv_heads = 2,
                    .qk_dim = 128,
                    .v_dim = 128,
                    .window = 64,
                    .sinks = true,
                    .dtype = dtype,
                    .spans = {{300, 8}, {128, 8}}};
    c.bidirectional = true;
    const AttentionData data(c, random);
    std::vector<AttentionCase> wrong(5, c);
    wrong[0].bidirectional = false;
    wrong[1].per_anchor = true;
    wrong[2].window = 63;
    wrong[3].window = 65;
    wrong[4].first_key = 70;  // of the second span
    for (const Backend& backend : attention_backends()) {
      const std::vector<float> got = FilledCache(*backend.ops, data).attend();
      const bool bf16 = rounds_to_bf16(backend);
      EXPECT_LE(worst_ratio(got, exact_attention(data), bf16), 1.0);
      for (const AttentionCase& other : wrong) {
        EXPECT_GT(worst_ratio(got, exact_attention(data, other, data.sinks), bf16), 3.0)
            << kv_dtype_name(dtype);
      }
    }
  }
}

// C46: sinks that are dropped, and windows that are one key off, must not fit into the bounds.
TEST(AttentionControl, SinksAndWindowEdgesShow) {
  Random random(9);
  for (const KvDType dtype : kDTypes) {
    const AttentionCase c{
        .window = 128, .sinks = true, .page_size = 16, .dtype = dtype, .spans = {{300, 1}, {200, 8}}};
    const AttentionData data(c, random);
    const ExactAttention no_sinks = exact_attention(data, 128, {});
    const ExactAttention zero_sinks = exact_attention(data, 128, std::vector<float>(8, 0.0f));
    const ExactAttention wider = exact_attention(data, 129, data.sinks);
    const ExactAttention narrower = exact_attention(data, 127, data.sinks);
    for (const Backend& backend : attention_backends()) {
      const std::vector<float> got = FilledCache(*backend.ops, data).attend();
      const bool bf16 = rounds_to_bf16(backend);
      EXPECT_LE(worst_ratio(got, exact_attention(data), bf16), 1.0);
      for (const ExactAttention* wrong : {&no_sinks, &zero_sinks, &wider, &narrower}) {
        EXPECT_GT(worst_ratio(got, *wrong, bf16), 3.0) << kv_dtype_name(dtype);
      }
    }
  }
}

// A row's bits: in one chunk, one by one, in pieces, with other sequences around it, on 1 to 3 threads,
// whatever physical pages hold its keys and however large they are.
TEST(AttentionInvariance, RowsDoNotDependOnTheBatch) {
  Random random(10);
  for (const KvDType dtype : kDTypes) {
    for (const Mask& mask : {kMasks[0], kMasks[3]}) {
      AttentionCase c{.window = mask.window,
                      .sinks = mask.sinks,
                      .page_size = 16,
                      .dtype = dtype,
                      .spans = {{330, 150}, {40, 1}, {520, 5}, {300, 17}}};
      AttentionData data(c, random);
      for (std::size_t level = 0; level < cpu_ops().size(); ++level) {
        Ops* ops = cpu_ops()[level];
        const FilledCache cache(*ops, data);
        const std::vector<float> whole = cache.attend();
        const std::size_t row_floats = 8 * 128;
        std::size_t begin = 0;
        for (std::size_t s = 0; s < c.spans.size(); ++s) {
          for (const int piece : {1, 3, 17, 64}) {
            for (int row = 0; row < c.spans[s].rows; row += piece) {
              const int count = std::min(piece, c.spans[s].rows - row);
              const std::vector<float> part = cache.attend_part(s, row, count);
              ASSERT_EQ(
                  std::memcmp(part.data(), whole.data() + begin + static_cast<std::size_t>(row) * row_floats,
                              part.size() * sizeof(float)),
                  0)
                  << describe(c) << " sequence " << s << " row " << row << " in pieces of " << piece;
            }
          }
          begin += static_cast<std::size_t>(c.spans[s].rows) * row_floats;
        }
        for (const int threads : {1, 3}) {
          ASSERT_EQ(FilledCache(*cpu_ops(threads)[level], data, 2).attend(), whole) << threads << " threads";
        }
        for (const int page : {1, 7, 48, 256}) {
          AttentionCase other = c;
          other.page_size = page;
          Random unused(0);
          AttentionData moved(other, unused);
          moved.tokens = data.tokens;
          ASSERT_EQ(FilledCache(*ops, moved, 3).attend(), whole) << describe(c) << " as page " << page;
        }
      }
    }
  }
}

// Keys and values that are not finite (a draft that will be rejected) are seen by the rows after them: no row
// before them changes a bit, in the same step, tile and page, and no other sequence does.
TEST(AttentionInvariance, NonFiniteTokensStayBehindTheirPosition) {
  Random random(11);
  for (const KvDType dtype : kDTypes) {
    for (const int page : {16, 7}) {
      for (const Mask& mask : {kMasks[0], kMasks[3]}) {
        const AttentionCase c{.window = mask.window,
                              .sinks = mask.sinks,
                              .page_size = page,
                              .dtype = dtype,
                              .spans = {{40, 40}, {30, 30}}};
        const AttentionData clean(c, random);
        const std::size_t width = clean.width();
        const std::size_t row = 8 * 128;
        for (const float bad : {std::nanf(""), HUGE_VALF}) {
          for (const bool value : {false, true}) {
            AttentionData poisoned = clean;
            poisoned.tokens[0][20 * width + 8 * 192 + (value ? 192 : 0) + 5] = bad;
            for (Ops* ops : cpu_ops()) {
              const std::vector<float> a = FilledCache(*ops, clean).attend();
              const std::vector<float> b = FilledCache(*ops, poisoned).attend();
              EXPECT_EQ(std::memcmp(a.data() + 40 * row, b.data() + 40 * row, 30 * row * 4), 0)
                  << describe(c);
              EXPECT_EQ(std::memcmp(a.data(), b.data(), 20 * row * 4), 0)
                  << describe(c) << " value " << value;
              for (std::size_t i = 20; i < 40; ++i) {
                // An infinite key with a negative weight in q takes its own token out and leaves the rest finite.
                const bool may_be_finite = !value && std::isinf(bad);
                ASSERT_TRUE(may_be_finite ? b[i * row + 5] != a[i * row + 5] : !std::isfinite(b[i * row + 5]))
                    << "row " << i << " value " << value << " " << describe(c);
              }
            }
          }
        }
      }
    }
  }
}

// The same at the old end: a value that left the window of later rows, while earlier rows of the step see it.
TEST(AttentionInvariance, NonFiniteTokensLeaveWithTheWindow) {
  Random random(23);
  for (const KvDType dtype : kDTypes) {
    const AttentionCase c{.window = 20, .page_size = 16, .dtype = dtype, .spans = {{60, 30}}};
    const AttentionData clean(c, random);
    AttentionData poisoned = clean;
    poisoned.tokens[0][25 * clean.width() + 8 * 192 + 192 + 5] = std::nanf("");
    const std::size_t row = 8 * 128;
    for (Ops* ops : cpu_ops()) {
      const std::vector<float> a = FilledCache(*ops, clean).attend();
      const std::vector<float> b = FilledCache(*ops, poisoned).attend();
      // Rows 30 .. 44 see position 25, rows 45 .. 59 do not.
      for (std::size_t r = 0; r < 15; ++r) EXPECT_TRUE(std::isnan(b[r * row + 5])) << r;
      EXPECT_EQ(std::memcmp(a.data() + 15 * row, b.data() + 15 * row, 15 * row * 4), 0)
          << kv_dtype_name(dtype);
    }
  }
}

// C51: keys and values from 1e-4 to 1e4 a head come back from an FP8 cache within half a step, without NaN.
TEST(KvCache, Fp8KeepsAWideRangeOfMagnitudes) {
  Random random(12);
  for (Ops* ops : cpu_ops()) {
    for (const int page : {16, 7}) {
      AttentionCase c{.q_heads = 4,
                      .kv_heads = 4,
                      .page_size = page,
                      .dtype = KvDType::kFp8,
                      .value_scale = 1.0f,
                      .spans = {{1, 1}, {1, 1}, {1, 1}}};
      AttentionData data(c, random);
      for (std::size_t s = 0; s < 3; ++s) {
        for (std::size_t h = 0; h < 4; ++h) {
          const float size = std::pow(10.0f, uniform(random, -4.0f, 4.0f));
          for (std::size_t d = 0; d < 128; ++d) data.tokens[s][8 * 192 + h * 128 + d] *= size;
        }
      }
      // One key: the output is its value, times a weight of 1.
      const std::vector<float> out = FilledCache(*ops, data).attend();
      for (std::size_t s = 0; s < 3; ++s) {
        for (std::size_t h = 0; h < 4; ++h) {
          const float* v = data.tokens[s].data() + 8 * 192 + h * 128;
          float top = 0;
          for (std::size_t d = 0; d < 128; ++d) top = std::max(top, std::fabs(v[d]));
          for (std::size_t d = 0; d < 128; ++d) {
            const double got = out[(s * 4 + h) * 128 + d];
            // Half a mantissa step (2^-4), or half a subnormal step of 2^-9 * top / 448; the scale as a bf16
            // weight 2^-8.
            const double bound = std::fabs(v[d]) * (0x1p-4 + 0x1p-8) + top / 448.0 * 0x1p-10;
            ASSERT_NEAR(got, v[d], bound) << "head size " << top;
          }
        }
      }
    }
  }
}

TEST(KvCache, RefusesShapesItCannotHold) {
  Ops& ops = *cpu_ops().front();
  EXPECT_FALSE(ops.make_kv({1, 191, 128, 16, 1, KvDType::kBF16}));
  EXPECT_FALSE(ops.make_kv({1, 192, 100, 16, 1, KvDType::kBF16}));
  EXPECT_FALSE(ops.make_kv({1, 192, 1024, 16, 1, KvDType::kBF16}));
  const Result<std::unique_ptr<KvStore>> no_page = ops.make_kv({1, 192, 128, 0, 1, KvDType::kBF16});
  ASSERT_FALSE(no_page);
  EXPECT_EQ(no_page.error().code, ErrorCode::kInvalidArgument);
}

TEST(KvCache, BytesAreWhatTheTypesSay) {
  for (Ops* ops : cpu_ops()) {
    const std::size_t elements = 10 * 16 * 2 * (192 + 128);
    EXPECT_EQ((*ops->make_kv({2, 192, 128, 16, 10, KvDType::kF32}))->bytes(), elements * 4);
    EXPECT_EQ((*ops->make_kv({2, 192, 128, 16, 10, KvDType::kBF16}))->bytes(), elements * 2);
    EXPECT_EQ((*ops->make_kv({2, 192, 128, 16, 10, KvDType::kFp8}))->bytes(), elements + 10 * 16 * 2 * 2 * 4);
  }
}

}  // namespace
}  // namespace mimo
