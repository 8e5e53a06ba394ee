#include "server/http/route_table.h"

#include <algorithm>
#include <utility>

#include "server/http/http_server.h"

namespace mimo {
namespace {

// "/v1/models/{id}" -> "/v1/models/"; a path without a parameter as it is.
std::string_view fixed_part(std::string_view pattern) { return pattern.substr(0, pattern.find('{')); }

bool has_parameter(std::string_view pattern) { return pattern.ends_with('}'); }

}  // namespace

std::string_view route_parameter(std::string_view pattern, std::string_view path) {
  const std::string_view fixed = fixed_part(pattern);
  if (!has_parameter(pattern) || !path.starts_with(fixed)) return {};
  return path.substr(fixed.size());
}

namespace http {
namespace {

bool matches(const HttpRoute& route, std::string_view path) {
  return has_parameter(route.path) ? !route_parameter(route.path, path).empty() : route.path == path;
}

Status check_route(const HttpRoute& route) {
  const auto wrong = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidArgument, "route {} {}: {}", route.method, route.path, what);
  };
  constexpr std::string_view kMethods[] = {"GET", "POST", "PUT", "DELETE", "PATCH"};
  if (std::find(std::begin(kMethods), std::end(kMethods), route.method) == std::end(kMethods))
    return wrong("expected the method GET, POST, PUT, DELETE or PATCH");
  if (!route.path.starts_with('/')) return wrong("expected a path that starts with '/'");
  const std::string_view fixed = fixed_part(route.path);
  const std::string_view rest = std::string_view(route.path).substr(fixed.size());
  const bool simple = rest.empty() && fixed.find('}') == std::string_view::npos;
  const bool parameter = rest.size() > 2 && rest.find_first_of("{}/", 1) == rest.size() - 1 &&
                         rest.back() == '}' && fixed.ends_with('/');
  if (!simple && !parameter) return wrong("expected one parameter at most, {name} after the last '/'");
  if (fixed.find("//") != std::string_view::npos || fixed.find_first_of("?#% ") != std::string_view::npos)
    return wrong("no request can have this path");
  if (!route.handler) return wrong("it has no handler");
  return {};
}

}  // namespace

Result<RouteTable> RouteTable::make(std::vector<HttpRoute> routes) {
  for (const HttpRoute& route : routes) {
    if (Status good = check_route(route); !good) return forward_error(good);
  }
  std::stable_sort(routes.begin(), routes.end(), [](const HttpRoute& a, const HttpRoute& b) {
    if (has_parameter(a.path) != has_parameter(b.path)) return has_parameter(b.path);
    return fixed_part(a.path).size() > fixed_part(b.path).size();
  });
  for (auto route = routes.begin(); route != routes.end(); ++route) {
    const auto same = [&](const HttpRoute& other) {
      return other.method == route->method && fixed_part(other.path) == fixed_part(route->path) &&
             has_parameter(other.path) == has_parameter(route->path);
    };
    if (std::any_of(std::next(route), routes.end(), same))
      return fail(ErrorCode::kInvalidArgument, "route {} {}: it exists twice", route->method, route->path);
  }
  RouteTable table;
  table.routes_ = std::move(routes);
  return table;
}

RouteTable::Match RouteTable::match(std::string_view method, std::string_view path) const {
  if (method == "HEAD") method = "GET";
  Match match;
  std::string_view pattern;  // of the best matching path; only its methods count
  for (const HttpRoute& route : routes_) {
    if (!pattern.empty() ? route.path != pattern : !matches(route, path)) continue;
    pattern = route.path;
    if (route.method == method) {
      match.route = &route;
      match.allow.clear();
      return match;
    }
    if (!match.allow.empty()) match.allow += ", ";
    match.allow += route.method == "GET" ? "GET, HEAD" : route.method;
  }
  return match;
}

}  // namespace http
}  // namespace mimo
