// The half of the scheduler that decides who begins: order, cached prefixes, and what comes back from host memory.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"

namespace mimo {
namespace {

// Waiting requests that one step looks at.
constexpr int kLookAhead = 16;
// Longer queues are served in order: matching each of them at each step would cost more than it gains.
constexpr std::int64_t kMatchedQueue = 128;

std::int64_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const std::size_t n = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first - a.begin();
}

}  // namespace

void Scheduler::order_queue_by_prefix() {
  if (!options_.longest_prefix_first || tree_ == nullptr || waiting() > kMatchedQueue) return;
  std::vector<std::pair<std::int64_t, ScheduledRequest*>> ranked;
  for (ScheduledRequest* request : queue_) {
    ranked.emplace_back(request->reuse ? tree_->probe(request->tokens, request->salt).tokens : 0, request);
  }
  // Who was passed often enough goes before all others, by arrival.
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    const auto rank = [](const auto& entry) {
      const ScheduledRequest& request = *entry.second;
      const bool patient = request.passed < kPatience;
      return std::tuple(-request.priority, patient,
                        patient ? -entry.first : static_cast<std::int64_t>(request.order));
    };
    return rank(a) < rank(b);
  });
  for (std::size_t i = 0; i < ranked.size(); ++i) queue_[i] = ranked[i].second;
}

void Scheduler::admit() {
  order_queue_by_prefix();
  std::int64_t pending = 0;
  for (const ScheduledRequest* request : running_) {
    if (request->prefilling) pending += request->missing();
  }
  for (const ScheduledRequest* request : restoring_)
    pending += request->missing() - request->restore->tokens();
  for (std::size_t i = 0; i < queue_.size() && i < kLookAhead;) {
    ScheduledRequest& request = *queue_[i];
    // Pages that a prompt holds before its turn comes are idle; a short one may join the rest of a step.
    const bool is_long = request.missing() > options_.rows / 2;
    if (pending >= options_.rows && (is_long || pending >= 2 * std::int64_t{options_.rows})) {
      hold(HoldReason::kRows);
      if (request.passed >= kPatience) return;
      ++i;
      continue;
    }
    if (waits_for_prefix(request)) {
      hold(HoldReason::kSharedPrefix);
      ++i;
      continue;
    }
    if (!try_admit(request)) return;
    pending += request.missing() - (request.restore ? request.restore->tokens() : 0);
    queue_.erase(std::find(queue_.begin(), queue_.end(), &request));
    for (ScheduledRequest* other : queue_) {
      if (other->order < request.order && other->priority >= request.priority) ++other->passed;
    }
  }
}

// True: another request is about to compute, or to get from host memory, a prefix that this one can use.
bool Scheduler::waits_for_prefix(ScheduledRequest& request) {
  if (tree_ == nullptr || !request.reuse) return false;
  std::int64_t found = -1;
  const auto gains = [&](const ScheduledRequest& other, std::int64_t most) {
    if (!other.reuse || other.salt != request.salt) return std::int64_t{0};
    const std::int64_t usable = std::min({common_prefix(request.tokens, other.tokens), most,
                                          static_cast<std::int64_t>(request.tokens.size()) - 1});
    const std::int64_t shared = options_.layout.floor(usable);
    if (shared < kWorthSharing || shared <= other.computed()) return std::int64_t{0};
    if (found < 0) found = tree_->probe(request.tokens, request.salt).tokens;
    return shared < found + kWorthSharing ? 0 : shared;
  };
  for (ScheduledRequest* other : running_) {
    if (!other->prefilling) continue;
    const std::int64_t shared = gains(*other, std::ssize(other->tokens));
    if (shared == 0) continue;
    add_point(*other, shared);
    return true;
  }
  return std::any_of(restoring_.begin(), restoring_.end(), [&](const ScheduledRequest* other) {
    return gains(*other, other->restore->tokens()) > 0;
  });
}

// A branch of prompts is known to be at `position`.
void Scheduler::add_point(ScheduledRequest& request, std::int64_t position) {
  const auto place =
      std::lower_bound(request.points.begin(), request.points.end(), position,
                       [](const ReusePoint& point, std::int64_t value) { return point.position < value; });
  if (place != request.points.end() && place->position == position) {
    place->rank = WindowRank::kBranch;
  } else {
    request.points.insert(place, {position, WindowRank::kBranch, 0, nullptr});
  }
}

