// What a client is told when a request cannot be served, and the two JSON forms of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/result.h"

namespace mimo {

struct ApiError {
  int status = 500;                  // HTTP
  std::string type;                  // "invalid_request_error", ...: by status, see api_error()
  std::string message;               // names the field, its value and what was expected
  std::optional<std::string> param;  // path of the field, "tools[0].function.name"
  std::string code;                  // "context_length_exceeded", ...; empty: the status, as a number
  int retry_after_seconds = 0;       // above 0: to be sent as Retry-After
};

template <class T>
using ApiResult = tl::expected<T, ApiError>;

// Status        type
// 400, 405      invalid_request_error
// 401           authentication_error
// 404           not_found_error
// 413           request_too_large
// 429           rate_limit_error (Retry-After: 1)
// 499           request_cancelled
// 501           not_implemented
// 503           unavailable_error (Retry-After: 1)
// others        internal_error
ApiError api_error(int status, std::string_view message);

// 400 about one field of the request.
ApiError field_error(std::string_view path, std::string_view message);

// The one place where error codes become HTTP:
//   kInvalidArgument, kCorrupt, kUnsupported, kLimit   400
//   kNotFound                                          404
//   kBusy                                              429
//   kUnavailable                                       503
//   kCancelled                                         499
//   kInternal                                          500
// A kLimit that says "maximum context length" gets the code context_length_exceeded. Messages of kInternal
// stay with us: they may name files or memory; the caller logs them.
ApiError api_error(const Error& error);

// 400, context_length_exceeded: coding clients look for this code, or for the words "maximum context length
// is N tokens", to shorten their history. `max_tokens` none: the prompt alone is too long.
ApiError context_length_error(std::int64_t prompt_tokens, std::optional<std::int64_t> max_tokens,
                              std::int64_t max_model_len);

// 404, model_not_found.
ApiError model_not_found(std::string_view name);

// {"error":{"message","type","param","code"}}
std::string openai_error_body(const ApiError& error);
// {"type":"error","error":{"type","message"}} with the type names of that API.
std::string anthropic_error_body(const ApiError& error);

}  // namespace mimo
