// Any request target against the routes: what is decoded keeps its promises, and nothing but the exact path of an open
// route gets past the key check.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/http/http_server.h"
#include "server/http/request_gate.h"
#include "server/http/target.h"

namespace {

using mimo::Access;
using mimo::HttpRoute;

const mimo::http::RequestGate& gate() {
  static const mimo::http::RequestGate made = [] {
    const auto nothing = [](const auto&) {};
    auto routes = mimo::http::RouteTable::make({{"GET", "/health", nothing, Access::kOpen, true},
                                                {"GET", "/v1/models", nothing},
                                                {"GET", "/v1/models/{id}", nothing},
                                                {"POST", "/v1/chat/completions", nothing},
                                                {"POST", "/v1/messages", nothing},
                                                {"POST", "/v1/messages/count_tokens", nothing}});
    return *mimo::http::RequestGate::make(*std::move(routes), {"secret"}, {}, nullptr);
  }();
  return made;
}

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

// The first byte chooses the method and whether the key is sent.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  constexpr const char* kMethods[] = {"GET", "HEAD", "POST", "OPTIONS"};
  const bool with_key = (data[0] & 4) != 0;
  const auto target = mimo::http::parse_target({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (!target) {
    require(!target.error().message.empty());
    return 0;
  }
  require(target->path == "*" || target->path.starts_with('/'));
  require(target->path.size() < size && mimo::http::valid_utf8(target->path));
  for (const char c : target->path) require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);

  mimo::HttpRequest request;
  request.method = kMethods[data[0] & 3];
  request.path = target->path;
  if (with_key) request.headers.emplace_back("authorization", "Bearer secret");
  const auto admission = gate().admit(request, false);
  require((admission.route == nullptr) == admission.answer.has_value());
  if (admission.route != nullptr) {
    const HttpRoute& route = *admission.route;
    const bool open = route.access == Access::kOpen;
    require(with_key || (open && request.path == "/health"));
    const std::string_view parameter = mimo::route_parameter(route.path, request.path);
    require(route.path == request.path || !parameter.empty());
  } else {
    require(with_key ? admission.answer->status == 404 || admission.answer->status == 405
                     : admission.answer->status == 401);
  }
  return 0;
}
