// The routes, and which of them a request means. Paths are compared as a whole and never by prefix rules: what
// matches no route has no access rule either and is refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "server/http/http_options.h"

namespace mimo::http {

class RouteTable {
 public:
  // kInvalidArgument: a method or path that no request could have, a missing handler, the same route twice.
  static Result<RouteTable> make(std::vector<HttpRoute> routes);

  struct Match {
    const HttpRoute* route = nullptr;  // null: the path is unknown, or its methods are others
    std::string allow;  // methods of the path, for the Allow header; empty: the path is unknown
  };
  // `path` is decoded. An exact path goes before a parameter, a longer pattern before a shorter one.
  Match match(std::string_view method, std::string_view path) const;

  const std::vector<HttpRoute>& routes() const { return routes_; }

 private:
  std::vector<HttpRoute> routes_;  // in the order of preference
};

}  // namespace mimo::http
