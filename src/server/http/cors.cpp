#include "server/http/cors.h"

#include <algorithm>

#include "server/http/ascii.h"
#include "server/http/http_server.h"

namespace mimo::http {
namespace {

bool is_origin(std::string_view text) {
  const std::size_t scheme = text.find("://");
  if (scheme == std::string_view::npos || scheme == 0) return false;
  const std::string_view host = text.substr(scheme + 3);
  return !host.empty() && host.find_first_of("/?#@,* \"\\") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// Header names, commas, spaces: what may be echoed to a browser that asks for them.
bool is_name_list(std::string_view text) {
  return !text.empty() && text.size() <= 1024 && std::all_of(text.begin(), text.end(), [](char c) {
    return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == ',' || c == ' ';
  });
}

}  // namespace

Result<Cors> Cors::make(const std::vector<std::string>& origins) {
  Cors cors;
  for (const std::string& origin : origins) {
    if (origin == "*") {
      cors.any_ = true;
    } else if (is_origin(origin)) {
      cors.origins_.push_back(to_lower(origin));
    } else {
      return fail(ErrorCode::kInvalidArgument,
                  "CORS origin '{}': expected '*' or scheme://host[:port] without a path", origin);
    }
  }
  return cors;
}

bool Cors::allowed(std::string_view origin) const {
  return any_ || std::find(origins_.begin(), origins_.end(), to_lower(origin)) != origins_.end();
}

HttpHeaders Cors::answer_headers(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  if (!any_ && origins_.empty()) return {};
  HttpHeaders headers;
  // The answer differs by origin; caches must know even when this one is refused.
  if (!any_) headers.emplace_back("Vary", "Origin");
  if (origin.empty() || !allowed(origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", any_ ? "*" : std::string(origin));
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  return headers;
}

bool Cors::is_preflight(const HttpRequest& request) const {
  return (any_ || !origins_.empty()) && request.method == "OPTIONS" && !request.header("origin").empty() &&
         !request.header("access-control-request-method").empty();
}

HttpResponse Cors::preflight(const HttpRequest& request) const {
  if (!allowed(request.header("origin")))
    return http_error(403, request.path, "this origin is not in the server's list of CORS origins");
  HttpResponse response;
  response.status = 204;
  const std::string_view asked = request.header("access-control-request-headers");
  response.headers = {
      {"Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"},
      {"Access-Control-Allow-Headers",
       is_name_list(asked) ? std::string(asked) : "authorization, content-type, x-api-key, x-request-id"},
      {"Access-Control-Max-Age", "600"}};
  return response;
}

}  // namespace mimo::http
