// When an answer ends, and which of its text may be shown before that is known.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampling_params.h"

namespace mimo {

enum class FinishReason {
  kEos,         // an end token of the model
  kStopToken,   // one of stop_token_ids
  kStopString,  // one of stop
  kLength,      // max_tokens reached
};

struct Finish {
  FinishReason reason;
  int token_id = -1;    // kEos, kStopToken: the token
  int stop_index = -1;  // kStopString: index into SamplingParams::stop
};

// Fed with the tokens of one answer and the text each of them completes. Text is matched byte by byte, so the
// result does not depend on how it is cut into pieces:
//  - The first stop string to be complete wins, the longest if several end at the same byte. Text before it
//  is shown,
//    text from its first byte on is not (unless include_stop_str_in_output).
//  - Held back is the longest end of the text with which a stop string could begin, and nothing else.
//  - Tokens up to min_tokens end nothing. A stop string that began in their text and is complete after it
//  does.
//  - A stop token or stop string that comes with the last allowed token is the reason, not the length.
// The text of a token that stops by its id is not shown (unless include_stop_str_in_output).
class StopRules {
 public:
  struct Step {
    std::string text;              // safe to show now
    std::optional<Finish> finish;  // set: the answer has ended; call finish() next
  };

  // `params` has passed validate(). Without max_tokens there is no limit.
  StopRules(const SamplingParams& params, std::span<const int> eos_ids);

  // One token of the answer. After the end, tokens (of a verified run that went too far) are ignored. No stop
  // string is looked for in text that is `literal`, nor across its borders.
  Step push(int token_id, std::string_view text, bool literal = false);

  // The rest of the text: what was held back, unless it belongs to a stop string. `tail` is what the
  // detokenizer still had (an incomplete character); the stop string may be complete only with it. The finish
  // is the final one; none if the answer was ended from outside. Called once.
  Step finish(std::string_view tail = {});

  // From the next token on everything may end the answer, whatever min_tokens says.
  void allow_end() { min_tokens_ = 0; }

  std::int64_t tokens() const { return tokens_; }  // of the answer, with the one that stopped it

 private:
  // Progress of one stop string (Knuth-Morris-Pratt).
  struct Matcher {
    std::string text;
    std::vector<std::uint32_t> border;  // [i]: the longest proper prefix of text that ends text[0, i + 1)
    std::uint32_t matched = 0;          // bytes of text that the answer ends with

    bool advance(char byte);  // true when the whole text has been seen; matched then still counts it
    void restart() { matched = border.back(); }
  };

  std::optional<Finish> id_finish(int token_id) const;
  std::string take(std::string_view text, bool literal);

  std::vector<Matcher> matchers_;
  std::vector<int> eos_ids_;                  // sorted; empty with ignore_eos
  std::vector<std::int64_t> stop_token_ids_;  // sorted
  std::int64_t max_tokens_;
  std::int64_t min_tokens_;
  bool include_stop_;

  std::string held_;  // text not shown yet: a proper prefix of some stop string
  std::int64_t tokens_ = 0;
  std::optional<Finish> finish_;
};

}  // namespace mimo
