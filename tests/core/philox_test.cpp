#include "core/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace mimo {
namespace {

// The three "philox4x32 10" rows of the known-answer file of Random123 1.14.0.
TEST(Philox, MatchesThePublishedKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The layout of key and counter is part of the promise that a seed gives the same text in every release.
TEST(Philox, UniformIsTheTop53BitsOfTheFirstTwoWords) {
  EXPECT_EQ(philox_uniform(0, 0), static_cast<double>(0xe169c58d6627e8d5ull >> 11) / 9007199254740992.0);
  EXPECT_EQ(philox_uniform(0x299f31d0a4093822ull, static_cast<std::int64_t>(0x85a308d3243f6a88ull),
                           0x0370734413198a2eull),
            static_cast<double>(0x94fdccebd16cfe09ull >> 11) / 9007199254740992.0);
}

TEST(Philox, EveryArgumentCounts) {
  std::set<double> seen;
  for (const std::uint64_t seed : {0ull, 1ull, 1ull << 32, ~0ull}) {
    for (const std::int64_t position : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 32}) {
      for (const std::uint64_t stream : {0ull, 1ull, 1ull << 32}) {
        EXPECT_TRUE(seen.insert(philox_uniform(seed, position, stream)).second) << seed << " " << position;
      }
    }
  }
}

TEST(Philox, UniformsAreUniformAndNeighboursUncorrelated) {
  constexpr int kDraws = 200000;
  constexpr int kCells = 100;
  for (const std::uint64_t seed : {0ull, 42ull, 0xfedcba9876543210ull}) {
    std::vector<int> cell(kCells);
    std::vector<double> u(kDraws), next_seed(kDraws);
    for (int i = 0; i < kDraws; ++i) {
      u[i] = philox_uniform(seed, i);
      next_seed[i] = philox_uniform(seed + 1, i);
      ASSERT_GE(u[i], 0.0);
      ASSERT_LT(u[i], 1.0);
      ++cell[static_cast<int>(u[i] * kCells)];
    }
    double chi2 = 0;
    for (const int n : cell) chi2 += std::pow(n - kDraws / kCells, 2) / (kDraws / kCells);
    EXPECT_LT(chi2, 160.0);  // 99 degrees of freedom: probability 1e-4

    // Correlation of independent uniforms: standard deviation 1/sqrt(n); five of them allowed.
    const auto correlation = [&](const std::vector<double>& other, int lag) {
      double sum = 0;
      for (int i = 0; i + lag < kDraws; ++i) sum += (u[i] - 0.5) * (other[i + lag] - 0.5);
      return sum * 12 / (kDraws - lag);
    };
    for (const int lag : {1, 2, 64}) EXPECT_LT(std::abs(correlation(u, lag)), 5 / std::sqrt(kDraws)) << lag;
    EXPECT_LT(std::abs(correlation(next_seed, 0)), 5 / std::sqrt(kDraws));
  }
}

TEST(Philox, ChoiceSeedsDifferAndTheFirstIsTheRequests) {
  std::set<std::uint64_t> seeds;
  for (std::uint32_t i = 0; i < 128; ++i) EXPECT_TRUE(seeds.insert(philox_choice_seed(7, i)).second);
  EXPECT_EQ(philox_choice_seed(7, 0), 7u);
  EXPECT_EQ(seeds.count(philox_choice_seed(8, 1)), 0u);
}

}  // namespace
}  // namespace mimo
