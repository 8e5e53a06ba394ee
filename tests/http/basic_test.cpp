// Requests and answers over real sockets.
#include "http/server_fixture.h"

namespace mimo {
namespace {

using Http = HttpServerTest;

TEST_F(Http, StartAndUrl) {
  start();
  EXPECT_NE(server_->port(), 0);
  EXPECT_EQ(server_->url(), "http://127.0.0.1:" + std::to_string(server_->port()));
  EXPECT_EQ(server_->routes().size(), test_routes().size());
}

TEST_F(Http, PortInUse) {
  start();
  HttpServerOptions options = quick_options();
  options.port = server_->port();
  const auto second = HttpServer::start(options, test_routes());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kBusy);
  EXPECT_NE(second.error().message.find(std::to_string(server_->port())), std::string::npos);
}

TEST_F(Http, BadOptions) {
  const auto refused = [&](auto change) {
    HttpServerOptions options = quick_options();
    change(options);
    const auto started = HttpServer::start(options, test_routes());
    return !started && !started.error().message.empty();
  };
  EXPECT_TRUE(refused([](auto& o) { o.host = "no.such.host.invalid"; }));
  EXPECT_TRUE(refused([](auto& o) { o.host = "192.0.2.1"; }));  // not of this machine
  EXPECT_TRUE(refused([](auto& o) { o.threads = 0; }));
  EXPECT_TRUE(refused([](auto& o) { o.header_limit = 10; }));
  EXPECT_TRUE(refused([](auto& o) { o.api_keys = {""}; }));
  EXPECT_TRUE(refused([](auto& o) { o.cors_origins = {"example.org"}; }));
  EXPECT_TRUE(refused([](auto& o) { o.cors_origins = {"https://example.org/"}; }));
  EXPECT_TRUE(refused([](auto& o) { o.idle_timeout = milliseconds(0); }));
  EXPECT_TRUE(refused([](auto& o) { o.bodies_limit = 1; }));
  EXPECT_FALSE(refused([](auto& o) { o.host = "localhost"; }));
}

TEST_F(Http, KeepAlive) {
  start();
  RawClient one = client();
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(one.send(post("/echo", "body " + std::to_string(i))));
    const RawResponse answer = one.response();
    ASSERT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "body " + std::to_string(i));
    EXPECT_TRUE(answer.headers.contains("date"));
  }
  EXPECT_EQ(server_->stats().accepted, 1u);
  ASSERT_TRUE(one.send(get("/v1/models", "Connection: close\r\n")));
  EXPECT_EQ(one.response().headers["connection"], "close");
  EXPECT_TRUE(one.read_to_end());
  EXPECT_FALSE(one.was_reset());
}

TEST_F(Http, Pipelining) {
  start();
  RawClient one = client();
  std::string burst;
  for (int i = 0; i < 500; ++i) burst += post("/echo", std::to_string(i));
  ASSERT_TRUE(one.send(burst));
  for (int i = 0; i < 500; ++i) ASSERT_EQ(one.response().body, std::to_string(i));
}

