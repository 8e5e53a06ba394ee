// Sizes, times and numbers of what clients may send.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

#include "http/server_fixture.h"

namespace mimo {
namespace {

class HttpLimits : public HttpServerTest {
 protected:
  static HttpServerOptions short_times() {
    HttpServerOptions options = quick_options();
    options.header_timeout = options.body_timeout = milliseconds(300);
    options.linger_timeout = milliseconds(200);
    return options;
  }
};

TEST_F(HttpLimits, BodyTooLarge) {
  HttpServerOptions options = quick_options();
  options.body_limit = 1000;
  start(options);
  EXPECT_EQ(ask(post("/echo", std::string(1000, 'x'))).status, 200);
  const RawResponse answer = ask(post("/echo", std::string(1001, 'x')));
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(answer.headers.at("connection"), "close");
  EXPECT_NE(answer.body.find("1000"), std::string::npos);
  EXPECT_NE(ask(post("/v1/messages", std::string(1001, 'x')))
                .body.find(R"({"type":"error","error":{"type":"request_too_large")"),
            std::string::npos);
  EXPECT_EQ(ask("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n").status, 413);
}

// The client sends all of it before it reads: it must still get the answer, not a reset.
TEST_F(HttpLimits, RefusedUploadIsReadToTheEnd) {
  start();
  for (const char* path : {"/echo", "/nothing"}) {
    RawClient one = client();
    const std::string head =
        "POST " + std::string(path) + " HTTP/1.1\r\nHost: h\r\nContent-Length: 67108865\r\n\r\n";
    ASSERT_TRUE(one.send(head));
    const std::string part(1u << 20, 'x');
    for (int i = 0; i < 64; ++i) ASSERT_TRUE(one.send(part)) << i;
    ASSERT_TRUE(one.send("x"));
    EXPECT_EQ(one.response().status, *(path + 1) == 'e' ? 413 : 404);
    EXPECT_TRUE(one.read_to_end());
    EXPECT_FALSE(one.was_reset());
  }
}

TEST_F(HttpLimits, LargestBody) {
  start();
  const std::string part(1u << 20, 'x');
  RawClient one = client();
  ASSERT_TRUE(one.send("POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 67108864\r\n\r\n"));
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(one.send(part));
  const auto exchange = inbox_.next();
  ASSERT_NE(exchange, nullptr);
  EXPECT_EQ(exchange->request().body.size(), 64u << 20);
  exchange->respond(text("got it"));
  EXPECT_EQ(one.response().body, "got it");
}

TEST_F(HttpLimits, HeadTooLarge) {
  start();
  EXPECT_EQ(ask(get("/health", "X: " + std::string(30'000, 'x') + "\r\n")).status, 200);
  const RawResponse answer = ask(get("/health", "X: " + std::string(40'000, 'x') + "\r\n"));
  EXPECT_EQ(answer.status, 431);
  EXPECT_NE(answer.body.find("32768"), std::string::npos);
  EXPECT_EQ(ask("GET /" + std::string(100'000, 'x')).status, 431);
}

TEST_F(HttpLimits, SlowHead) {
  start(short_times());
  RawClient silent = client();  // closed without a word
  RawClient slow = client();
  const auto began = std::chrono::steady_clock::now();
  std::thread dribble([&] {
    for (const char c : get("/health", "X: " + std::string(1000, 'x') + "\r\n")) {
      if (!slow.send(std::string_view(&c, 1))) return;
      std::this_thread::sleep_for(milliseconds(20));
      if (std::chrono::steady_clock::now() - began > milliseconds(700)) return;
    }
  });
  const RawResponse answer = slow.response();
  EXPECT_EQ(answer.status, 408);
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(1500));
  dribble.join();
  EXPECT_TRUE(silent.read_to_end());
  EXPECT_EQ(silent.input(), "");
  EXPECT_GE(server_->stats().timeouts, 2u);
}

TEST_F(HttpLimits, C86SlowUpload) {
  start(short_times());
  RawClient slow = client();
  ASSERT_TRUE(slow.send("POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n"));
  const auto began = std::chrono::steady_clock::now();
  std::thread dribble([&] {
    for (int i = 0; i < 30 && slow.send("x"); ++i) std::this_thread::sleep_for(milliseconds(20));
  });
  const RawResponse answer = slow.response();
  EXPECT_EQ(answer.status, 408);
  EXPECT_TRUE(answer.body.starts_with(R"({"type":"error")"));
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(290));
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(1500));
  dribble.join();
}

// A body that takes long but moves is read to its end.
TEST_F(HttpLimits, LongUploadThatMoves) {
  HttpServerOptions options = short_times();
  options.body_bytes_per_second = 1000;
  start(options);
  RawClient one = client();
  ASSERT_TRUE(one.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4000\r\n\r\n"));
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(one.send(std::string(400, 'x')));
    std::this_thread::sleep_for(milliseconds(80));
  }
  EXPECT_EQ(one.response().body.size(), 4000u);
}

TEST_F(HttpLimits, IdleConnectionsAreClosed) {
  HttpServerOptions options = quick_options();
  options.idle_timeout = milliseconds(300);
  start(options);
  RawClient one = client();
  ASSERT_TRUE(one.send(get("/health")));
  EXPECT_EQ(one.response().status, 200);
  std::this_thread::sleep_for(milliseconds(100));
  ASSERT_TRUE(one.send(get("/health")));
  EXPECT_EQ(one.response().status, 200);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(one.read_to_end());
  EXPECT_FALSE(one.was_reset());
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(250));
}

// Waiting for an answer is not being idle.
TEST_F(HttpLimits, AnswersMayTakeLong) {
  HttpServerOptions options = short_times();
  options.idle_timeout = options.write_timeout = milliseconds(200);
  start(options);
  RawClient one = client();
  ASSERT_TRUE(one.send(post("/held", "x")));
  const auto exchange = inbox_.next();
  std::this_thread::sleep_for(milliseconds(900));
  exchange->respond(text("late"));
  EXPECT_EQ(one.response().body, "late");
}

TEST_F(HttpLimits, Connections) {
  HttpServerOptions options = quick_options();
  options.max_connections = 3;
  start(options);
  std::vector<RawClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(client());
    ASSERT_TRUE(clients.back().send(get("/health")));
    ASSERT_EQ(clients.back().response().status, 200);
  }
  RawClient fourth = client();
  ASSERT_TRUE(fourth.send(get("/health")));
  const RawResponse refused = fourth.response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_TRUE(fourth.read_to_end());
  EXPECT_EQ(server_->stats().over_limit, 1u);
  fourth.close();
  clients.pop_back();
  ASSERT_TRUE(eventually([&] { return server_->stats().connections == 2; }));
  EXPECT_EQ(ask(get("/health")).status, 200);
}

// Out of descriptors: said to the operator, and over when some are free again.
TEST_F(HttpLimits, OutOfDescriptors) {
  std::atomic<int> problems{0};
  HttpServerOptions options = quick_options();
  options.problem = [&](std::string_view line) {
    EXPECT_NE(line.find("accepting connections"), std::string_view::npos);
    ++problems;
  };
  start(options);
  ASSERT_EQ(ask(get("/health")).status, 200);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 256, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> hogs;
  for (int fd; (fd = ::dup(0)) >= 0;) hogs.push_back(fd);
  ASSERT_FALSE(hogs.empty());
  ::close(hogs.back());
  hogs.pop_back();
  RawClient one = client();  // takes the last
  EXPECT_TRUE(one.send(get("/health")));
  EXPECT_TRUE(eventually([&] { return problems > 0; }));
  for (const int fd : hogs) ::close(fd);
  EXPECT_EQ(one.response().status, 200);
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(HttpLimits, AllBodiesTogether) {
  HttpServerOptions options = quick_options();
  options.body_limit = options.bodies_limit = 1000;
  start(options);
  RawClient first = client();
  ASSERT_TRUE(first.send(post("/held", std::string(700, 'x'))));
  auto held = inbox_.next();
  ASSERT_NE(held, nullptr);
  const RawResponse refused = ask(post("/echo", std::string(301, 'x')));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(ask(post("/echo", std::string(300, 'x'))).status, 200);
  held->respond(text("x"));
  EXPECT_EQ(first.response().status, 200);
  EXPECT_EQ(ask(post("/echo", std::string(301, 'x'))).status, 503);  // the handler still holds the request
  held.reset();
  EXPECT_EQ(ask(post("/echo", std::string(301, 'x'))).status, 200);
}

}  // namespace
}  // namespace mimo
