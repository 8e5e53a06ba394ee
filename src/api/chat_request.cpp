// POST /v1/chat/completions, and the other bodies that hold an OpenAI conversation.
#include <utility>

#include "api/constraint_fields.h"
#include "api/conversation.h"
#include "api/parse_requests.h"
#include "api/request_fields.h"

namespace mimo {
namespace {

void read_logprobs(ObjectReader& body, SamplingParams& params) {
  const bool on = body.boolean("logprobs").value_or(false);
  const std::optional<std::int64_t> top = body.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !on) {
    body.problem("top_logprobs", fmt::format("got {}, but logprobs is not true", *top));
  }
  params.logprobs.reset();
  if (on) params.logprobs = static_cast<int>(top.value_or(0));
}

void read_modalities(ObjectReader& body) {
  const json::array* modalities = body.array("modalities");
  if (modalities == nullptr) return;
  for (const json::value& item : *modalities) {
    if (!item.is_string() || item.get_string() != "text") {
      body.problem("modalities", fmt::format("got {}, expected only \"text\"", shown_value(item)));
    }
  }
}

}  // namespace

ApiResult<ApiRequest> parse_chat_request(std::string_view text, const ApiContext& context) {
  const ApiResult<json::object> object = parse_body(text, context.limits);
  if (!object) return tl::unexpected(object.error());
  RequestProblem problem;
  ObjectReader body(*object, "", problem);

  ApiRequest request;
  request.route = ApiRoute::kChat;
  request.params = context.default_params;
  request.model = read_model(body, context.models);
  read_messages(body, context.limits, request.chat);
  read_tools(body, context.limits, request);
  read_tool_choice(body, request);
  read_template_kwargs(body, context, request.chat);
  read_thinking_budget(body, context, request);
  read_sampling(body, context, request.params);
  read_max_tokens(body, request.params);
  read_stop(body, "stop", request.params);
  read_logprobs(body, request.params);
  read_stream(body, request);
  read_n(body, context.limits, request);
  read_request_options(body, request);
  read_modalities(body);
  request.separate_reasoning = body.boolean("separate_reasoning").value_or(true);
  request.include_reasoning = body.boolean("include_reasoning").value_or(true);
  read_content_form(body, context.limits, request.constraint);
  set_call_form(body, request);
  return finish_request(body, context, std::move(request));
}

ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view text, const ApiContext& context) {
  const ApiResult<json::object> object = parse_body(text, context.limits);
  if (!object) return tl::unexpected(object.error());
  RequestProblem problem;
  ObjectReader body(*object, "", problem);

  TokenizeRequest request;
  request.model = read_model(body, context.models);
  request.return_token_strs = body.boolean("return_token_strs").value_or(false);
  // `content` is llama.cpp's name.
  const std::optional<std::string> prompt = body.text("prompt");
  const std::optional<std::string> content = body.text("content");
  const int sources = (prompt ? 1 : 0) + (content ? 1 : 0) + (body.has("messages") ? 1 : 0);
  if (sources > 1) body.problem("prompt", "expected only one of prompt, content and messages");
  ApiRequest chat;
  if (prompt || content) {
    request.text = prompt ? prompt : content;
  } else {
    read_messages(body, context.limits, chat.chat);
  }
  // Checked even where a text has no use for them.
  read_tools(body, context.limits, chat);
  read_template_kwargs(body, context, chat.chat);
  request.chat = std::move(chat.chat);
  if (sources == 0 && !object->contains("messages")) {
    return tl::unexpected(
        problem.error().param == "messages"
            ? field_error("prompt", "prompt: got nothing, expected prompt, content or messages")
            : problem.error());
  }
  if (problem.found()) return tl::unexpected(problem.error());
  return request;
}

ApiResult<DetokenizeRequest> parse_detokenize_request(std::string_view text, const ApiContext& context) {
  const ApiResult<json::object> object = parse_body(text, context.limits);
  if (!object) return tl::unexpected(object.error());
  RequestProblem problem;
  ObjectReader body(*object, "", problem);

  DetokenizeRequest request;
  request.model = read_model(body, context.models);
  const json::array* tokens = body.array("tokens");
  if (tokens != nullptr) {
    request.tokens = read_ids(*tokens, "tokens", context.vocab, problem);
  } else if (!problem.found()) {
    body.refuse("tokens", "a list of token ids");
  }
  if (problem.found()) return tl::unexpected(problem.error());
  return request;
}

ApiResult<void> check_context(const ApiRequest& request, std::int64_t prompt_tokens,
                              std::int64_t max_model_len) {
  const std::int64_t room = max_model_len - prompt_tokens;
  if (room < 1) return tl::unexpected(context_length_error(prompt_tokens, {}, max_model_len));
  if (request.params.max_tokens && *request.params.max_tokens > room) {
    return tl::unexpected(context_length_error(prompt_tokens, request.params.max_tokens, max_model_len));
  }
  return {};
}

}  // namespace mimo
