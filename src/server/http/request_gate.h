// Whether a request may go to its handler, decided from its head alone: nobody uploads a body to be refused.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "server/http/cors.h"
#include "server/http/key_check.h"
#include "server/http/route_table.h"

namespace mimo::http {

class RequestGate {
 public:
  static Result<RequestGate> make(RouteTable routes, const std::vector<std::string>& api_keys,
                                  const std::vector<std::string>& cors_origins,
                                  std::function<std::string()> unavailable);

  // The route, or the answer that refuses (or is a preflight's). In this order: preflight, key (401; also for paths
  // that do not exist, so that nothing can be learnt without one), 404 and 405, 503.
  struct Admission {
    const HttpRoute* route = nullptr;
    std::optional<HttpResponse> answer;
  };
  Admission admit(const HttpRequest& request, bool draining) const;

  const Cors& cors() const { return cors_; }
  const std::vector<HttpRoute>& routes() const { return routes_.routes(); }

 private:
  RequestGate() = default;

  RouteTable routes_;
  KeyCheck keys_;
  Cors cors_;
  std::function<std::string()> unavailable_;
};

// 503 with Retry-After.
HttpResponse unavailable_answer(std::string_view path, std::string_view reason);

}  // namespace mimo::http
