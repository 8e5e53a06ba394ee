#include "server/api_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "api/parse_requests.h"
#include "server/http/http_server.h"
#include "server/openapi.h"
#include "server/web_page.h"

namespace mimo {
namespace {

std::int32_t control_id(const Tokenizer& tokenizer, std::string_view spelling) {
  const auto id = tokenizer.token_id(spelling);
  return id && tokenizer.is_added(*id) ? *id : -1;
}

// Where conversations part: behind the first turn (system prompt and tools), and before the last one that was sent,
// which is edited or asked again.
std::vector<std::int64_t> marks(const TokenIds& prompt, std::int32_t turn_open) {
  std::vector<std::int64_t> turns;
  for (std::size_t i = 1; i < prompt.size(); ++i) {
    if (prompt[i] == turn_open) turns.push_back(static_cast<std::int64_t>(i));
  }
  if (turns.size() <= 2) return turns;
  return {turns.front(), turns[turns.size() - 2]};
}

ControlTokens control_tokens(const Tokenizer& tokenizer) {
  return {control_id(tokenizer, "<think>"), control_id(tokenizer, "</think>"),
          control_id(tokenizer, "<tool_call>"), control_id(tokenizer, "</tool_call>"),
          control_id(tokenizer, "<|im_start|>")};
}

void respond_json(const std::shared_ptr<Exchange>& exchange, std::string body, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  exchange->respond(std::move(response));
}

ConstraintStart constraint_start(ThinkBlock block, const ControlTokens& control) {
  if (block == ThinkBlock::kClosed || control.think_close < 0) return ConstraintStart::kAtOnce;
  if (block == ThinkBlock::kOpen) return ConstraintStart::kAfterThinkClose;
  return control.think_open < 0 ? ConstraintStart::kAtOnce : ConstraintStart::kAfterOptionalThink;
}

}  // namespace

ApiService::ApiService(const Tokenizer& tokenizer, const ChatFormat* format, std::span<const int> eos_ids,
                       ApiServiceOptions options)
    : tokenizer_(tokenizer),
      format_(format),
      options_(std::move(options)),
      control_(control_tokens(tokenizer)),
      metrics_(options_.context.models.names.front()),
      fingerprint_("mimo-" + options_.version),
      delivery_(1),
      work_(options_.workers),
      constraints_(tokenizer, eos_ids) {
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (tokenizer.is_special(token.id)) special_ids_.push_back(token.id);
  }
}

void ApiService::serve(ApiEngine engine) {
  engine_ = std::move(engine);
  options_.card.max_model_len = engine_.client->max_model_len();
  serving_ = true;
}

std::string ApiService::unavailable() const {
  if (draining_) return "the server is shutting down";
  if (!serving_) return "the model is loading";
  const EngineStatus status = engine_.client->status();
  if (status.alive && status.heartbeat_seconds < options_.stuck_seconds) return {};
  return fmt::format("the engine does not answer (last seen {:.0f} s ago)", status.heartbeat_seconds);
}

