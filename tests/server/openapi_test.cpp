// openapi.json describes the routes that there are, and says which of them need no key (C90).
#include "server/openapi.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/json.h"
#include "server/api_service.h"

namespace mimo {
namespace {

// The chat page is no part of the API.
bool of_web_page(const HttpRoute& route) {
  return route.method == "GET" && (route.path == "/" || route.path.starts_with("/web/"));
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

TEST(OpenApi, C90DescribesEveryRouteAndWhetherItIsOpen) {
  const Result<json::value> parsed = parse_json(openapi_json(), "openapi.json");
  ASSERT_TRUE(parsed) << parsed.error().message;
  std::set<std::string> described;
  std::set<std::string> described_open;
  for (const auto& [path, item] : parsed->at("paths").as_object()) {
    for (const auto& [method, operation] : item.as_object()) {
      const std::string name = std::string(method) + " " + std::string(path);
      described.insert(name);
      const json::value* security = operation.as_object().if_contains("security");
      if (security != nullptr && security->as_array().empty()) described_open.insert(name);
    }
  }

  const Result<Tokenizer> tokenizer = Tokenizer::load(MIMO_SOURCE_DIR "/models/tiny/tokenizer.json");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  ApiServiceOptions options;
  options.context.models.names = {"tiny"};
  ApiService service(*tokenizer, nullptr, {}, std::move(options));
  std::set<std::string> routes;
  std::set<std::string> open;
  for (const HttpRoute& route : service.routes()) {
    const std::string name = lower(route.method) + " " + route.path;
    if (of_web_page(route)) continue;
    routes.insert(name);
    if (route.access == Access::kOpen) open.insert(name);
  }
  EXPECT_EQ(routes, described);
  EXPECT_EQ(open, described_open);
  EXPECT_EQ(open, (std::set<std::string>{"get /health", "get /ping", "get /metrics"}));
}

}  // namespace
}  // namespace mimo
