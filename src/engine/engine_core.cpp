#include "engine/engine_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/philox.h"

namespace mimo {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A drafter's tail as the cache keeps it.
class KeptTail final : public CacheAttachment {
 public:
  explicit KeptTail(std::shared_ptr<const DraftTail> tail) : tail_(std::move(tail)) {}
  std::size_t bytes() const override { return tail_->bytes(); }
  const DraftTail& tail() const { return *tail_; }

 private:
  std::shared_ptr<const DraftTail> tail_;
};

}  // namespace

void EngineTimes::add(const EngineTimes& other) {
  steps += other.steps;
  rows += other.rows;
  plan_seconds += other.plan_seconds;
  target_seconds += other.target_seconds;
  draft_seconds += other.draft_seconds;
  observe_seconds += other.observe_seconds;
}

Status check_request(const EngineRequest& request, const ModelConfig& config, std::int64_t max_model_len) {
  if (request.prompt.empty())
    return fail(ErrorCode::kInvalidArgument, "prompt: no tokens, at least 1 is needed");
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= config.vocab) {
      return fail(ErrorCode::kInvalidArgument, "prompt token {}: id {}, expected 0 to {}", i,
                  request.prompt[i], config.vocab - 1);
    }
  }
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  // Without max_tokens there must be room for one token.
  const std::int64_t generated = request.params.max_tokens.value_or(1);
  if (prompt > max_model_len || generated > max_model_len - prompt) {
    return fail(ErrorCode::kLimit,
                "maximum context length is {} tokens; the prompt has {} and max_tokens asks for {}",
                max_model_len, prompt, generated);
  }
  SamplingParams params = request.params;
  if (params.max_tokens == 0) params.max_tokens = 1;
  return validate(params, config.vocab);
}

Result<std::unique_ptr<EngineCore>> EngineCore::make(TargetModel& model, Ops& ops,
                                                     const EngineOptions& options) {
  if (options.drafter != nullptr) {
    if (const Status ok = validate(options.speculation, options.drafter->max_drafts()); !ok) {
      return forward_error(ok);
    }
  }
  std::unique_ptr<EngineCore> core(new EngineCore(model, ops, options));
  if (const Status ok = core->make_cache(); !ok) return forward_error(ok);
  return core;
}

EngineCore::EngineCore(TargetModel& model, Ops& ops, const EngineOptions& options)
    : model_(model),
      ops_(ops),
      config_(model.config()),
      options_(options),
      sampler_(
          {.vocab = config_.vocab,
           .allowed_vocab = options.tokenizer == nullptr
                                ? config_.vocab
                                : std::min(config_.vocab, static_cast<int>(options.tokenizer->vocab_size())),
           .eos_ids = config_.eos_token_ids}) {
  choose_on_backend_ = options.choose_on_backend.value_or(!ops.host_memory());
  if (!options_.log) options_.log = [](std::string_view line) { fmt::print(stderr, "{}\n", line); };
  options_.scheduler.layout.window = config_.window.window;
  options_.scheduler.block = 1;
  if (options_.drafter != nullptr) {
    options_.scheduler.block += options_.drafter->max_drafts();
    speculation_ = std::make_unique<Speculation>(*options_.drafter, ops_, options_.speculation, config_.vocab,
                                                 config_.hidden, options_.log);
  }
}

Status EngineCore::make_cache() {
  EngineCacheOptions cache;
  cache.layout = options_.scheduler.layout;
  cache.dtype = options_.kv_dtype;
  cache.full_pages = options_.full_pages;
  cache.window_pages = options_.window_pages;
  cache.prefixes = options_.prefix_cache;
  cache.host_bytes = options_.host_kv_bytes;
  cache.host_min_tokens = options_.host_kv_min_tokens;
  cache.tail_bytes = options_.drafter == nullptr ? 0 : options_.drafter->tail_bytes();
  cache.poison = options_.poison;
  Result<std::unique_ptr<EngineCache>> made = EngineCache::make(ops_, config_, cache);
  if (!made) return forward_error(made);
  cache_ = std::move(*made);
  Result<Scheduler> scheduler =
      Scheduler::make(options_.scheduler, cache_->full(), cache_->window(), cache_->tree(), cache_->host());
  if (!scheduler) return forward_error(scheduler);
  scheduler_.emplace(std::move(*scheduler));
  return {};
}

std::int64_t EngineCore::max_model_len() const {
  const std::int64_t most = std::min<std::int64_t>(config_.max_positions, scheduler_->longest_request());
  return options_.max_model_len > 0 ? std::min(most, options_.max_model_len) : most;
}

