#include "server/http/answer.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "server/http/ascii.h"
#include "server/http/http_server.h"

namespace mimo::http {
namespace {

constexpr std::string_view kPing = ": ping\n\n";

bool is_event_stream(std::string_view content_type) {
  return equal_ignoring_case(content_type.substr(0, content_type.find(';')), "text/event-stream");
}

bool has_header(const HttpHeaders& headers, std::string_view name) {
  for (const auto& header : headers) {
    if (equal_ignoring_case(header.first, name)) return true;
  }
  return false;
}

}  // namespace

Answer::Answer(AnswerTerms terms, std::function<void()> wake)
    : terms_(std::move(terms)), wake_(std::move(wake)), keep_alive_(terms_.keep_alive) {}

void Answer::append_head_once(int status, std::string_view content_type, Framing framing, std::size_t length,
                              const HttpHeaders& headers) {
  if (framing == Framing::kToTheEnd) keep_alive_ = false;
  status_ = status;
  const std::string_view connection = !keep_alive_ ? "close" : terms_.http10 ? "keep-alive" : "";
  std::string text;
  append_head(text,
              {.status = status,
               .content_type = content_type,
               .framing = framing,
               .length = length,
               .connection = connection},
              headers, terms_.headers);
  out_.append(text, version_sent_);
}

void Answer::append_body(std::string_view bytes) {
  if (bytes.empty()) return;  // an empty chunk would be the last one
  if (!chunked_) {
    out_ += bytes;
    return;
  }
  fmt::format_to(std::back_inserter(out_), "{:x}\r\n", bytes.size());
  out_.append(bytes).append("\r\n");
}

void Answer::write_response(const HttpResponse& response) {
  const bool bodyless = never_has_body(response.status);
  append_head_once(response.status, response.content_type, bodyless ? Framing::kNothing : Framing::kLength,
                   response.body.size(), response.headers);
  if (!bodyless && !terms_.head) out_ += response.body;
}

void Answer::end(AnswerEnd how) {
  phase_ = Phase::kOver;
  end_ = how;
}

Answer::Closers Answer::complete() {
  end(AnswerEnd::kComplete);
  return std::exchange(closers_, {});
}

void Answer::wake() {
  if (woken_ || !wake_) return;
  woken_ = true;
  wake_();
}

void Answer::respond(const HttpResponse& response) {
  Closers dropped;
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kWaiting) return;
  write_response(response);
  dropped = complete();
  wake();
}

void Answer::start_stream(int status, std::string_view content_type, const HttpHeaders& headers) {
  Closers dropped;
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kWaiting) return;
  events_ = is_event_stream(content_type);
  chunked_ = !terms_.http10;
  HttpHeaders all = headers;
  if (events_) {
    // Without these, proxies hold events back.
    if (!has_header(all, "Cache-Control")) all.emplace_back("Cache-Control", "no-cache");
    if (!has_header(all, "X-Accel-Buffering")) all.emplace_back("X-Accel-Buffering", "no");
  }
  append_head_once(status, content_type, chunked_ ? Framing::kChunked : Framing::kToTheEnd, 0, all);
  phase_ = Phase::kStreaming;
  if (terms_.head) dropped = complete();
  wake();
}

bool Answer::write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kStreaming) return false;
  // One write may exceed the buffer; so the bound is the buffer and the largest write.
  const bool fits = out_.size() + in_flight_ < terms_.write_buffer;
  if (fits) {
    append_body(bytes);
  } else {
    end(AnswerEnd::kSlow);
    woken_ = false;  // the connection may be waiting for the client, with our last call unheeded
  }
  wake();
  return fits;
}

void Answer::finish() {
  Closers dropped;
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kStreaming) return;
  if (chunked_) out_ += "0\r\n\r\n";
  dropped = complete();
  wake();
}

void Answer::on_close(std::function<void()> gone) {
  {
    const std::lock_guard lock(mutex_);
    if (end_ == AnswerEnd::kComplete) return;
    if (!closers_ran_) {
      closers_.push_back(std::move(gone));
      return;
    }
  }
  gone();
}

void Answer::abandon() {
  Closers dropped;
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kWaiting) {
    write_response(http_error(500, terms_.path, "internal error: the request was not answered"));
    dropped = complete();
  } else if (phase_ == Phase::kStreaming) {
    end(AnswerEnd::kAbandoned);
    woken_ = false;
  }
  wake();
}

Answer::Progress Answer::take(std::string& buffer) {
  const std::lock_guard lock(mutex_);
  std::swap(out_, buffer);
  in_flight_ += buffer.size();
  woken_ = false;
  return {end_, keep_alive_};
}

void Answer::sent(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  in_flight_ -= bytes;
}

void Answer::close_after() {
  const std::lock_guard lock(mutex_);
  keep_alive_ = false;
}

void Answer::client_gone() {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kOver) end(AnswerEnd::kClient);
}

void Answer::cut() {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kOver) return;
  keep_alive_ = false;
  if (phase_ == Phase::kWaiting) write_response(http_error(503, terms_.path, "the server is shutting down"));
  end(AnswerEnd::kCut);
}

void Answer::run_closers() {
  Closers run;
  {
    const std::lock_guard lock(mutex_);
    if (end_ == AnswerEnd::kRunning || end_ == AnswerEnd::kComplete || closers_ran_) return;
    closers_ran_ = true;
    run.swap(closers_);
  }
  for (const auto& gone : run) gone();
}

void Answer::detach() {
  std::function<void()> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(wake_);
}

void Answer::ping() {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kStreaming && events_ && out_.empty() && in_flight_ == 0) append_body(kPing);
}

bool Answer::probe() {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kWaiting && version_sent_ < kVersion.size()) {
    out_ += kVersion[version_sent_++];
    return true;
  }
  if (phase_ != Phase::kStreaming || !events_) return false;
  if (out_.empty() && in_flight_ == 0) append_body(kPing);
  return true;
}

bool Answer::ended() const {
  const std::lock_guard lock(mutex_);
  return end_ != AnswerEnd::kRunning;
}

int Answer::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

HttpExchange::HttpExchange(HttpRequest request, BodyLease lease, std::shared_ptr<Answer> answer)
    : request_(std::move(request)), lease_(std::move(lease)), answer_(std::move(answer)) {}

HttpExchange::~HttpExchange() { answer_->abandon(); }

// A callback dropped by these may own the last reference to this exchange; the copy keeps the answer alive.
void HttpExchange::respond(HttpResponse response) {
  const std::shared_ptr<Answer> answer = answer_;
  answer->respond(response);
}

void HttpExchange::start_stream(int status, std::string content_type, HttpHeaders headers) {
  const std::shared_ptr<Answer> answer = answer_;
  answer->start_stream(status, content_type, headers);
}

bool HttpExchange::write(std::string bytes) { return answer_->write(bytes); }

void HttpExchange::finish() {
  const std::shared_ptr<Answer> answer = answer_;
  answer->finish();
}

void HttpExchange::on_close(std::function<void()> gone) {
  const std::shared_ptr<Answer> answer = answer_;
  answer->on_close(std::move(gone));
}

}  // namespace mimo::http
