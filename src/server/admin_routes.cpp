// Routes of operators: /health_generate, /abort_request, /debug/stall.
#include <utility>

#include "api/object_reader.h"
#include "server/api_service.h"
#include "server/http/http_server.h"

namespace mimo {
namespace {

void answer_empty(const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.content_type = "text/plain";
  exchange->respond(std::move(response));
}

// Answers when its one token is there.
class HealthSink final : public AnswerSink {
 public:
  explicit HealthSink(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

  void on_step(AnswerStep&& step) override {
    if (!step.last()) return;
    if (step.finish) {
      answer_empty(exchange_);
    } else {
      exchange_->respond(http_error(503, exchange_->request().path, "the engine could not generate a token"));
    }
  }

 private:
  std::shared_ptr<Exchange> exchange_;
};

// An empty body counts as {}.
ApiResult<json::object> read_object(const std::string& body) {
  if (body.empty()) return json::object();
  Result<json::value> value = parse_json(body, "the body", {.max_bytes = 1u << 16});
  if (!value) return tl::unexpected(api_error(400, value.error().message));
  if (json::object* object = value->if_object()) return std::move(*object);
  return tl::unexpected(api_error(400, "expected a JSON object"));
}

}  // namespace

void ApiService::health_generate(const ExchangePtr& exchange) {
  EngineRequest request;
  request.prompt = {0};
  request.params.max_tokens = 1;
  request.params.ignore_eos = true;
  request.params.temperature = 0;
  request.cache_salt = "health";
  const Result<RequestId> id =
      engine_.client->submit(std::move(request), std::make_shared<HealthSink>(exchange));
  if (id) {
    exchange->on_close([engine = engine_.client, number = *id] { engine->abort(number); });
    return;
  }
  // A full queue is no illness: others get their tokens.
  if (id.error().code == ErrorCode::kBusy) return answer_empty(exchange);
  exchange->respond(http_error(503, exchange->request().path, id.error().message));
}

// As SGLang has it: {"rid": "..."} or {"abort_all": true}. Ids that nobody has are no error: the answer may just
// have ended.
void ApiService::abort_request(const ExchangePtr& exchange) {
  const ApiResult<json::object> body = read_object(exchange->request().body);
  if (!body) return refuse(exchange, ApiRoute::kChat, body.error());
  RequestProblem problem;
  ObjectReader reader(*body, "", problem);
  const bool all = reader.boolean("abort_all").value_or(false);
  const std::optional<std::string> rid = reader.text("rid");
  if (!all && !rid) reader.problem("rid", "missing; expected the id of a request, or abort_all: true");
  if (problem.found()) return refuse(exchange, ApiRoute::kChat, problem.error());
  const std::size_t count = all ? jobs_.cancel_all() : jobs_.cancel(*rid);
  HttpResponse response;
  response.body = json::serialize(json::object{{"success", true}, {"aborted", count}});
  exchange->respond(std::move(response));
}

void ApiService::debug_stall(const ExchangePtr& exchange) {
  const ApiResult<json::object> body = read_object(exchange->request().body);
  if (!body) return refuse(exchange, ApiRoute::kChat, body.error());
  RequestProblem problem;
  ObjectReader reader(*body, "", problem);
  const std::optional<double> seconds = reader.number("seconds");
  if (!seconds || !(*seconds >= 0 && *seconds <= 3600)) reader.refuse("seconds", "a number from 0 to 3600");
  if (problem.found()) return refuse(exchange, ApiRoute::kChat, problem.error());
  if (engine_.stall) engine_.stall(*seconds);
  answer_empty(exchange);
}

}  // namespace mimo
