#include "engine/answer_gate.h"

#include <algorithm>

namespace mimo {

AnswerGate::AnswerGate(const EngineRequest& request, std::span<const int> eos_ids, int vocab)
    : request_(request),
      eos_ids_(eos_ids.begin(), eos_ids.end()),
      vocab_(vocab),
      in_think_(request.begins_in_think) {
  if (!request.constraint) return;
  constraint_ = request.constraint->start();
  waiting_ = request.constraint_start == ConstraintStart::kAfterThinkClose;
  undecided_ = request.constraint_start == ConstraintStart::kAfterOptionalThink;
}

std::span<const std::uint32_t> AnswerGate::mask() {
  if (budget_spent()) {
    mask_.assign(static_cast<std::size_t>(vocab_ + 31) / 32, 0);
    set(request_.think_close_id, true);
    return mask_;
  }
  if (!constraint_) return {};
  if (waiting_) {  // free text, but the answer may not end before it has begun
    allow_all();
    for (const int id : eos_ids_) set(id, false);
    return mask_;
  }
  mask_.resize(static_cast<std::size_t>(vocab_ + 31) / 32);
  if (!constraint_->fill_mask(mask_)) return {};
  if (undecided_) set(request_.think_open_id, true);
  return mask_;
}

void AnswerGate::accept(std::int32_t token) {
  const bool first = tokens_++ == 0;
  const bool opens = first && !in_think_ && token == request_.think_open_id && request_.think_open_id >= 0;
  if (opens) in_think_ = true;
  if (in_think_) ++reasoning_tokens_;
  const bool closes = in_think_ && token == request_.think_close_id && request_.think_close_id >= 0;
  if (closes) in_think_ = false;
  if (!constraint_) return;
  if (waiting_) {
    waiting_ = !closes;
    return;
  }
  if (undecided_) {
    undecided_ = false;
    if (opens) {
      waiting_ = true;
      return;
    }
  }
  constraint_->accept(token);
}

bool AnswerGate::budget_spent() const {
  return in_think_ && request_.thinking_budget && request_.think_close_id >= 0 &&
         reasoning_tokens_ >= *request_.thinking_budget;
}

void AnswerGate::allow_all() { mask_.assign(static_cast<std::size_t>(vocab_ + 31) / 32, ~std::uint32_t{0}); }

void AnswerGate::set(std::int32_t token, bool allowed) {
  if (token < 0 || token >= vocab_) return;
  const std::uint32_t bit = std::uint32_t{1} << (token % 32);
  std::uint32_t& word = mask_[static_cast<std::size_t>(token / 32)];
  word = allowed ? word | bit : word & ~bit;
}

}  // namespace mimo