// Sends the least urgent running request back if `request` is more urgent by more than the threshold.
bool Scheduler::preempt_for(const ScheduledRequest& request) {
  if (!options_.priorities || running_.size() < 2) return false;
  const std::size_t index = victim();
  if (request.priority - running_[index]->priority <= options_.preemption_threshold) return false;
  retract(index);
  return true;
}

bool Scheduler::try_admit(ScheduledRequest& request) {
  while (running() >= options_.max_running) {
    if (preempt_for(request)) continue;
    hold(HoldReason::kMaxRunning);
    return false;
  }
  for (;;) {
    std::optional<PrefixMatch> match;
    std::int64_t cached = 0;
    if (tree_ != nullptr && request.reuse) {
      match.emplace(tree_->match(request.tokens, request.salt));
      cached = match->pages.length();
    }
    const std::int64_t need =
        pages_for(expected_tokens(request), options_.layout.page_size) - cached / options_.layout.page_size;
    if (need > full_->available_pages() - promised_pages() && running() > 0) {
      match.reset();
      if (preempt_for(request)) continue;
      hold(HoldReason::kFullPages);
      return false;
    }
    if (match) {
      if (start_restore(request, *match)) return true;
      if (match->full_tokens > cached) add_point(request, match->full_tokens);
      request.attachment = std::move(match->attachment);
      begin(request, std::move(match->pages), 0);
    } else {
      begin(request, SequencePages(options_.layout, *full_, *window_), 0);
    }
    return true;
  }
}

// The request runs from now on, on pages of a prefix of which so many tokens came from host memory.
void Scheduler::begin(ScheduledRequest& request, SequencePages&& pages, std::int64_t from_host) {
  if (!request.admitted_before) {
    request.cached = pages.length();
    request.cached_host = from_host;
    if (tree_ != nullptr && request.reuse) tree_->count_query(request.prompt, request.cached);
  }
  request.admitted_before = true;
  request.pages.emplace(std::move(pages));
  if (tree_ != nullptr) request.pages->keep_behind(turn_end_keep(options_.layout));
  request.prefilling = true;
  running_.push_back(&request);
  plan_.admitted.push_back(request.id);
}

// True: more of the prompt's beginning is in host memory than on the device, and is on its way.
bool Scheduler::start_restore(ScheduledRequest& request, const PrefixMatch& match) {
  if (host_ == nullptr || !request.restorable) return false;
  const std::int64_t length =
      host_->find(request.tokens, request.salt, {match.pages.length(), match.full_tokens});
  if (length == 0) return false;
  // Without room, beside what decoding requests take in this step, it is computed, which can begin with less.
  const PageLayout& layout = options_.layout;
  const Need need = blocks();
  if ((length - match.pages.length()) / layout.page_size + need.full > full_->available_pages() ||
      window_record_pages(layout) + need.window > window_->available_pages()) {
    return false;
  }
  Result<std::shared_ptr<HostRestore>> restore = host_->restore(request.tokens, request.salt, length);
  if (!restore) return false;
  request.restore = std::move(*restore);
  restoring_.push_back(&request);
  return true;
}

// Takes notice of copies that have ended: what has come back begins.
void Scheduler::settle_restores() {
  if (host_ == nullptr) return;
  host_->poll();
  for (std::size_t i = 0; i < restoring_.size();) {
    ScheduledRequest& request = *restoring_[i];
    if (request.restore->state() == HostRestore::State::kLoading) {
      ++i;
      continue;
    }
    restoring_.erase(restoring_.begin() + static_cast<std::ptrdiff_t>(i));
    const std::shared_ptr<HostRestore> restore = std::exchange(request.restore, nullptr);
    if (restore->state() == HostRestore::State::kFailed) {
      request.restorable = false;
      enqueue(&request);
      continue;
    }
    SequencePages pages = restore->take();
    const std::int64_t length = pages.length();
    const ReusePoint end{length, WindowRank::kEnd, 0, restore->attachment()};
    tree_->insert(std::span(request.tokens).first(static_cast<std::size_t>(length)), request.salt, pages,
                  {&end, 1});
    request.attachment = restore->attachment();
    begin(request, std::move(pages), restore->loaded_tokens());
  }
}

// Back to the queue with the newest one; its pages are free when the copies into them have ended.
void Scheduler::give_up_restore() {
  ScheduledRequest* request = restoring_.back();
  restoring_.pop_back();
  request->restore.reset();
  enqueue(request);
  retracted_now_ = true;
}

}  // namespace mimo
