#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/philox.h"

namespace mimo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr std::int32_t kLowestFiniteKey = kMinusInfinityKey + 1;

// Logit and id in one number: greater means a larger logit, or the same logit and a lower id.
std::uint64_t make_rank(std::int32_t key, int id) {
  const auto ordered = static_cast<std::uint32_t>(key) ^ 0x80000000u;
  return (std::uint64_t{ordered} << 32) | ~static_cast<std::uint32_t>(id);
}

int rank_id(std::uint64_t rank) { return static_cast<int>(~static_cast<std::uint32_t>(rank)); }

float rank_logit(std::uint64_t rank) {
  return key_value(static_cast<std::int32_t>(static_cast<std::uint32_t>(rank >> 32) ^ 0x80000000u));
}

// Penalties and biases never make a token impossible or infinite.
float saturate(float x) { return std::clamp(x, -kLargest, kLargest); }

float penalise(float x, const SamplingParams& params, std::int32_t generated) {
  if (x == -kInfinity) return x;
  const auto repetition = static_cast<float>(params.repetition_penalty);
  x = saturate(x > 0 ? x / repetition : x * repetition);
  if (generated > 0) {
    x -= static_cast<float>(params.frequency_penalty) * static_cast<float>(generated);
    x -= static_cast<float>(params.presence_penalty);
  }
  return saturate(x);
}

float inverse_of(double temperature) { return static_cast<float>(1.0 / temperature); }

bool filters(const SamplingParams& params) {
  return params.min_p > 0 || params.top_k > 0 || params.top_p < 1;
}

float logprob_of(float logit, float maximum, double log_total) {
  return static_cast<float>(static_cast<double>(logit) - static_cast<double>(maximum) - log_total);
}

}  // namespace

Sampler::Sampler(Options options) : options_(std::move(options)) {
  MIMO_CHECK(options_.allowed_vocab > 0 && options_.allowed_vocab <= options_.vocab, "allowed {} of {}",
             options_.allowed_vocab, options_.vocab);
  const auto blocks =
      static_cast<std::size_t>(logit_blocks(static_cast<std::size_t>(options_.allowed_vocab)));
  block_high_.resize(blocks);
  block_sum_.resize(blocks);
}

Result<SampledToken> Sampler::sample(std::span<const float> logits, const SamplingParams& params,
                                     const TokenHistory& history, std::uint64_t seed, std::int64_t position,
                                     std::span<const std::uint32_t> mask) {
  const Result<Row> raw = check(logits, position);
  if (!raw) return forward_error(raw);

  SampledToken token;
  double log_total = 0;
  if (params.logprobs) {
    log_total = std::log(sum_weights(raw->logits, raw->maximum(), 1.0f, block_sum_.data()));
    token.top = top_logprobs(*raw, *params.logprobs, log_total);
  }

  const Result<Row> row = adjust(*raw, params, history, mask);
  if (!row) return forward_error(row);
  if (is_greedy(params)) {
    token.id = argmax(*row);
  } else if (filters(params)) {
    keep(*row, params);
    token.id = draw_from_kept(philox_uniform(seed, position));
  } else {
    token.id = draw_from_all(*row, params.temperature, philox_uniform(seed, position));
  }

  if (params.logprobs) {
    token.logprob = logprob_of(logits[static_cast<std::size_t>(token.id)], raw->maximum(), log_total);
  }
  return token;
}

Result<std::vector<TokenProbability>> Sampler::distribution(std::span<const float> logits,
                                                            const SamplingParams& params,
                                                            const TokenHistory& history,
                                                            std::int64_t position) {
  const Result<Row> raw = check(logits, position);
  if (!raw) return forward_error(raw);
  const Result<Row> row = adjust(*raw, params, history, {});
  if (!row) return forward_error(row);

  if (is_greedy(params)) return std::vector<TokenProbability>{{argmax(*row), 1.0}};
  keep(*row, params);
  double total = 0;
  for (const float w : weight_) total += w;
  std::vector<TokenProbability> result;
  result.reserve(kept_.size());
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (weight_[i] > 0) result.push_back({rank_id(kept_[i]), weight_[i] / total});
  }
  return result;
}

