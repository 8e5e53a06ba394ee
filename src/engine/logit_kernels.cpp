#include "engine/logit_kernels.h"

#include <algorithm>
#include <array>

// The bodies below are inlined into one function for each instruction set, where the compiler vectorises
// them.
#define MIMO_INLINE inline __attribute__((always_inline))

namespace mimo {
namespace {

// exp(t) for t <= 0: t = n ln 2 + r with |r| <= 0.35, Taylor series of degree 7 (remainder 6e-9), exponent n
// set by bits. Only additions, multiplications and integer operations: the same bits on every machine.
MIMO_INLINE float exp_weight(float t) {
  // At least -88, where n is -127 and its exponent bits are those of 0. Done on the bits, which for negative
  // numbers grow with the magnitude: GCC 12 makes a branch of the comparison of floats and then does not
  // vectorise.
  t = std::bit_cast<float>(std::min(std::bit_cast<std::uint32_t>(t), std::bit_cast<std::uint32_t>(-88.0f)));
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: added, it leaves the integer in the low mantissa bits
  constexpr float kLn2High = 0.693359375f;    // 10 bits, so that n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;  // the rest of ln 2
  const float shifted = t * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (t - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3f800000u;
  return p * std::bit_cast<float>(exponent);
}

MIMO_INLINE LogitKeyRange scan_block(const float* x) {
  LogitKeyRange range;
  for (int i = 0; i < kLogitBlock; ++i) {
    const std::int32_t key = order_key(x[i]);
    range.low = std::min(range.low, key);
    range.high = std::max(range.high, key);
  }
  return range;
}

MIMO_INLINE float sum_block(const float* x, float maximum, float inverse_temperature) {
  float w[kLogitBlock];
  for (int i = 0; i < kLogitBlock; ++i) w[i] = exp_weight((x[i] - maximum) * inverse_temperature);
  for (int i = 0; i < 32; ++i) w[i] += w[i + 32];
  for (int i = 0; i < 16; ++i) w[i] += w[i + 16];
  for (int i = 0; i < 8; ++i) w[i] += w[i + 8];
  for (int i = 0; i < 4; ++i) w[i] += w[i + 4];
  return (w[0] + w[2]) + (w[1] + w[3]);
}

// The last, partial block, filled up with a value that changes no result.
std::array<float, kLogitBlock> padded_tail(std::span<const float> logits, float filler) {
  std::array<float, kLogitBlock> tail;
  tail.fill(filler);
  std::copy(logits.end() - static_cast<std::ptrdiff_t>(logits.size() % kLogitBlock), logits.end(),
            tail.begin());
  return tail;
}

MIMO_INLINE LogitKeyRange scan_all(std::span<const float> logits, std::int32_t* block_high) {
  LogitKeyRange all;
  const std::size_t whole = logits.size() / kLogitBlock;
  const auto take = [&](std::size_t block, const float* x) __attribute__((always_inline)) {
    const LogitKeyRange range = scan_block(x);
    block_high[block] = range.high;
    all = {std::min(all.low, range.low), std::max(all.high, range.high)};
  };
  for (std::size_t b = 0; b < whole; ++b) take(b, logits.data() + b * kLogitBlock);
  if (logits.size() % kLogitBlock != 0) take(whole, padded_tail(logits, logits.back()).data());
  return all;
}

MIMO_INLINE double sum_all(std::span<const float> logits, float maximum, float inverse_temperature,
                           float* block_sum) {
  double total = 0;
  const std::size_t whole = logits.size() / kLogitBlock;
  for (std::size_t b = 0; b < whole; ++b) {
    block_sum[b] = sum_block(logits.data() + b * kLogitBlock, maximum, inverse_temperature);
    total += block_sum[b];
  }
  if (logits.size() % kLogitBlock != 0) {
    const auto tail = padded_tail(logits, -std::numeric_limits<float>::infinity());
    block_sum[whole] = sum_block(tail.data(), maximum, inverse_temperature);
    total += block_sum[whole];
  }
  return total;
}

__attribute__((target("avx2"))) LogitKeyRange scan_avx2(std::span<const float> logits,
                                                        std::int32_t* block_high) {
  return scan_all(logits, block_high);
}

__attribute__((target("avx2"))) double sum_avx2(std::span<const float> logits, float maximum,
                                                float inverse_temperature, float* block_sum) {
  return sum_all(logits, maximum, inverse_temperature, block_sum);
}

MIMO_INLINE void weigh_all(std::span<float> x, float maximum, float inverse_temperature) {
  float* const data = x.data();
  for (std::size_t i = 0; i < x.size(); ++i) data[i] = exp_weight((data[i] - maximum) * inverse_temperature);
}

__attribute__((target("avx2"))) void weigh_avx2(std::span<float> x, float maximum,
                                                float inverse_temperature) {
  weigh_all(x, maximum, inverse_temperature);
}

const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;

}  // namespace

namespace portable {

LogitKeyRange scan_keys(std::span<const float> logits, std::int32_t* block_high) {
  return scan_all(logits, block_high);
}

double sum_weights(std::span<const float> logits, float maximum, float inverse_temperature,
                   float* block_sum) {
  return sum_all(logits, maximum, inverse_temperature, block_sum);
}

void softmax_weights(std::span<float> x, float maximum, float inverse_temperature) {
  weigh_all(x, maximum, inverse_temperature);
}

}  // namespace portable

LogitKeyRange scan_keys(std::span<const float> logits, std::int32_t* block_high) {
  return kHasAvx2 ? scan_avx2(logits, block_high) : portable::scan_keys(logits, block_high);
}

double sum_weights(std::span<const float> logits, float maximum, float inverse_temperature,
                   float* block_sum) {
  return kHasAvx2 ? sum_avx2(logits, maximum, inverse_temperature, block_sum)
                  : portable::sum_weights(logits, maximum, inverse_temperature, block_sum);
}

void softmax_weights(std::span<float> x, float maximum, float inverse_temperature) {
  kHasAvx2 ? weigh_avx2(x, maximum, inverse_temperature)
           : portable::softmax_weights(x, maximum, inverse_temperature);
}

float softmax_weight(float x, float maximum, float inverse_temperature) {
  return exp_weight((x - maximum) * inverse_temperature);
}

}  // namespace mimo
