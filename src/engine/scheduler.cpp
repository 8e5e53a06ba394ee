#include "engine/scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace mimo {
namespace {

// Spec serving 1.6: the expected part of max_tokens begins here, falls over so many decoding steps, and never
// below this part of its beginning.
constexpr double kFirstRatio = 0.7;
constexpr double kLastRatio = 0.14;
constexpr int kRatioSteps = 600;
constexpr int kRoomSteps = 20;
// Of an answer no more than this is ever reserved.
constexpr std::int64_t kReserve = 4096;

}  // namespace

std::int64_t Scheduler::window_pages(const SchedulerOptions& options, int running) {
  // Behind the newest token a request holds its window and what its last whole page needs (turn_end_keep), before
  // it two blocks; both ends may cut a page; beyond that what is not freed at once. The rows of the step's chunks
  // come once for all.
  const int size = options.layout.page_size;
  const std::int64_t behind = options.layout.window - 1 + size - 1 + options.layout.eviction_interval;
  const std::int64_t one = pages_for(behind + 2 * std::int64_t{options.block}, size) + 2;
  return one * running + pages_for(options.rows, size);
}

Result<Scheduler> Scheduler::make(const SchedulerOptions& options, PagePool& full, PagePool& window,
                                  PrefixTree* tree, HostTier* host) {
  SchedulerOptions fitted = options;
  fitted.max_running = std::min(options.max_running, options.rows);
  while (fitted.max_running > 0 && window_pages(fitted, fitted.max_running) > window.capacity()) {
    --fitted.max_running;
  }
  if (fitted.max_running < 1 || full.capacity() < 1) {
    return fail(
        ErrorCode::kInvalidArgument,
        "KV pools of {} full and {} window pages of {} tokens: one request with chunks of {} rows needs "
        "{} window pages; use smaller chunks (--chunked-prefill-size) or larger pools",
        full.capacity(), window.capacity(), options.layout.page_size, options.rows, window_pages(fitted, 1));
  }
  return Scheduler(fitted, full, window, tree, host);
}

Scheduler::Scheduler(const SchedulerOptions& options, PagePool& full, PagePool& window, PrefixTree* tree,
                     HostTier* host)
    : options_(options),
      full_(&full),
      window_(&window),
      tree_(tree),
      host_(host),
      ratio_(std::min(1.0, kFirstRatio * options.conservativeness)) {}

std::int64_t Scheduler::longest_request() const { return full_->capacity() * options_.layout.page_size; }

Status Scheduler::submit(ScheduledRequest request) {
  if (request.limit > longest_request()) {
    return fail(ErrorCode::kLimit, "{} tokens of prompt and answer: the KV cache holds {}", request.limit,
                longest_request());
  }
  if (waiting() >= options_.max_queued && (waiting() > 0 || running() >= options_.max_running)) {
    return fail(ErrorCode::kBusy, "{} requests wait already, at most {} may (--max-queued-requests)",
                waiting(), options_.max_queued);
  }
  request.order = next_order_++;
  if (!options_.priorities) request.priority = 0;
  if (options_.low_values_first) request.priority = -request.priority;
  // The ends of a prompt are where the next one will most likely branch off: the same prompt again, or one whose
  // last turn is another.
  const std::int64_t window = options_.layout.window;
  for (const std::int64_t back : {std::int64_t{1}, window, 2 * window}) {
    request.points.push_back({request.prompt - back, WindowRank::kEnd, 0, nullptr});
  }
  for (ReusePoint& point : request.points)
    point.position = options_.layout.floor(std::max<std::int64_t>(0, point.position));
  std::erase_if(request.points, [](const ReusePoint& point) { return point.position == 0; });
  std::sort(request.points.begin(), request.points.end(),
            [](const ReusePoint& a, const ReusePoint& b) { return a.position < b.position; });
  auto owned = std::make_unique<ScheduledRequest>(std::move(request));
  ScheduledRequest* entry = owned.get();
  requests_.emplace(entry->id, std::move(owned));
  enqueue(entry);
  return {};
}

void Scheduler::enqueue(ScheduledRequest* request) {
  const auto place = std::find_if(queue_.begin(), queue_.end(), [&](const ScheduledRequest* other) {
    return other->priority < request->priority ||
           (other->priority == request->priority && other->order > request->order);
  });
  queue_.insert(place, request);
}

ScheduledRequest* Scheduler::find(RequestId id) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.get();
}

std::optional<RequestId> Scheduler::full_queue_victim(int priority) const {
  const bool full = !queue_.empty() && waiting() >= options_.max_queued;
  const int urgency = options_.low_values_first ? -priority : priority;
  if (!full || !options_.priorities || queue_.back()->priority >= urgency) return {};
  return queue_.back()->id;
}