// Also what was sent ahead of a slow answer, in any amount, and although the client has shut its sending side.
TEST_F(Http, PipeliningBehindASlowAnswer) {
  start();
  RawClient one = client();
  const std::string big(300'000, 'b');
  std::string burst = post("/held", "first") + post("/echo", big);
  for (int i = 0; i < 20'000; ++i) burst += get("/health");
  std::jthread sender([&] {
    EXPECT_TRUE(one.send(burst));
    one.shutdown_write();
  });
  const auto exchange = inbox_.next();
  ASSERT_NE(exchange, nullptr);
  EXPECT_EQ(exchange->request().body, "first");
  EXPECT_EQ(inbox_.next(milliseconds(50)), nullptr);
  exchange->respond(text("done"));
  EXPECT_EQ(one.response().body, "done");
  EXPECT_EQ(one.response().body, big);
  for (int i = 0; i < 20'000; ++i) ASSERT_EQ(one.response().body, "ok") << i;
  sender.join();
  EXPECT_TRUE(one.read_to_end());
  EXPECT_FALSE(one.was_reset());
}

TEST_F(Http, RequestAsHandlersSeeIt) {
  start();
  RawClient one = client();
  ASSERT_TRUE(one.send(post("/%68eld?a=1&b=%20", "{}", "X-Custom:  Value \r\nX-Request-Id: my-id.1\r\n")));
  const auto exchange = inbox_.next();
  ASSERT_NE(exchange, nullptr);
  const HttpRequest& request = exchange->request();
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/held");
  EXPECT_EQ(request.query, "a=1&b=%20");
  EXPECT_EQ(request.header("x-custom"), "Value");
  EXPECT_EQ(request.body, "{}");
  EXPECT_EQ(request.id, "my-id.1");
  exchange->respond(text("x"));
  EXPECT_EQ(one.response().headers["x-request-id"], "my-id.1");
}

TEST_F(Http, RequestIds) {
  start();
  EXPECT_EQ(ask(get("/health", "X-Request-Id: abc:1/2\r\n")).headers["x-request-id"], "abc:1/2");
  std::string last;
  for (const std::string& bad : {std::string("with space"), std::string(129, 'x'), std::string("quote\""),
                                 std::string("\xc3\xbc"), std::string()}) {
    RawResponse answer = ask(get("/health", "X-Request-Id: " + bad + "\r\n"));
    const std::string id = answer.headers["x-request-id"];
    EXPECT_TRUE(id.starts_with("req-") && id.size() == 36) << id;
    EXPECT_NE(id, last);
    last = id;
  }
  EXPECT_EQ(
      ask(get("/health", "X-Request-Id: " + std::string(128, 'x') + "\r\n")).headers["x-request-id"].size(),
      128u);
  EXPECT_TRUE(ask("GET / HTTP/9\r\n\r\n").headers["x-request-id"].starts_with("req-"));
}

TEST_F(Http, ParameterTakesSlashes) {
  start();
  EXPECT_EQ(ask(get("/v1/models/org/mimo")).body, "org/mimo");
  EXPECT_EQ(ask(get("/v1/models/org%2Fmimo")).body, "org/mimo");
  EXPECT_EQ(ask(get("http://host/v1/models/x")).body, "x");
}

TEST_F(Http, Head) {
  start();
  RawClient one = client();
  ASSERT_TRUE(
      one.send("HEAD /v1/models HTTP/1.1\r\nHost: h\r\n\r\nHEAD /nothing HTTP/1.1\r\nHost: h\r\n\r\n" +
               get("/health")));
  EXPECT_EQ(one.response(true).headers["content-length"], "6");
  EXPECT_EQ(one.response(true).status, 404);
  EXPECT_EQ(one.response().body, "ok");  // no stray bytes in between
}

TEST_F(Http, OldVersion) {
  start();
  RawClient one = client();
  ASSERT_TRUE(one.send("GET /health HTTP/1.0\r\n\r\n"));
  RawResponse answer = one.response();
  EXPECT_EQ(answer.body, "ok");
  EXPECT_EQ(answer.headers["connection"], "close");
  EXPECT_TRUE(one.read_to_end());

  RawClient kept = client();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(kept.send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    EXPECT_EQ(kept.response().headers["connection"], "keep-alive");
  }

  RawClient stream = client();
  ASSERT_TRUE(stream.send("GET /events HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  const auto exchange = inbox_.next();
  exchange->start_stream(200, "text/event-stream", {});
  exchange->write("data: 1\n\n");
  exchange->write("data: 2\n\n");
  exchange->finish();
  answer = stream.response();
  EXPECT_FALSE(answer.headers.contains("transfer-encoding"));
  EXPECT_EQ(answer.body, "data: 1\n\ndata: 2\n\n");
  EXPECT_TRUE(answer.complete);
}

TEST_F(Http, ChunkedBody) {
  start();
  RawClient one = client();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  ASSERT_TRUE(one.send(head + "5\r\nhello\r\n"));
  std::this_thread::sleep_for(milliseconds(20));
  ASSERT_TRUE(one.send("6\r\n world\r\n0"));
  std::this_thread::sleep_for(milliseconds(20));
  ASSERT_TRUE(one.send("\r\n\r\n" + get("/health")));
  EXPECT_EQ(one.response().body, "hello world");
  EXPECT_EQ(one.response().body, "ok");
}

TEST_F(Http, ExpectContinue) {
  start();
  RawClient one = client();
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
  ASSERT_TRUE(one.send(head));
  EXPECT_EQ(one.response().status, 100);
  ASSERT_TRUE(one.send("he"));
  std::this_thread::sleep_for(milliseconds(20));
  ASSERT_TRUE(one.send("llo"));
  EXPECT_EQ(one.response().body, "hello");
  ASSERT_TRUE(one.send(head + "world"));  // did not wait: no 100
  const RawResponse answer = one.response();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "world");
  // Refused before the body is sent.
  ASSERT_TRUE(
      one.send("POST /nothing HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"));
  EXPECT_EQ(one.response().status, 404);
  EXPECT_EQ(ask("POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 999999999\r\n\r\n")
                .status,
            413);
  EXPECT_EQ(ask("POST /echo HTTP/1.1\r\nHost: h\r\nExpect: tea\r\nContent-Length: 5\r\n\r\nhello").status,
            417);
}

TEST_F(Http, ErrorForms) {
  start();
  RawResponse answer = ask(get("/v1/\"nothing\""));
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.headers["content-type"], "application/json");
  EXPECT_EQ(
      answer.body,
      R"({"error":{"message":"there is no GET /v1/\"nothing\"","type":"not_found_error","param":null,"code":404}})");
  answer = ask(get("/v1/messages"));
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.headers["allow"], "POST");
  EXPECT_EQ(
      answer.body,
      R"({"type":"error","error":{"type":"invalid_request_error","message":"/v1/messages does not take GET; expected POST"}})");
  answer = ask(post("/v1/models", "{}"));
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.headers["allow"], "GET, HEAD");
  EXPECT_EQ(ask("OPTIONS /v1/models HTTP/1.1\r\nHost: h\r\n\r\n").status, 405);
  EXPECT_EQ(ask("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n").status, 404);
  EXPECT_EQ(ask("CONNECT host:1 HTTP/1.1\r\nHost: h\r\n\r\n").status, 400);
  EXPECT_EQ(ask(get("/v1/%zz")).status, 400);
  const std::string umlauts = [] {
    std::string out;
    for (int i = 0; i < 150; ++i) out += "%C3%BC";
    return out;
  }();
  EXPECT_NE(ask(get("/" + umlauts)).body.find("\xc3\xbc...\""), std::string::npos);  // cut at a border
}

