#include "engine/running_request.h"

#include <utility>

namespace mimo {
namespace {

SamplingParams with_limit(SamplingParams params, std::int64_t max_tokens) {
  params.max_tokens = max_tokens;
  return params;
}

}  // namespace

RunningRequest::RunningRequest(const Setup& setup, const PageLayout& layout, PagePool& full, PagePool& window)
    : pages(layout, full, window),
      setup_(setup),
      stop_(with_limit(setup.request->params, setup.max_tokens), setup.eos_ids),
      admitted_(Clock::now()),
      first_token_(admitted_) {
  if (uses_penalties(setup.request->params)) history_.add_prompt(setup.request->prompt);
  // Control tokens are shown only when the caller sees ids anyway; text leaves them out.
  if (setup.tokenizer != nullptr) detokenizer_.emplace(*setup.tokenizer, true);
}

BlockResult RunningRequest::commit(std::span<const std::int32_t> drafted, std::int64_t position,
                                   std::span<const float> logits, Sampler& sampler) {
  if (result_.tokens.empty()) end_prefill();
  const std::size_t vocab = logits.size() / (drafted.size() + 1);
  SampledToken token;
  const auto sample = [&](std::size_t row) -> std::optional<std::int32_t> {
    Result<SampledToken> drawn =
        sampler.sample(logits.subspan(row * vocab, vocab), setup_.request->params, history_, setup_.seed,
                       position + static_cast<std::int64_t>(row) + 1);
    if (!drawn) {
      result_.error = drawn.error();
      return {};
    }
    token = std::move(*drawn);
    return token.id;
  };
  const BlockResult block =
      verify_block(drafted, sample, [&](std::int32_t) { return deliver(std::move(token)); });
  if (block.ended) finish();
  return block;
}

// True if the answer ends with this token.
bool RunningRequest::deliver(SampledToken&& token) {
  const int id = token.id;
  result_.tokens.push_back(std::move(token));
  history_.add_generated(id);
  std::string piece;
  if (detokenizer_) {
    const Result<std::string> text = detokenizer_->push(id);
    if (text) piece = *text;
  }
  const StopRules::Step step = stop_.push(id, piece);
  show(step.text);
  anchor_ = id;
  result_.finish = step.finish;
  return step.finish.has_value();
}

void RunningRequest::finish_prompt() {
  end_prefill();
  done_ = true;
}

void RunningRequest::end_prefill() {
  first_token_ = Clock::now();
  result_.prefill_seconds = std::chrono::duration<double>(first_token_ - admitted_).count();
}

void RunningRequest::finish() {
  done_ = true;
  const StopRules::Step rest = stop_.finish(detokenizer_ ? detokenizer_->finish() : std::string());
  show(rest.text);
  if (rest.finish && result_.finish) result_.finish = rest.finish;
  result_.decode_seconds = std::chrono::duration<double>(Clock::now() - first_token_).count();
}

GenerateResult RunningRequest::take_result() {
  if (drafts) result_.speculation = drafts->stats;
  return std::move(result_);
}

void RunningRequest::show(const std::string& text) {
  result_.text += text;
  if (setup_.callbacks->on_text && !text.empty()) setup_.callbacks->on_text(setup_.index, text);
}

}  // namespace mimo
