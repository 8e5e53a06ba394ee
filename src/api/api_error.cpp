#include "api/api_error.h"

#include "api/json_writer.h"
#include "text/unicode_utf8.h"

namespace mimo {
namespace {

// Longer ones quote the client's own text back at it.
constexpr std::size_t kMaxMessageBytes = 1000;

const char* openai_type(int status) {
  switch (status) {
    case 400:
    case 405:
      return "invalid_request_error";
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 499:
      return "request_cancelled";
    case 501:
      return "not_implemented";
    case 503:
      return "unavailable_error";
    default:
      return "internal_error";
  }
}

const char* anthropic_type(int status) {
  switch (status) {
    case 503:
    case 529:
      return "overloaded_error";
    case 499:
    case 501:
      return "invalid_request_error";
    case 400:
    case 401:
    case 404:
    case 405:
    case 413:
    case 429:
      return openai_type(status);
    default:
      return "api_error";
  }
}

std::string shortened(std::string message) {
  if (message.size() <= kMaxMessageBytes) return message;
  std::size_t cut = kMaxMessageBytes;
  // Not inside a character.
  while (cut > 0 && (static_cast<unsigned char>(message[cut]) & 0xC0) == 0x80) --cut;
  message.resize(cut);
  return message + "...";
}

}  // namespace

ApiError api_error(int status, std::string_view message) {
  ApiError error{.status = status,
                 .type = openai_type(status),
                 .message = shortened(utf8_replace_invalid(message)),
                 .param = {},
                 .code = {},
                 .retry_after_seconds = 0};
  if (status == 429 || status == 503) error.retry_after_seconds = 1;
  return error;
}

ApiError field_error(std::string_view path, std::string_view message) {
  ApiError error = api_error(400, message);
  error.param = shortened(utf8_replace_invalid(path));
  return error;
}

ApiError api_error(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kCorrupt:
    case ErrorCode::kUnsupported:
      return api_error(400, error.message);
    case ErrorCode::kLimit: {
      ApiError api = api_error(400, error.message);
      if (error.message.find("maximum context length") != std::string::npos) {
        api.code = "context_length_exceeded";
      }
      return api;
    }
    case ErrorCode::kNotFound:
      return api_error(404, error.message);
    case ErrorCode::kBusy:
      return api_error(429, error.message);
    case ErrorCode::kUnavailable:
      return api_error(503, error.message);
    case ErrorCode::kCancelled:
      return api_error(499, error.message);
    case ErrorCode::kInternal:
      break;
  }
  return api_error(500, "internal error; the server's log has more");
}

ApiError context_length_error(std::int64_t prompt_tokens, std::optional<std::int64_t> max_tokens,
                              std::int64_t max_model_len) {
  const std::string limit =
      fmt::format("This model's maximum context length is {} tokens. However, ", max_model_len);
  // A client may ask for 2^63 - 1 tokens.
  const std::uint64_t total =
      static_cast<std::uint64_t>(prompt_tokens) + static_cast<std::uint64_t>(max_tokens.value_or(0));
  ApiError error =
      max_tokens ? field_error("max_tokens",
                               fmt::format("{}you requested {} tokens ({} in the prompt, {} for the answer). "
                                           "Shorten the prompt or lower max_tokens.",
                                           limit, total, prompt_tokens, *max_tokens))
                 : field_error("messages", fmt::format("{}the prompt has {} tokens, which leaves no room for "
                                                       "an answer. Shorten the prompt.",
                                                       limit, prompt_tokens));
  error.code = "context_length_exceeded";
  return error;
}

ApiError model_not_found(std::string_view name) {
  ApiError error = api_error(
      404,
      fmt::format("The model `{}` does not exist; GET /v1/models lists the names.", name.substr(0, 200)));
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

std::string openai_error_body(const ApiError& error) {
  std::string out = R"({"error":{"message":)";
  append_json_string(out, error.message);
  out += R"(,"type":)";
  append_json_string(out, error.type);
  out += R"(,"param":)";
  if (error.param) {
    append_json_string(out, *error.param);
  } else {
    out += "null";
  }
  out += R"(,"code":)";
  if (error.code.empty()) {
    out += std::to_string(error.status);
  } else {
    append_json_string(out, error.code);
  }
  return out + "}}";
}

std::string anthropic_error_body(const ApiError& error) {
  std::string out = R"({"type":"error","error":{"type":)";
  append_json_string(out, anthropic_type(error.status));
  out += R"(,"message":)";
  append_json_string(out, error.message);
  return out + "}}";
}

}  // namespace mimo