void Scheduler::remove(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  ScheduledRequest* request = found->second.get();
  if (request->pages) {
    keep_prefix(*request, request->computed(), true);
    request->pages.reset();
  }
  std::erase(running_, request);
  std::erase(restoring_, request);
  std::erase(decoding_, request);
  const auto queued = std::find(queue_.begin(), queue_.end(), request);
  if (queued != queue_.end()) queue_.erase(queued);
  requests_.erase(found);
}

void Scheduler::prepare() {
  plan_ = {};
  retracted_now_ = false;
  settle_restores();
  adapt_ratio();
  decoding_.clear();
  for (ScheduledRequest* request : running_) {
    if (!request->prefilling) decoding_.push_back(request);
  }
  make_room_for_blocks();
  for (;;) {
    if (!retracted_now_) admit();
    if (!running_.empty() || restoring_.empty()) break;
    host_->wait();  // nothing else can run
    settle_restores();
  }
  if (!restoring_.empty()) make_room_for_blocks();  // they have taken free pages
  const bool prompts = std::any_of(running_.begin(), running_.end(),
                                   [](const ScheduledRequest* request) { return request->prefilling; });
  if (prompts && !options_.mixed) decoding_.clear();
}

void Scheduler::adapt_ratio() {
  const double first = std::min(1.0, kFirstRatio * options_.conservativeness);
  if (running_.empty()) {
    ratio_ = first;
  } else {
    ratio_ = std::max(first * kLastRatio, ratio_ - first * (1 - kLastRatio) / kRatioSteps);
  }
}

std::int64_t Scheduler::expected_tokens(const ScheduledRequest& request) const {
  const auto known = static_cast<std::int64_t>(request.tokens.size());
  const std::int64_t left = std::min(request.limit - known, kReserve);
  return known + static_cast<std::int64_t>(static_cast<double>(left) * ratio_);
}

std::int64_t Scheduler::promised_pages() const {
  std::int64_t pages = 0;
  for (const ScheduledRequest* request : running_) {
    const std::int64_t all = pages_for(expected_tokens(*request), options_.layout.page_size);
    pages += std::max<std::int64_t>(0, all - std::ssize(request->pages->full_pages()));
  }
  for (const ScheduledRequest* request : restoring_) {
    const std::int64_t all = pages_for(expected_tokens(*request), options_.layout.page_size);
    pages += std::max<std::int64_t>(0, all - request->restore->tokens() / options_.layout.page_size);
  }
  return pages;
}

// Pages for the whole block of every decoding request.
Scheduler::Need Scheduler::blocks() const {
  Need need;
  for (const ScheduledRequest* request : decoding_) {
    const auto known = static_cast<std::int64_t>(request->tokens.size());
    const std::int64_t rows = std::clamp<std::int64_t>(request->limit - known, 1, options_.block);
    need.full += request->pages->full_pages_needed(rows);
    need.window += request->pages->window_pages_needed(rows);
  }
  return need;
}

// Somebody gives pages back: the newest one that waits for a copy, since nothing of it is lost; else a victim.
void Scheduler::give_up_pages() {
  if (!restoring_.empty()) {
    give_up_restore();
  } else {
    retract(victim());
  }
}

void Scheduler::make_room_for_blocks() {
  for (Need need = blocks(); !free_pages(need.full, need.window); need = blocks()) {
    give_up_pages();
  }
}

bool Scheduler::free_pages(std::int64_t full, std::int64_t window) {
  if (full <= full_->free_pages() && window <= window_->free_pages()) return true;
  if (tree_ == nullptr) return false;
  // Pages that are being copied to host memory can be had in a moment.
  while (!tree_->make_room(full, window)) {
    if (host_ == nullptr || !host_->wait()) return false;
  }
  return true;
}

// The running request whose loss costs least: of the lowest priority, with the shortest answer, then with the
// longest prompt, which frees most.
std::size_t Scheduler::victim() const {
  MIMO_CHECK(running_.size() > 1, "{} request left and no pages for it", running_.size());
  std::size_t best = 0;
  for (std::size_t i = 1; i < running_.size(); ++i) {
    const ScheduledRequest& a = *running_[i];
    const ScheduledRequest& b = *running_[best];
    const auto rank = [](const ScheduledRequest& r) {
      return std::tuple(r.priority, r.answered(), -r.prompt, -static_cast<std::int64_t>(r.order));
    };
    if (rank(a) < rank(b)) best = i;
  }
  return best;
}