Status EngineCore::submit(RequestId id, EngineRequest request, std::shared_ptr<AnswerSink> sink,
                          PromptLogits prompt_logits) {
  if (const Status ok = check_request(request, config_, max_model_len()); !ok) return ok;
  if (options_.tokenizer == nullptr && !request.params.stop.empty()) {
    return fail(ErrorCode::kInvalidArgument, "stop: strings need a tokenizer, and this checkpoint has none");
  }
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t answer = request.params.max_tokens.value_or(max_model_len() - prompt);

  if (const auto victim = scheduler_->full_queue_victim(request.priority)) {
    end(*victim, Error{ErrorCode::kBusy, "given up for a request of higher priority while it waited"});
  }
  ScheduledRequest scheduled;
  scheduled.id = id;
  scheduled.tokens = request.prompt;
  scheduled.prompt = prompt;
  scheduled.limit = prompt + answer;
  scheduled.salt = request.cache_salt;
  scheduled.priority = request.priority;
  scheduled.reuse = !prompt_logits;
  for (const std::int64_t mark : request.marks)
    scheduled.points.push_back({mark, WindowRank::kMark, 0, nullptr});
  if (const Status ok = scheduler_->submit(std::move(scheduled)); !ok) return ok;

  auto active = std::make_unique<Active>();
  active->request = std::move(request);
  active->sink = std::move(sink);
  active->prompt_logits = std::move(prompt_logits);
  active->submitted = Clock::now();
  if (answer > 0) {
    LiveAnswer::Setup setup;
    setup.request = &active->request;
    setup.max_tokens = answer;
    const std::uint64_t seed =
        active->request.params.seed.value_or((static_cast<std::uint64_t>(entropy_()) << 32) | entropy_());
    setup.seed = philox_choice_seed(seed, active->request.choice);
    setup.eos_ids = config_.eos_token_ids;
    setup.allowed_vocab = options_.tokenizer == nullptr
                              ? config_.vocab
                              : std::min(config_.vocab, static_cast<int>(options_.tokenizer->vocab_size()));
    setup.tokenizer = options_.tokenizer;
    active->answer = std::make_unique<LiveAnswer>(setup);
  }
  active_.emplace(id, std::move(active));
  return {};
}

void EngineCore::abort(RequestId id) { end(id, Error{ErrorCode::kCancelled, "the request was cancelled"}); }

void EngineCore::fail_all(const Error& error) {
  std::vector<RequestId> ids;
  for (const auto& [id, active] : active_) ids.push_back(id);
  for (const RequestId id : ids) end(id, error);
}

void EngineCore::fail_step(const Error& error) {
  std::vector<RequestId> ids;
  for (const Part& part : parts_) ids.push_back(part.plan.id);
  for (const RequestId id : ids) end(id, error);
  parts_.clear();
}

// Ends a request: its last step goes out, its pages go back. `error`: it ended from outside.
void EngineCore::end(RequestId id, std::optional<Error> error) {
  const auto found = active_.find(id);
  if (found == active_.end()) return;
  Active& active = *found->second;
  if (error) {
    AnswerStep step = active.answer ? active.answer->take_step() : AnswerStep{};
    step.error = std::move(error);
    step.finish.reset();
    send(active, *scheduler_->find(id), std::move(step));
  }
  keep_turn_tail(active, *scheduler_->find(id));
  active.drafts.reset();
  scheduler_->remove(id);
  active_.erase(found);
}

void EngineCore::send(Active& active, const ScheduledRequest& scheduled, AnswerStep&& step) {
  step.usage.prompt_tokens = scheduled.prompt;
  step.usage.cached_tokens = scheduled.cached;
  step.usage.cached_host_tokens = scheduled.cached_host;
  if (step.last()) {
    const Clock::time_point now = Clock::now();
    const auto between = [](Clock::time_point a, Clock::time_point b) {
      return std::chrono::duration<double>(b - a).count();
    };
    const Clock::time_point admitted = active.was_admitted ? active.admitted : now;
    const Clock::time_point first = active.answering ? active.first_token : now;
    step.usage.queue_seconds = between(active.submitted, admitted);
    step.usage.prefill_seconds = between(admitted, first);
    step.usage.decode_seconds = between(first, now);
    step.usage.speculation = active.earlier_drafts;
    if (active.drafts) step.usage.speculation.add(active.drafts->stats);
  }
  active.sink->on_step(std::move(step));
}

