// The routes of the API: from an HTTP request to engine requests, and what describes the server.
#pragma once

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
  ModelCard card;
  std::string model_path;  // as shown to clients
  std::string version;
  json::object arguments;    // of the start, for /server_info; nothing secret
  bool metrics_open = true;  // /metrics needs no key
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
  bool strict_openai = false;
  bool timings = false;
  int workers = 2;  // threads that read bodies and tokenise
  RequestLog log;   // one line a request; null: none
};

class ApiService {
 public:
  // Figures of the engine at the time of a call.
  using Figures = std::function<EngineFigures()>;

  // Everything must outlive the service. `format` null: the checkpoint has no chat template.
  ApiService(EngineClient& engine, const Tokenizer& tokenizer, const ChatFormat* format,
             std::span<const int> eos_ids, Figures figures, ApiServiceOptions options);

  // To be served as long as the service lives.
  std::vector<HttpRoute> routes();

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
  void server_info(const ExchangePtr& exchange) const;
  void refuse(const ExchangePtr& exchange, ApiRoute route, const ApiError& error);

  EngineClient& engine_;
  const Tokenizer& tokenizer_;
  const ChatFormat* format_;
  Figures figures_;
  ApiServiceOptions options_;
  ControlTokens control_;
  std::vector<std::int32_t> special_ids_;
  Metrics metrics_;
  std::string fingerprint_;
  // Each is destroyed before the ones that it posts to.
  WorkQueue delivery_;
  WorkQueue work_;
  ConstraintCompiler constraints_;
};

}  // namespace mimo
