#include "checkpoint/random_fill.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>
#include <thread>

#include "core/check.h"
#include "core/number_formats.h"

namespace mimo {
namespace {

// Unit of work of a thread; the generator is seeded anew for each, so the cut must not depend on the thread
// count.
constexpr std::size_t kBlockBytes = 1u << 20;

std::uint64_t mix(std::uint64_t x) {  // SplitMix64 finaliser
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::uint64_t hash_name(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = mix(seed + 0x9E3779B97F4A7C15u);
  for (const char c : name) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001B3u;
  return mix(hash);
}

// xoshiro256++: 8 random bytes in about a nanosecond.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) {
    for (std::uint64_t& word : state_) word = mix(seed += 0x9E3779B97F4A7C15u);
  }

  std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

 private:
  std::array<std::uint64_t, 4> state_{};
};

// x with P(N(0,1) < x) = p, by bisection: tables are built once, exactness is worth more than speed.
double normal_quantile(double p) {
  double low = -8.0;
  double high = 8.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return low;
}

// N equally likely values of a unit normal: indexing with random bits gives the distribution without a
// conversion per element.
template <std::size_t N>
std::array<float, N> normal_table() {
  std::array<float, N> table{};
  double squares = 0;
  for (std::size_t i = 0; i < N; ++i) {
    const double x = normal_quantile((static_cast<double>(i) + 0.5) / N);
    table[i] = static_cast<float>(x);
    squares += x * x;
  }
  const double norm = std::sqrt(N / squares);  // the cut tails cost a little variance
  for (float& x : table) x = static_cast<float>(x * norm);
  return table;
}

constexpr std::size_t kWideTable = 4096;  // 12 bits of a 16-bit draw; 8 KiB of bf16 codes stay in L1

const std::array<float, kWideTable>& wide_normals() {
  static const std::array<float, kWideTable> table = normal_table<kWideTable>();
  return table;
}

struct Fp8Codes {
  std::array<std::uint8_t, 256> codes{};
  double deviation = 0;  // of the decoded codes
};

// E4M3 codes of a normal that fills the range: the largest of 256 quantiles is the code of 448, as in blocks
// that were quantised by their maximum.
const Fp8Codes& fp8_codes() {
  static const Fp8Codes result = [] {
    Fp8Codes made;
    const std::array<float, 256> normals = normal_table<256>();
    double squares = 0;
    for (std::size_t i = 0; i < normals.size(); ++i) {
      made.codes[i] = float_to_e4m3(normals[i] * 448.0f / normals.back());
      const double value = e4m3_to_float(made.codes[i]);
      squares += value * value;
    }
    made.deviation = std::sqrt(squares / 256);
    return made;
  }();
  return result;
}

void fill_bytes(Generator& random, std::uint8_t* out, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    const std::uint64_t draw = random.next();
    std::memcpy(out + i, &draw, 8);
  }
  if (i < bytes) {
    const std::uint64_t draw = random.next();
    std::memcpy(out + i, &draw, bytes - i);
  }
}

void fill_fp8(Generator& random, std::uint8_t* out, std::size_t bytes) {
  const std::uint8_t* codes = fp8_codes().codes.data();
  std::size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    const std::uint64_t draw = random.next();
    std::uint64_t packed = 0;
    for (int b = 0; b < 8; ++b) packed |= std::uint64_t{codes[(draw >> (8 * b)) & 255]} << (8 * b);
    std::memcpy(out + i, &packed, 8);
  }
  for (; i < bytes; ++i) out[i] = codes[random.next() & 255];
}

void fill_bf16(Generator& random, const std::uint16_t* codes, std::uint8_t* out, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    const std::uint64_t draw = random.next();
    std::uint64_t packed = 0;
    for (int h = 0; h < 4; ++h)
      packed |= std::uint64_t{codes[(draw >> (16 * h)) & (kWideTable - 1)]} << (16 * h);
    std::memcpy(out + i, &packed, 8);
  }
  for (; i + 2 <= bytes; i += 2) std::memcpy(out + i, &codes[random.next() & (kWideTable - 1)], 2);
}

template <class Value>
void fill_f32(std::uint8_t* out, std::size_t bytes, Value value) {
  for (std::size_t i = 0; i + 4 <= bytes; i += 4) {
    const float x = value();
    std::memcpy(out + i, &x, 4);
  }
}

double uniform(Generator& random) { return static_cast<double>(random.next() >> 11) * 0x1p-53; }

// Mean and deviation of a float tensor.
struct Spread {
  double mean = 0;
  double deviation = 1;
};

Spread spread_of(const FillJob& job) {
  const std::string_view name = job.tensor->name;
  if (name.ends_with("attention_sink_bias") || name == "model.embed_tokens.weight" || name == kMaskEmbedding)
    return {0, 1};
  if (name.ends_with("e_score_correction_bias")) return {0, 0.01};
  if (job.tensor->rank == 1) return {1, 0.05};  // norms
  return {0, 1 / std::sqrt(static_cast<double>(job.fan_in))};
}