// ---- Checks, logprobs, bias and penalties

Result<Sampler::Row> Sampler::check(std::span<const float> logits, std::int64_t position) {
  if (logits.size() != static_cast<std::size_t>(options_.vocab)) {
    return fail(ErrorCode::kInternal, "position {}: got {} logits, expected {}", position, logits.size(),
                options_.vocab);
  }
  const std::span<const float> allowed = logits.first(static_cast<std::size_t>(options_.allowed_vocab));
  const LogitKeyRange range = scan_keys(allowed, block_high_.data());
  if (range.high >= kPlusInfinityKey || range.low < kMinusInfinityKey) {
    const auto bad = std::find_if(allowed.begin(), allowed.end(), [](float x) { return !(x < kInfinity); });
    return fail(ErrorCode::kInternal, "position {}: the logit of token {} is {}, expected a number or -inf",
                position, bad - allowed.begin(), *bad);
  }
  if (range.high == kMinusInfinityKey) {
    return fail(ErrorCode::kInternal, "position {}: all {} logits are -inf, expected at least one number",
                position, allowed.size());
  }
  return Row{allowed, range.high};
}

Result<Sampler::Row> Sampler::adjust(const Row& raw, const SamplingParams& params,
                                     const TokenHistory& history, std::span<const std::uint32_t> mask) {
  const bool penalties = uses_penalties(params) && !history.entries().empty();
  const bool must_go_on = history.generated() < params.min_tokens;
  if (!penalties && !must_go_on && params.logit_bias.empty() && mask.empty()) return raw;

  adjusted_.assign(raw.logits.begin(), raw.logits.end());
  const auto slot = [&](std::int64_t id) -> float* {
    const bool allowed = id >= 0 && id < options_.allowed_vocab;
    return allowed ? &adjusted_[static_cast<std::size_t>(id)] : nullptr;
  };
  for (const auto& [id, bias] : params.logit_bias) {
    if (float* x = slot(id); x && *x != -kInfinity) *x = saturate(*x + static_cast<float>(bias));
  }
  if (must_go_on) {
    for (const int id : options_.eos_ids) {
      if (float* x = slot(id)) *x = -kInfinity;
    }
    for (const std::int64_t id : params.stop_token_ids) {
      if (float* x = slot(id)) *x = -kInfinity;
    }
  }
  if (penalties) {
    for (const TokenHistory::Entry& entry : history.entries()) {
      if (float* x = slot(entry.id)) *x = penalise(*x, params, entry.generated);
    }
  }

  if (!mask.empty()) {
    for (std::size_t id = 0; id < adjusted_.size(); ++id) {
      if (((mask[id / 32] >> (id % 32)) & 1) == 0) adjusted_[id] = -kInfinity;
    }
  }

  const LogitKeyRange range = scan_keys(adjusted_, block_high_.data());
  if (range.high == kMinusInfinityKey) {
    if (!mask.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "position {}: no token that the response format allows is left by the other parameters",
                  history.generated());
    }
    return fail(ErrorCode::kInvalidArgument,
                "min_tokens: got {}, but after {} tokens only tokens that end the answer are possible",
                params.min_tokens, history.generated());
  }
  return Row{adjusted_, range.high};
}

std::vector<TopLogprob> Sampler::top_logprobs(const Row& raw, int count, double log_total) {
  if (count == 0) return {};
  collect(raw, bound_of_best(count));
  const auto wanted = static_cast<std::size_t>(count);
  if (kept_.size() > wanted) drop_below(cut_of_best(wanted));
  std::sort(kept_.begin(), kept_.end(), std::greater<>());
  std::vector<TopLogprob> top;
  for (const std::uint64_t rank : kept_) {
    top.push_back({rank_id(rank), logprob_of(rank_logit(rank), raw.maximum(), log_total)});
  }
  return top;
}

// ---- Choosing one token

int Sampler::argmax(const Row& row) const {
  const auto block = std::find(block_high_.begin(), block_high_.end(), row.high) - block_high_.begin();
  auto id = static_cast<std::size_t>(block) * kLogitBlock;
  while (order_key(row.logits[id]) != row.high) ++id;
  return static_cast<int>(id);
}