std::vector<HttpRoute> ApiService::routes() {
  std::vector<HttpRoute> routes = web_page_routes();
  const auto add = [&](const char* method, const char* path, Handler handler, Access access = Access::kKey,
                       bool always = false) {
    routes.push_back({method, path, std::move(handler), access, always});
  };
  const auto answering = [this](ApiRoute route) {
    return [this, route](const ExchangePtr& exchange) { answer(exchange, route); };
  };
  add("POST", "/v1/chat/completions", answering(ApiRoute::kChat));
  add("POST", "/v1/completions", answering(ApiRoute::kCompletion));
  add("POST", "/v1/messages", answering(ApiRoute::kMessages));
  const auto in_background = [this](void (ApiService::*work)(const ExchangePtr&)) {
    return [this, work](const ExchangePtr& exchange) {
      work_.post([this, work, exchange] { (this->*work)(exchange); });
    };
  };
  add("POST", "/v1/messages/count_tokens", in_background(&ApiService::count_tokens));
  for (const char* path : {"/tokenize", "/v1/tokenize"})
    add("POST", path, in_background(&ApiService::tokenize));
  for (const char* path : {"/detokenize", "/v1/detokenize"}) {
    add("POST", path, in_background(&ApiService::detokenize));
  }
  add("POST", "/v1/responses", [](const ExchangePtr& exchange) {
    exchange->respond(http_error(501, exchange->request().path,
                                 "the Responses API is not served; use /v1/chat/completions"));
  });
  add("GET", "/v1/models", [this](const ExchangePtr& exchange) {
    respond_json(exchange, models_body(options_.context.models, options_.card));
  });
  add("GET", "/v1/models/{id}", [this](const ExchangePtr& exchange) {
    const std::string_view id = route_parameter("/v1/models/{id}", exchange->request().path);
    const auto body = model_body(options_.context.models, options_.card, id);
    if (body) {
      respond_json(exchange, *body);
    } else {
      refuse(exchange, ApiRoute::kChat, model_not_found(id));
    }
  });
  for (const char* path : {"/health", "/ping"}) {
    add(
        "GET", path, [this](const ExchangePtr& exchange) { health(exchange); }, Access::kOpen, true);
  }
  for (const char* method : {"GET", "POST"}) {
    add(method, "/health_generate", [this](const ExchangePtr& exchange) { health_generate(exchange); });
  }
  add("POST", "/abort_request", [this](const ExchangePtr& exchange) { abort_request(exchange); });
  if (options_.debug_endpoints) {
    add("POST", "/debug/stall", [this](const ExchangePtr& exchange) { debug_stall(exchange); });
  }
  add("GET", "/openapi.json",
      [](const ExchangePtr& exchange) { respond_json(exchange, std::string(openapi_json())); });
  add("GET", "/version", [this](const ExchangePtr& exchange) {
    respond_json(exchange, json::serialize(json::object{{"version", options_.version}}));
  });
  add(
      "GET", "/metrics",
      [this](const ExchangePtr& exchange) {
        HttpResponse response;
        response.content_type = "text/plain; version=0.0.4; charset=utf-8";
        response.body = metrics_.text(serving_ ? engine_.figures() : EngineFigures{});
        exchange->respond(std::move(response));
      },
      options_.metrics_open ? Access::kOpen : Access::kKey, true);
  for (const char* path : {"/server_info", "/get_server_info"}) {
    add("GET", path, [this](const ExchangePtr& exchange) { server_info(exchange); });
  }
  add("GET", "/get_model_info", [this](const ExchangePtr& exchange) {
    respond_json(exchange,
                 model_info_body({options_.model_path, options_.model_path, engine_.client->max_model_len(),
                                  static_cast<std::int64_t>(tokenizer_.vocab_size())}));
  });
  for (const char* path : {"/flush_cache", "/reset_prefix_cache"}) {
    add("POST", path, [this](const ExchangePtr& exchange) {
      work_.post([this, exchange] {
        const Status flushed = engine_.client->flush_cache();
        if (flushed) {
          respond_json(exchange, R"({"success":true})");
        } else {
          ApiError error = api_error(flushed.error());
          if (flushed.error().code == ErrorCode::kBusy) error.status = 400;
          refuse(exchange, ApiRoute::kChat, error);
        }
      });
    });
  }
  return routes;
}

