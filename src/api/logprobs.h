// Log-probabilities of an answer's tokens as JSON, in the two forms of the OpenAI API.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/sampler.h"

namespace mimo {

struct TokenSpelling {
  std::string_view bytes;  // need not be valid UTF-8; empty for an id that is no token
  bool shown = true;       // false: a special token, which is left out of the text
};

// How tokens are spelled; from any thread.
using TokenSpeller = std::function<TokenSpelling(std::int32_t id)>;

struct LogprobOptions {
  TokenSpeller spell;          // none: every token is ""
  bool tokens_as_ids = false;  // "token_id:123" instead of the text
};

// Appends one element of `logprobs.content` of a chat answer. There is one for each token of the answer:
// those of the reasoning, the tags and the tool calls as well as those of the content, and the one that
// ended it. The bytes of tokens with text, joined, are the answer as the model wrote it; a token without
// text has null.
void append_chat_logprob(std::string& out, const LogprobOptions& options, const SampledToken& token);

// `logprobs` of a text completion: four lists of equal length.
class CompletionLogprobs {
 public:
  void add(const LogprobOptions& options, const SampledToken& token);
  bool empty() const { return tokens_.empty(); }
  // Appends the object with all tokens added since the last call.
  void take(std::string& out);

 private:
  std::int64_t offset_ = 0;  // characters so far
  std::string tokens_;
  std::string logprobs_;
  std::string top_;
  std::string offsets_;
};

}  // namespace mimo
