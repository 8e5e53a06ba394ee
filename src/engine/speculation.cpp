#include "engine/speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace mimo {

namespace {

// Rows before an anchor that matter to a draft, far from the beginning; at most kPendingRows.
int rows_that_matter(const Drafter& drafter) {
  constexpr std::int64_t kFar = std::int64_t{1} << 40;
  return static_cast<int>(std::clamp<std::int64_t>(kFar - drafter.first_needed(kFar), 1, kPendingRows));
}

}  // namespace

Speculation::Speculation(Drafter& drafter, Ops& ops, const SpeculationOptions& options, int vocab, int hidden,
                         LogLine log)
    : drafter_(drafter),
      options_(options),
      vocab_(vocab),
      tap_buffers_(ops, rows_that_matter(drafter), drafter.taps().size() * static_cast<std::size_t>(hidden)),
      log_(std::move(log)) {
  if (options_.tune_width) tuner_.emplace(drafter_.max_drafts());
}

std::unique_ptr<RequestDrafts> Speculation::open(std::size_t index, std::int64_t prompt, std::int64_t most) {
  auto request = std::make_unique<RequestDrafts>(options_.min_accept_length, tap_buffers_);
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

std::shared_ptr<const DraftTail> Speculation::save(const RequestDrafts& request,
                                                   std::int64_t position) const {
  if (!request.state || !request.pending.empty()) return nullptr;
  return drafter_.save(*request.state, position);
}

void Speculation::restore(RequestDrafts& request, const DraftTail& tail, std::int64_t position) {
  if (!request.state || request.first_needed > position) return;
  drafter_.restore(*request.state, tail);
  request.first_needed = position;
}

// Drafts for each request of the round, and whether drafts are to be expected in the next ones.
int Speculation::choose_width(int decoding, int most) {
  most = std::min(most, drafter_.max_drafts());
  if (options_.num_draft_tokens > 0) most = std::min(most, options_.num_draft_tokens);
  most = batch_width(options_.batch_widths, decoding, most);
  if (tuner_) most = std::min(most, tuner_->choose(decoding));
  if (!tuner_ || !tuner_->probing()) idle_rounds_ = most > 0 ? 0 : std::min(idle_rounds_ + 1, kIdleRounds);
  return most;
}

void Speculation::draft(std::span<const DraftTurn> turns, int decoding, int most) {
  most = choose_width(decoding, most);
  const bool few = tuner_ && tuner_->probes_few() && turns.size() > kProbedRequests;
  if (few) first_probed_ = (first_probed_ + kProbedRequests) % turns.size();

  requests_.clear();
  turn_of_.clear();
  draft_seconds_ = 0;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    RequestDrafts& request = *turns[i].drafts;
    request.drafts.clear();
    if (options_.max_context > 0 && turns[i].position >= options_.max_context) forget(request);
    if (few && (i + turns.size() - first_probed_) % turns.size() >= kProbedRequests) continue;
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
  show_pending(turns);
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

// Whether rows of the request are kept back: drafts are not expected, or rows before them wait already.
bool Speculation::waits(const RequestDrafts& request) const {
  if (!request.pending.empty()) return true;
  return request.drafts.empty() && (idle_rounds_ == kIdleRounds || request.watch.paused());
}

void Speculation::observe(std::span<const CommittedRows> committed, std::span<const float> taps) {
  observations_.clear();
  for (const CommittedRows& rows : committed) {
    RequestDrafts& request = *rows.drafts;
    if (!request.state) continue;
    if (!waits(request)) {
      observations_.push_back({request.state.get(), rows.row_begin, rows.rows, rows.position, rows.tokens});
      continue;
    }
    request.pending.add(rows.position,
                        taps.subspan(static_cast<std::size_t>(rows.row_begin) * tap_buffers_.width(),
                                     static_cast<std::size_t>(rows.rows) * tap_buffers_.width()),
                        rows.tokens);
  }
  if (!observations_.empty()) drafter_.observe(observations_, taps);
}

// Shows the drafter what waits of the requests that it is to draft for.
void Speculation::show_pending(std::span<const DraftTurn> turns) {
  // In portions: what waits of many requests is too much to copy at once.
  const int most = tap_buffers_.rows();
  int rows = 0;
  const auto show = [&] {
    const std::size_t floats = static_cast<std::size_t>(rows) * tap_buffers_.width();
    if (rows > 0) drafter_.observe(observations_, {pending_taps_.data(), floats});
    observations_.clear();
    rows = 0;
  };
  observations_.clear();
  for (const std::size_t turn : turn_of_) {
    const RequestDrafts& request = *turns[turn].drafts;
    if (request.pending.empty()) continue;
    if (rows + request.pending.rows() > most) show();
    float* taps =
        pending_taps_.reserve(tap_buffers_.ops(), static_cast<std::size_t>(most) * tap_buffers_.width());
    observations_.push_back(request.pending.copy_to(taps, rows));
    observations_.back().state = request.state.get();
    rows += observations_.back().rows;
  }
  show();
  for (const std::size_t turn : turn_of_) turns[turn].drafts->pending.clear();
}

// Nothing is drafted for the request any more.
void Speculation::forget(RequestDrafts& request) {
  request.state.reset();
  request.pending.clear();
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
  forget(request);
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
