// What a client may ask of sampling and stopping, and the one place where it is checked.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"

namespace mimo {

// Below this a temperature means greedy: dividing logits by less overflows float.
inline constexpr double kGreedyTemperature = 1e-5;
// The limit of the OpenAI chat API; each one is a line of every streamed event.
inline constexpr int kMaxTopLogprobs = 20;
// Every stop string is matched against every byte of text.
inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxStopStringBytes = 4096;
// Each is masked at every step before min_tokens.
inline constexpr std::size_t kMaxStopTokenIds = 1024;

// Integers are 64 bits wide, so that a client's 2^31 reaches validate() as it is.
struct SamplingParams {
  double temperature = 1.0;                        // [0, 2]; below kGreedyTemperature: arg-max
  std::int64_t top_k = 0;                          // 0 or -1: off; may exceed the vocabulary
  double top_p = 1.0;                              // (0, 1]
  double min_p = 0.0;                              // [0, 1], relative to the most likely token
  double repetition_penalty = 1.0;                 // (0, 2]; tokens of prompt and answer
  double presence_penalty = 0.0;                   // [-2, 2]; tokens of the answer
  double frequency_penalty = 0.0;                  // [-2, 2]; for each occurrence in the answer
  std::map<std::int64_t, double> logit_bias = {};  // token id -> [-100, 100]
  std::optional<std::uint64_t> seed = {};          // none: the engine draws one

  // At least 1; none: up to the context limit, which the engine fills in.
  std::optional<std::int64_t> max_tokens = {};
  std::int64_t min_tokens = 0;  // before that many tokens nothing stops the answer but max_tokens
  bool ignore_eos = false;      // end tokens of the model do not stop; stop_token_ids still do
  std::vector<std::int64_t> stop_token_ids = {};
  std::vector<std::string> stop = {};       // UTF-8, not empty
  bool include_stop_str_in_output = false;  // the text that stopped the answer is part of it

  std::optional<int> logprobs = {};  // none: off; n: of the sampled token and the n most likely, n in [0, 20]
};

// kInvalidArgument naming the field, its value and what is accepted. `vocab` bounds token ids (the
// tokenizer's size).
Status validate(const SamplingParams& params, int vocab);

inline bool is_greedy(const SamplingParams& params) { return params.temperature < kGreedyTemperature; }

// True if sampling looks at which tokens came before; otherwise the prompt need not be counted.
inline bool uses_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 ||
         params.frequency_penalty != 0.0;
}

}  // namespace mimo
