// Many connections at once: memory and events a second.
#include <sys/resource.h>

#include <atomic>
#include <cstdio>

#include "http/server_fixture.h"

namespace mimo {
namespace {

class HttpLoad : public HttpServerTest {
 protected:
  // Both ends of each connection are in this process.
  static bool allow_descriptors(rlim_t wanted) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= wanted) return true;
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= wanted;
  }
};

TEST_F(HttpLoad, SlowTwoThousandIdleStreams) {
  constexpr int kStreams = 2000;
  if (!allow_descriptors(2 * kStreams + 200)) GTEST_SKIP() << "not enough file descriptors allowed";
  start();
  const std::size_t before = resident_bytes();
  std::vector<Stream> streams;
  streams.reserve(kStreams);
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < kStreams; ++i) streams.push_back(open_stream());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  const std::size_t growth = resident_bytes() - before;
  EXPECT_EQ(server_->stats().connections, static_cast<std::uint64_t>(kStreams));
  if (kMemoryCounts) {
    EXPECT_LT(growth, 100u << 20);
  }
  RecordProperty("bytes_per_stream", static_cast<int>(growth / kStreams));
  RecordProperty("streams_per_second", static_cast<int>(kStreams / took.count()));
  std::printf("%zu bytes a stream (client's part included), %.0f streams opened a second\n",
              growth / kStreams, kStreams / took.count());
  // All of them still work.
  for (Stream& stream : streams) ASSERT_TRUE(stream.exchange->write("data: 1\n\n"));
  for (Stream& stream : streams) ASSERT_EQ(stream.client.next_chunk(), "data: 1\n\n");
  for (Stream& stream : streams) stream.client.close();
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }));
  EXPECT_EQ(server_->stats().disconnects, static_cast<std::uint64_t>(kStreams));
}

// 64 streams fed by one thread, as the engine does it: one event each a step.
TEST_F(HttpLoad, SlowEventsASecond) {
  constexpr int kStreams = 64, kSteps = 2000;
  start();
  std::vector<Stream> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(open_stream());
  const std::string event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"}}]}\n\n";
  std::atomic<std::uint64_t> received{0};
  std::thread reader([&] {
    std::vector<bool> done(kStreams);
    for (int open = kStreams; open > 0;) {
      for (int i = 0; i < kStreams; ++i) {
        RawClient& one = streams[i].client;
        if (done[i] || (!one.read_some(milliseconds(0)) && !one.ended())) continue;
        done[i] = one.ended() || one.input().ends_with("\r\n0\r\n\r\n");
        open -= done[i] ? 1 : 0;
        const std::size_t counted = one.input().size() - std::min<std::size_t>(one.input().size(), 8);
        received += counted;
        one.input().erase(0, counted);  // the end may come in two pieces
      }
    }
  });
  const auto began = std::chrono::steady_clock::now();
  for (int step = 0; step < kSteps; ++step) {
    for (Stream& stream : streams) ASSERT_TRUE(stream.exchange->write(event));
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  for (Stream& stream : streams) stream.exchange->finish();
  ASSERT_TRUE(eventually([&] { return server_->stats().running == 0; }, milliseconds(60'000)));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  for (Stream& stream : streams) stream.exchange.reset();
  reader.join();
  const double events = double{kStreams} * kSteps;
  std::printf("%.0f events a second, %.2f events a send\n", events / took.count(),
              events / static_cast<double>(server_->stats().sends));
  EXPECT_GT(received, events * event.size());
  EXPECT_EQ(server_->stats().disconnects, 0u);
}

}  // namespace
}  // namespace mimo
