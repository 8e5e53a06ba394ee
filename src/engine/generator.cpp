#include "engine/generator.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>

#include "cache/page_pool.h"
#include "engine/running_request.h"

namespace mimo {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Tokens that the answer may have: what was asked for, else up to the end of the context.
std::int64_t answer_limit(const GenerateRequest& request, const ModelConfig& config) {
  return request.params.max_tokens.value_or(config.max_positions -
                                            static_cast<std::int64_t>(request.prompt.size()));
}

// Pages of one request at its end (full layers) and at most (window layers).
struct PageNeed {
  std::int64_t full = 0;
  std::int64_t window = 0;
};

PageNeed page_need(const GenerateRequest& request, const ModelConfig& config, const PageLayout& layout,
                   int chunk) {
  const std::int64_t tokens =
      static_cast<std::int64_t>(request.prompt.size()) + answer_limit(request, config);
  const std::int64_t all = pages_for(tokens, layout.page_size);
  // A window layer holds the window before a chunk or block, its rows, and a page cut at either end.
  return {all, std::min(all, pages_for(layout.window + chunk, layout.page_size) + 2)};
}

// The sum of the `count` largest.
std::int64_t sum_of_largest(std::vector<std::int64_t> values, int count) {
  const auto end = values.begin() + std::min<std::ptrdiff_t>(count, std::ssize(values));
  std::partial_sort(values.begin(), end, values.end(), std::greater<>());
  return std::accumulate(values.begin(), end, std::int64_t{0});
}

// One call of Generator::run. A step: admit, draft, lay out the rows, run the target, commit, observe.
class Run {
 public:
  Run(TargetModel& model, const GeneratorOptions& options, Speculation* speculation, GeneratorTimes& times,
      std::span<const GenerateRequest> requests, const GenerateCallbacks& callbacks)
      : model_(model),
        config_(model.config()),
        options_(options),
        speculation_(speculation),
        times_(times),
        requests_(requests),
        callbacks_(callbacks),
        layout_{options.page_size, config_.window.window},
        sampler_({.vocab = config_.vocab,
                  .allowed_vocab =
                      options.tokenizer == nullptr
                          ? config_.vocab
                          : std::min(config_.vocab, static_cast<int>(options.tokenizer->vocab_size())),
                  .eos_ids = config_.eos_token_ids}) {
    results_.resize(requests.size());
  }

  Result<std::vector<GenerateResult>> run(Ops& ops) {
    if (const Status ok = make_cache(ops); !ok) return forward_error(ok);
    for (;;) {
      admit();
      if (running_.empty()) return std::move(results_);
      draft();
      if (const Status ok = lay_out(); !ok) return forward_error(ok);
      forward();
      commit();
      observe();
      retire();
    }
  }

 private:
  // The rows of one request in the step.
  struct Part {
    RunningRequest* request = nullptr;
    int row_begin = 0;
    int rows = 0;
    std::int64_t position = 0;
    bool prefill = false;
    std::size_t logit_begin = 0;
    int logit_rows = 0;
    int observed = 0;  // leading rows that are committed, once commit() has run; 0 of an ended request
  };

  Status make_cache(Ops& ops);
  void admit();
  void draft();
  Status lay_out();
  Status add_part(RunningRequest& request, int rows);
  void forward();
  void tap_range(TapRows& taps);
  void commit();
  void observe();
  void retire();
  void commit_pages(RunningRequest& request, std::int64_t tokens);

  TargetModel& model_;
  const ModelConfig& config_;
  const GeneratorOptions& options_;
  Speculation* speculation_;
  GeneratorTimes& times_;
  std::span<const GenerateRequest> requests_;
  const GenerateCallbacks& callbacks_;
  PageLayout layout_;
  Sampler sampler_;
  std::random_device entropy_;

  std::optional<PagePool> full_;
  std::optional<PagePool> window_;
  std::optional<ModelKv> kv_;
  std::size_t next_ = 0;  // request to be admitted
  std::vector<std::unique_ptr<RunningRequest>> running_;
  std::vector<GenerateResult> results_;

