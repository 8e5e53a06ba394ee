// The answer of one request: the one place where tokens are sampled, committed and turned into text.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/answer_gate.h"
#include "engine/engine_client.h"
#include "engine/shown_text.h"
#include "engine/token_history.h"
#include "engine/verify_block.h"
#include "ops/ops.h"
#include "text/detokenizer.h"

namespace mimo {

class LiveAnswer {
 public:
  struct Setup {
    const EngineRequest* request = nullptr;
    std::int64_t max_tokens = 0;  // of the answer, at least 1
    std::uint64_t seed = 0;
    std::span<const int> eos_ids;
    int allowed_vocab = 0;                 // ids that may be sampled
    const Tokenizer* tokenizer = nullptr;  // null: no text
  };

  // The request and the tokenizer must outlive it.
  explicit LiveAnswer(const Setup& setup);

  std::int64_t remaining() const { return setup_.max_tokens - stop_.tokens(); }
  std::int64_t tokens() const { return stop_.tokens(); }
  bool done() const { return done_; }

  // The target has run rows of this request up to one whose next token is to be sampled, and rows of `drafts`
  // after it. `logits` [1 + drafts, vocab] are those of the rows, `position` is that of the first. Takes the
  // tokens that follow; a row that cannot be sampled ends the request with its error. The new tokens are the
  // last block.emitted of all that were committed.
  BlockResult commit(std::span<const std::int32_t> drafts, std::int64_t position,
                     std::span<const float> logits, Sampler& sampler);
  // The same where choice() is not kSampler: of each row only the token that was chosen, -1 where it has a logit that
  // is not finite.
  BlockResult commit(std::span<const std::int32_t> drafts, std::int64_t position,
                     std::span<const std::int32_t> chosen);

  // Who can choose the tokens of the answer.
  enum class Choice : std::uint8_t {
    kBest,     // each is the best of the ids that may be sampled
    kDraw,     // each is drawn by its row of logits alone
    kSampler,  // the sampler, which knows what came before, or returns probabilities
  };
  Choice choice() const { return choice_; }
  // How the token that follows the row at `position` is drawn; of choices other than kSampler.
  TokenDraw draw(std::int64_t position) const;

  // What the last commits added. The usage has completion and reasoning tokens only.
  AnswerStep take_step();

 private:
  std::optional<std::int32_t> sample(std::span<const float> logits, std::int64_t position, Sampler& sampler);
  bool deliver(SampledToken&& token);
  std::string spell(std::int32_t id);
  void finish();

  template <class Sample>
  BlockResult take(std::span<const std::int32_t> drafts, Sample&& sample);

  Setup setup_;
  Choice choice_;
  StopRules stop_;
  TokenHistory history_;
  AnswerGate gate_;
  std::optional<Detokenizer> detokenizer_;
  ShownText shown_;
  bool literal_ = false;
  bool done_ = false;
  SampledToken drawn_;
  AnswerStep step_;
};

}  // namespace mimo
