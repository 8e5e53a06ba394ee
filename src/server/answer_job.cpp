#include "server/answer_job.h"

#include <algorithm>
#include <utility>

#include "api/usage.h"

namespace mimo {
namespace {

constexpr int kClientGone = 499;

}  // namespace

AnswerMarker ControlTokens::marker(std::int32_t id) const {
  if (id < 0) return AnswerMarker::kNone;
  if (id == think_open) return AnswerMarker::kThinkOpen;
  if (id == think_close) return AnswerMarker::kThinkClose;
  if (id == tool_open) return AnswerMarker::kToolOpen;
  if (id == tool_close) return AnswerMarker::kToolClose;
  return AnswerMarker::kNone;
}

// Carries the steps of one choice from the engine's thread to the delivery thread.
class AnswerJob::Sink final : public AnswerSink {
 public:
  Sink(std::shared_ptr<AnswerJob> job, std::size_t index) : job_(std::move(job)), index_(index) {}

  void on_step(AnswerStep&& step) override {
    auto shared = std::make_shared<AnswerStep>(std::move(step));
    job_->setup_.delivery->post(
        [job = job_, index = index_, shared] { job->take(index, std::move(*shared)); });
  }

 private:
  std::shared_ptr<AnswerJob> job_;
  std::size_t index_;
};

AnswerJob::AnswerJob(Setup setup) : setup_(std::move(setup)), tools_(parser_tools(setup_.request)) {
  writer_ = make_answer_writer(setup_.request, setup_.head);
  choices_.resize(static_cast<std::size_t>(setup_.choices));
  submitted_ = choices_.size();
  if (setup_.request.route == ApiRoute::kCompletion) return;
  AnswerParserOptions options;
  options.think_block = setup_.think_block;
  options.tools = tools_.empty() ? nullptr : &tools_;
  options.separate_reasoning = setup_.request.separate_reasoning;
  options.parallel_tool_calls = setup_.request.parallel_tool_calls;
  for (Choice& choice : choices_) choice.parser = std::make_unique<AnswerParser>(options);
}

void AnswerJob::start(std::vector<EngineRequest> choices) {
  setup_.exchange->on_close([job = weak_from_this()] {
    if (const std::shared_ptr<AnswerJob> alive = job.lock()) alive->abandon();
  });
  if (setup_.jobs != nullptr) {
    entry_ = std::make_unique<RunningJobs::Entry>(*setup_.jobs, id(), weak_from_this());
  }
  for (std::size_t i = 0; i < choices.size(); ++i) {
    Result<RequestId> id =
        setup_.engine->submit(std::move(choices[i]), std::make_shared<Sink>(shared_from_this(), i));
    if (!id) {
      submitted_ = i;
      fail(api_error(id.error()));
      return;
    }
    const std::scoped_lock lock(mutex_);
    ids_.push_back(*id);
    if (abandoned_) setup_.engine->abort(*id);
  }
}

void AnswerJob::fail(const ApiError& error) {
  setup_.delivery->post([job = shared_from_this(), error] { job->end_early(error); });
}

void AnswerJob::abandon() {
  std::vector<RequestId> ids;
  {
    const std::scoped_lock lock(mutex_);
    abandoned_ = true;
    ids = ids_;
  }
  for (const RequestId id : ids) setup_.engine->abort(id);
}

void AnswerJob::cancel() {
  cancelled_ = true;
  abandon();
}

const std::string& AnswerJob::id() const {
  const std::string& own = setup_.request.request_id;
  return own.empty() ? setup_.exchange->request().id : own;
}

// What a client should know although its request is served, one line.
HttpHeaders AnswerJob::warning_headers() const {
  std::string all;
  for (const std::string& warning : setup_.request.warnings) all += (all.empty() ? "" : "; ") + warning;
  if (all.empty()) return {};
  return {{"X-Mimo-Warning", std::move(all)}};
}

// On the delivery thread, as all below.
void AnswerJob::end_early(const ApiError& error) {
  if (over_) return log_if_ended();
  over_ = true;
  status_ = error.status;
  abandon();
  {
    const std::scoped_lock lock(mutex_);
    if (ids_.empty() || error.status == 429) setup_.metrics->refused(error.status);
  }
  std::string bytes;
  if (streaming_) {
    writer_->fail(error, bytes);
    send(std::move(bytes));
    setup_.exchange->finish();
    log_if_ended();
    return;
  }
  HttpResponse response;
  response.status = error.status;
  response.body = error_body(setup_.request.route, error);
  if (error.retry_after_seconds > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  setup_.exchange->respond(std::move(response));
  log_if_ended();
}

void AnswerJob::take(std::size_t index, AnswerStep&& step) {
  Choice& choice = choices_[index];
  count(choice, step);
  if (over_ || choice.over) return log_if_ended();
  const bool cancelled = step.error && step.error->code == ErrorCode::kCancelled && cancelled_;
  if (step.error && !cancelled) {
    end_early(api_error(*step.error));
    return;
  }
  std::vector<AnswerDelta> deltas;
  if (choice.parser) {
    for (const AnswerPiece& piece : step.text) {
      choice.parser->push(piece.text, setup_.control.marker(piece.marker), deltas);
    }
    if (step.last()) {
      choice.parser->finish(cancelled || step.finish->reason == FinishReason::kLength, deltas);
    }
  } else {
    for (AnswerPiece& piece : step.text)
      deltas.push_back({DeltaKind::kContent, 0, std::move(piece.text), {}});
  }
  std::string bytes;
  const auto number = static_cast<std::int64_t>(index);
  writer_->push(number, {.deltas = deltas, .tokens = step.tokens, .usage = step.usage}, bytes);
  const bool enough = choice.parser && choice.parser->done() && !step.last();
  if (step.last() || enough) {
    AnswerEnd end;
    end.finish = step.finish;
    end.aborted = cancelled;
    end.calls = choice.parser ? choice.parser->calls() : 0;
    writer_->finish(number, end, bytes);
    choice.over = true;
  }
  if (enough) {
    const std::scoped_lock lock(mutex_);
    if (index < ids_.size()) setup_.engine->abort(ids_[index]);
  }
  over_ = writer_->complete();
  send(std::move(bytes));
  if (over_ && streaming_) setup_.exchange->finish();
  log_if_ended();
}

void AnswerJob::send(std::string&& bytes) {
  if (bytes.empty()) return;
  if (!setup_.request.stream) {
    if (!over_) return;
    HttpResponse response;
    response.body = std::move(bytes);
    response.headers = warning_headers();
    setup_.exchange->respond(std::move(response));
    return;
  }
  if (!streaming_) {
    streaming_ = true;
    HttpHeaders headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    for (auto& warning : warning_headers()) headers.push_back(std::move(warning));
    setup_.exchange->start_stream(200, kEventStreamType, std::move(headers));
  }
  if (!setup_.exchange->write(std::move(bytes))) {
    over_ = true;
    status_ = kClientGone;
    abandon();
  }
}

void AnswerJob::count(Choice& choice, const AnswerStep& step) {
  if (choice.counted) return;
  const Clock::time_point now = Clock::now();
  const auto since = [now](Clock::time_point then) {
    return std::chrono::duration<double>(now - then).count();
  };
  if (!step.tokens.empty()) {
    if (choice.has_tokens) {
      setup_.metrics->tokens_after(since(choice.last_tokens), std::ssize(step.tokens));
    } else {
      setup_.metrics->first_token(since(setup_.arrived));
      choice.first_tokens = now;
    }
    choice.has_tokens = true;
    choice.last_tokens = now;
  }
  if (!step.last()) return;
  choice.counted = true;
  if (step.error && step.error->code == ErrorCode::kBusy) return;  // refused by the queue, not ended
  Ending ending = Ending::kStop;
  if (step.error) {
    ending = step.error->code == ErrorCode::kCancelled ? Ending::kAbort : Ending::kError;
  } else if (step.finish->reason == FinishReason::kLength) {
    ending = Ending::kLength;
  } else if (choice.parser && choice.parser->calls() > 0) {
    ending = Ending::kToolCalls;
  }
  // Ended here because one call was asked for.
  if (choice.over && ending == Ending::kAbort) ending = Ending::kToolCalls;
  setup_.metrics->ended(ending, step.usage, since(setup_.arrived));
  choice.ending = kEndingNames[static_cast<std::size_t>(ending)];
  choice.usage = step.usage;
}

// The line of the log, when the answer is over and the engine has done with all of it.
void AnswerJob::log_if_ended() {
  if (logged_ || !setup_.log || !over_) return;
  const auto counted =
      std::count_if(choices_.begin(), choices_.end(), [](const Choice& c) { return c.counted; });
  if (static_cast<std::size_t>(counted) < submitted_) return;
  logged_ = true;
  const HttpRequest& http = setup_.exchange->request();
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  RequestRecord record{.id = id(),
                       .method = http.method,
                       .path = http.path,
                       .client = http.client,
                       .status = status_,
                       .seconds = seconds(Clock::now() - setup_.arrived),
                       .answer = RequestRecord::Answer{}};
  RequestRecord::Answer& answer = *record.answer;
  answer.model = setup_.request.model;
  answer.stream = setup_.request.stream;
  answer.choices = setup_.choices;
  std::vector<RequestUsage> usages;
  SpeculationStats speculation;
  double between = 0;
  std::int64_t gaps = 0;
  for (const Choice& choice : choices_) {
    usages.push_back(choice.usage);
    speculation.add(choice.usage.speculation);
    answer.queue_seconds = std::max(answer.queue_seconds, choice.usage.queue_seconds);
    if (answer.finish.find(choice.ending) == std::string::npos) {
      if (!answer.finish.empty()) answer.finish += ',';
      answer.finish += choice.ending;
    }
    if (!choice.has_tokens) continue;
    const double first = seconds(choice.first_tokens - setup_.arrived);
    answer.ttft_seconds = std::min(answer.ttft_seconds.value_or(first), first);
    between += seconds(choice.last_tokens - choice.first_tokens);
    gaps += std::max<std::int64_t>(0, choice.usage.completion_tokens - 1);
  }
  const UsageTotals totals = sum_usage(usages, setup_.request.n);
  answer.prompt_tokens = totals.prompt_tokens;
  answer.cached_tokens = totals.cached_tokens;
  answer.completion_tokens = totals.completion_tokens;
  answer.reasoning_tokens = totals.reasoning_tokens;
  if (gaps > 0) answer.tpot_seconds = between / static_cast<double>(gaps);
  answer.accept_length = speculation.accept_length();
  setup_.log(record);
}

}  // namespace mimo
