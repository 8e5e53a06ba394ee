#include "engine/live_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/philox.h"

namespace mimo {
namespace {

SamplingParams with_limit(SamplingParams params, std::int64_t max_tokens) {
  params.max_tokens = max_tokens;
  return params;
}

LiveAnswer::Choice choice_of(const EngineRequest& request) {
  const SamplingParams& params = request.params;
  if (uses_penalties(params) || !params.logit_bias.empty() || params.min_tokens > 0 || params.logprobs ||
      request.constraint || request.thinking_budget) {
    return LiveAnswer::Choice::kSampler;
  }
  return is_greedy(params) ? LiveAnswer::Choice::kBest : LiveAnswer::Choice::kDraw;
}

}  // namespace

LiveAnswer::LiveAnswer(const Setup& setup)
    : setup_(setup),
      choice_(choice_of(*setup.request)),
      stop_(with_limit(setup.request->params, setup.max_tokens), setup.eos_ids),
      gate_(*setup.request, setup.eos_ids, setup.allowed_vocab) {
  if (uses_penalties(setup.request->params)) history_.add_prompt(setup.request->prompt);
  // Control tokens that nobody asked for are shown only to callers who look at ids.
  if (setup.tokenizer != nullptr) detokenizer_.emplace(*setup.tokenizer, true);
}

BlockResult LiveAnswer::commit(std::span<const std::int32_t> drafts, std::int64_t position,
                               std::span<const float> logits, Sampler& sampler) {
  const std::size_t vocab = logits.size() / (drafts.size() + 1);
  return take(drafts, [&](std::size_t row) {
    return sample(logits.subspan(row * vocab, vocab), position + static_cast<std::int64_t>(row) + 1, sampler);
  });
}

BlockResult LiveAnswer::commit(std::span<const std::int32_t> drafts, std::int64_t position,
                               std::span<const std::int32_t> chosen) {
  return take(drafts, [&](std::size_t row) -> std::optional<std::int32_t> {
    if (chosen[row] < 0) {
      step_.error =
          Error{ErrorCode::kInternal, fmt::format("position {}: a logit is not finite, expected a number",
                                                  position + static_cast<std::int64_t>(row) + 1)};
      return {};
    }
    drawn_ = {};
    drawn_.id = chosen[row];
    return drawn_.id;
  });
}

TokenDraw LiveAnswer::draw(std::int64_t position) const {
  if (choice_ == Choice::kBest) return {};
  const SamplingParams& params = setup_.request->params;
  TokenDraw draw;
  draw.inverse_temperature = static_cast<float>(1.0 / params.temperature);
  draw.top_k = static_cast<std::int32_t>(std::clamp<std::int64_t>(params.top_k, 0, setup_.allowed_vocab));
  if (params.min_p > 0) draw.min_p_distance = params.temperature * std::log(params.min_p);
  draw.top_p = params.top_p;
  draw.uniform = philox_uniform(setup_.seed, position + 1);
  return draw;
}

template <class Sample>
BlockResult LiveAnswer::take(std::span<const std::int32_t> drafts, Sample&& sample) {
  const BlockResult block =
      verify_block(drafts, sample, [&](std::int32_t) { return deliver(std::move(drawn_)); });
  if (block.ended) finish();
  return block;
}

std::optional<std::int32_t> LiveAnswer::sample(std::span<const float> logits, std::int64_t position,
                                               Sampler& sampler) {
  const SamplingParams* params = &setup_.request->params;
  SamplingParams without_minimum;
  if (params->min_tokens > 0 && gate_.must_end()) {
    without_minimum = *params;
    without_minimum.min_tokens = 0;
    params = &without_minimum;
    stop_.allow_end();
  }
  Result<SampledToken> drawn = sampler.sample(logits, *params, history_, setup_.seed, position, gate_.mask());
  if (!drawn) {
    step_.error = drawn.error();
    return {};
  }
  drawn_ = std::move(*drawn);
  return drawn_.id;
}

// True if the answer ends with this token.
bool LiveAnswer::deliver(SampledToken&& token) {
  const std::int32_t id = token.id;
  step_.tokens.push_back(std::move(token));
  history_.add_generated(id);
  gate_.accept(id);
  const bool literal = literal_;
  if (id == setup_.request->literal_open_id && id >= 0) literal_ = true;
  if (id == setup_.request->literal_close_id) literal_ = false;
  const StopRules::Step step = stop_.push(id, spell(id), literal || literal_);
  shown_.show(step.text, step_.text);
  step_.finish = step.finish;
  return step.finish.has_value();
}

// The text that the token completes, entered in the stream that stop rules cut.
std::string LiveAnswer::spell(std::int32_t id) {
  if (!detokenizer_) return {};
  const std::vector<std::int32_t>& markers = setup_.request->markers;
  if (std::find(markers.begin(), markers.end(), id) != markers.end()) {
    std::string text = detokenizer_->finish();  // a character that the control token cuts off
    shown_.pass(text.size());
    const Result<std::string_view> spelling = setup_.tokenizer->token_bytes(id);
    if (spelling) {
      shown_.mark(id, spelling->size());
      text += *spelling;
    }
    return text;
  }
  Result<std::string> text = detokenizer_->push(id);
  if (!text) return {};
  shown_.pass(text->size());
  return std::move(*text);
}

void LiveAnswer::finish() {
  done_ = true;
  const std::string tail = detokenizer_ ? detokenizer_->finish() : std::string();
  shown_.pass(tail.size());
  const StopRules::Step rest = stop_.finish(tail);
  shown_.show(rest.text, step_.text);
  shown_.finish(step_.text);
  if (rest.finish && step_.finish) step_.finish = rest.finish;
  if (step_.error) step_.finish.reset();
}

AnswerStep LiveAnswer::take_step() {
  step_.usage.completion_tokens = stop_.tokens();
  step_.usage.reasoning_tokens = gate_.reasoning_tokens();
  return std::exchange(step_, {});
}

}  // namespace mimo
