// One request on its way: its pages, its answer so far, and the one place where tokens are committed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "cache/sequence_pages.h"
#include "engine/generate_request.h"
#include "engine/speculation.h"
#include "engine/token_history.h"
#include "engine/verify_block.h"
#include "text/detokenizer.h"

namespace mimo {

class RunningRequest {
 public:
  struct Setup {
    std::size_t index = 0;
    const GenerateRequest* request = nullptr;
    std::int64_t max_tokens = 0;  // of the answer; 0: the prompt is run and nothing is sampled
    std::uint64_t seed = 0;
    std::span<const int> eos_ids;
    const Tokenizer* tokenizer = nullptr;  // null: no text
    const GenerateCallbacks* callbacks = nullptr;
  };

  // The request, the tokenizer, the callbacks and the pools must outlive it.
  RunningRequest(const Setup& setup, const PageLayout& layout, PagePool& full, PagePool& window);

  std::size_t index() const { return setup_.index; }
  std::span<const std::int32_t> prompt() const { return setup_.request->prompt; }
  bool prefilling() const { return pages.length() < static_cast<std::int64_t>(prompt().size()); }
  bool samples() const { return setup_.max_tokens > 0; }
  std::int64_t remaining() const { return setup_.max_tokens - stop_.tokens(); }
  std::int32_t anchor() const { return anchor_; }  // sampled, not yet run
  bool done() const { return done_; }

  // The target has run rows of this request up to one whose next token is to be sampled, and rows of `drafts`
  // after it. `logits` [1 + drafts, vocab] are those of the rows, `position` is that of the first. Delivers the
  // tokens that follow and makes the last one the anchor; a row that cannot be sampled ends the request with
  // its error. The pages are not touched.
  BlockResult commit(std::span<const std::int32_t> drafts, std::int64_t position,
                     std::span<const float> logits, Sampler& sampler);

  // Ends a request that samples nothing.
  void finish_prompt();

  // Once done() is true, and once.
  GenerateResult take_result();

  SequencePages pages;
  std::unique_ptr<RequestDrafts> drafts;  // null: never drafted for

 private:
  using Clock = std::chrono::steady_clock;

  void end_prefill();
  bool deliver(SampledToken&& token);
  void finish();
  void show(const std::string& text);

  Setup setup_;
  StopRules stop_;
  TokenHistory history_;
  std::optional<Detokenizer> detokenizer_;
  GenerateResult result_;
  std::int32_t anchor_ = -1;
  bool done_ = false;
  Clock::time_point admitted_;
  Clock::time_point first_token_;
};

}  // namespace mimo