int Sampler::draw_from_all(const Row& row, double temperature, double uniform) {
  const float inverse = inverse_of(temperature);
  const double target = uniform * sum_weights(row.logits, row.maximum(), inverse, block_sum_.data());

  // The block in which the cumulative sum passes the target, or the last with any weight if rounding hides
  // it.
  double below = 0;
  std::size_t block = 0;
  double below_block = 0;
  for (std::size_t b = 0; b < block_sum_.size() && below <= target; ++b) {
    if (block_sum_[b] > 0) {
      block = b;
      below_block = below;
    }
    below += block_sum_[b];
  }

  // The same inside the block, token by token.
  const std::size_t end = std::min((block + 1) * kLogitBlock, row.logits.size());
  std::size_t chosen = 0;
  double sum = below_block;
  for (std::size_t id = block * kLogitBlock; id < end && sum <= target; ++id) {
    const float w = softmax_weight(row.logits[id], row.maximum(), inverse);
    if (w > 0) chosen = id;
    sum += w;
  }
  return static_cast<int>(chosen);
}

int Sampler::draw_from_kept(double uniform) const {
  double total = 0;
  for (const float w : weight_) total += w;
  const double target = uniform * total;
  double sum = 0;
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < kept_.size() && sum <= target; ++i) {
    if (weight_[i] > 0) chosen = i;
    sum += weight_[i];
  }
  return rank_id(kept_[chosen]);
}

// ---- Which tokens are kept

void Sampler::keep(const Row& row, const SamplingParams& params) {
  const float inverse = inverse_of(params.temperature);
  if (params.top_p < 1 && params.min_p <= 0 && params.top_k <= 0) {
    keep_mass_of_all(row, params);
    return;
  }
  std::int32_t lowest = kLowestFiniteKey;
  if (params.min_p > 0) lowest = std::max(lowest, bound_key(row, params.temperature, std::log(params.min_p)));
  if (params.top_k > 0) lowest = std::max(lowest, bound_of_best(params.top_k));
  collect(row, lowest);
  if (params.top_k > 0 && kept_.size() > static_cast<std::uint64_t>(params.top_k)) {
    drop_below(cut_of_best(static_cast<std::size_t>(params.top_k)));
  }
  const double total = weigh(row, inverse);
  if (params.top_p < 1) drop_below(cut_of_mass(params.top_p * total, row, inverse));
}

// top_p without another filter. Only tokens above a bound are collected; the rest is not looked at again.
void Sampler::keep_mass_of_all(const Row& row, const SamplingParams& params) {
  const float inverse = inverse_of(params.temperature);
  const double total = sum_weights(row.logits, row.maximum(), inverse, block_sum_.data());
  const double target = params.top_p * total;

  // Most rows have their mass in few tokens, here those with at least 1/1000 of the largest weight.
  collect(row, bound_key(row, params.temperature, -6.9));
  if (weigh(row, inverse) < target) {
    // Tokens with less than (1 - top_p) / n of all weight have together less than top_p leaves out. The bound
    // is loosened by 1 % against rounding.
    const double weight = (1 - params.top_p) * total / static_cast<double>(row.logits.size());
    collect(row, bound_key(row, params.temperature, std::log(weight) - 0.01));
    weigh(row, inverse);
  }
  drop_below(cut_of_mass(target, row, inverse));
}

// Fills weight_ and returns its sum.
double Sampler::weigh(const Row& row, float inverse_temperature) {
  weight_.resize(kept_.size());
  for (std::size_t i = 0; i < kept_.size(); ++i) weight_[i] = rank_logit(kept_[i]);
  softmax_weights(weight_, row.maximum(), inverse_temperature);
  double total = 0;
  for (const float w : weight_) total += w;
  return total;
}

// The key of the logit whose weight is exp(log_weight), at most the largest logit's and above every mask.
std::int32_t Sampler::bound_key(const Row& row, double temperature, double log_weight) {
  const double logit = static_cast<double>(row.maximum()) + temperature * log_weight;
  if (!(logit > -static_cast<double>(kLargest))) return kLowestFiniteKey;
  return std::min(order_key(static_cast<float>(logit)), row.high);
}

