#include "server/http/route_table.h"

#include <gtest/gtest.h>

#include "server/http/http_server.h"

namespace mimo::http {
namespace {

HttpRoute route(std::string method, std::string path) {
  return {std::move(method), std::move(path), [](const auto&) {}};
}

RouteTable table() {
  auto made = RouteTable::make({route("GET", "/v1/models/{id}"), route("DELETE", "/v1/models/{id}"),
                                route("GET", "/v1/models"), route("POST", "/v1/models/load"),
                                route("POST", "/v1/models/files/{name}"), route("GET", "/")});
  EXPECT_TRUE(made);
  return *made;
}

std::string matched(std::string_view method, std::string_view path) {
  static const RouteTable routes = table();
  const RouteTable::Match match = routes.match(method, path);
  return match.route != nullptr ? match.route->path : match.allow;
}

TEST(RouteTable, Matches) {
  EXPECT_EQ(matched("GET", "/v1/models"), "/v1/models");
  EXPECT_EQ(matched("HEAD", "/v1/models"), "/v1/models");
  EXPECT_EQ(matched("GET", "/v1/models/mimo"), "/v1/models/{id}");
  EXPECT_EQ(matched("GET", "/v1/models/org/mimo"), "/v1/models/{id}");
  EXPECT_EQ(matched("DELETE", "/v1/models/x"), "/v1/models/{id}");
  EXPECT_EQ(matched("POST", "/v1/models/load"), "/v1/models/load");
  EXPECT_EQ(matched("POST", "/v1/models/files/a/b"), "/v1/models/files/{name}");
  EXPECT_EQ(matched("GET", "/"), "/");
}

TEST(RouteTable, MethodsOfThePathThatMatches) {
  EXPECT_EQ(matched("POST", "/v1/models"), "GET, HEAD");
  EXPECT_EQ(matched("POST", "/v1/models/mimo"), "GET, HEAD, DELETE");
  EXPECT_EQ(matched("GET", "/v1/models/load"), "POST");  // the exact path, not {id}
  EXPECT_EQ(matched("BREW", "/"), "GET, HEAD");
}

TEST(RouteTable, OtherSpellingsMatchNothing) {
  for (const char* path :
       {"//v1/models", "/v1//models", "/V1/models", "/v1/Models", "/v1/models/", "/v1/models ", "", "*",
        "v1/models", "/v1/./models", "/v1/x/../models", "/v1/models\\"})
    EXPECT_EQ(matched("GET", path), "") << path;
}

TEST(RouteTable, Parameter) {
  EXPECT_EQ(route_parameter("/v1/models/{id}", "/v1/models/a/b"), "a/b");
  EXPECT_EQ(route_parameter("/v1/models/{id}", "/v1/other"), "");
  EXPECT_EQ(route_parameter("/v1/models", "/v1/models"), "");
}

TEST(RouteTable, BadRoutes) {
  for (const HttpRoute& bad :
       {route("get", "/x"), route("HEAD", "/x"), route("OPTIONS", "/x"), route("", "/x"), route("GET", ""),
        route("GET", "x"), route("GET", "/{id}/x"), route("GET", "/x{id}"), route("GET", "/{}"),
        route("GET", "/{a}{b}"), route("GET", "/x}"), route("GET", "/a//b"), route("GET", "/a?b"),
        route("GET", "/a%20b"), HttpRoute{"GET", "/x", nullptr}}) {
    const auto made = RouteTable::make({bad});
    ASSERT_FALSE(made) << bad.method << " " << bad.path;
    EXPECT_NE(made.error().message.find(bad.path), std::string::npos);
  }
  EXPECT_FALSE(RouteTable::make({route("GET", "/x"), route("GET", "/x")}));
  EXPECT_FALSE(RouteTable::make({route("GET", "/x/{a}"), route("GET", "/x/{b}")}));
  EXPECT_TRUE(RouteTable::make({route("GET", "/x"), route("POST", "/x"), route("GET", "/x/{a}")}));
}

}  // namespace
}  // namespace mimo::http
