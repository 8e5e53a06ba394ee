// Picks the next token of one request from one row of logits.
//
// Order of operations (that of vLLM):
//   1. logit_bias is added; while fewer than min_tokens tokens exist, end tokens and stop_token_ids are
//   masked;
//   2. repetition penalty (prompt and answer), then frequency and presence penalties (answer);
//   3. temperature 0: the largest logit, lowest id on ties. Otherwise logits are divided by the temperature
//   and
//   4. min_p, then top_k, then top_p keep a part of the tokens. All three cut the same order (larger logit
//   first, then
//      lower id), so exactly top_k tokens remain even where logits are equal, top_k 1 is greedy, and top_p
//      keeps the shortest run whose probability reaches top_p, computed over what min_p and top_k left;
//   5. one token is drawn from the kept ones, renormalised.
// Ids from allowed_vocab on (padding of the output head) are never looked at. Log-probabilities are those of
// the logits as given, over the allowed ids, before any step above.
//
// The draw inverts the cumulative distribution over kept tokens in the order of their ids, with one 53-bit
// uniform keyed by (seed, position). It is exact, needs no sort and one random number (Gumbel noise needs one
// for each token), and rounding differences in the logits move it little: each token's interval shifts by
// about the rounding, while in an order by probability two nearly equal tokens would swap their intervals.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/result.h"
#include "engine/logit_kernels.h"
#include "engine/sampling_params.h"
#include "engine/token_history.h"

namespace mimo {

struct TopLogprob {
  int id;
  float logprob;
};

struct SampledToken {
  int id = 0;
  float logprob = 0;            // 0 unless logprobs were asked for
  std::vector<TopLogprob> top;  // the params.logprobs most likely tokens, descending, lower id first on ties
};

struct TokenProbability {
  int id;
  double probability;
};

// Owns scratch memory of the size of a row: use one sampler a thread. Results depend on the arguments only.
class Sampler {
 public:
  struct Options {
    int vocab = 0;          // logits in a row
    int allowed_vocab = 0;  // ids below this may be sampled; at most vocab
    std::vector<int> eos_ids;
  };

  explicit Sampler(Options options);

  int allowed_vocab() const { return options_.allowed_vocab; }

  // `params` has passed validate(); `history` is the request before this token; `position` is the token's
  // place in the sequence. kInternal for a row that has a NaN or +inf, or no token above -inf;
  // kInvalidArgument if the parameters mask all that is left.
  // Bit i % 32 of mask[i / 32] says whether token i may be sampled; an empty mask allows all.
  Result<SampledToken> sample(std::span<const float> logits, const SamplingParams& params,
                              const TokenHistory& history, std::uint64_t seed, std::int64_t position,
                              std::span<const std::uint32_t> mask = {});

  // The distribution that sample() draws from: ids ascending, probabilities above 0 with sum 1. Greedy is a
  // single token with probability 1. `position` is for messages.
  Result<std::vector<TokenProbability>> distribution(std::span<const float> logits,
                                                     const SamplingParams& params,
                                                     const TokenHistory& history, std::int64_t position);

 private:
  // A row that has been checked. Its block maxima are in block_high_ until the next check.
  struct Row {
    std::span<const float> logits;  // [allowed_vocab]
    std::int32_t high;              // order_key of the largest logit
    float maximum() const { return key_value(high); }
  };

  Result<Row> check(std::span<const float> logits, std::int64_t position);
  Result<Row> adjust(const Row& raw, const SamplingParams& params, const TokenHistory& history,
                     std::span<const std::uint32_t> mask);
  std::vector<TopLogprob> top_logprobs(const Row& raw, int count, double log_total);

  int argmax(const Row& row) const;
  int draw_from_all(const Row& row, double temperature, double uniform);
  int draw_from_kept(double uniform) const;

  // Steps 4 and its parts: fill and cut kept_, then weight_.
  void keep(const Row& row, const SamplingParams& params);
  void keep_mass_of_all(const Row& row, const SamplingParams& params);
  void collect(const Row& row, std::int32_t lowest_key);
  double weigh(const Row& row, float inverse_temperature);
  static std::int32_t bound_key(const Row& row, double temperature, double log_weight);
  std::int32_t bound_of_best(std::int64_t count);
  std::uint64_t cut_of_best(std::size_t count);
  std::uint64_t cut_of_mass(double target, const Row& row, float inverse_temperature);
  void drop_below(std::uint64_t cut);

  Options options_;
  std::vector<float> adjusted_;              // [allowed_vocab], logits after steps 1 and 2
  std::vector<std::int32_t> block_high_;     // [blocks], order keys
  std::vector<std::int32_t> block_scratch_;  // [blocks]
  std::vector<float> block_sum_;             // [blocks]
  std::vector<std::uint64_t> kept_;     // ranks (logit and id in one number, see sampler.cpp), ids ascending
  std::vector<std::uint64_t> scratch_;  // ranks, being partitioned
  std::vector<float> weight_;           // of kept_, not normalised
};

}  // namespace mimo