  // The step in flight.
  std::vector<DraftTurn> turns_;
  std::vector<Part> parts_;
  std::vector<std::int32_t> tokens_;
  std::vector<SequenceRows> full_rows_;
  std::vector<SequenceRows> window_rows_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<float> logits_;
  std::vector<float> taps_;
  double target_seconds_ = 0;
  std::vector<DraftObservation> observations_;
  std::vector<std::int32_t> observed_tokens_;
};

Status Run::make_cache(Ops& ops) {
  std::vector<std::int64_t> full;
  std::vector<std::int64_t> window;
  for (const GenerateRequest& request : requests_) {
    const PageNeed need = page_need(request, config_, layout_, options_.chunk);
    full.push_back(need.full);
    window.push_back(need.window);
  }
  // Whichever requests run together, they find room.
  const std::int64_t full_pages = sum_of_largest(std::move(full), options_.max_running);
  const std::int64_t window_pages = sum_of_largest(std::move(window), options_.max_running);
  full_.emplace("full", full_pages);
  window_.emplace("window", window_pages);
  Result<ModelKv> kv = ModelKv::make(ops, config_,
                                     {.dtype = options_.kv_dtype,
                                      .page_size = options_.page_size,
                                      .full_pages = full_pages,
                                      .window_pages = window_pages});
  if (!kv) return forward_error(kv);
  kv_.emplace(std::move(*kv));
  if (options_.poison) {
    for (std::int32_t p = 0; p < full_pages; ++p) kv_->poison(config_, LayerKind::kFull, p);
    for (std::int32_t p = 0; p < window_pages; ++p) kv_->poison(config_, LayerKind::kWindow, p);
  }
  return {};
}

void Run::admit() {
  while (next_ < requests_.size() && std::ssize(running_) < options_.max_running) {
    const GenerateRequest& request = requests_[next_];
    RunningRequest::Setup setup;
    setup.index = next_;
    setup.request = &request;
    setup.max_tokens = answer_limit(request, config_);
    setup.seed = request.params.seed.value_or((static_cast<std::uint64_t>(entropy_()) << 32) | entropy_());
    setup.eos_ids = config_.eos_token_ids;
    setup.tokenizer = options_.tokenizer;
    setup.callbacks = &callbacks_;
    running_.push_back(std::make_unique<RunningRequest>(setup, layout_, *full_, *window_));
    if (speculation_ != nullptr && request.speculation && setup.max_tokens > 1) {
      const auto prompt = static_cast<std::int64_t>(request.prompt.size());
      running_.back()->drafts = speculation_->open(next_, prompt, prompt + setup.max_tokens);
    }
    ++next_;
  }
}

void Run::draft() {
  if (speculation_ == nullptr) return;
  turns_.clear();
  int decoding = 0;
  for (const auto& request : running_) {
    if (request->prefilling()) continue;
    ++decoding;
    if (!request->drafts) continue;
    turns_.push_back(
        {request->drafts.get(), request->anchor(), request->pages.length(), request->remaining()});
  }
  if (turns_.empty()) return;
  const Clock::time_point start = Clock::now();
  const bool prompts_wait = decoding < static_cast<int>(running_.size());
  speculation_->draft(turns_, decoding, drafts_per_request(decoding, prompts_wait, options_.chunk));
  times_.draft_seconds += seconds_since(start);
}

// Decoding requests first, since their users wait for the next token; then prompts in order of admission.
Status Run::lay_out() {
  parts_.clear();
  tokens_.clear();
  full_rows_.clear();
  window_rows_.clear();
  logit_rows_.clear();
  std::int64_t budget = options_.chunk;
  for (const bool prefill : {false, true}) {
    for (const auto& request : running_) {
      if (request->prefilling() != prefill || budget == 0) continue;
      std::int64_t rows = 1;
      if (prefill) {
        rows = std::min(budget, std::ssize(request->prompt()) - request->pages.length());
      } else if (request->drafts) {
        rows += std::ssize(request->drafts->drafts);
      }
      if (const Status ok = add_part(*request, static_cast<int>(rows)); !ok) return ok;
      budget -= rows;
    }
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    full_rows_[i].pages = parts_[i].request->pages.full_pages();
    window_rows_[i].pages = parts_[i].request->pages.window_pages();
  }
  return {};
}

Status Run::add_part(RunningRequest& request, int rows) {
  if (const Status room = request.pages.extend(rows); !room) return room;
  Part part;
  part.request = &request;
  part.row_begin = static_cast<int>(tokens_.size());
  part.rows = rows;
  part.position = request.pages.length();
  part.prefill = request.prefilling();
  part.logit_begin = logit_rows_.size();
  if (part.prefill) {
    const std::span<const std::int32_t> chunk =
        request.prompt().subspan(static_cast<std::size_t>(part.position), static_cast<std::size_t>(rows));
    tokens_.insert(tokens_.end(), chunk.begin(), chunk.end());
    const bool last = part.position + rows == std::ssize(request.prompt());
    part.logit_rows = callbacks_.on_prompt_logits ? rows : (last && request.samples() ? 1 : 0);
  } else {
    tokens_.push_back(request.anchor());
    if (request.drafts) {
      tokens_.insert(tokens_.end(), request.drafts->drafts.begin(), request.drafts->drafts.end());
    }
    part.logit_rows = rows;
  }
  for (int row = rows - part.logit_rows; row < rows; ++row) logit_rows_.push_back(part.row_begin + row);
  full_rows_.push_back({part.row_begin, rows, part.position, {}});
  window_rows_.push_back(full_rows_.back());
  parts_.push_back(part);
  return {};
}

void Run::forward() {
  const Clock::time_point start = Clock::now();
  logits_.resize(logit_rows_.size() * static_cast<std::size_t>(config_.vocab));
  TapRows taps;
  tap_range(taps);
  model_.forward({tokens_, full_rows_, window_rows_, logit_rows_, taps}, *kv_, logits_);
  ++times_.steps;
  times_.rows += std::ssize(tokens_);
  target_seconds_ = seconds_since(start);
  times_.target_seconds += target_seconds_;
}

// The smallest range of rows that has all which will be observed. Of rows of drafts it is not known yet.
void Run::tap_range(TapRows& taps) {
  int begin = static_cast<int>(tokens_.size());
  int end = 0;
  for (const Part& part : parts_) {
    if (!part.request->drafts || !part.request->drafts->state) continue;
    const std::int64_t skip = std::max<std::int64_t>(0, part.request->drafts->first_needed - part.position);
    if (skip >= part.rows) continue;
    begin = std::min(begin, part.row_begin + static_cast<int>(skip));
    end = part.row_begin + part.rows;
  }
  if (begin >= end) return;
  taps.indices = speculation_->taps();
  taps_.resize(tokens_.size() * taps.indices.size() * static_cast<std::size_t>(config_.hidden));
  taps.out = taps_;
  taps.row_begin = begin;
  taps.rows = end - begin;
}

void Run::commit() {
  const auto vocab = static_cast<std::size_t>(config_.vocab);
  for (Part& part : parts_) {
    RunningRequest& request = *part.request;
    const std::span<const float> logits = std::span<const float>(logits_).subspan(
        part.logit_begin * vocab, static_cast<std::size_t>(part.logit_rows) * vocab);
    if (part.prefill) {
      if (callbacks_.on_prompt_logits) callbacks_.on_prompt_logits(request.index(), part.position, logits);
      commit_pages(request, part.rows);
      if (!request.prefilling()) {
        if (request.samples()) {
          request.commit({}, request.pages.length() - 1, logits.last(vocab), sampler_);
        } else {
          request.finish_prompt();
        }
      }
      part.observed = request.done() ? 0 : part.rows;
      continue;
    }
    std::span<const std::int32_t> drafts;
    if (request.drafts) drafts = request.drafts->drafts;
    const BlockResult block = request.commit(drafts, part.position, logits, sampler_);
    if (request.drafts) speculation_->record(*request.drafts, block);
    commit_pages(request, block.emitted);
    part.observed = request.done() ? 0 : block.emitted;
  }
}

void Run::commit_pages(RunningRequest& request, std::int64_t tokens) {
  if (!options_.poison) {
    request.pages.commit(tokens);
    return;
  }
  const std::vector<std::int32_t> before(request.pages.window_pages().begin(),
                                         request.pages.window_pages().end());
  request.pages.commit(tokens);
  for (std::size_t p = 0; p < before.size(); ++p) {
    if (before[p] >= 0 && request.pages.window_pages()[p] < 0) {
      kv_->poison(config_, LayerKind::kWindow, before[p]);
    }
  }
}

void Run::observe() {
  if (speculation_ == nullptr) return;
  observations_.clear();
  observed_tokens_.clear();
  observed_tokens_.reserve(tokens_.size() + parts_.size());  // so that spans into it stay valid
  for (const Part& part : parts_) {
    RunningRequest& request = *part.request;
    if (!request.drafts || !request.drafts->state) continue;
    const auto skip = static_cast<int>(
        std::clamp<std::int64_t>(request.drafts->first_needed - part.position, 0, part.observed));
    if (skip == part.observed) continue;
    const auto begin = static_cast<std::ptrdiff_t>(observed_tokens_.size());
    const auto first = tokens_.begin() + part.row_begin;
    observed_tokens_.insert(observed_tokens_.end(), first + skip, first + part.observed);
    observed_tokens_.push_back(request.prefilling()
                                   ? request.prompt()[static_cast<std::size_t>(request.pages.length())]
                                   : request.anchor());
    observations_.push_back(
        {.state = request.drafts->state.get(),
         .row_begin = part.row_begin + skip,
         .rows = part.observed - skip,
         .position = part.position + skip,
         .tokens = std::span<const std::int32_t>(observed_tokens_.begin() + begin, observed_tokens_.end())});
  }
  double seconds = 0;
  if (!observations_.empty()) {
    const Clock::time_point start = Clock::now();
    speculation_->observe(observations_, taps_);
    seconds = seconds_since(start);
    times_.observe_seconds += seconds;
  }
  const bool decoding_alone =
      std::none_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.prefill; });
  if (decoding_alone) {
    speculation_->record_step(static_cast<int>(tokens_.size()), target_seconds_ + seconds);
  }
}

