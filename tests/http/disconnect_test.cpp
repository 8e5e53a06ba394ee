// Clients that go away: noticed in every phase, told once, nothing left behind. A client that only shuts its sending
// side has not gone.
#include <atomic>
#include <random>

#include "http/server_fixture.h"

namespace mimo {
namespace {

class HttpDisconnect : public HttpServerTest {
 protected:
  static constexpr milliseconds kNoticed{1000};

  struct Running {
    RawClient client;
    std::shared_ptr<Exchange> exchange;
    std::shared_ptr<std::atomic<int>> gone = std::make_shared<std::atomic<int>>(0);
  };

  enum class Phase { kWaiting, kHeadSent, kStreaming };

  Running run(std::string_view request, Phase phase) {
    RawClient one = client();
    EXPECT_TRUE(one.send(request));
    Running running{std::move(one), inbox_.next()};
    running.exchange->on_close([gone = running.gone] { ++*gone; });
    if (phase != Phase::kWaiting) {
      running.exchange->start_stream(200, "text/event-stream", {});
      EXPECT_TRUE(running.client.read_until("\r\n\r\n"));
    }
    if (phase == Phase::kStreaming) {
      running.exchange->write("data: 1\n\n");
      EXPECT_TRUE(running.client.read_until("data: 1\n\n"));
    }
    return running;
  }

  void expect_noticed(const Running& running, std::string_view what) {
    EXPECT_TRUE(eventually([&] { return *running.gone == 1; }, kNoticed)) << what;
    EXPECT_FALSE(running.exchange->write("data: 2\n\n"));
    EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; })) << what;
    EXPECT_EQ(server_->stats().running, 0u);
    EXPECT_EQ(*running.gone, 1);
  }
};

const std::string kOld = "POST /held HTTP/1.0\r\nContent-Length: 1\r\n\r\nx";

TEST_F(HttpDisconnect, C80ClosedInEveryPhase) {
  start();
  std::size_t count = 0;
  for (const std::string& request : {post("/held", "x"), kOld}) {
    for (const Phase phase : {Phase::kWaiting, Phase::kHeadSent, Phase::kStreaming}) {
      for (const bool reset : {false, true}) {
        Running running = run(request, phase);
        EXPECT_EQ(*running.gone, 0);
        if (reset) {
          running.client.reset();
        } else {
          running.client.close();
        }
        expect_noticed(running, request);
        EXPECT_EQ(log_.wait_for(++count).back().status, 499);
        EXPECT_EQ(server_->stats().disconnects, count);
      }
    }
  }
}

// Also on a connection that has been used before, and behind requests sent ahead.
TEST_F(HttpDisconnect, ClosedOnAKeptConnection) {
  start();
  for (const std::string& ahead : {std::string(), get("/health"), post("/echo", std::string(500'000, 'x'))}) {
    RawClient one = client();
    ASSERT_TRUE(one.send(get("/health")));
    ASSERT_EQ(one.response().status, 200);
    // The kernel takes what the server does not read, or the thread waits until the close.
    ASSERT_TRUE(one.send(post("/held", "x")));
    Running running{std::move(one), inbox_.next()};
    running.exchange->on_close([gone = running.gone] { ++*gone; });
    ASSERT_TRUE(running.client.send(ahead));
    std::this_thread::sleep_for(milliseconds(20));
    running.client.close();
    expect_noticed(running, std::to_string(ahead.size()));
  }
}

TEST_F(HttpDisconnect, C80HalfCloseIsNoDisconnect) {
  start();
  for (const std::string& request : {post("/held", "x"), kOld}) {
    Running plain = run(request, Phase::kWaiting);
    plain.client.shutdown_write();
    std::this_thread::sleep_for(milliseconds(600));
    EXPECT_EQ(*plain.gone, 0);
    plain.exchange->respond(text("answer"));
    EXPECT_EQ(plain.client.response().body, "answer");
    EXPECT_TRUE(plain.client.read_to_end());
    EXPECT_FALSE(plain.client.was_reset());
  }
  Running stream = run(get("/events"), Phase::kStreaming);
  stream.client.shutdown_write();
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_EQ(*stream.gone, 0);
  EXPECT_TRUE(stream.exchange->write("data: 2\n\n"));
  stream.exchange->finish();
  EXPECT_TRUE(stream.client.read_to_end());
  EXPECT_NE(stream.client.input().find("data: 2\n\n"), std::string::npos);
  EXPECT_TRUE(stream.client.input().ends_with("0\r\n\r\n"));
  EXPECT_EQ(server_->stats().disconnects, 0u);
}

// First the one, then the other.
TEST_F(HttpDisconnect, ClosedAfterHalfClose) {
  start();
  for (const Phase phase : {Phase::kWaiting, Phase::kStreaming}) {
    Running running = run(get("/events"), phase);
    running.client.shutdown_write();
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_EQ(*running.gone, 0);
    running.client.close();
    expect_noticed(running, "after half-close");
  }
}

// The next-to-last thing a client does may be to close right after the last byte.
TEST_F(HttpDisconnect, ClosedAfterTheLastByteIsNoDisconnect) {
  start();
  for (int i = 0; i < 50; ++i) {
    Running running = run(get("/events"), Phase::kStreaming);
    running.client.input().clear();  // a request id may end like the last chunk
    running.exchange->write("data: [DONE]\n\n");
    running.exchange->finish();
    ASSERT_TRUE(running.client.read_until("0\r\n\r\n"));
    running.client.close();
    EXPECT_EQ(*running.gone, 0);
  }
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }));
  EXPECT_EQ(server_->stats().disconnects, 0u);
  for (const LoggedAccess& record : log_.wait_for(50)) EXPECT_EQ(record.status, 200);
}

