#include <fmt/format.h>

#include <string>

#include "server/http/http_server.h"

namespace mimo {
namespace {

struct ErrorType {
  int status;
  const char* openai;
  const char* anthropic;
};

constexpr ErrorType kTypes[] = {
    {401, "authentication_error", "authentication_error"},
    {403, "permission_error", "permission_error"},
    {404, "not_found_error", "not_found_error"},
    {408, "timeout_error", "timeout_error"},
    {413, "request_too_large", "request_too_large"},
    {429, "rate_limit_error", "rate_limit_error"},
    {500, "internal_error", "api_error"},
    {501, "not_implemented", "api_error"},
    {503, "unavailable_error", "overloaded_error"},
};

constexpr ErrorType kBadRequest = {400, "invalid_request_error", "invalid_request_error"};

ErrorType type_of(int status) {
  for (const ErrorType& type : kTypes) {
    if (type.status == status) return type;
  }
  return status >= 500 ? ErrorType{status, "internal_error", "api_error"} : kBadRequest;
}

// Contents of a JSON string; the text is UTF-8.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out;
}

bool is_anthropic(std::string_view path) {
  return path == "/v1/messages" || path.starts_with("/v1/messages/");
}

}  // namespace

HttpResponse http_error(int status, std::string_view path, std::string_view message) {
  const ErrorType type = type_of(status);
  HttpResponse response;
  response.status = status;
  if (is_anthropic(path)) {
    response.body = fmt::format(R"({{"type":"error","error":{{"type":"{}","message":"{}"}}}})",
                                type.anthropic, escaped(message));
  } else {
    response.body = fmt::format(R"({{"error":{{"message":"{}","type":"{}","param":null,"code":{}}}}})",
                                escaped(message), type.openai, status);
  }
  return response;
}

}  // namespace mimo
