#include "core/philox.h"

namespace mimo {
namespace {

// Multipliers and key increments of the published generator (the increments are the fractions of the golden
// ratio and of the square root of 3).
constexpr std::uint32_t kMultiplier0 = 0xD2511F53u;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57u;
constexpr std::uint32_t kIncrement0 = 0x9E3779B9u;
constexpr std::uint32_t kIncrement1 = 0xBB67AE85u;
constexpr int kRounds = 10;

// The upper half of the counter; keeps derived seeds apart from the numbers drawn for tokens (stream 0, 1,
// ...).
constexpr std::uint64_t kSeedStream = ~std::uint64_t{0};

std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

std::array<std::uint64_t, 2> draw(std::uint64_t seed, std::uint64_t position, std::uint64_t stream) {
  const PhiloxCounter block =
      philox4x32({low(position), high(position), low(stream), high(stream)}, {low(seed), high(seed)});
  return {(std::uint64_t{block[1]} << 32) | block[0], (std::uint64_t{block[3]} << 32) | block[2]};
}

}  // namespace

PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1), high(product0) ^ counter[3] ^ key[1],
               low(product0)};
    key[0] += kIncrement0;
    key[1] += kIncrement1;
  }
  return counter;
}

double philox_uniform(std::uint64_t seed, std::int64_t position, std::uint64_t stream) {
  return static_cast<double>(draw(seed, static_cast<std::uint64_t>(position), stream)[0] >> 11) * 0x1p-53;
}

std::uint64_t philox_choice_seed(std::uint64_t seed, std::uint32_t index) {
  return index == 0 ? seed : draw(seed, index, kSeedStream)[0];
}

}  // namespace mimo