void Run::retire() {
  for (const auto& request : running_) {
    if (!request->done()) continue;
    if (options_.poison) {
      for (const std::int32_t p : request->pages.full_pages()) kv_->poison(config_, LayerKind::kFull, p);
      for (const std::int32_t p : request->pages.window_pages()) {
        if (p >= 0) kv_->poison(config_, LayerKind::kWindow, p);
      }
    }
    GenerateResult& result = results_[request->index()];
    result = request->take_result();
    if (result.error)
      options_.log(fmt::format("request {} ended: {}", request->index(), result.error->message));
    if (callbacks_.on_done) callbacks_.on_done(request->index(), result);
  }
  std::erase_if(running_, [](const auto& request) { return request->done(); });
}

}  // namespace

Status check_request(const GenerateRequest& request, const ModelConfig& config) {
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
  if (prompt > config.max_positions || generated > config.max_positions - prompt) {
    return fail(ErrorCode::kInvalidArgument,
                "prompt of {} tokens + max_tokens {}: the model's context is {} tokens", prompt, generated,
                config.max_positions);
  }
  SamplingParams params = request.params;
  if (params.max_tokens == 0) params.max_tokens = 1;
  return validate(params, config.vocab);
}

Generator::Generator(TargetModel& model, Ops& ops, const GeneratorOptions& options)
    : model_(model), ops_(ops), options_(options) {
  if (!options_.log) options_.log = [](std::string_view line) { fmt::print(stderr, "{}\n", line); };
  if (options_.drafter != nullptr) {
    speculation_ = std::make_unique<Speculation>(*options_.drafter, options_.speculation,
                                                 model.config().vocab, options_.log);
  }
}

Result<std::vector<GenerateResult>> Generator::run(std::span<const GenerateRequest> requests,
                                                   const GenerateCallbacks& callbacks) {
  if (options_.drafter != nullptr) {
    if (const Status ok = validate(options_.speculation, options_.drafter->max_drafts()); !ok) {
      return forward_error(ok);
    }
  }
  for (const GenerateRequest& request : requests) {
    if (const Status ok = check_request(request, model_.config()); !ok) return forward_error(ok);
    if (options_.tokenizer == nullptr && !request.params.stop.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "stop: strings need a tokenizer, and this checkpoint has none");
    }
  }
  const Clock::time_point start = Clock::now();
  Run run(model_, options_, speculation_.get(), times_, requests, callbacks);
  Result<std::vector<GenerateResult>> results = run.run(ops_);
  times_.total_seconds += seconds_since(start);
  return results;
}

}  // namespace mimo
