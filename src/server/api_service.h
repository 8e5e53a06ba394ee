// The routes of the API: from an HTTP request to engine requests, and what describes the server.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/api_context.h"
#include "api/api_error.h"
#include "api/api_request.h"
#include "api/model_info.h"
#include "server/answer_job.h"
#include "server/exchange.h"
#include "server/http/http_options.h"
#include "server/metrics.h"
#include "server/work_queue.h"
#include "text/chat_format.h"
#include "text/chat_prompt.h"
#include "text/constraint_compiler.h"
#include "text/tokenizer.h"

namespace mimo {

struct ApiServiceOptions {
  ApiContext context;
  ModelCard card;          // max_model_len comes with the engine
  std::string model_path;  // as shown to clients
  std::string version;
  bool metrics_open = true;  // /metrics needs no key
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
  bool strict_openai = false;
  bool timings = false;
  double stuck_seconds = 60;     // without a sign of life from the engine: requests get 503
  bool debug_endpoints = false;  // POST /debug/stall
  int workers = 2;               // threads that read bodies and tokenise
  RequestLog log;                // of requests that have ended; null: none
};

// What there is once the model is loaded.
struct ApiEngine {
  EngineClient* client = nullptr;
  std::function<EngineFigures()> figures;     // at the time of a call
  json::object arguments;                     // of the start, for /server_info; nothing secret
  std::function<void(double seconds)> stall;  // for tests: the engine stands still; null: no such route
};

class ApiService {
 public:
  // Everything must outlive the service. `format` null: the checkpoint has no chat template.
  ApiService(const Tokenizer& tokenizer, const ChatFormat* format, std::span<const int> eos_ids,
             ApiServiceOptions options);

  // To be served as long as the service lives.
  std::vector<HttpRoute> routes();

  // From now on requests are answered. Once; the client must outlive the exchanges.
  void serve(ApiEngine engine);
  // What runs goes on; new requests and /health get 503.
  void drain() { draining_ = true; }
  // Why requests cannot be answered, for HttpServerOptions::unavailable; empty: they can.
  std::string unavailable() const;

 private:
  using ExchangePtr = std::shared_ptr<Exchange>;
  using Clock = std::chrono::steady_clock;

  void answer(const ExchangePtr& exchange, ApiRoute route);
  void prepare(const ExchangePtr& exchange, ApiRequest&& request, Clock::time_point arrived);
  void run(const ExchangePtr& exchange, ApiRequest&& request, std::vector<TokenIds>&& prompts,
           ThinkBlock block, const std::shared_ptr<const CompiledConstraint>& constraint,
           Clock::time_point arrived);
  EngineRequest engine_request(const ApiRequest& request, const TokenIds& prompt, ThinkBlock block) const;
  ApiResult<ChatPrompt> chat_prompt(const Conversation& chat) const;
  TokenSpelling spell(std::int32_t id) const;

  void tokenize(const ExchangePtr& exchange);
  void detokenize(const ExchangePtr& exchange);
  void count_tokens(const ExchangePtr& exchange);
  void health(const ExchangePtr& exchange) const;
  void health_generate(const ExchangePtr& exchange);
  void abort_request(const ExchangePtr& exchange);
  void debug_stall(const ExchangePtr& exchange);
  void server_info(const ExchangePtr& exchange) const;
  void refuse(const ExchangePtr& exchange, ApiRoute route, const ApiError& error);
  // One that was to be answered: it has a line in the log.
  void refuse_answer(const ExchangePtr& exchange, ApiRoute route, const ApiError& error,
                     Clock::time_point arrived);

  const Tokenizer& tokenizer_;
  const ChatFormat* format_;
  std::atomic<bool> serving_{false};  // engine_ and the card are complete
  std::atomic<bool> draining_{false};
  ApiEngine engine_;
  ApiServiceOptions options_;
  ControlTokens control_;
  std::vector<std::int32_t> special_ids_;
  Metrics metrics_;
  std::string fingerprint_;
  RunningJobs jobs_;
  // Each is destroyed before the ones that it posts to.
  WorkQueue delivery_;
  WorkQueue work_;
  ConstraintCompiler constraints_;
};

}  // namespace mimo
