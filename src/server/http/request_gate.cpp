#include "server/http/request_gate.h"

#include <fmt/format.h>

#include <utility>

#include "server/http/http_server.h"

namespace mimo::http {
namespace {

// A path in a message, cut at a character border.
std::string shown(std::string_view path) {
  constexpr std::size_t kMaxShown = 200;
  if (path.size() <= kMaxShown) return std::string(path);
  std::size_t end = kMaxShown;
  while ((static_cast<unsigned char>(path[end]) & 0xc0) == 0x80) --end;
  return std::string(path.substr(0, end)) + "...";
}

}  // namespace

HttpResponse unavailable_answer(std::string_view path, std::string_view reason) {
  HttpResponse response = http_error(503, path, reason);
  response.headers.emplace_back("Retry-After", "5");
  return response;
}

Result<RequestGate> RequestGate::make(RouteTable routes, const std::vector<std::string>& api_keys,
                                      const std::vector<std::string>& cors_origins,
                                      std::function<std::string()> unavailable) {
  RequestGate gate;
  gate.routes_ = std::move(routes);
  gate.unavailable_ = std::move(unavailable);
  Result<KeyCheck> keys = KeyCheck::make(api_keys);
  if (!keys) return forward_error(keys);
  gate.keys_ = *std::move(keys);
  Result<Cors> cors = Cors::make(cors_origins);
  if (!cors) return forward_error(cors);
  gate.cors_ = *std::move(cors);
  return gate;
}

RequestGate::Admission RequestGate::admit(const HttpRequest& request, bool draining) const {
  const auto refuse = [](HttpResponse answer) { return Admission{nullptr, std::move(answer)}; };
  if (cors_.is_preflight(request)) return refuse(cors_.preflight(request));

  const RouteTable::Match match = routes_.match(request.method, request.path);
  const bool open = match.route != nullptr && match.route->access == Access::kOpen;
  if (!open && !keys_.allows(request)) {
    HttpResponse answer = http_error(401, request.path,
                                     "an API key is needed: 'Authorization: Bearer KEY' or 'x-api-key: KEY'");
    answer.headers.emplace_back("WWW-Authenticate", "Bearer");
    return refuse(std::move(answer));
  }
  if (match.route == nullptr && !match.allow.empty()) {
    HttpResponse answer = http_error(
        405, request.path,
        fmt::format("{} does not take {}; expected {}", shown(request.path), request.method, match.allow));
    answer.headers.emplace_back("Allow", match.allow);
    return refuse(std::move(answer));
  }
  if (match.route == nullptr) {
    return refuse(
        http_error(404, request.path, fmt::format("there is no {} {}", request.method, shown(request.path))));
  }
  if (!match.route->always) {
    if (draining) return refuse(unavailable_answer(request.path, "the server is shutting down"));
    const std::string reason = unavailable_ ? unavailable_() : std::string();
    if (!reason.empty()) return refuse(unavailable_answer(request.path, reason));
  }
  return {match.route, std::nullopt};
}

}  // namespace mimo::http
