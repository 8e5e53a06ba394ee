// Norms, rotation and number conversions of the CPU kernels.

#include <gtest/gtest.h>

#include "ops/backends.h"
#include "ops/cpu/kernels.h"
#include "ops/host_calls.h"
#include "ops/linear_bound.h"
#include "ops/reference/reference_ops.h"
#include "ops/stored_matrix.h"

namespace mimo {
namespace {

using namespace mimo::testing;

TEST(RmsNorm, AgainstExactOverWidthsAndSizes) {
  Random random(1);
  const std::unique_ptr<Ops> reference = make_reference_ops();
  std::vector<Ops*> backends = {reference.get()};
  for (const Backend& backend : cpu_backends()) backends.push_back(backend.ops);
  for (const int width : {1, 15, 16, 17, 100, 4096, 6144}) {
    for (const float size : {1e-4f, 1.0f, 1e4f}) {
      for (const float eps : {1e-6f, 1e-5f}) {
        const int rows = 3;
        const auto w = static_cast<std::size_t>(width);
        const std::vector<float> x = normal_values(random, rows * w, size);
        const std::vector<float> weight = normal_values(random, w, 1.0f);
        for (Ops* ops : backends) {
          std::vector<float> out(x.size());
          HostCalls(*ops).rms_norm(x.data(), rows, weight, eps, out.data());
          std::vector<float> in_place = x;
          HostCalls(*ops).rms_norm(in_place.data(), rows, weight, eps, in_place.data());
          EXPECT_EQ(in_place, out);
          for (std::size_t r = 0; r < rows; ++r) {
            double sum = 0;
            for (std::size_t i = 0; i < w; ++i) sum += std::pow(static_cast<double>(x[r * w + i]), 2);
            const double scale = 1.0 / std::sqrt(sum / width + static_cast<double>(eps));
            for (std::size_t i = 0; i < w; ++i) {
              const double exact = x[r * w + i] * scale * weight[i];
              // The sum of squares has no cancellation: 64 partial chains, then root, quotient and two
              // products.
              const double bound =
                  std::fabs(exact) * kUnit * (6 + kDeviations * std::sqrt(width / 64.0 + 8) / 2);
              ASSERT_NEAR(out[r * w + i], exact, bound) << width << " " << size << " " << ops->name();
            }
          }
        }
      }
    }
  }
}

TEST(RmsNorm, WorkedEpsilon) {
  // mean(x^2) = 1e-6 at x = 1e-3: eps 1e-6 halves the energy, eps 1e-5 leaves 1/11 of it.
  const std::vector<float> x(64, 1e-3f);
  const std::vector<float> weight(64, 2.0f);
  for (const Backend& backend : cpu_backends()) {
    std::vector<float> out(64);
    HostCalls(*backend.ops).rms_norm(x.data(), 1, weight, 1e-6f, out.data());
    EXPECT_NEAR(out[63], 2.0 / std::sqrt(2.0), 1e-6);
    HostCalls(*backend.ops).rms_norm(x.data(), 1, weight, 1e-5f, out.data());
    EXPECT_NEAR(out[0], 2.0 / std::sqrt(11.0), 1e-6);
  }
}

TEST(RmsNorm, RowsAreIndependent) {
  Random random(2);
  const std::vector<float> x = normal_values(random, 50 * 96, 1.0f);
  const std::vector<float> weight = normal_values(random, 96, 1.0f);
  for (const int threads : {1, 2, 3}) {
    for (const Backend& backend : cpu_backends(threads)) {
      std::vector<float> all(x.size());
      HostCalls(*backend.ops).rms_norm(x.data(), 50, weight, 1e-6f, all.data());
      for (std::size_t r = 0; r < 50; ++r) {
        std::vector<float> one(96);
        HostCalls(*backend.ops).rms_norm(x.data() + r * 96, 1, weight, 1e-6f, one.data());
        ASSERT_EQ(std::memcmp(one.data(), all.data() + r * 96, 96 * 4), 0);
      }
    }
  }
}

// Norm of single heads inside wider rows: the bits of the plain norm on each head, nothing else touched.
TEST(RmsNorm, HeadsOfAFusedRow) {
  Random random(4);
  const std::unique_ptr<Ops> reference = make_reference_ops();
  std::vector<Ops*> backends = {reference.get()};
  for (const Backend& backend : cpu_backends()) backends.push_back(backend.ops);
  for (const int width : {128, 40}) {
    for (const int heads : {0, 1, 3}) {
      const auto w = static_cast<std::size_t>(width);
      const std::size_t row = 5 * w + 7;
      const int rows = 37;
      const std::vector<float> before = normal_values(random, rows * row, 2.0f);
      const std::vector<float> weight = normal_values(random, w, 1.0f);
      for (Ops* ops : backends) {
        std::vector<float> got = before;
        HostCalls(*ops).rms_norm_heads(got.data() + w, row, rows, heads, weight, 1e-6f);
        std::vector<float> expected = before;
        for (int r = 0; r < rows; ++r) {
          for (int h = 1; h <= heads; ++h) {
            float* head =
                expected.data() + static_cast<std::size_t>(r) * row + static_cast<std::size_t>(h) * w;
            HostCalls(*ops).rms_norm(head, 1, weight, 1e-6f, head);
          }
        }
        EXPECT_EQ(got, expected) << ops->name();
      }
    }
  }
}

TEST(BestTokens, LargestLowestOnTiesWithItsProbability) {
  Random random(5);
  const std::unique_ptr<Ops> reference = make_reference_ops();
  std::vector<Ops*> backends = {reference.get()};
  for (const Backend& backend : cpu_backends()) backends.push_back(backend.ops);
  for (const int count : {1, 5, 15, 16, 17, 100, 4096, 4111}) {
    const int rows = 6;
    const std::size_t stride = static_cast<std::size_t>(count) + 9;
    std::vector<float> logits = normal_values(random, rows * stride, 3.0f);
    // Padding columns would win if they were read.
    for (std::size_t r = 0; r < rows; ++r)
      std::fill(logits.begin() + static_cast<std::ptrdiff_t>(r * stride) + count,
                logits.begin() + static_cast<std::ptrdiff_t>((r + 1) * stride), r == 3 ? NAN : 1e30f);
    // Ties: the last column and one before it.
    logits[stride + static_cast<std::size_t>(count) - 1] = 50.0f;
    logits[stride + static_cast<std::size_t>(count / 3)] = 50.0f;
    logits[2 * stride + static_cast<std::size_t>(count / 2)] = -200.0f;
    logits[4 * stride + static_cast<std::size_t>(count) - 1] = count % 2 == 0 ? NAN : INFINITY;
    logits[5 * stride] = -INFINITY;
    for (Ops* ops : backends) {
      std::vector<std::int32_t> ids(rows, -1);
      std::vector<float> p(rows, -1.0f);
      HostCalls(*ops).best_tokens(logits.data(), stride, rows, count, ids.data(), p.data());
      for (std::size_t r = 0; r < 4; ++r) {
        const float* row = logits.data() + r * stride;
        const float* best = std::max_element(row, row + count);
        double total = 0;
        for (int i = 0; i < count; ++i) total += std::exp(static_cast<double>(row[i]) - *best);
        EXPECT_EQ(ids[r], best - row) << ops->name() << " " << count;
        EXPECT_NEAR(p[r] * total, 1.0, 3e-6) << ops->name() << " " << count;
      }
      EXPECT_TRUE(std::isnan(p[4])) << ops->name() << " " << count;
      EXPECT_TRUE(std::isnan(p[5])) << ops->name() << " " << count;
    }
  }
}

// C48: the rotation of queries and keys at positions up to the longest context, both thetas, with fp32
// angles; the dims behind the rotated ones keep their bits.
TEST(Rope, RotatesQueriesAndKeysAtAllPositions) {
  Random random(3);
  const std::unique_ptr<Ops> reference = make_reference_ops();
  std::vector<Ops*> backends = {reference.get()};
  for (const Backend& backend : cpu_backends()) backends.push_back(backend.ops);
  const AttentionSpec spec{.q_heads = 3, .kv_heads = 1, .qk_dim = 192, .v_dim = 128, .scale = 1.0f};
  const std::size_t width = 4 * 192 + 128;
  for (const float theta : {1e4f, 1e7f}) {
    for (const int dims : {64, 40}) {
      for (const int position : {0, 1, 127, 128, 4095, 32767, 131071, 262143}) {
        const int half = dims / 2;
        std::vector<float> cos;
        std::vector<float> sin;
        for (int i = 0; i < half; ++i) {
          const float frequency =
              1.0f / std::pow(theta, static_cast<float>(2 * i) / static_cast<float>(dims));
          cos.push_back(std::cos(static_cast<float>(position) * frequency));
          sin.push_back(std::sin(static_cast<float>(position) * frequency));
        }
        const std::vector<float> before = normal_values(random, width, 2.0f);
        for (Ops* ops : backends) {
          const std::unique_ptr<KvStore> kv = std::move(*ops->make_kv({1, 192, 128, 16, 1, KvDType::kF32}));
          // Only the last page of the table exists.
          std::vector<std::int32_t> pages(static_cast<std::size_t>(position / 16 + 1), -1);
          pages.back() = 0;
          std::vector<float> qkv = before;
          const SequenceRows rows{0, 1, position, pages};
          HostCalls(*ops).rope_and_store_kv(qkv.data(), width, {&rows, 1}, spec, {theta, dims}, 0.707f, *kv);
          for (std::size_t h = 0; h < 4; ++h) {
            const float* a = before.data() + h * 192;
            const float* got = qkv.data() + h * 192;
            for (int i = 0; i < half; ++i) {
              const double c = cos[static_cast<std::size_t>(i)];
              const double s = sin[static_cast<std::size_t>(i)];
              const double size = std::fabs(a[i]) + std::fabs(a[i + half]);
              ASSERT_NEAR(got[i], a[i] * c - a[i + half] * s, 2 * kUnit * size) << position;
              ASSERT_NEAR(got[i + half], a[i + half] * c + a[i] * s, 2 * kUnit * size) << position;
            }
            ASSERT_EQ(std::memcmp(got + dims, a + dims, static_cast<std::size_t>(192 - dims) * 4), 0);
          }
        }
      }
    }
  }
}

// The kernels' conversions against core/number_formats.h, the definition.
TEST(Conversions, Fp8ToBf16OfEveryCode) {
  for (const CpuLevel level : cpu_levels()) {
    const CpuKernels& kernels = cpu_kernels(level);
    std::vector<std::uint8_t> codes(256 + 5);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
    for (const std::size_t count : {std::size_t{1}, std::size_t{15}, std::size_t{33}, codes.size()}) {
      std::vector<std::uint16_t> out(codes.size() + 1, 0xABCD);
      kernels.fp8_to_bf16(codes.data(), static_cast<std::int64_t>(count), out.data());
      for (std::size_t i = 0; i < count; ++i) {
        const float expected = e4m3_to_float(codes[i]);
        const float got = bf16_to_float(out[i]);
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(got)) << i;
        } else {
          EXPECT_EQ(got, expected) << i;
          EXPECT_EQ(std::signbit(got), std::signbit(expected)) << i;
        }
      }
      EXPECT_EQ(out[count], 0xABCD) << "past the end";
    }
  }
}