void EngineCore::step() {
  if (idle()) return;
  const Clock::time_point start = Clock::now();
  scheduler_->prepare();
  times_.plan_seconds += seconds_since(start);
  draft();
  lay_out();
  if (parts_.empty()) return;
  forward();
  commit();
  observe();
  keep_prompt_tails();
  for (const Part& part : parts_) {
    if (part.ended) end(part.plan.id, {});
  }
}

void EngineCore::open_drafts(Active& active, const ScheduledRequest& scheduled) {
  const std::int64_t answer = scheduled.limit - static_cast<std::int64_t>(scheduled.tokens.size());
  if (!speculation_ || !active.request.speculation || answer <= 1) return;
  active.drafts =
      speculation_->open(scheduled.id, static_cast<std::int64_t>(scheduled.tokens.size()), scheduled.limit);
  const auto* kept = dynamic_cast<const KeptTail*>(scheduled.attachment.get());
  if (kept != nullptr) speculation_->restore(*active.drafts, kept->tail(), scheduled.computed());
  active.drafts->first_needed = std::max(active.drafts->first_needed, scheduled.computed());
}

void EngineCore::close_drafts(Active& active) {
  if (active.drafts) active.earlier_drafts.add(active.drafts->stats);
  active.drafts.reset();
}

void EngineCore::draft() {
  const std::span<ScheduledRequest* const> decoding = scheduler_->decoding();
  widths_.assign(decoding.size(), 0);
  if (!speculation_) return;
  turns_.clear();
  turn_of_.clear();
  for (std::size_t i = 0; i < decoding.size(); ++i) {
    const ScheduledRequest& scheduled = *decoding[i];
    Active& active = *active_.at(scheduled.id);
    if (!active.drafts) continue;
    turns_.push_back(
        {active.drafts.get(), scheduled.tokens.back(), scheduled.computed(), active.answer->remaining()});
    turn_of_.push_back(i);
  }
  if (turns_.empty()) return;
  const Clock::time_point start = Clock::now();
  const auto count = static_cast<int>(decoding.size());
  const bool prompts_wait = scheduler_->running() > count;
  speculation_->draft(turns_, count, drafts_per_request(count, prompts_wait, options_.scheduler.rows));
  for (std::size_t t = 0; t < turns_.size(); ++t) {
    widths_[turn_of_[t]] = static_cast<int>(turns_[t].drafts->drafts.size());
  }
  times_.draft_seconds += seconds_since(start);
}

bool EngineCore::chosen_on_backend(const Active& active) const {
  if (!choose_on_backend_ || active.prompt_logits || !active.answer) return false;
  const LiveAnswer::Choice choice = active.answer->choice();
  return choice == LiveAnswer::Choice::kBest ||
         (choice == LiveAnswer::Choice::kDraw && ops_.draws_tokens(sampler_.allowed_vocab()));
}

// The rows of the plan, as the target takes them.
void EngineCore::lay_out() {
  const Clock::time_point start = Clock::now();
  const StepPlan& plan = scheduler_->lay_out(widths_);
  for (const RequestId id : plan.retracted) {
    Active& active = *active_.at(id);
    close_drafts(active);
    options_.log(fmt::format("request {} gave its pages back after {} tokens and waits", id,
                             scheduler_->find(id)->tokens.size()));
  }
  for (const RequestId id : plan.admitted) {
    ScheduledRequest* scheduled = scheduler_->find(id);
    Active& active = *active_.at(id);
    if (!active.was_admitted) active.admitted = Clock::now();
    active.was_admitted = true;
    if (scheduled->pages) open_drafts(active, *scheduled);
  }
  parts_.clear();
  tokens_.clear();
  full_rows_.clear();
  window_rows_.clear();
  logit_rows_.clear();
  best_rows_.clear();
  draws_.clear();
  for (const PlanPart& planned : plan.parts) {
    Part part;
    part.plan = planned;
    part.scheduled = scheduler_->find(planned.id);
    part.active = active_.at(planned.id).get();
    const std::vector<std::int32_t>& known = part.scheduled->tokens;
    if (planned.prefill) {
      const auto first = known.begin() + planned.position;
      tokens_.insert(tokens_.end(), first, first + planned.rows);
      const bool samples = planned.last && part.active->answer;
      part.logit_rows = part.active->prompt_logits ? planned.rows : (samples ? 1 : 0);
    } else {
      tokens_.push_back(known.back());
      if (part.active->drafts) {
        tokens_.insert(tokens_.end(), part.active->drafts->drafts.begin(), part.active->drafts->drafts.end());
      }
      part.logit_rows = planned.rows;
    }
    part.best_only = chosen_on_backend(*part.active);
    std::vector<std::int32_t>& wanted = part.best_only ? best_rows_ : logit_rows_;
    part.logit_begin = wanted.size();
    for (int row = planned.rows - part.logit_rows; row < planned.rows; ++row) {
      wanted.push_back(planned.row_begin + row);
      if (part.best_only) draws_.push_back(part.active->answer->draw(planned.position + row));
    }
    full_rows_.push_back(
        {planned.row_begin, planned.rows, planned.position, part.scheduled->pages->full_pages()});
    window_rows_.push_back(
        {planned.row_begin, planned.rows, planned.position, part.scheduled->pages->window_pages()});
    parts_.push_back(part);
  }
  times_.plan_seconds += seconds_since(start);
}

