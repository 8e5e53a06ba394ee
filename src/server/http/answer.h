// The answer to one request, between the threads that write it and the connection that sends it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/exchange.h"
#include "server/http/body_budget.h"
#include "server/http/response_head.h"

namespace mimo::http {

// What the request fixes about its answer.
struct AnswerTerms {
  std::string path{};  // decides the form of errors
  bool http10 = false;
  bool head = false;  // HEAD: headers only
  bool keep_alive = true;
  std::size_t write_buffer = 1u << 20;
  HttpHeaders headers{};  // of every answer: X-Request-Id, CORS
};

enum class AnswerEnd {
  kRunning,
  kComplete,   // respond() or finish(); bytes may still wait to be sent
  kClient,     // the client has gone
  kSlow,       // the client did not read
  kAbandoned,  // the handler let go of a stream without finishing it
  kCut,        // the server is shutting down
};

class Answer {
 public:
  // `wake` is called with the answer's lock held, from any thread, when bytes wait for the connection; it must only
  // post. Not before the first take(), which the connection does by itself after the handler's return.
  Answer(AnswerTerms terms, std::function<void()> wake);
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  // --- any thread; as in Exchange
  void respond(const HttpResponse& response);
  void start_stream(int status, std::string_view content_type, const HttpHeaders& headers);
  bool write(std::string_view bytes);
  void finish();
  void on_close(std::function<void()> gone);
  // The handler's last reference is gone: 500, or the end of the stream if one was under way.
  void abandon();

  // --- the connection's thread
  struct Progress {
    AnswerEnd end = AnswerEnd::kRunning;
    bool keep_alive = false;
  };
  // Moves the bytes that wait into `buffer`, which must be empty. No more will come if the answer has ended.
  Progress take(std::string& buffer);
  // The kernel took this many of the bytes.
  void sent(std::size_t bytes);
  // No more answers on this connection. Affects the Connection header if that is not written yet.
  void close_after();
  // The client has gone.
  void client_gone();
  // The server's time is over: 503 if nothing was said yet, else the stream ends here.
  void cut();
  // Calls the on_close callbacks if the answer ended without being complete; they run once.
  void run_closers();
  // The connection is about to vanish: no more wake().
  void detach();
  // A comment line, if this is an event stream with nothing waiting.
  void ping();
  // Something harmless to send, so that a client that has closed its socket shows itself by a reset: a comment line
  // on event streams, and before the head the next character of the version every answer starts with. False: there
  // is nothing of that kind.
  bool probe();

  bool ended() const;
  int status() const;  // 0: not known yet

 private:
  enum class Phase { kWaiting, kStreaming, kOver };
  using Closers = std::vector<std::function<void()>>;

  // All below: with the lock held.
  void append_head_once(int status, std::string_view content_type, Framing framing, std::size_t length,
                        const HttpHeaders& headers);
  void append_body(std::string_view bytes);
  void write_response(const HttpResponse& response);
  void end(AnswerEnd how);
  // Ends it well. What it returns is to be destroyed without the lock: a callback may own the last reference to the
  // exchange.
  [[nodiscard]] Closers complete();
  void wake();

  const AnswerTerms terms_;
  mutable std::mutex mutex_;
  std::function<void()> wake_;
  bool woken_ = true;  // the connection will look
  Phase phase_ = Phase::kWaiting;
  AnswerEnd end_ = AnswerEnd::kRunning;
  int status_ = 0;
  bool keep_alive_;
  bool chunked_ = false;
  bool events_ = false;           // an SSE stream
  std::size_t version_sent_ = 0;  // characters of kVersion sent as probes
  std::string out_;               // not taken yet
  std::size_t in_flight_ = 0;     // taken, not sent
  Closers closers_;
  bool closers_ran_ = false;
};

// What handlers hold.
class HttpExchange final : public Exchange {
 public:
  HttpExchange(HttpRequest request, BodyLease lease, std::shared_ptr<Answer> answer);
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;
  ~HttpExchange() override;

  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse response) override;
  void start_stream(int status, std::string content_type, HttpHeaders headers) override;
  bool write(std::string bytes) override;
  void finish() override;
  void on_close(std::function<void()> gone) override;

 private:
  const HttpRequest request_;
  const BodyLease lease_;
  const std::shared_ptr<Answer> answer_;
};

}  // namespace mimo::http