void ApiService::refuse(const ExchangePtr& exchange, ApiRoute route, const ApiError& error) {
  metrics_.refused(error.status);
  HttpResponse response;
  response.status = error.status;
  response.body = error_body(route, error);
  if (error.retry_after_seconds > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  exchange->respond(std::move(response));
}

void ApiService::refuse_answer(const ExchangePtr& exchange, ApiRoute route, const ApiError& error,
                               Clock::time_point arrived) {
  refuse(exchange, route, error);
  if (!options_.log) return;
  const HttpRequest& http = exchange->request();
  options_.log({.id = http.id,
                .method = http.method,
                .path = http.path,
                .client = http.client,
                .status = error.status,
                .seconds = std::chrono::duration<double>(Clock::now() - arrived).count(),
                .answer = {}});
}

void ApiService::answer(const ExchangePtr& exchange, ApiRoute route) {
  const Clock::time_point arrived = Clock::now();
  work_.post([this, exchange, route, arrived] {
    const std::string& body = exchange->request().body;
    ApiResult<ApiRequest> request = route == ApiRoute::kChat ? parse_chat_request(body, options_.context)
                                    : route == ApiRoute::kCompletion
                                        ? parse_completion_request(body, options_.context)
                                        : parse_messages_request(body, options_.context);
    if (!request) {
      refuse_answer(exchange, route, request.error(), arrived);
      return;
    }
    prepare(exchange, std::move(*request), arrived);
  });
}

ApiResult<ChatPrompt> ApiService::chat_prompt(const Conversation& chat) const {
  if (format_ == nullptr) {
    return tl::unexpected(
        api_error(400, "the checkpoint has no chat template: use /v1/completions with a prompt"));
  }
  ChatInput input = chat_input(chat);
  if (chat.continue_final_message) input.add_generation_prompt = false;
  Result<ChatPrompt> prompt = make_chat_prompt(*format_, tokenizer_, input);
  if (!prompt) return tl::unexpected(api_error(prompt.error()));
  if (chat.continue_final_message) {
    // The last turn as rendered, without its end; the family's templates close the think block before content.
    const auto turn_end = tokenizer_.token_id("<|im_end|>");
    if (!turn_end || prompt->ids.empty() || prompt->ids.back() != *turn_end) {
      return tl::unexpected(
          field_error("continue_final_message",
                      "the chat template does not end a turn with <|im_end|>, so the last one cannot go on"));
    }
    prompt->ids.pop_back();
    prompt->think_block = ThinkBlock::kClosed;
  }
  if (prompt->ids.empty()) return tl::unexpected(field_error("messages", "the rendered prompt is empty"));
  return std::move(*prompt);
}

// Prompts to ids, and the constraint, which may take a while.
void ApiService::prepare(const ExchangePtr& exchange, ApiRequest&& request, Clock::time_point arrived) {
  std::vector<TokenIds> prompts;
  ThinkBlock block = ThinkBlock::kClosed;
  if (request.route == ApiRoute::kCompletion) {
    for (const CompletionPrompt& prompt : request.prompts) {
      const auto* text = std::get_if<std::string>(&prompt);
      prompts.push_back(text != nullptr ? tokenizer_.encode(*text, {.allow_added_tokens = true})
                                        : std::get<TokenIds>(prompt));
    }
  } else {
    ApiResult<ChatPrompt> prompt = chat_prompt(request.chat);
    if (!prompt) {
      refuse_answer(exchange, request.route, prompt.error(), arrived);
      return;
    }
    block = prompt->think_block;
    prompts.push_back(std::move(prompt->ids));
  }
  for (const TokenIds& prompt : prompts) {
    const ApiResult<void> fits = check_context(request, std::ssize(prompt), engine_.client->max_model_len());
    if (!fits) {
      refuse_answer(exchange, request.route, fits.error(), arrived);
      return;
    }
  }
  if (request.constraint.empty()) {
    run(exchange, std::move(request), std::move(prompts), block, nullptr, arrived);
    return;
  }
  // The compiler's threads call back; the rest happens on ours.
  auto held =
      std::make_shared<std::pair<ApiRequest, std::vector<TokenIds>>>(std::move(request), std::move(prompts));
  const ConstraintSpec spec = held->first.constraint;
  constraints_.compile_async(
      spec, [this, exchange, held, block, arrived](ConstraintCompiler::CompileResult compiled) {
        work_.post([this, exchange, held, block, arrived, compiled = std::move(compiled)] {
          if (!compiled) {
            ApiError error = api_error(compiled.error());
            if (!error.param) error.param = "response_format";
            refuse_answer(exchange, held->first.route, error, arrived);
            return;
          }
          run(exchange, std::move(held->first), std::move(held->second), block, *compiled, arrived);
        });
      });
}

EngineRequest ApiService::engine_request(const ApiRequest& request, const TokenIds& prompt,
                                         ThinkBlock block) const {
  EngineRequest engine;
  engine.prompt = prompt;
  engine.params = request.params;
  engine.priority = request.priority;
  engine.cache_salt = request.cache_salt;
  if (!request.skip_special_tokens) engine.markers = special_ids_;
  if (request.route == ApiRoute::kCompletion) return engine;
  engine.marks = marks(prompt, control_.turn_open);
  for (const std::int32_t id :
       {control_.think_open, control_.think_close, control_.tool_open, control_.tool_close}) {
    if (id >= 0) engine.markers.push_back(id);
  }
  if (!parser_tools(request).empty()) {
    engine.literal_open_id = control_.tool_open;
    engine.literal_close_id = control_.tool_close;
  }
  engine.think_open_id = block == ThinkBlock::kClosed ? -1 : control_.think_open;
  engine.think_close_id = block == ThinkBlock::kClosed ? -1 : control_.think_close;
  engine.begins_in_think = block == ThinkBlock::kOpen;
  engine.thinking_budget = request.thinking_budget;
  engine.constraint_start = constraint_start(block, control_);
  return engine;
}

void ApiService::run(const ExchangePtr& exchange, ApiRequest&& request, std::vector<TokenIds>&& prompts,
                     ThinkBlock block, const std::shared_ptr<const CompiledConstraint>& constraint,
                     Clock::time_point arrived) {
  std::vector<EngineRequest> choices;
  for (const TokenIds& prompt : prompts) {
    for (std::int64_t i = 0; i < request.n; ++i) {
      EngineRequest engine = engine_request(request, prompt, block);
      engine.choice = static_cast<std::uint32_t>(i);
      engine.constraint = constraint;
      choices.push_back(std::move(engine));
    }
  }
  AnswerJob::Setup setup;
  setup.exchange = exchange;
  setup.think_block = block;
  setup.head.id = answer_id(request.route);
  setup.head.created = std::time(nullptr);
  setup.head.system_fingerprint = fingerprint_;
  setup.head.spell = [this](std::int32_t id) { return spell(id); };
  setup.head.reasoning_field = options_.reasoning_field;
  setup.head.strict_openai = options_.strict_openai;
  setup.head.timings = options_.timings;
  if (request.echo) {
    for (const TokenIds& prompt : prompts) {
      setup.head.prompt_texts.push_back(tokenizer_.decode(prompt, true).value_or(std::string()));
    }
  }
  if (request.return_token_ids) setup.head.prompt_ids = prompts;
  setup.choices = std::ssize(choices);
  setup.control = control_;
  setup.engine = engine_.client;
  setup.delivery = &delivery_;
  setup.metrics = &metrics_;
  setup.jobs = &jobs_;
  setup.log = options_.log;
  setup.arrived = arrived;
  setup.request = std::move(request);
  std::make_shared<AnswerJob>(std::move(setup))->start(std::move(choices));
}

TokenSpelling ApiService::spell(std::int32_t id) const {
  const Result<std::string_view> bytes = tokenizer_.token_bytes(id);
  return {bytes.value_or(std::string_view()), !tokenizer_.is_special(id)};
}

void ApiService::tokenize(const ExchangePtr& exchange) {
  const ApiResult<TokenizeRequest> request =
      parse_tokenize_request(exchange->request().body, options_.context);
  if (!request) return refuse(exchange, ApiRoute::kChat, request.error());
  TokenizeAnswer answer;
  answer.max_model_len = engine_.client->max_model_len();
  if (request->text) {
    answer.tokens = tokenizer_.encode(*request->text, {.allow_added_tokens = true});
  } else {
    ApiResult<ChatPrompt> prompt = chat_prompt(request->chat);
    if (!prompt) return refuse(exchange, ApiRoute::kChat, prompt.error());
    answer.tokens = std::move(prompt->ids);
  }
  if (request->return_token_strs) {
    answer.token_strs.emplace();
    for (const std::int32_t id : answer.tokens) answer.token_strs->emplace_back(spell(id).bytes);
  }
  respond_json(exchange, tokenize_body(answer));
}

void ApiService::detokenize(const ExchangePtr& exchange) {
  const ApiResult<DetokenizeRequest> request =
      parse_detokenize_request(exchange->request().body, options_.context);
  if (!request) return refuse(exchange, ApiRoute::kChat, request.error());
  const Result<std::string> text = tokenizer_.decode(request->tokens, false);
  if (!text) return refuse(exchange, ApiRoute::kChat, api_error(text.error()));
  respond_json(exchange, detokenize_body(*text));
}

void ApiService::count_tokens(const ExchangePtr& exchange) {
  const ApiResult<CountTokensRequest> request =
      parse_count_tokens_request(exchange->request().body, options_.context);
  if (!request) return refuse(exchange, ApiRoute::kMessages, request.error());
  const ApiResult<ChatPrompt> prompt = chat_prompt(request->chat);
  if (!prompt) return refuse(exchange, ApiRoute::kMessages, prompt.error());
  respond_json(exchange, count_tokens_body(std::ssize(prompt->ids)));
}

void ApiService::health(const ExchangePtr& exchange) const {
  if (const std::string reason = unavailable(); !reason.empty()) {
    exchange->respond(http_error(503, exchange->request().path, reason));
    return;
  }
  HttpResponse response;
  response.content_type = "text/plain";
  exchange->respond(std::move(response));
}

void ApiService::server_info(const ExchangePtr& exchange) const {
  const EngineFigures figures = engine_.figures();
  ServerInfo info;
  info.version = options_.version;
  info.models = options_.context.models.names;
  info.model = {options_.model_path, options_.model_path, engine_.client->max_model_len(),
                static_cast<std::int64_t>(tokenizer_.vocab_size())};
  info.arguments = engine_.arguments;
  info.state = {{"running", figures.status.running},
                {"waiting", figures.status.waiting},
                {"full_tokens", figures.status.full.total},
                {"window_tokens", figures.status.window.total},
                {"retractions", figures.status.retractions},
                {"steps", figures.times.steps},
                {"accept_length", figures.speculation.accept_length()}};
  respond_json(exchange, server_info_body(info));
}

}  // namespace mimo