// kept_ = tokens whose key is at least lowest_key, ids ascending.
void Sampler::collect(const Row& row, std::int32_t lowest_key) {
  std::size_t count = 0;
  for (std::size_t b = 0; b < block_high_.size(); ++b) {
    if (block_high_[b] < lowest_key) continue;
    kept_.resize(count + kLogitBlock);
    const std::size_t end = std::min((b + 1) * kLogitBlock, row.logits.size());
    for (std::size_t id = b * kLogitBlock; id < end; ++id) {
      // Written always and counted if kept: in a flat distribution a branch would often be mispredicted.
      const std::int32_t key = order_key(row.logits[id]);
      kept_[count] = make_rank(key, static_cast<int>(id));
      count += key >= lowest_key ? 1 : 0;
    }
  }
  kept_.resize(count);
  weight_.clear();
}

// A key that at least `count` tokens reach: the count-th largest block maximum. Little more than `count`
// tokens reach it when large logits are spread over the blocks.
std::int32_t Sampler::bound_of_best(std::int64_t count) {
  if (count > static_cast<std::int64_t>(block_high_.size())) return kMinusInfinityKey;
  block_scratch_ = block_high_;
  const auto place = block_scratch_.begin() + (count - 1);
  std::nth_element(block_scratch_.begin(), place, block_scratch_.end(), std::greater<>());
  return *place;
}

// The rank of the count-th best of kept_.
std::uint64_t Sampler::cut_of_best(std::size_t count) {
  scratch_ = kept_;
  const auto place = scratch_.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(scratch_.begin(), place, scratch_.end(), std::greater<>());
  return *place;
}

// The rank down to which kept_ has at least the weight `target`. First a histogram over the distance from the
// largest logit narrows it down to one bucket, then halving finds the token in time linear in the bucket.
std::uint64_t Sampler::cut_of_mass(double target, const Row& row, float inverse_temperature) {
  constexpr int kBuckets = 1024;
  constexpr float kBucketsPerNat =
      32;  // so that 32 nats are covered; the rest has less than 1e-8 of the weight
  const auto bucket_of = [&](std::uint64_t rank) {
    const float distance = (row.maximum() - rank_logit(rank)) * inverse_temperature * kBucketsPerNat;
    return static_cast<std::size_t>(std::min(distance, static_cast<float>(kBuckets - 1)));
  };
  std::array<double, kBuckets> mass{};
  for (std::size_t i = 0; i < kept_.size(); ++i) mass[bucket_of(kept_[i])] += weight_[i];

  double above = 0;
  std::size_t bucket = 0;
  double above_bucket = 0;
  for (std::size_t b = 0; b < kBuckets && above < target; ++b) {
    if (mass[b] > 0) {
      bucket = b;
      above_bucket = above;
    }
    above += mass[b];
  }
  scratch_.clear();
  for (const std::uint64_t rank : kept_) {
    if (bucket_of(rank) == bucket) scratch_.push_back(rank);
  }

  // Invariant: the cut lies in [first, last); `above_bucket` is the weight of everything before first.
  auto first = scratch_.begin();
  auto last = scratch_.end();
  while (last - first > 1) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, std::greater<>());
    double upper = above_bucket;
    for (auto it = first; it != middle; ++it) {
      upper += softmax_weight(rank_logit(*it), row.maximum(), inverse_temperature);
    }
    if (upper >= target) {
      last = middle;
    } else {
      first = middle;
      above_bucket = upper;
    }
  }
  return *first;
}

void Sampler::drop_below(std::uint64_t cut) {
  const bool weighted = !weight_.empty();
  std::size_t count = 0;
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    // As in collect(): without a branch.
    const std::uint64_t rank = kept_[i];
    kept_[count] = rank;
    if (weighted) weight_[count] = weight_[i];
    count += rank >= cut ? 1 : 0;
  }
  kept_.resize(count);
  if (weighted) weight_.resize(count);
}

}  // namespace mimo