TEST(Conversions, ToBf16RoundsToNearestEven) {
  Random random(4);
  std::vector<float> x = {0.0f,
                          -0.0f,
                          1.0f,
                          std::bit_cast<float>(0x3F808000u),
                          std::bit_cast<float>(0x3F818000u),
                          3.3e38f,
                          INFINITY,
                          -INFINITY,
                          std::nanf("")};
  while (x.size() < 4099) {
    // Any normal bit pattern, of which a quarter lie on ties.
    std::uint32_t bits = static_cast<std::uint32_t>(random());
    if (random() % 4 == 0) bits = (bits & 0xFFFF0000u) | 0x8000u;
    const float value = std::bit_cast<float>(bits);
    if (std::isnormal(value)) x.push_back(value);
  }
  for (const CpuLevel level : cpu_levels()) {
    std::vector<std::uint16_t> out(x.size());
    cpu_kernels(level).to_bf16(x.data(), static_cast<std::int64_t>(x.size()), 1.0f, out.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        EXPECT_TRUE(std::isnan(bf16_to_float(out[i])));
      } else {
        ASSERT_EQ(out[i], float_to_bf16(x[i])) << x[i];
      }
    }
    // The factor is applied in fp32 before the one rounding.
    cpu_kernels(level).to_bf16(x.data() + 9, 100, 0.707f, out.data());
    for (std::size_t i = 0; i < 100; ++i) {
      const float product = x[9 + i] * 0.707f;
      if (std::isnormal(product)) {
        ASSERT_EQ(out[i], float_to_bf16(product));
      }
    }
  }
}

