#include "server/answer_job.h"

#include <fmt/format.h>

#include <utility>

namespace mimo {

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
  if (over_) return;
  over_ = true;
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
    return;
  }
  HttpResponse response;
  response.status = error.status;
  response.body = error_body(setup_.request.route, error);
  if (error.retry_after_seconds > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  setup_.exchange->respond(std::move(response));
}

void AnswerJob::take(std::size_t index, AnswerStep&& step) {
  Choice& choice = choices_[index];
  count(choice, step);
  if (over_ || choice.over) return;
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
  if (setup_.log) {
    const RequestUsage& usage = step.usage;
    setup_.log(
        fmt::format("request {}: {} prompt tokens ({} cached), {} generated, queue {:.3f} s, prefill {:.3f} "
                    "s, decode {:.3f} s, "
                    "accept length {:.2f}, {}",
                    setup_.exchange->request().id, usage.prompt_tokens, usage.cached_tokens,
                    usage.completion_tokens, usage.queue_seconds, usage.prefill_seconds, usage.decode_seconds,
                    usage.speculation.accept_length(), kEndingNames[static_cast<std::size_t>(ending)]));
  }
}

}  // namespace mimo