TEST_F(HttpDisconnect, ClosedWhileSendingARequest) {
  start();
  for (const std::string& part :
       {std::string("P"), std::string("POST /held HTTP/1.1\r\nHost:"),
        std::string("POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc")}) {
    for (const bool reset : {false, true}) {
      RawClient one = client();
      ASSERT_TRUE(one.send(part));
      ASSERT_TRUE(eventually([&] { return server_->stats().connections == 1; }));
      if (reset)
        one.reset();
      else
        one.close();
      EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }, kNoticed));
    }
  }
  EXPECT_EQ(inbox_.next(milliseconds(50)), nullptr);
}

// 200 requests, each answered by its own thread, each client gone at a random moment: on_close at most once and never
// after the end, exchanges freed, gauges back to zero.
TEST_F(HttpDisconnect, SlowRandomTimes) {
  constexpr int kRounds = 200;
  struct Round {
    std::atomic<int> gone{0};
    std::atomic<bool> finished{false};
    std::weak_ptr<Exchange> exchange;
  };
  HttpServerOptions options = quick_options();
  options.linger_timeout = milliseconds(200);
  start(options);
  std::mt19937 random(4);
  std::deque<Round> rounds(kRounds);
  for (int i = 0; i < kRounds; ++i) {
    Round& round = rounds[i];
    const bool stream = random() % 2 == 0, reset = random() % 2 == 0;
    const auto pause = std::chrono::microseconds(random() % 4000);
    const auto step = std::chrono::microseconds(random() % 300);
    RawClient one = client();
    ASSERT_TRUE(one.send(random() % 4 == 0 ? kOld : post("/held", "x")));
    std::shared_ptr<Exchange> exchange = inbox_.next();
    ASSERT_NE(exchange, nullptr);
    round.exchange = exchange;
    exchange->on_close(
        [&round, exchange] { ++round.gone; });  // the callback keeps the exchange: no leak even so
    std::thread engine([&round, exchange = std::move(exchange), stream, step]() mutable {
      if (stream) {
        exchange->start_stream(200, "text/event-stream", {});
        for (int n = 0; n < 10 && round.gone == 0; ++n) {
          if (!exchange->write("data: token\n\n")) break;
          std::this_thread::sleep_for(step);
        }
        exchange->finish();
      } else {
        std::this_thread::sleep_for(step * 10);
        exchange->respond(text("done"));
      }
      round.finished = true;
      exchange.reset();
    });
    std::this_thread::sleep_for(pause);
    if (reset)
      one.reset();
    else
      one.close();
    engine.join();
  }
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0 && server_->stats().running == 0; }));
  int gone = 0;
  for (const Round& round : rounds) {
    EXPECT_LE(round.gone, 1);
    EXPECT_TRUE(round.exchange.expired());
    gone += round.gone;
  }
  EXPECT_GT(gone, 10);
  EXPECT_LT(gone, kRounds - 10);
  EXPECT_EQ(log_.wait_for(kRounds).size(), static_cast<std::size_t>(kRounds));
  EXPECT_EQ(ask(get("/health")).status, 200);
}

}  // namespace
}  // namespace mimo
