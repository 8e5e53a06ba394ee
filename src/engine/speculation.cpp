#include "engine/speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace mimo {

Speculation::Speculation(Drafter& drafter, const SpeculationOptions& options, int vocab, LogLine log)
    : drafter_(drafter), options_(options), vocab_(vocab), log_(std::move(log)) {
  if (options_.tune_width) tuner_.emplace(drafter_.max_drafts());
}

std::unique_ptr<RequestDrafts> Speculation::open(std::size_t index, std::int64_t prompt, std::int64_t most) {
  auto request = std::make_unique<RequestDrafts>(options_.min_accept_length);
  request->index = index;
  if (options_.max_context > 0 && prompt >= options_.max_context) return request;
  Result<std::unique_ptr<DraftState>> state = drafter_.open(most);
  if (!state) {
    stop(*request, state.error().message);
    return request;
  }
  request->state = std::move(*state);
  request->first_needed = drafter_.first_needed(prompt);
  return request;
}

void Speculation::draft(std::span<const DraftTurn> turns, int decoding, int most) {
  most = std::min(most, drafter_.max_drafts());
  if (options_.num_draft_tokens > 0) most = std::min(most, options_.num_draft_tokens);
  most = batch_width(options_.batch_widths, decoding, most);
  if (tuner_) most = std::min(most, tuner_->choose(decoding));

  requests_.clear();
  turn_of_.clear();
  draft_seconds_ = 0;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    RequestDrafts& request = *turns[i].drafts;
    request.drafts.clear();
    if (options_.max_context > 0 && turns[i].position >= options_.max_context) request.state.reset();
    // The last token of an answer comes from the row before it: a block emits one token more than it drafts.
    const auto width = static_cast<int>(std::min<std::int64_t>(most, turns[i].remaining - 1));
    if (!request.state || request.watch.paused() || width <= 0) continue;
    request.drafts.resize(static_cast<std::size_t>(width));
    request.confidence.assign(static_cast<std::size_t>(width), 0.0f);
    requests_.push_back({.state = request.state.get(),
                         .anchor = turns[i].anchor,
                         .position = turns[i].position,
                         .drafts = request.drafts,
                         .confidence = request.confidence});
    turn_of_.push_back(i);
  }
  if (requests_.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  drafter_.draft(requests_);
  draft_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (std::size_t k = 0; k < requests_.size(); ++k) {
    RequestDrafts& request = *turns[turn_of_[k]].drafts;
    if (!check(turns[turn_of_[k]], requests_[k])) {
      request.drafts.clear();
      continue;
    }
    request.drafts.resize(
        static_cast<std::size_t>(confident_prefix(request.confidence, options_.confidence_threshold)));
  }
}

// False: the drafter failed for this request, which goes on without it.
bool Speculation::check(const DraftTurn& turn, const DraftRequest& made) {
  if (made.failed) {
    stop(*turn.drafts,
         fmt::format("drafting at position {} gave numbers that are not finite", turn.position));
  } else {
    const auto bad = std::find_if(made.drafts.begin(), made.drafts.end(),
                                  [&](std::int32_t id) { return id < 0 || id >= vocab_; });
    if (bad == made.drafts.end()) return true;
    stop(*turn.drafts, fmt::format("drafting at position {} gave token id {}, expected 0 to {}",
                                   turn.position, *bad, vocab_ - 1));
  }
  return false;
}

void Speculation::stop(RequestDrafts& request, std::string_view why) {
  request.state.reset();
  ++request.stats.failures;
  ++pooled_.failures;
  log_(fmt::format("speculation: request {} goes on without {}: {}", request.index, drafter_.name(), why));
}

void Speculation::record(RequestDrafts& request, const BlockResult& block) {
  const auto proposed = static_cast<int>(request.drafts.size());
  request.stats.record(proposed, block.accepted, block.emitted);
  pooled_.record(proposed, block.accepted, block.emitted);
  if (request.watch.record(proposed, block.accepted)) {
    ++request.stats.pauses;
    ++pooled_.pauses;
  }
  if (proposed == 0) return;
  if (tuner_) tuner_->record_block(proposed, block.accepted);
  ++suspect_steps_;
  suspect_accepted_ += block.accepted;
  if (suspect_steps_ >= kSuspiciousSteps) suspect();
}

void Speculation::record_step(int rows, double seconds) {
  if (tuner_) tuner_->record_step(rows, seconds, static_cast<int>(requests_.size()), draft_seconds_);
  requests_.clear();  // the next step may not draft at all
}

void Speculation::suspect() {
  const double accept_length =
      1 + static_cast<double>(suspect_accepted_) / static_cast<double>(suspect_steps_);
  if (!warned_ && accept_length < kSuspiciousAcceptLength) {
    warned_ = true;
    log_(fmt::format(
        "warning: speculation: {} drafts of {} accepted in the last {} steps (accept length {:.2f}): answers "
        "are not affected, but drafting costs more than it gains. Likely causes: a drafter made for another "
        "checkpoint, weights or a mask embedding that are zero or damaged, the wrong "
        "--speculative-dflash-final-tap, prompts without the chat format. --speculative-algorithm NONE turns "
        "it off",
        suspect_accepted_, drafter_.name(), suspect_steps_, accept_length));
  }
  suspect_steps_ = 0;
  suspect_accepted_ = 0;
}

}  // namespace mimo
