// The passes of the sampler over a whole row of logits. Each exists twice, for AVX2 and for any x86-64, from
// one source; both give the same bits: integer maxima do not depend on order, and sums are taken in one fixed
// tree.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <span>

namespace mimo {

// Logits are looked at in blocks of this many: small enough that the maxima of blocks separate the largest
// logits from the rest, large enough that a block costs a few instructions beside its elements.
inline constexpr int kLogitBlock = 64;

inline int logit_blocks(std::size_t n) { return static_cast<int>((n + kLogitBlock - 1) / kLogitBlock); }

// An integer with the order of floats: NaN with the sign bit < -inf < ... < -0 = +0 < ... < +inf < NaN.
constexpr std::int32_t order_key(float x) {
  const auto bits = std::bit_cast<std::int32_t>(x + 0.0f);  // the sum turns -0 into +0
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

constexpr float key_value(std::int32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff)); }

inline constexpr std::int32_t kMinusInfinityKey = order_key(-std::numeric_limits<float>::infinity());
inline constexpr std::int32_t kPlusInfinityKey = order_key(std::numeric_limits<float>::infinity());

struct LogitKeyRange {
  std::int32_t low = std::numeric_limits<std::int32_t>::max();
  std::int32_t high = std::numeric_limits<std::int32_t>::min();
};

// Writes the largest key of each block to block_high[logit_blocks(n)] and returns the range over all.
LogitKeyRange scan_keys(std::span<const float> logits, std::int32_t* block_high);

// Writes sum of softmax_weight(x, maximum, inverse_temperature) over each block to block_sum[logit_blocks(n)]
// and returns their sum.
double sum_weights(std::span<const float> logits, float maximum, float inverse_temperature, float* block_sum);

// exp((x - maximum) * inverse_temperature) for finite x <= maximum and x = -inf, within 2e-7 of its value for
// the rounded product; 0 where that is below -87.7 (the end of normal floats).
float softmax_weight(float x, float maximum, float inverse_temperature);

// The same for every element, in place.
void softmax_weights(std::span<float> x, float maximum, float inverse_temperature);

// The versions for any x86-64; what the functions above use where there is no AVX2.
namespace portable {
LogitKeyRange scan_keys(std::span<const float> logits, std::int32_t* block_high);
double sum_weights(std::span<const float> logits, float maximum, float inverse_temperature, float* block_sum);
void softmax_weights(std::span<float> x, float maximum, float inverse_temperature);
}  // namespace portable

}  // namespace mimo
