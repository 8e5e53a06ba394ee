// One HTTP answer under way: the choices that the engine computes for it, the parsers that take them apart, and the
// writer that makes the client's bytes of them.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/answer_writer.h"
#include "engine/engine_client.h"
#include "server/exchange.h"
#include "server/metrics.h"
#include "server/request_record.h"
#include "server/running_jobs.h"
#include "server/work_queue.h"
#include "text/answer_parser.h"

namespace mimo {

// The control tokens of a checkpoint that answers are read by; -1: it has none.
struct ControlTokens {
  std::int32_t think_open = -1;
  std::int32_t think_close = -1;
  std::int32_t tool_open = -1;
  std::int32_t tool_close = -1;
  std::int32_t turn_open = -1;

  AnswerMarker marker(std::int32_t id) const;
};

class AnswerJob : public std::enable_shared_from_this<AnswerJob> {
 public:
  struct Setup {
    std::shared_ptr<Exchange> exchange;
    ApiRequest request;  // as parsed
    ThinkBlock think_block = ThinkBlock::kClosed;
    AnswerHead head;
    std::int64_t choices = 1;
    ControlTokens control;
    EngineClient* engine = nullptr;
    WorkQueue* delivery = nullptr;  // one thread: steps are taken in order
    Metrics* metrics = nullptr;
    RunningJobs* jobs = nullptr;  // listed there while it lives
    RequestLog log;               // null: none
    std::chrono::steady_clock::time_point arrived;
  };

  explicit AnswerJob(Setup setup);

  // Submits one engine request for each choice; an error ends the answer with it. Once.
  void start(std::vector<EngineRequest> choices);

  // Ends the answer with an error, whatever runs. From any thread.
  void fail(const ApiError& error);

  // The client has gone: the engine may stop. From any thread.
  void abandon();

  // Ends the answer with what it has so far, for an operator: finish_reason "abort". From any thread.
  void cancel();

  // The client's own id of the request, or else that of the exchange.
  const std::string& id() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Choice {
    std::unique_ptr<AnswerParser> parser;  // null: the text is content as it is
    bool over = false;                     // for the client
    bool counted = false;                  // in the metrics
    Clock::time_point first_tokens;
    Clock::time_point last_tokens;
    bool has_tokens = false;
    std::string_view ending = {};
    RequestUsage usage;  // once it is counted
  };
  class Sink;

  void take(std::size_t index, AnswerStep&& step);
  void end_early(const ApiError& error);
  void count(Choice& choice, const AnswerStep& step);
  void send(std::string&& bytes);
  void log_if_ended();
  HttpHeaders warning_headers() const;

  Setup setup_;
  json::array tools_;  // what the parsers look at
  std::unique_ptr<AnswerWriter> writer_;
  std::vector<Choice> choices_;
  bool streaming_ = false;  // the head of the stream is out
  bool over_ = false;       // the client has all it will get
  std::atomic<bool> cancelled_{false};
  int status_ = 200;  // of the answer
  bool logged_ = false;
  std::atomic<std::size_t> submitted_;  // choices that will have a last step

  std::mutex mutex_;
  std::vector<RequestId> ids_;  // of the choices that were submitted
  bool abandoned_ = false;
  std::unique_ptr<RunningJobs::Entry> entry_;
};

}  // namespace mimo
