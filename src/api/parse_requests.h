// Bodies of requests to checked structures. Anything that is not such a body gives a 4xx error that names the
// field; nothing that is asked for is dropped silently, except fields nobody here knows (unknown_fields) and
// those that change no answer:
//   user, metadata, store, service_tier, safety_identifier, prompt_cache_key, vllm_xargs, ...
// (refused_fields.cpp has both lists).
//
// Readings that are not obvious, for all dialects:
//  - null is the same as absence. Integers may be written 5.0. Duplicate keys, invalid UTF-8, lone
//    surrogates, NaN, numbers beyond a double and nesting beyond the limit are errors.
//  - No model, or an empty one, is the first served name; a name not served is 404 model_not_found.
//  - max_completion_tokens wins over max_tokens; neither: up to the end of the context. 0 is an error.
//  - seed -1 is a random one; other negative seeds are taken as 64 bits.
//  - Thinking is switched by the first that is given of: chat_template_kwargs.enable_thinking,
//    enable_thinking, thinking.type, reasoning_effort "none", the server's default, the template's.
//  - tool_choice "auto" or "none" may be given without tools.
#pragma once

#include <string_view>

#include "api/api_context.h"
#include "api/api_error.h"
#include "api/api_request.h"

namespace mimo {

// OpenAI chat. `developer` messages become system messages, `function` ones tool results. System and user
// messages need content; that of assistants and tools may be null. A conversation that ends with an
// assistant is answered in a new turn, unless continue_final_message is set.
ApiResult<ApiRequest> parse_chat_request(std::string_view body, const ApiContext& context);

ApiResult<ApiRequest> parse_completion_request(std::string_view body, const ApiContext& context);

// Anthropic Messages. Blocks become OpenAI messages: texts of a message are joined without a separator, each
// tool_result is a tool message of its own in the place where it stands, thinking becomes reasoning_content,
// redacted_thinking is dropped. A conversation that ends with an assistant is continued inside that turn.
ApiResult<ApiRequest> parse_messages_request(std::string_view body, const ApiContext& context);

ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body, const ApiContext& context);
ApiResult<DetokenizeRequest> parse_detokenize_request(std::string_view body, const ApiContext& context);
ApiResult<CountTokensRequest> parse_count_tokens_request(std::string_view body, const ApiContext& context);

// Whether prompt and answer fit; with max_tokens absent, one token of answer has to.
ApiResult<void> check_context(const ApiRequest& request, std::int64_t prompt_tokens,
                              std::int64_t max_model_len);

}  // namespace mimo
