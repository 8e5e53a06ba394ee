// Event streams: framing, bursts, pings, clients that do not read.
#include <atomic>
#include <future>

#include "http/server_fixture.h"

namespace mimo {
namespace {

using HttpStream = HttpServerTest;

std::string event(int i) { return "data: {\"n\":" + std::to_string(i) + "}\n\n"; }

TEST_F(HttpStream, EventsInOrderThenKeptConnection) {
  start();
  RawClient one = client();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(one.send(get("/events")));
    const auto exchange = inbox_.next();
    ASSERT_NE(exchange, nullptr);
    exchange->start_stream(200, "text/event-stream; charset=utf-8", {{"X-Extra", "1"}});
    std::string want;
    for (int i = 0; i < 1000; ++i) {
      want += event(i);
      ASSERT_TRUE(exchange->write(event(i)));
    }
    exchange->finish();
    EXPECT_FALSE(exchange->write("late"));
    RawResponse answer = one.response();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers["content-type"], "text/event-stream; charset=utf-8");
    EXPECT_EQ(answer.headers["cache-control"], "no-cache");
    EXPECT_EQ(answer.headers["x-accel-buffering"], "no");
    EXPECT_EQ(answer.headers["x-extra"], "1");
    EXPECT_TRUE(answer.complete);
    EXPECT_EQ(answer.body, want);
  }
  EXPECT_EQ(server_->stats().disconnects, 0u);
}

// The head arrives before the first event.
TEST_F(HttpStream, HeadAtOnce) {
  start();
  Stream stream = open_stream();
  EXPECT_TRUE(stream.client.input().empty());
  stream.exchange->write(event(1));
  EXPECT_EQ(stream.client.next_chunk(), event(1));
  stream.exchange->finish();
}

// A burst from the engine's thread is one send: more would be one system call and packet a token.
TEST_F(HttpStream, BurstsAreCoalesced) {
  HttpServerOptions options = quick_options();
  options.threads = 1;
  std::vector<HttpRoute> routes = test_routes();
  std::promise<void> entered, release;
  auto released = release.get_future().share();
  routes.push_back({"GET", "/blocks", [&](const auto& exchange) {
                      entered.set_value();
                      released.wait();
                      exchange->respond(text("x"));
                    }});
  start(options, routes);
  Stream stream = open_stream();
  RawClient blocker = client();
  ASSERT_TRUE(blocker.send(get("/blocks")));
  entered.get_future().wait();  // the I/O thread stands still
  const std::uint64_t before = server_->stats().sends;
  std::string want;
  for (int i = 0; i < 100; ++i) {
    stream.exchange->write(event(i));
    want += event(i);
  }
  release.set_value();
  std::string have;
  while (have.size() < want.size()) {
    const auto chunk = stream.client.next_chunk();
    ASSERT_TRUE(chunk);
    have += *chunk;
  }
  EXPECT_EQ(have, want);
  EXPECT_EQ(blocker.response().body, "x");
  EXPECT_EQ(server_->stats().sends - before, 2u);  // the burst, and the blocker's answer
  stream.exchange->finish();
}

TEST_F(HttpStream, PingsInSilence) {
  HttpServerOptions options = quick_options();
  options.ping_interval = milliseconds(250);
  start(options);
  Stream stream = open_stream();
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(stream.client.next_chunk(), ": ping\n\n");
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(200));
  EXPECT_EQ(stream.client.next_chunk(), ": ping\n\n");
  for (int i = 0; i < 8; ++i) {  // no silence, no ping
    stream.exchange->write(event(i));
    EXPECT_EQ(stream.client.next_chunk(), event(i));
    std::this_thread::sleep_for(milliseconds(80));
  }
  stream.exchange->finish();

  // Not before the head, which a plain answer may still become.
  RawClient plain = client();
  ASSERT_TRUE(plain.send(post("/held", "x")));
  const auto exchange = inbox_.next();
  std::this_thread::sleep_for(milliseconds(600));
  exchange->respond(text("plain"));
  EXPECT_EQ(plain.response().body, "plain");
}

TEST_F(HttpStream, PingsCanBeOff) {
  HttpServerOptions options = quick_options();
  options.ping_interval = milliseconds(0);
  start(options);
  Stream stream = open_stream();
  EXPECT_FALSE(stream.client.read_some(milliseconds(500)));
  stream.exchange->finish();
}

