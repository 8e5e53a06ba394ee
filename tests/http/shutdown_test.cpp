// drain() and stop().
#include <atomic>
#include <future>

#include "http/server_fixture.h"

namespace mimo {
namespace {

class HttpShutdown : public HttpServerTest {
 protected:
  std::future<std::size_t> drain(milliseconds time) {
    auto result = std::async(std::launch::async, [this, time] { return server_->drain(time); });
    std::this_thread::sleep_for(milliseconds(100));
    return result;
  }
  static bool ready(const std::future<std::size_t>& result) {
    return result.wait_for(milliseconds(0)) == std::future_status::ready;
  }
};

TEST_F(HttpShutdown, DrainOfAnIdleServerIsQuick) {
  start();
  RawClient idle = client();
  ASSERT_TRUE(idle.send(get("/health")));
  ASSERT_EQ(idle.response().status, 200);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(server_->drain(milliseconds(10'000)), 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(1000));
  EXPECT_TRUE(idle.read_to_end());
  EXPECT_FALSE(idle.was_reset());
  EXPECT_EQ(server_->drain(milliseconds(10'000)), 0u);
  server_->stop();
  EXPECT_FALSE(client().connected());
}

TEST_F(HttpShutdown, RunningAnswersComplete) {
  start();
  Stream stream = open_stream();
  RawClient plain = client();
  ASSERT_TRUE(plain.send(post("/held", "x")));
  auto held = inbox_.next();
  auto drained = drain(milliseconds(10'000));

  // New requests on new connections: 503, and /health answers what the service says.
  RawClient late = client();
  ASSERT_TRUE(late.send(get("/v1/models")));
  RawResponse answer = late.response();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.headers["connection"], "close");
  EXPECT_TRUE(answer.headers.contains("retry-after"));
  answer = ask(get("/health"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers["connection"], "close");

  stream.exchange->write("data: last\n\n");
  stream.exchange->finish();
  EXPECT_EQ(stream.client.next_chunk(), "data: last\n\n");
  EXPECT_EQ(stream.client.next_chunk(), "");
  EXPECT_TRUE(stream.client.read_to_end());
  EXPECT_FALSE(ready(drained));
  held->respond(text("done"));
  answer = plain.response();
  EXPECT_EQ(answer.body, "done");
  EXPECT_EQ(answer.headers["connection"], "close");
  EXPECT_EQ(drained.get(), 0u);
}

// A request behind a running one on the same connection.
TEST_F(HttpShutdown, KeptConnections) {
  start();
  RawClient one = client();
  ASSERT_TRUE(one.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nab"));
  RawClient holder = client();
  ASSERT_TRUE(holder.send(post("/held", "x")));
  auto held = inbox_.next();
  RawClient starting = client();
  ASSERT_TRUE(starting.send("GET /v1/mod"));
  std::this_thread::sleep_for(milliseconds(50));
  auto drained = drain(milliseconds(10'000));
  ASSERT_TRUE(one.send("cd" + get("/v1/models")));  // admitted before: answered, but the last
  RawResponse answer = one.response();
  EXPECT_EQ(answer.body, "abcd");
  EXPECT_EQ(answer.headers["connection"], "close");
  EXPECT_TRUE(one.read_to_end());
  ASSERT_TRUE(starting.send("els HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_EQ(starting.response().status, 503);
  held->respond(text("done"));
  EXPECT_EQ(holder.response().body, "done");
  EXPECT_EQ(drained.get(), 0u);
}

TEST_F(HttpShutdown, PortClosesAtOnceIfAsked) {
  HttpServerOptions options = quick_options();
  options.accept_while_draining = false;
  start(options);
  Stream stream = open_stream();
  auto drained = drain(milliseconds(10'000));
  EXPECT_FALSE(client().connected());
  stream.exchange->finish();
  EXPECT_EQ(drained.get(), 0u);
}

TEST_F(HttpShutdown, CutWithAnErrorEvent) {
  std::atomic<int> cuts{0};
  HttpServerOptions options = quick_options();
  options.cut = [&](const std::shared_ptr<Exchange>& exchange) {
    ++cuts;
    std::thread([exchange] {  // the engine needs a moment
      std::this_thread::sleep_for(milliseconds(100));
      exchange->write("data: {\"error\":\"shutting down\"}\n\n");
      exchange->finish();
      exchange->respond(text("never for streams"));
    })
        .detach();
  };
  start(options);
  Stream stream = open_stream();
  std::atomic<int> gone{0};
  stream.exchange->on_close([&] { ++gone; });
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(server_->drain(milliseconds(300)), 1u);
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_GE(took, milliseconds(300));
  EXPECT_LT(took, milliseconds(1200));
  EXPECT_EQ(stream.client.next_chunk(), "data: {\"error\":\"shutting down\"}\n\n");
  EXPECT_EQ(stream.client.next_chunk(), "");
  EXPECT_TRUE(stream.client.read_to_end());
  EXPECT_EQ(cuts, 1);
  EXPECT_EQ(gone, 0);  // it ended properly
}

// Whoever does not react within the grace time is cut off.
TEST_F(HttpShutdown, CutWithoutReaction) {
  std::atomic<int> cuts{0};
  HttpServerOptions options = quick_options();
  options.cut_grace = milliseconds(200);
  options.cut = [&](const std::shared_ptr<Exchange>&) { ++cuts; };
  start(options);
  Stream stream = open_stream();
  RawClient plain = client();
  ASSERT_TRUE(plain.send(post("/held", "x")));
  const auto held = inbox_.next();
  std::atomic<int> gone{0};
  stream.exchange->on_close([&] { ++gone; });
  held->on_close([&] { ++gone; });
  EXPECT_EQ(server_->drain(milliseconds(100)), 2u);
  EXPECT_EQ(cuts, 2);
  EXPECT_EQ(gone, 2);
  EXPECT_EQ(plain.response().status, 503);
  EXPECT_TRUE(stream.client.read_to_end());
  EXPECT_FALSE(stream.client.input().ends_with("0\r\n\r\n"));
}

TEST_F(HttpShutdown, DrainTwice) {
  start();
  Stream stream = open_stream();
  auto first = drain(milliseconds(60'000));
  auto second = drain(milliseconds(60'000));
  EXPECT_FALSE(ready(first));
  EXPECT_FALSE(ready(second));
  stream.exchange->finish();
  EXPECT_EQ(first.get(), 0u);
  EXPECT_EQ(second.get(), 0u);
}

TEST_F(HttpShutdown, StopShortensDrain) {
  start();
  Stream stream = open_stream();
  std::atomic<int> gone{0};
  stream.exchange->on_close([&] { ++gone; });
  auto drained = drain(milliseconds(60'000));
  const auto began = std::chrono::steady_clock::now();
  server_->stop();
  EXPECT_EQ(gone, 1);
  drained.get();
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(1000));
}

TEST_F(HttpShutdown, StopDuringStreams) {
  start();
  std::vector<Stream> streams;
  std::atomic<int> gone{0};
  for (int i = 0; i < 20; ++i) {
    streams.push_back(open_stream());
    streams.back().exchange->on_close([&] { ++gone; });
  }
  std::atomic<bool> done{false};
  std::thread engine([&] {
    while (!done) {
      for (Stream& stream : streams) stream.exchange->write("data: x\n\n");
    }
  });
  std::this_thread::sleep_for(milliseconds(50));
  std::vector<std::thread> stoppers;
  for (int i = 0; i < 4; ++i) stoppers.emplace_back([&] { server_->stop(); });
  for (std::thread& thread : stoppers) thread.join();
  EXPECT_EQ(gone, 20);
  for (Stream& stream : streams) EXPECT_FALSE(stream.exchange->write("data: x\n\n"));
  done = true;
  engine.join();
  EXPECT_EQ(server_->stats().running, 0u);
  server_.reset();
  // Exchanges outlive the server.
  for (Stream& stream : streams) {
    EXPECT_FALSE(stream.exchange->write("data: x\n\n"));
    stream.exchange->finish();
    EXPECT_EQ(stream.exchange->request().path, "/events");
    int late = 0;
    stream.exchange->on_close([&] { ++late; });
    EXPECT_EQ(late, 1);
  }
}

TEST_F(HttpShutdown, StopFromAHandler) {
  std::vector<HttpRoute> routes = test_routes();
  routes.push_back({"POST", "/stop", [this](const auto& exchange) {
                      exchange->respond(text("bye"));
                      server_->stop();
                    }});
  start(quick_options(), routes);
  EXPECT_EQ(ask(post("/stop", "")).body, "bye");
  server_->stop();  // from here it waits
  EXPECT_FALSE(client().connected());
}

TEST_F(HttpShutdown, DestructorDuringRequests) {
  for (int round = 0; round < 20; ++round) {
    start();
    std::vector<RawClient> clients;
    for (int i = 0; i < 10; ++i) {
      clients.push_back(client());
      EXPECT_TRUE(clients.back().send(i % 2 == 0 ? get("/events") : "POST /echo HTTP/1.1\r\nHost:"));
    }
    if (round % 2 == 0) inbox_.next();
    server_.reset();
  }
}

TEST_F(HttpShutdown, StartAndStopAtOnce) {
  for (int i = 0; i < 50; ++i) {
    start();
    server_.reset();
  }
}

}  // namespace
}  // namespace mimo
