// The engine without a thread: requests in, one step at a time, tokens out. A step: admit and plan (Scheduler),
// draft, run the target, commit, let the drafter observe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/result.h"
#include "engine/engine_cache.h"
#include "engine/engine_client.h"
#include "engine/live_answer.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/speculation.h"
#include "model/drafter.h"
#include "model/target.h"
#include "ops/backend_array.h"
#include "text/tokenizer.h"

namespace mimo {

struct EngineOptions {
  SchedulerOptions scheduler;  // `block` is set from the drafter
  KvDType kv_dtype = KvDType::kBF16;
  std::int64_t full_pages = 0;
  std::int64_t window_pages = 0;
  std::int64_t max_model_len = 0;  // most tokens of prompt and answer; 0: what model and pools allow
  bool prefix_cache = false;
  std::uint64_t host_kv_bytes = 0;        // host memory for prefixes that are evicted; 0: none
  std::int64_t host_kv_min_tokens = 256;  // a restore that saves fewer is not worth it
  const Tokenizer* tokenizer = nullptr;   // null: no text, and stop strings are refused
  Drafter* drafter = nullptr;             // null: no speculation
  SpeculationOptions speculation = {};
  bool poison = false;  // NaN in every page that nothing owns: tests show that nothing reads it
  // Where a token depends on its row of logits alone the backend chooses it, and no logits are brought to the CPU. Null:
  // where the backend has memory of its own.
  std::optional<bool> choose_on_backend = {};
  LogLine log = {};  // null: stderr
};

// Where the time of all steps went.
struct EngineTimes {
  std::int64_t steps = 0;
  std::int64_t rows = 0;  // of the target
  double plan_seconds = 0;
  double target_seconds = 0;
  double draft_seconds = 0;
  double observe_seconds = 0;

  void add(const EngineTimes& other);
};

// Logits [rows, vocab] of prompt positions [first, first + rows), in order.
using PromptLogits = std::function<void(std::int64_t first, std::span<const float> logits)>;

// Ids in range, lengths within `max_model_len`, sampling fields. Names the field.
Status check_request(const EngineRequest& request, const ModelConfig& config, std::int64_t max_model_len);

class EngineCore {
 public:
  // Model, backend, tokenizer and drafter must outlive it.
  static Result<std::unique_ptr<EngineCore>> make(TargetModel& model, Ops& ops, const EngineOptions& options);

  // As EngineClient::submit. With `prompt_logits` the whole prompt is computed, and its output head too.
  Status submit(RequestId id, EngineRequest request, std::shared_ptr<AnswerSink> sink,
                PromptLogits prompt_logits = {});
  void abort(RequestId id);
  // Ends every request with `error`.
  void fail_all(const Error& error);
  // After step() threw: ends the requests that were in it.
  void fail_step(const Error& error);

  bool idle() const { return scheduler_->idle(); }
  // Does nothing when idle.
  void step();
  // Waits for copies to host memory: until then they count as users of their pages.
  void settle() { cache_->settle(); }

  Status flush_cache();
  std::int64_t max_model_len() const;
  // Without the fields that only a thread has.
  std::uint64_t kv_bytes() const { return cache_->kv().bytes(); }  // of the pools, on the backend
  EngineStatus status() const;
  const EngineTimes& times() const { return times_; }
  SpeculationStats speculation() const { return speculation_ ? speculation_->pooled() : SpeculationStats{}; }
  const PrefixTree* prefix_tree() const { return cache_->tree(); }
  const HostTier* host_tier() const { return cache_->host(); }

 private:
  using Clock = std::chrono::steady_clock;

  // A request that was taken and has not ended.
  struct Active {
    EngineRequest request;
    std::shared_ptr<AnswerSink> sink;
    PromptLogits prompt_logits;
    std::unique_ptr<LiveAnswer> answer;
    std::unique_ptr<RequestDrafts> drafts;  // null: not drafted for, now
    SpeculationStats earlier_drafts;        // before it was last retracted
    Clock::time_point submitted;
    Clock::time_point admitted;
    Clock::time_point first_token;
    bool was_admitted = false;
    bool answering = false;
  };
  // What the step keeps of a part of the plan.
  struct Part {
    PlanPart plan;
    Active* active = nullptr;
    ScheduledRequest* scheduled = nullptr;
    bool best_only = false;       // its rows are in best_rows_ and draws_, not in logit_rows_
    std::size_t logit_begin = 0;  // in either
    int logit_rows = 0;
    int observed = 0;  // leading rows that the drafter is to see, once commit() has run
    bool ended = false;
  };

  EngineCore(TargetModel& model, Ops& ops, const EngineOptions& options);
  Status make_cache();
  void open_drafts(Active& active, const ScheduledRequest& scheduled);
  void close_drafts(Active& active);
  void draft();
  bool chosen_on_backend(const Active& active) const;
  void lay_out();
  void forward();
  void tap_range(TapRows& taps);
  void commit();
  void observe();
  void keep_prompt_tails();
  void keep_turn_tail(const Active& active, ScheduledRequest& scheduled);
  void send(Active& active, const ScheduledRequest& scheduled, AnswerStep&& step);
  void end(RequestId id, std::optional<Error> error);

  TargetModel& model_;
  Ops& ops_;
  const ModelConfig& config_;
  EngineOptions options_;
  Sampler sampler_;
  bool choose_on_backend_ = false;
  std::random_device entropy_;
  std::unique_ptr<Speculation> speculation_;  // null: no drafter
  std::unique_ptr<EngineCache> cache_;
  std::optional<Scheduler> scheduler_;
  std::unordered_map<RequestId, std::unique_ptr<Active>> active_;
  EngineTimes times_;

  // The step in flight.
  std::vector<DraftTurn> turns_;
  std::vector<std::size_t> turn_of_;  // [decoding]: its turn, or none
  std::vector<int> widths_;           // [decoding]
  std::vector<Part> parts_;
  std::vector<std::int32_t> tokens_;
  std::vector<SequenceRows> full_rows_;
  std::vector<SequenceRows> window_rows_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<std::int32_t> best_rows_;
  std::vector<TokenDraw> draws_;  // of best_rows_
  std::vector<float> logits_;
  std::vector<std::int32_t> best_;
  BackendArray<float> taps_;
  double target_seconds_ = 0;
  std::vector<CommittedRows> committed_;
  std::vector<std::int32_t> observed_tokens_;
  std::vector<std::int32_t> emitted_;
};

}  // namespace mimo