void EngineCore::forward() {
  const Clock::time_point start = Clock::now();
  logits_.resize(logit_rows_.size() * static_cast<std::size_t>(config_.vocab));
  TapRows taps;
  tap_range(taps);
  best_.resize(best_rows_.size());
  // Without a draw among them the backend need not see the logits as a whole.
  const bool draws = std::any_of(draws_.begin(), draws_.end(),
                                 [](const TokenDraw& draw) { return draw.inverse_temperature > 0; });
  model_.forward({.tokens = tokens_,
                  .full = full_rows_,
                  .window = window_rows_,
                  .logit_rows = logit_rows_,
                  .taps = taps,
                  .best_rows = best_rows_,
                  .best_vocab = sampler_.allowed_vocab(),
                  .draws = draws ? draws_ : std::span<const TokenDraw>()},
                 cache_->kv(), logits_, best_);
  ++times_.steps;
  times_.rows += std::ssize(tokens_);
  target_seconds_ = seconds_since(start);
  times_.target_seconds += target_seconds_;
}

// The smallest range of rows that has all which will be observed. Of rows of drafts it is not known yet.
void EngineCore::tap_range(TapRows& taps) {
  int begin = static_cast<int>(tokens_.size());
  int end = 0;
  for (const Part& part : parts_) {
    if (!part.active->drafts || !part.active->drafts->state) continue;
    const std::int64_t skip =
        std::max<std::int64_t>(0, part.active->drafts->first_needed - part.plan.position);
    if (skip >= part.plan.rows) continue;
    begin = std::min(begin, part.plan.row_begin + static_cast<int>(skip));
    end = part.plan.row_begin + part.plan.rows;
  }
  if (begin >= end) return;
  taps.indices = speculation_->taps();
  const std::size_t floats = tokens_.size() * taps.indices.size() * static_cast<std::size_t>(config_.hidden);
  taps.out = {taps_.reserve(ops_, floats), floats};
  taps.row_begin = begin;
  taps.rows = end - begin;
}

void EngineCore::commit() {
  const auto vocab = static_cast<std::size_t>(config_.vocab);
  for (Part& part : parts_) {
    Active& active = *part.active;
    const auto sampled = static_cast<std::size_t>(part.logit_rows);
    std::span<const float> logits;
    std::span<const std::int32_t> best;
    if (part.best_only) {
      best = std::span<const std::int32_t>(best_).subspan(part.logit_begin, sampled);
    } else {
      logits = std::span<const float>(logits_).subspan(part.logit_begin * vocab, sampled * vocab);
    }
    const auto take = [&](std::span<const std::int32_t> drafts, std::int64_t position) {
      return part.best_only ? active.answer->commit(drafts, position, best)
                            : active.answer->commit(drafts, position,
                                                    logits.last((drafts.size() + 1) * vocab), sampler_);
    };
    std::int64_t rows = part.plan.rows;
    BlockResult block;
    if (part.plan.prefill) {
      if (active.prompt_logits) active.prompt_logits(part.plan.position, logits);
      if (part.plan.last && active.answer) {
        block = take({}, part.plan.position + rows - 1);
      } else if (part.plan.last) {
        block.ended = true;
      }
    } else {
      std::span<const std::int32_t> drafts;
      if (active.drafts) drafts = active.drafts->drafts;
      block = take(drafts, part.plan.position);
      if (active.drafts) speculation_->record(*active.drafts, block);
      rows = block.emitted;
    }
    AnswerStep step = active.answer ? active.answer->take_step() : AnswerStep{};
    emitted_.clear();
    for (const SampledToken& token : step.tokens) emitted_.push_back(token.id);
    scheduler_->advance(part.plan.id, rows, emitted_);
    part.ended = block.ended;
    // Behind its end an answer is of use to the next turn only.
    part.observed = block.ended && cache_->tree() == nullptr ? 0 : static_cast<int>(rows);
    if (!active.answering && !step.tokens.empty()) {
      active.answering = true;
      active.first_token = Clock::now();
    }
    if (!active.answer && block.ended) step.finish = Finish{.reason = FinishReason::kLength};
    if (step.error) options_.log(fmt::format("request {} ended: {}", part.plan.id, step.error->message));
    if (!step.tokens.empty() || step.last()) send(active, *part.scheduled, std::move(step));
  }
}

