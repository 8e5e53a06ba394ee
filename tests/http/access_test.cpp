// Who may ask what: keys, browsers, readiness.
#include "http/server_fixture.h"

namespace mimo {
namespace {

class HttpAccess : public HttpServerTest {
 protected:
  void start_with_key() {
    HttpServerOptions options = quick_options();
    options.api_keys = {"sk-one", "sk-two"};
    start(options);
  }
  // A path that leads to the route.
  static std::string example_path(const HttpRoute& route) {
    return route.path.substr(0, route.path.find('{')) + (route.path.ends_with('}') ? "x" : "");
  }
  static std::string request(std::string_view method, std::string_view path, std::string_view headers = {}) {
    return std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n" +
           std::string(headers) + "\r\n";
  }
};

// The list of open routes of this test is written out, so that a route that becomes open by mistake shows.
TEST_F(HttpAccess, EveryRouteNeedsTheKeyExceptTheOpenOnes) {
  start_with_key();
  int guarded = 0;
  for (const HttpRoute& route : server_->routes()) {
    const std::string path = example_path(route);
    if (path == "/health") {
      EXPECT_EQ(ask(request(route.method, path)).status, 200);
      continue;
    }
    ++guarded;
    for (const char* headers :
         {"", "Authorization: Bearer wrong\r\n", "Authorization: Basic sk-one\r\n",
          "Authorization: sk-one\r\n", "X-Api-Key: Bearer sk-one\r\n", "Authorization: Bearer sk-on\r\n",
          "X-Api-Key: sk-one2\r\n", "X-Api-Key:\r\n", "Cookie: x-api-key=sk-one\r\n"}) {
      const RawResponse answer = ask(request(route.method, path, headers));
      EXPECT_EQ(answer.status, 401) << path << " " << headers;
      EXPECT_EQ(answer.headers.at("www-authenticate"), "Bearer");
      EXPECT_NE(answer.body.find("authentication_error"), std::string::npos);
    }
  }
  EXPECT_EQ(guarded, 6);
}

TEST_F(HttpAccess, OtherSpellingsOfPathsDoNotHelp) {
  start_with_key();
  for (const HttpRoute& route : server_->routes()) {
    const std::string path = example_path(route);
    if (path == "/health") continue;
    std::string upper = path, encoded, partly = path;
    for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    for (const char c : path) encoded += c == '/' ? "%2f" : std::string(1, c);
    for (std::size_t at = 1; (at = partly.find('/', at)) != std::string::npos; at += 3)
      partly.replace(at, 1, "%2F");
    for (const std::string& trick :
         {"/" + path, path + "/", upper, "/" + encoded, partly, "/." + path, "/x/.." + path,
          "/health/.." + path, path + "?x=/health", path + "%3f", "http://h" + path, "/health%2f.." + path,
          path + ";/health", "/%2e" + path, path + "%20"})
      EXPECT_EQ(ask(request(route.method, trick)).status, 401) << trick;
  }
  for (const char* path : {"//health", "/Health", "/health/", "/nothing", "/"})
    EXPECT_EQ(ask(request("GET", path)).status, 401) << path;
  EXPECT_EQ(ask(request("POST", "/health")).status, 401);
  EXPECT_EQ(ask(request("OPTIONS", "/v1/models")).status, 401);
  EXPECT_EQ(ask(request("TRACE", "/v1/models")).status, 401);
  EXPECT_EQ(ask(request("GET", "/%68ealth")).status, 200);  // the same path, and open
}

TEST_F(HttpAccess, GoodKeys) {
  start_with_key();
  for (const char* headers : {"Authorization: Bearer sk-one\r\n", "authorization: bearer sk-two\r\n",
                              "X-API-KEY: sk-two\r\n", "Authorization: Basic x\r\nx-api-key: sk-one\r\n"}) {
    EXPECT_EQ(ask(get("/v1/models", headers)).status, 200) << headers;
    EXPECT_EQ(ask(get("/nothing", headers)).status, 404) << headers;
    EXPECT_EQ(ask(get("//v1/models", headers)).status, 404) << headers;
    EXPECT_EQ(ask(get("/echo", headers)).status, 405) << headers;
  }
}

// Before anything is uploaded.
TEST_F(HttpAccess, NoKeyNoUpload) {
  start_with_key();
  RawClient one = client();
  ASSERT_TRUE(
      one.send("POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 60000000\r\n\r\n"));
  EXPECT_EQ(one.response().status, 401);
}

TEST_F(HttpAccess, CorsIsOffByDefault) {
  start();
  RawResponse answer = ask(get("/v1/models", "Origin: https://a.example\r\n"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_FALSE(answer.headers.contains("access-control-allow-origin"));
  EXPECT_EQ(ask(request("OPTIONS", "/v1/models",
                        "Origin: https://a.example\r\nAccess-Control-Request-Method: GET\r\n"))
                .status,
            405);
}

TEST_F(HttpAccess, Preflight) {
  HttpServerOptions options = quick_options();
  options.api_keys = {"sk-one"};
  options.cors_origins = {"https://a.example", "http://localhost:5173"};
  start(options);
  const std::string asked =
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-custom\r\n";
  RawResponse answer = ask(request("OPTIONS", "/v1/messages", "Origin: https://a.example\r\n" + asked));
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.headers["access-control-allow-origin"], "https://a.example");
  EXPECT_EQ(answer.headers["access-control-allow-headers"], "authorization,x-custom");
  EXPECT_NE(answer.headers["access-control-allow-methods"].find("POST"), std::string::npos);
  EXPECT_EQ(answer.headers["vary"], "Origin");
  EXPECT_EQ(ask(request("OPTIONS", "/x", "Origin: http://localhost:5173\r\n" + asked)).status, 204);

  answer = ask(request("OPTIONS", "/echo", "Origin: https://evil.example\r\n" + asked));
  EXPECT_EQ(answer.status, 403);
  EXPECT_FALSE(answer.headers.contains("access-control-allow-origin"));
  EXPECT_FALSE(answer.headers.contains("access-control-allow-headers"));
  EXPECT_EQ(ask(request("OPTIONS", "/echo", "Origin: https://a.example\r\n")).status, 401);  // no preflight
}

TEST_F(HttpAccess, CorsOnAnswersErrorsAndStreams) {
  HttpServerOptions options = quick_options();
  options.api_keys = {"sk-one"};
  options.cors_origins = {"https://a.example"};
  options.body_limit = 10;
  start(options);
  const std::string origin = "Origin: https://a.example\r\n";
  const std::string key = origin + "X-Api-Key: sk-one\r\n";
  for (const auto& [text, status] : {std::pair{get("/v1/models", key), 200},
                                     {get("/v1/models", origin), 401},
                                     {get("/nothing", key), 404},
                                     {get("/echo", key), 405},
                                     {post("/echo", "more than ten", key), 413},
                                     {get("/%", origin), 400}}) {
    RawResponse answer = ask(text);
    EXPECT_EQ(answer.status, status);
    EXPECT_EQ(answer.headers["access-control-allow-origin"], "https://a.example") << status;
  }
  RawClient one = client();
  ASSERT_TRUE(one.send(get("/events", key)));
  const auto exchange = inbox_.next();
  exchange->start_stream(200, "text/event-stream", {});
  exchange->finish();
  EXPECT_EQ(one.response().headers["access-control-allow-origin"], "https://a.example");
  EXPECT_FALSE(ask(get("/v1/models", "Origin: https://b.example\r\nX-Api-Key: sk-one\r\n"))
                   .headers.contains("access-control-allow-origin"));
}

TEST_F(HttpAccess, CorsForAll) {
  HttpServerOptions options = quick_options();
  options.cors_origins = {"*"};
  start(options);
  EXPECT_EQ(ask(get("/v1/models", "Origin: null\r\n")).headers["access-control-allow-origin"], "*");
}

TEST_F(HttpAccess, Unavailable) {
  std::atomic<bool> loading{true};
  HttpServerOptions options = quick_options();
  options.unavailable = [&] { return loading ? std::string("model is loading") : std::string(); };
  start(options);
  const RawResponse answer = ask(get("/v1/models"));
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.body,
            R"({"error":{"message":"model is loading","type":"unavailable_error","param":null,"code":503}})");
  EXPECT_TRUE(answer.headers.contains("retry-after"));
  EXPECT_NE(ask(post("/v1/messages", "{}")).body.find("overloaded_error"), std::string::npos);
  EXPECT_EQ(ask(get("/health")).status, 200);
  EXPECT_EQ(ask(get("/nothing")).status, 404);
  loading = false;
  EXPECT_EQ(ask(get("/v1/models")).status, 200);
}

}  // namespace
}  // namespace mimo
