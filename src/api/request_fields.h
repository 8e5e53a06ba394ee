// Fields that several dialects share.
#pragma once

#include <string_view>

#include "api/api_context.h"
#include "api/api_request.h"
#include "api/object_reader.h"

namespace mimo {

// The body as an object: 413 when it is too long, 400 when it is anything else.
ApiResult<json::object> parse_body(std::string_view body, const ApiLimits& limits);

// The name to answer with. Adds model_not_found for a name that is not served.
std::string read_model(ObjectReader& body, const ServedModels& models);

// Everything in SamplingParams but max_tokens, stop strings and logprobs.
void read_sampling(ObjectReader& body, const ApiContext& context, SamplingParams& params);
// max_completion_tokens and max_tokens.
void read_max_tokens(ObjectReader& body, SamplingParams& params);
// A string or a list of strings.
void read_stop(ObjectReader& body, std::string_view key, SamplingParams& params);
void read_stream(ObjectReader& body, ApiRequest& request);
// n, and best_of where it says the same.
void read_n(ObjectReader& body, const ApiLimits& limits, ApiRequest& request);
// request_id, priority, cache_salt and the like.
void read_request_options(ObjectReader& body, ApiRequest& request);

// chat_template_kwargs and the switches of thinking. `conversation` already has the flags of the request.
void read_template_kwargs(ObjectReader& body, const ApiContext& context, Conversation& conversation);
// The limits of thinking: thinking.budget_tokens, thinking_token_budget, reasoning_effort.
void read_thinking_budget(ObjectReader& body, const ApiContext& context, ApiRequest& request);

// A list of token ids in [0, vocab).
TokenIds read_ids(const json::array& list, std::string_view path, int vocab, RequestProblem& problem);

// Ends a reader: refused and unknown fields, validate(). The request, or the first problem.
ApiResult<ApiRequest> finish_request(ObjectReader& body, const ApiContext& context, ApiRequest request);

}  // namespace mimo