void EngineCore::observe() {
  if (!speculation_) return;
  committed_.clear();
  observed_tokens_.clear();
  observed_tokens_.reserve(tokens_.size() + parts_.size());  // so that spans into it stay valid
  for (const Part& part : parts_) {
    if (part.observed == 0 || !part.active->drafts || !part.active->drafts->state) continue;
    const auto skip = static_cast<int>(
        std::clamp<std::int64_t>(part.active->drafts->first_needed - part.plan.position, 0, part.observed));
    if (skip == part.observed) continue;
    const auto begin = static_cast<std::ptrdiff_t>(observed_tokens_.size());
    const auto first = part.scheduled->tokens.begin() + part.plan.position;
    observed_tokens_.insert(observed_tokens_.end(), first + skip, first + part.observed + 1);
    committed_.push_back(
        {.drafts = part.active->drafts.get(),
         .row_begin = part.plan.row_begin + skip,
         .rows = part.observed - skip,
         .position = part.plan.position + skip,
         .tokens = std::span<const std::int32_t>(observed_tokens_.begin() + begin, observed_tokens_.end())});
  }
  double seconds = 0;
  if (!committed_.empty()) {
    const Clock::time_point start = Clock::now();
    const std::size_t width = speculation_->taps().size() * static_cast<std::size_t>(config_.hidden);
    speculation_->observe(committed_, {taps_.data(), tokens_.size() * width});
    seconds = seconds_since(start);
    times_.observe_seconds += seconds;
  }
  const bool decoding_alone =
      std::none_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.plan.prefill; });
  if (decoding_alone) {
    speculation_->record_step(static_cast<int>(tokens_.size()), target_seconds_ + seconds);
  }
}

// The scheduler has put the ends of prompts into the cache when they were committed; the drafter knows them now.
void EngineCore::keep_prompt_tails() {
  if (!speculation_ || cache_->tree() == nullptr) return;
  for (const Part& part : parts_) {
    const ScheduledRequest& scheduled = *part.scheduled;
    const std::int64_t end = options_.scheduler.layout.floor(scheduled.prompt - 1);
    if (!part.plan.prefill || !part.plan.last || !part.active->drafts || !scheduled.reuse || end == 0)
      continue;
    std::shared_ptr<const DraftTail> tail = speculation_->save(*part.active->drafts, end);
    if (tail == nullptr) continue;
    cache_->attach(std::span(scheduled.tokens).first(static_cast<std::size_t>(end)), scheduled.salt,
                   std::make_shared<KeptTail>(std::move(tail)));
  }
}

void EngineCore::keep_turn_tail(const Active& active, ScheduledRequest& scheduled) {
  if (!active.drafts || cache_->tree() == nullptr) return;
  const std::int64_t end = options_.scheduler.layout.floor(scheduled.computed());
  if (std::shared_ptr<const DraftTail> tail = speculation_->save(*active.drafts, end)) {
    scheduled.end_attachment = std::make_shared<KeptTail>(std::move(tail));
  }
}

Status EngineCore::flush_cache() {
  if (!idle()) {
    return fail(ErrorCode::kBusy, "the cache can be flushed when nothing runs; {} requests do",
                scheduler_->running() + scheduler_->waiting());
  }
  cache_->flush();
  return {};
}

EngineStatus EngineCore::status() const {
  const std::int64_t size = options_.scheduler.layout.page_size;
  const auto pool = [size](const PagePool& pages) {
    return PoolStatus{pages.capacity() * size, pages.free_pages() * size, pages.cached_pages() * size};
  };
  EngineStatus status;
  status.running = scheduler_->running();
  status.waiting = scheduler_->waiting();
  status.full = pool(cache_->full());
  status.window = pool(cache_->window());
  if (const HostTier* host = cache_->host()) {
    status.host_total = host->full_capacity() * size;
    status.host_used = host->full_used() * size;
  }
  status.retractions = scheduler_->retractions();
  status.steps = times_.steps;
  return status;
}

}  // namespace mimo