TEST(Conversions, ToFp8EqualsTheDefinition) {
  Random random(5);
  for (const CpuLevel level : cpu_levels()) {
    const CpuKernels& kernels = cpu_kernels(level);
    // 448 first: the scale is 1 and codes are those of the numbers themselves; codes, ties and their
    // neighbours.
    std::vector<float> x = {448.0f};
    for (int code = 0; code < 0x7E; ++code) {
      const float low = e4m3_to_float(static_cast<std::uint8_t>(code));
      const float middle = (low + e4m3_to_float(static_cast<std::uint8_t>(code + 1))) / 2;
      for (const float value : {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
        x.push_back(value);
        x.push_back(-value);
      }
    }
    while (x.size() < 20000)
      x.push_back(std::ldexp(uniform(random, -1.0f, 1.0f), uniform_int(random, -14, 8)));
    std::vector<std::uint8_t> out(x.size());
    EXPECT_EQ(kernels.to_fp8(x.data(), static_cast<std::int64_t>(x.size()), 1.0f, out.data()), 1.0f);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(out[i], float_to_e4m3(x[i])) << x[i];
    // Any scale, lengths with a tail, a factor.
    for (const int count : {1, 7, 128, 192}) {
      const std::vector<float> y = normal_values(random, static_cast<std::size_t>(count), 37.0f);
      const float scale = kernels.to_fp8(y.data(), count, 0.612f, out.data());
      float top = 0;
      for (const float value : y) top = std::max(top, std::fabs(value * 0.612f));
      EXPECT_EQ(scale, top / 448.0f);
      for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(out[i], float_to_e4m3(y[i] * 0.612f / scale));
    }
    // spec model 3.3: max|x| = 3.5 has scale 0.0078125; zeros have the least scale; what is not finite is not
    // hidden.
    const std::vector<float> worked = {1.0f, -3.5f, 0.25f};
    EXPECT_EQ(kernels.to_fp8(worked.data(), 3, 1.0f, out.data()), 0.0078125f);
    const std::vector<float> zeros(20, 0.0f);
    EXPECT_EQ(kernels.to_fp8(zeros.data(), 20, 1.0f, out.data()), 1e-10f / 448.0f);
    EXPECT_EQ(out[19], 0);
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
      std::vector<float> poisoned(20, 1.0f);
      poisoned[17] = bad;
      EXPECT_TRUE(std::isnan(kernels.to_fp8(poisoned.data(), 20, 1.0f, out.data())));
    }
  }
}

// C96: the choice of instruction set is an error message, never an illegal instruction.
TEST(CpuLevels, UnknownNamesAreRefused) {
  const ScopedCpuLevel scope("sse9");
  const Result<std::unique_ptr<Ops>> ops = make_cpu_ops({.threads = 1});
  ASSERT_FALSE(ops);
  EXPECT_EQ(ops.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(ops.error().message.find("sse9"), std::string::npos);
}

TEST(CpuLevels, LowerLevelIsUsedAndNamed) {
  const std::unique_ptr<Ops> ops = make_cpu(CpuLevel::kAvx2);
  EXPECT_NE(ops->describe().front().find("avx2"), std::string::npos) << ops->describe().front();
}

}  // namespace
}  // namespace mimo