void Scheduler::retract(std::size_t index) {
  ScheduledRequest* request = running_[index];
  keep_prefix(*request, request->computed(), true);
  request->pages.reset();
  request->prefilling = true;
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  std::erase(decoding_, request);
  enqueue(request);
  plan_.retracted.push_back(request->id);
  ++retractions_;
  retracted_now_ = true;
  // What answers have come to so far says more than the first guess.
  std::int64_t answered = 0;
  std::int64_t allowed = 0;
  for (const ScheduledRequest* other : running_) {
    answered += other->answered();
    allowed += other->limit - other->prompt;
  }
  if (allowed > 0) {
    const double needed =
        static_cast<double>(answered + kRoomSteps * running()) / static_cast<double>(allowed);
    ratio_ = std::min(1.0, std::max(ratio_, needed));
  }
}

void Scheduler::hold(HoldReason reason) {
  if (plan_.held == HoldReason::kNone) plan_.held = reason;
}

const StepPlan& Scheduler::lay_out(std::span<const int> drafts) {
  int budget = options_.rows;
  for (std::size_t i = 0; i < decoding_.size(); ++i) {
    ScheduledRequest& request = *decoding_[i];
    const int rows = 1 + drafts[i];
    const Status room = request.pages->extend(rows);
    MIMO_CHECK(room.has_value(), "no room for a block of {} rows", rows);
    plan_.parts.push_back({request.id, plan_.rows, rows, request.computed(), false, true});
    plan_.rows += rows;
    budget -= rows;
  }
  if (options_.mixed || decoding_.empty()) {
    add_chunks(budget);
    // Prompts hold all the pages and none can go on: some have to give theirs back.
    while (plan_.parts.empty() && running() > 1) {
      give_up_pages();
      add_chunks(budget);
    }
  }
  return plan_;
}

void Scheduler::add_chunks(int budget) {
  std::vector<ScheduledRequest*> prompts;
  for (ScheduledRequest* request : running_) {
    if (request->prefilling) prompts.push_back(request);
  }
  std::stable_sort(prompts.begin(), prompts.end(), [&](const ScheduledRequest* a, const ScheduledRequest* b) {
    const auto rank = [&](const ScheduledRequest* r) {
      return std::tuple(-r->priority, r->passed<kPatience, r->missing()> budget);
    };
    return rank(a) < rank(b);
  });
  for (ScheduledRequest* request : prompts) {
    if (add_chunk(*request, options_.rows - plan_.rows)) {
      request->passed = 0;
    } else {
      ++request->passed;
    }
  }
}

bool Scheduler::add_chunk(ScheduledRequest& request, std::int64_t budget) {
  std::int64_t rows = std::min(request.missing(), budget);
  const bool last = rows == request.missing();
  const std::int64_t size = options_.layout.page_size;
  if (!last && tree_ != nullptr) {  // whole pages can be shared
    const std::int64_t whole = (request.computed() + rows) / size * size - request.computed();
    if (whole > 0) rows = whole;
  }
  if (rows <= 0) return false;
  if (!free_pages(request.pages->full_pages_needed(rows), request.pages->window_pages_needed(rows)))
    return false;
  const Status room = request.pages->extend(rows);
  MIMO_CHECK(room.has_value(), "no room for a chunk of {} rows", rows);
  plan_.parts.push_back({request.id, plan_.rows, static_cast<int>(rows), request.computed(), true, last});
  plan_.rows += static_cast<int>(rows);
  return true;
}

void Scheduler::advance(RequestId id, std::int64_t rows, std::span<const std::int32_t> emitted) {
  ScheduledRequest& request = *find(id);
  const std::int64_t from = request.computed();
  request.pages->advance(rows);
  if (request.prefilling) keep_prefix(request, from, false);
  request.pages->trim();
  if (request.missing() == 0) request.prefilling = false;
  request.tokens.insert(request.tokens.end(), emitted.begin(), emitted.end());
}

// Gives the tree what the request has computed, with the window pages before the points that it passed since it
// had computed `from`, and before the end if this is the `whole` of it.
void Scheduler::keep_prefix(ScheduledRequest& request, std::int64_t from, bool whole) {
  if (tree_ == nullptr || !request.reuse) return;
  const std::int64_t length = options_.layout.floor(request.computed());
  if (length == 0) return;
  std::vector<ReusePoint> passed;
  for (const ReusePoint& point : request.points) {
    if (point.position > from && point.position <= length) passed.push_back(point);
  }
  if (whole) passed.push_back({length, WindowRank::kEnd, 0, request.end_attachment});
  const auto keys = std::span(request.tokens).first(static_cast<std::size_t>(length));
  tree_->insert(keys, request.salt, *request.pages, passed);
  if (host_ != nullptr) host_->store(keys, request.salt, *request.pages, passed);
}

}  // namespace mimo