// All 16 E2M1 codes equally likely are close to a normal of this variance (mean of the squared magnitudes).
constexpr double kE2m1Variance = (0.0 + 0.25 + 1.0 + 2.25 + 4.0 + 9.0 + 16.0 + 36.0) / 8;

// E8M0 bytes: a mix of two neighbouring exponents whose mean variance is exactly 1/fan_in.
void fill_e8m0(Generator& random, std::int64_t fan_in, std::uint8_t* out, std::size_t bytes) {
  const double target = 1 / (kE2m1Variance * static_cast<double>(fan_in));  // mean of 4^exponent
  const int low = static_cast<int>(std::floor(std::log2(target) / 2));
  const double low_variance = std::exp2(2.0 * low);
  const auto threshold = static_cast<unsigned>((target - low_variance) / (3 * low_variance) * 256);
  fill_bytes(random, out, bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::uint8_t>(127 + low + (out[i] < threshold ? 1 : 0));
}

// FP8 block scales differ by up to 20% either way, so that a wrong grid shows in any comparison.
constexpr double kScaleJitter = 0.2;

struct Block {
  std::size_t job = 0;
  std::size_t begin = 0;
  std::size_t bytes = 0;
};

void fill_block(const FillJob& job, const Block& block, std::uint64_t seed,
                const std::vector<std::uint16_t>& bf16_codes) {
  Generator random(mix(hash_name(seed, job.tensor->name) + block.begin));
  std::uint8_t* out = job.out + block.begin;
  switch (job.tensor->dtype) {
    case DType::kF8E4M3:
      fill_fp8(random, out, block.bytes);
      return;
    case DType::kBF16:
      fill_bf16(random, bf16_codes.data(), out, block.bytes);
      return;
    case DType::kU8:
      if (job.tensor->name.ends_with("_scale")) {
        fill_e8m0(random, job.fan_in, out, block.bytes);
      } else {
        fill_bytes(random, out, block.bytes);
      }
      return;
    case DType::kF32:
      if (job.tensor->name.ends_with("_scale_inv")) {
        const double jitter_rms = std::sqrt(1 + kScaleJitter * kScaleJitter / 3);
        const double scale =
            1 / (std::sqrt(static_cast<double>(job.fan_in)) * fp8_codes().deviation * jitter_rms);
        fill_f32(out, block.bytes,
                 [&] { return static_cast<float>(scale * (1 + kScaleJitter * (2 * uniform(random) - 1))); });
      } else {
        const Spread spread = spread_of(job);
        fill_f32(out, block.bytes, [&] {
          const float normal = wide_normals()[random.next() & (kWideTable - 1)];
          return static_cast<float>(spread.mean + spread.deviation * normal);
        });
      }
      return;
    default:
      MIMO_CHECK(false, "{}: no random values for {}", job.tensor->name, dtype_name(job.tensor->dtype));
  }
}

std::vector<std::uint16_t> bf16_table(const Spread& spread) {
  std::vector<std::uint16_t> codes(kWideTable);
  for (std::size_t i = 0; i < kWideTable; ++i) {
    codes[i] = float_to_bf16(static_cast<float>(spread.mean + spread.deviation * wide_normals()[i]));
  }
  return codes;
}

}  // namespace

void fill_random(std::span<const FillJob> jobs, std::uint64_t seed, int threads) {
  std::vector<Block> blocks;
  std::vector<std::vector<std::uint16_t>> tables(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::size_t bytes = jobs[i].tensor->bytes();
    for (std::size_t at = 0; at < bytes; at += kBlockBytes)
      blocks.push_back({i, at, std::min(kBlockBytes, bytes - at)});
    if (jobs[i].tensor->dtype == DType::kBF16) {
      // Experts of one layer share their spread; their table is built once.
      const bool same = i >= 1 && !tables[i - 1].empty() &&
                        jobs[i - 1].tensor->rank == jobs[i].tensor->rank &&
                        spread_of(jobs[i - 1]).mean == spread_of(jobs[i]).mean &&
                        spread_of(jobs[i - 1]).deviation == spread_of(jobs[i]).deviation;
      tables[i] = same ? tables[i - 1] : bf16_table(spread_of(jobs[i]));
    }
  }
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t b = next.fetch_add(1); b < blocks.size(); b = next.fetch_add(1)) {
      fill_block(jobs[blocks[b].job], blocks[b], seed, tables[blocks[b].job]);
    }
  };
  std::vector<std::jthread> pool;
  const std::size_t helpers =
      std::min<std::size_t>(static_cast<std::size_t>(std::max(threads, 1)), blocks.size());
  for (std::size_t t = 1; t < helpers; ++t) pool.emplace_back(work);
  work();
}

}  // namespace mimo