// A client that never reads is cut off at the bound; what it gets is whole events from the start.
TEST_F(HttpStream, SlowReader) {
  HttpServerOptions options = quick_options();
  options.write_buffer = 64u << 10;
  start(options);
  Stream stream = open_stream(4096);
  std::atomic<int> gone{0};
  std::thread::id gone_thread;
  stream.exchange->on_close([&] {
    gone_thread = std::this_thread::get_id();
    ++gone;
  });
  int written = 0;
  while (stream.exchange->write(event(written))) {
    ++written;
    ASSERT_LT(written, 1'000'000);
    if (written % 100 == 0) std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_FALSE(stream.exchange->write("x"));
  EXPECT_TRUE(eventually([&] { return gone == 1; }));
  EXPECT_NE(gone_thread, std::this_thread::get_id());
  // It reads on: contiguous events, cut between two, and no proper end.
  int read = 0;
  while (const auto chunk = stream.client.next_chunk()) ASSERT_EQ(*chunk, event(read++));
  EXPECT_EQ(read, written);
  EXPECT_TRUE(stream.client.ended());
  EXPECT_FALSE(stream.client.was_reset());
  EXPECT_EQ(stream.client.input(), "");
  EXPECT_EQ(log_.wait_for(1).at(0).status, 499);
  EXPECT_EQ(server_->stats().slow_readers, 1u);
  EXPECT_EQ(gone, 1);
}

// Nothing more is to come, and the client takes nothing: it does not hold the connection for ever.
TEST_F(HttpStream, StalledClientOfAFinishedAnswer) {
  HttpServerOptions options = quick_options();
  options.write_timeout = milliseconds(300);
  start(options);
  RawClient one = client(4096);
  ASSERT_TRUE(one.send(post("/held", "x")));
  const auto exchange = inbox_.next();
  std::atomic<int> gone{0};
  exchange->on_close([&] { ++gone; });
  exchange->respond(text(std::string(20u << 20, 'x')));
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }));
  EXPECT_EQ(gone, 0);  // the answer was complete
  EXPECT_EQ(log_.wait_for(1).at(0).status, 499);
}

// C19: 20 clients stop reading while others stream on. Memory stays bounded and the others notice nothing.
TEST_F(HttpStream, SlowManySlowReaders) {
  constexpr int kSlow = 20;
  HttpServerOptions options = quick_options();
  options.threads = 1;                            // the worst case: all share it
  options.write_timeout = milliseconds(600'000);  // what the slow ones got is read at the end
  start(options);
  std::vector<Stream> slow;
  std::atomic<int> gone{0};
  for (int i = 0; i < kSlow; ++i) {
    slow.push_back(open_stream(4096));
    slow.back().exchange->on_close([&] { ++gone; });
  }
  Stream fast = open_stream();
  const std::size_t before = resident_bytes();

  std::atomic<bool> stop{false};
  std::thread engine([&] {  // 8 KB an event, up to 8 MB/s for each slow client until it is cut off
    const std::string big = "data: " + std::string(8192, 'x') + "\n\n";
    while (!stop) {
      for (Stream& stream : slow) stream.exchange->write(big);
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  milliseconds worst{0};
  std::size_t peak = before;
  for (int i = 0; i < 600; ++i) {
    const auto sent = std::chrono::steady_clock::now();
    ASSERT_TRUE(fast.exchange->write(event(i)));
    ASSERT_EQ(fast.client.next_chunk(), event(i));
    worst =
        std::max(worst, std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - sent));
    peak = std::max(peak, resident_bytes());
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_TRUE(eventually([&] { return gone == kSlow; }));
  stop = true;
  engine.join();
  if (kMemoryCounts) {
    // Twice: strings grow by doubling.
    EXPECT_LT(peak - before, std::size_t{kSlow} * 2 * options.write_buffer + (16u << 20));
  }
  EXPECT_LT(worst, milliseconds(250));
  RecordProperty("worst_ms", static_cast<int>(worst.count()));
  RecordProperty("peak_mb", static_cast<int>((peak - before) >> 20));
  fast.exchange->finish();
  // Each got a contiguous beginning of whole events.
  for (Stream& stream : slow) {
    std::size_t events = 0;
    while (const auto chunk = stream.client.next_chunk()) {
      ASSERT_EQ(chunk->size(), 8192u + 8);
      ++events;
    }
    EXPECT_TRUE(stream.client.ended());
    EXPECT_EQ(stream.client.input(), "");
    EXPECT_GT(events, options.write_buffer / 8200);
  }
}

}  // namespace
}  // namespace mimo
