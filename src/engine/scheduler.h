// Who runs, with which tokens, on which pages. Pure bookkeeping on the host: the caller runs the plan and reports
// what came out, so that a test can stand in for the model.
//
// A request is a list of known tokens (prompt and answer) of which some are computed. What is missing runs in
// chunks; a request of whose tokens only the newest is missing decodes. A step serves decoding requests first, then
// chunks up to the row budget. Rules:
//  - What can never fit is refused when it comes. What fits alone finishes: if pages run out, requests are sent
//    back to the queue (least answered first) and later go on with the tokens they had; nobody notices.
//  - A request is admitted when its prompt and the expected part of its answer fit beside what running requests
//    are expected to take. Window layers are counted by their worst case, so they never run out.
//  - Order is by priority, then arrival. A short prompt may pass a long one that does not fit into the step; a
//    request that was passed over kPatience times is not passed again.
//  - A request whose prompt begins with what a running request is computing right now waits for it.
//  - A prefix that host memory has is brought back while others run; the request counts as running meanwhile, and
//    it is the first to give its pages back.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/host_tier.h"
#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "cache/sequence_pages.h"
#include "engine/step_plan.h"

namespace mimo {

inline constexpr int kPatience = 8;
// A prefix shared with a running prompt is worth waiting for from this many tokens on.
inline constexpr std::int64_t kWorthSharing = 32;

struct SchedulerOptions {
  PageLayout layout;
  int rows = 512;                 // most rows of a step
  int max_running = 16;           // at most `rows`
  int max_queued = 1024;          // requests that wait before submit() says kBusy; 0: none wait
  int block = 1;                  // most rows of one decoding request in a step
  bool mixed = true;              // chunks run beside decoding requests
  double conservativeness = 1.0;  // of the expected length of answers
  bool longest_prefix_first = false;
  bool priorities = false;        // false: all are equal
  bool low_values_first = false;  // with priorities: a smaller number is more urgent
  int preemption_threshold = 10;
};

struct ScheduledRequest {
  RequestId id = 0;
  std::vector<std::int32_t> tokens;  // known: the prompt, then the answer
  std::int64_t prompt = 0;           // tokens of the prompt
  std::int64_t limit = 0;            // tokens that may ever be known
  std::string salt;
  int priority = 0;
  bool reuse = true;               // may begin on cached pages
  bool restorable = true;          // false: what host memory had of it turned out to be of no use
  std::vector<ReusePoint> points;  // where other prompts are likely to branch off, by position

  std::optional<SequencePages> pages;                 // while it runs
  std::shared_ptr<HostRestore> restore;               // its prefix, on its way from host memory
  std::shared_ptr<const CacheAttachment> attachment;  // of the cached prefix it began on; may be null
  // To be kept at the last page boundary when it ends; may be null.
  std::shared_ptr<const CacheAttachment> end_attachment;
  bool prefilling = true;
  std::int64_t cached = 0;       // tokens of the prompt that were cached at its first admission
  std::int64_t cached_host = 0;  // part of them that came back from host memory
  bool admitted_before = false;
  int passed = 0;           // times that a later request was served instead
  std::uint64_t order = 0;  // of arrival

  std::int64_t computed() const { return pages ? pages->length() : 0; }
  std::int64_t missing() const { return static_cast<std::int64_t>(tokens.size()) - computed(); }
  std::int64_t answered() const { return static_cast<std::int64_t>(tokens.size()) - prompt; }
};

class Scheduler {
 public:
  // Pools, and the tree and the host tier if there are any, must outlive it. `options.max_running` is lowered to
  // what the window pool holds; pools that hold no request at all are kInvalidArgument with advice.
  static Result<Scheduler> make(const SchedulerOptions& options, PagePool& full, PagePool& window,
                                PrefixTree* tree, HostTier* host = nullptr);

  // Window pages that `running` requests need at worst.
  static std::int64_t window_pages(const SchedulerOptions& options, int running);

  // Most tokens of a request that can run alone.
  std::int64_t longest_request() const;
  int max_running() const { return options_.max_running; }

  // kLimit: it could never run; kBusy: the queue is full.
  Status submit(ScheduledRequest request);

  // Takes a request out, whatever its state; its computed tokens stay cached. Unknown ids: nothing happens.
  void remove(RequestId id);

  // First half of a step: admits, and makes sure that each decoding request can have its whole block.
  void prepare();
  // Decoding requests of the step, in order.
  std::span<ScheduledRequest* const> decoding() const { return decoding_; }
  // Second half: rows for everyone. `drafts[i]`: tokens drafted for decoding()[i], below `block` and so that the
  // blocks of all fit into `rows`.
  const StepPlan& lay_out(std::span<const int> drafts);

  // The step has run: of the request's rows in it the first `rows` are committed, and `emitted` follows them.
  void advance(RequestId id, std::int64_t rows, std::span<const std::int32_t> emitted);

  // Null: not known.
  ScheduledRequest* find(RequestId id);

  // With those whose prefix is on its way from host memory.
  std::int64_t running() const { return std::ssize(running_) + std::ssize(restoring_); }
  std::int64_t waiting() const { return std::ssize(queue_); }
  bool idle() const { return running_.empty() && restoring_.empty() && queue_.empty(); }
  std::int64_t retractions() const { return retractions_; }
  double answer_ratio() const { return ratio_; }
  // When the queue is full: the waiting request that has to make way for one of `priority`, if there is one.
  std::optional<RequestId> full_queue_victim(int priority) const;

 private:
  Scheduler(const SchedulerOptions& options, PagePool& full, PagePool& window, PrefixTree* tree,
            HostTier* host);

  void admit();
  void order_queue_by_prefix();
  static void add_point(ScheduledRequest& request, std::int64_t position);
  bool try_admit(ScheduledRequest& request);
  void begin(ScheduledRequest& request, SequencePages&& pages, std::int64_t from_host);
  bool start_restore(ScheduledRequest& request, const PrefixMatch& match);
  void settle_restores();
  void give_up_restore();
  bool preempt_for(const ScheduledRequest& request);
  bool waits_for_prefix(ScheduledRequest& request);
  void hold(HoldReason reason);
  struct Need {
    std::int64_t full = 0;
    std::int64_t window = 0;
  };
  Need blocks() const;
  void give_up_pages();
  void make_room_for_blocks();
  bool free_pages(std::int64_t full, std::int64_t window);
  void retract(std::size_t index);
  std::size_t victim() const;
  void enqueue(ScheduledRequest* request);
  void add_chunks(int budget);
  bool add_chunk(ScheduledRequest& request, std::int64_t budget);
  void keep_prefix(ScheduledRequest& request, std::int64_t from, bool whole);
  std::int64_t expected_tokens(const ScheduledRequest& request) const;
  std::int64_t promised_pages() const;
  void adapt_ratio();

  SchedulerOptions options_;
  PagePool* full_;
  PagePool* window_;
  PrefixTree* tree_;  // null: nothing is shared
  HostTier* host_;    // null: what is evicted is gone
  std::unordered_map<RequestId, std::unique_ptr<ScheduledRequest>> requests_;
  std::deque<ScheduledRequest*> queue_;     // by urgency
  std::vector<ScheduledRequest*> running_;  // by admission
  std::vector<ScheduledRequest*> restoring_;
  std::vector<ScheduledRequest*> decoding_;
  StepPlan plan_;
  double ratio_ = 0;
  std::uint64_t next_order_ = 0;
  std::int64_t retractions_ = 0;
  bool retracted_now_ = false;
};

}  // namespace mimo