TEST_F(Http, RefusalsKeepTheConnectionIfTheyCan) {
  start();
  RawClient one = client();
  ASSERT_TRUE(
      one.send(get("/nothing") + post("/nothing", "small body") + post("/v1/models", "x") + get("/health")));
  EXPECT_EQ(one.response().status, 404);
  EXPECT_EQ(one.response().status, 404);
  EXPECT_EQ(one.response().status, 405);
  EXPECT_EQ(one.response().body, "ok");
  // Part of the body is still to come: it will not be read.
  ASSERT_TRUE(one.send("POST /nothing HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc"));
  EXPECT_EQ(one.response().headers["connection"], "close");
  EXPECT_TRUE(one.read_to_end());
}

TEST_F(Http, HandlersThatThrowOrForget) {
  std::vector<std::string> problems;
  HttpServerOptions options = quick_options();
  options.threads = 1;
  options.problem = [&](std::string_view line) { problems.emplace_back(line); };
  start(options, {{"GET", "/throws", [](const auto&) { throw std::runtime_error("secret detail"); }},
                  {"GET", "/forgets", [](const auto&) {}},
                  {"GET", "/breaks", [](const auto& exchange) {
                     exchange->start_stream(200, "text/event-stream", {});
                     exchange->write("data: 1\n\n");
                   }}});
  RawClient one = client();
  ASSERT_TRUE(one.send(get("/throws") + get("/forgets") + get("/breaks")));
  const RawResponse thrown = one.response();
  EXPECT_EQ(thrown.status, 500);
  EXPECT_EQ(thrown.body.find("secret"), std::string::npos);
  EXPECT_EQ(one.response().status, 500);
  const RawResponse broken = one.response();
  EXPECT_EQ(broken.body, "data: 1\n\n");
  EXPECT_FALSE(broken.complete);
  server_->stop();
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0], "handler of /throws: secret detail");
}

TEST_F(Http, AccessLogHasNoSecrets) {
  HttpServerOptions options = quick_options();
  options.api_keys = {"sk-marker"};
  start(options);
  RawClient one = client();
  ASSERT_TRUE(
      one.send(post("/echo?key=sk-marker", "prompt-marker", "X-Api-Key: sk-marker\r\nX-Request-Id: i1\r\n") +
               get("/v1/models", "X-Request-Id: i2\r\n") + "NONSENSE\r\n\r\n"));
  EXPECT_EQ(one.response().status, 200);
  EXPECT_EQ(one.response().status, 401);
  EXPECT_EQ(one.response().status, 400);
  const std::vector<LoggedAccess> records = log_.wait_for(3);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].id, "i1");
  EXPECT_EQ(records[0].method, "POST");
  EXPECT_EQ(records[0].path, "/echo");
  EXPECT_EQ(records[0].status, 200);
  EXPECT_GT(records[0].bytes, 13u);
  EXPECT_GE(records[0].seconds, 0.0);
  EXPECT_EQ(records[1].status, 401);
  EXPECT_EQ(records[2].status, 400);
  EXPECT_EQ(records[2].method, "");
}

TEST_F(Http, BigBodiesBothWays) {
  start();
  std::string body;
  for (int i = 0; body.size() < (20u << 20); ++i) body += std::to_string(i) + ",";
  RawClient one = client();
  std::thread sender([&] { EXPECT_TRUE(one.send(post("/echo", body))); });
  sender.join();
  const RawResponse answer = one.response();
  EXPECT_TRUE(answer.complete);
  EXPECT_TRUE(answer.body == body);
}

TEST_F(Http, ManyClients) {
  start();
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int c = 0; c < 10; ++c) {
        RawClient one = client();
        for (int i = 0; i < 20; ++i) {
          const std::string body = std::to_string(t * 10'000 + c * 100 + i);
          if (one.send(post("/echo", body)) && one.response().body == body) ++good;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 8 * 10 * 20);
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }));
  EXPECT_EQ(server_->stats().running, 0u);
}

TEST_F(Http, Ipv6) {
  HttpServerOptions options = quick_options();
  options.host = "::1";
  auto started = HttpServer::start(options, test_routes());
  if (!started) GTEST_SKIP() << "no IPv6 loopback here: " << started.error().message;
  EXPECT_TRUE((*started)->url().starts_with("http://[::1]:"));
}

}  // namespace
}  // namespace mimo
