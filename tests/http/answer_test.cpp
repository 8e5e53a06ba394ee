// The answer's state without a network: what is written in which state, and who is told.
#include "server/http/answer.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace mimo::http {
namespace {

class AnswerTest : public ::testing::Test {
 protected:
  std::shared_ptr<Answer> make(AnswerTerms terms = {}) {
    answer_ = std::make_shared<Answer>(std::move(terms), [this] { ++wakes_; });
    return answer_;
  }
  // What the connection would send now.
  std::string taken() {
    std::string bytes;
    progress_ = answer_->take(bytes);
    answer_->sent(bytes.size());
    return bytes;
  }
  static std::string body_of(const std::string& bytes) { return bytes.substr(bytes.find("\r\n\r\n") + 4); }

  std::shared_ptr<Answer> answer_;
  Answer::Progress progress_;
  int wakes_ = 0;
};

TEST_F(AnswerTest, Response) {
  make();
  answer_->respond(
      {.status = 201, .content_type = "text/plain", .body = "hello", .headers = {{"X-A", "b\r\nX-Evil: 1"}}});
  EXPECT_EQ(wakes_, 0);  // the connection looks by itself the first time
  const std::string bytes = taken();
  EXPECT_TRUE(bytes.starts_with("HTTP/1.1 201 Created\r\n"));
  EXPECT_NE(bytes.find("Content-Length: 5\r\n"), std::string::npos);
  EXPECT_NE(bytes.find("X-A: b  X-Evil: 1\r\n"), std::string::npos);
  EXPECT_EQ(bytes.find("Connection:"), std::string::npos);
  EXPECT_EQ(body_of(bytes), "hello");
  EXPECT_EQ(progress_.end, AnswerEnd::kComplete);
  EXPECT_TRUE(progress_.keep_alive);
  answer_->respond({});
  answer_->start_stream(200, "x", {});
  EXPECT_FALSE(answer_->write("x"));
  answer_->finish();
  answer_->abandon();
  answer_->cut();
  EXPECT_EQ(taken(), "");
}

TEST_F(AnswerTest, StreamChunks) {
  make();
  EXPECT_FALSE(answer_->write("too early"));
  answer_->finish();
  answer_->start_stream(200, "text/event-stream", {});
  const std::string head = taken();
  EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  EXPECT_NE(head.find("Cache-Control: no-cache\r\n"), std::string::npos);
  EXPECT_NE(head.find("X-Accel-Buffering: no\r\n"), std::string::npos);
  EXPECT_TRUE(answer_->write("0123456789abcdef"));
  EXPECT_TRUE(answer_->write(""));
  EXPECT_TRUE(answer_->write("x"));
  EXPECT_EQ(wakes_, 1);  // one for the burst
  EXPECT_EQ(taken(), "10\r\n0123456789abcdef\r\n1\r\nx\r\n");
  answer_->finish();
  EXPECT_EQ(wakes_, 2);
  EXPECT_EQ(taken(), "0\r\n\r\n");
  EXPECT_EQ(progress_.end, AnswerEnd::kComplete);
}

TEST_F(AnswerTest, OldVersionStreamsToTheEnd) {
  make({.http10 = true});
  answer_->start_stream(200, "text/event-stream", {{"cache-control", "private"}});
  answer_->write("abc");
  answer_->finish();
  const std::string bytes = taken();
  EXPECT_EQ(bytes.find("Transfer-Encoding"), std::string::npos);
  EXPECT_NE(bytes.find("Connection: close\r\n"), std::string::npos);
  EXPECT_EQ(bytes.find("no-cache"), std::string::npos);
  EXPECT_EQ(body_of(bytes), "abc");
  EXPECT_FALSE(progress_.keep_alive);
}

TEST_F(AnswerTest, HeadRequests) {
  make({.head = true});
  answer_->respond({.status = 200, .content_type = "text/plain", .body = "hello", .headers = {}});
  std::string bytes = taken();
  EXPECT_NE(bytes.find("Content-Length: 5\r\n"), std::string::npos);
  EXPECT_EQ(body_of(bytes), "");
  make({.head = true});
  answer_->start_stream(200, "text/event-stream", {});
  EXPECT_FALSE(answer_->write("abc"));
  bytes = taken();
  EXPECT_EQ(body_of(bytes), "");
  EXPECT_EQ(progress_.end, AnswerEnd::kComplete);
}

TEST_F(AnswerTest, NoContent) {
  make();
  answer_->respond(
      {.status = 204, .content_type = "text/plain", .body = "x", .headers = {{"Content-Length", "7"}}});
  const std::string bytes = taken();
  EXPECT_EQ(bytes.find("Content-"), std::string::npos);
  EXPECT_EQ(body_of(bytes), "");
}

TEST_F(AnswerTest, SlowReader) {
  make({.write_buffer = 100});
  int gone = 0;
  answer_->on_close([&] { ++gone; });
  answer_->start_stream(200, "text/event-stream", {});
  std::string stuck;
  answer_->take(stuck);  // with the kernel, which does not take it
  EXPECT_FALSE(answer_->write("head alone is over the bound"));
  EXPECT_FALSE(answer_->write("x"));
  EXPECT_EQ(gone, 0);  // only from the connection's thread
  answer_->run_closers();
  answer_->run_closers();
  EXPECT_EQ(gone, 1);
  EXPECT_EQ(taken(), "");
  EXPECT_EQ(progress_.end, AnswerEnd::kSlow);
}

TEST_F(AnswerTest, BoundCountsWhatWaits) {
  make({.write_buffer = 1000});
  answer_->start_stream(200, "text/event-stream", {});
  taken();
  EXPECT_TRUE(answer_->write(std::string(5000, 'a')));  // one write may exceed it
  EXPECT_FALSE(answer_->write("b"));
  EXPECT_EQ(taken(), "1388\r\n" + std::string(5000, 'a') + "\r\n");  // whole writes only
  EXPECT_EQ(progress_.end, AnswerEnd::kSlow);
}

TEST_F(AnswerTest, GoneOnceAndAtOnceAfterwards) {
  make();
  int gone = 0;
  answer_->on_close([&] { ++gone; });
  answer_->client_gone();
  EXPECT_EQ(gone, 0);
  answer_->run_closers();
  EXPECT_EQ(gone, 1);
  answer_->on_close([&] { gone += 10; });
  EXPECT_EQ(gone, 11);
  answer_->run_closers();
  EXPECT_EQ(gone, 11);
  answer_->respond({});
  EXPECT_EQ(taken(), "");
}

TEST_F(AnswerTest, NobodyIsToldAfterTheEnd) {
  make();
  int gone = 0;
  answer_->on_close([&] { ++gone; });
  answer_->respond({});
  answer_->client_gone();
  answer_->run_closers();
  answer_->on_close([&] { ++gone; });
  EXPECT_EQ(gone, 0);
}

// A callback that owns the exchange is no leak, and letting go of it inside respond() or finish() is no deadlock.
TEST_F(AnswerTest, CallbackOwnsTheExchange) {
  for (const bool stream : {false, true}) {
    make();
    auto exchange = std::make_shared<HttpExchange>(HttpRequest{}, BodyLease{}, answer_);
    const std::weak_ptr<Exchange> watch = exchange;
    exchange->on_close([exchange] {});
    Exchange* raw = exchange.get();
    exchange.reset();
    EXPECT_FALSE(watch.expired());
    if (stream) {
      raw->start_stream(200, "text/event-stream", {});
      raw->finish();
    } else {
      raw->respond({});
    }
    EXPECT_TRUE(watch.expired());
  }
  make();
  auto exchange = std::make_shared<HttpExchange>(HttpRequest{}, BodyLease{}, answer_);
  const std::weak_ptr<Exchange> watch = exchange;
  exchange->on_close([exchange] {});
  exchange.reset();
  answer_->client_gone();
  answer_->run_closers();
  EXPECT_TRUE(watch.expired());
}

TEST_F(AnswerTest, Abandoned) {
  make({.path = "/v1/messages"});
  std::make_shared<HttpExchange>(HttpRequest{}, BodyLease{}, answer_).reset();
  EXPECT_TRUE(taken().starts_with("HTTP/1.1 500 "));
  make();
  auto exchange = std::make_shared<HttpExchange>(HttpRequest{}, BodyLease{}, answer_);
  exchange->start_stream(200, "text/event-stream", {});
  exchange->write("data: 1\n\n");
  exchange.reset();
  EXPECT_FALSE(taken().ends_with("0\r\n\r\n"));
  EXPECT_EQ(progress_.end, AnswerEnd::kAbandoned);
}

TEST_F(AnswerTest, Cut) {
  make();
  int gone = 0;
  answer_->on_close([&] { ++gone; });
  answer_->cut();
  answer_->run_closers();
  EXPECT_EQ(gone, 1);
  EXPECT_TRUE(taken().starts_with("HTTP/1.1 503 "));
  EXPECT_EQ(progress_.end, AnswerEnd::kCut);
  EXPECT_FALSE(progress_.keep_alive);
}

// One character of the version at a time, and the head then goes on from there.
TEST_F(AnswerTest, ProbesBeforeTheHead) {
  for (const bool stream : {false, true}) {
    make();
    std::string all = taken();
    for (int i = 0; i < 9; ++i) {
      EXPECT_TRUE(answer_->probe());
      if (i < 3) all += taken();
    }
    EXPECT_FALSE(answer_->probe());
    if (stream) {
      answer_->start_stream(200, "text/event-stream", {});
    } else {
      answer_->respond({});
    }
    all += taken();
    EXPECT_TRUE(all.starts_with("HTTP/1.1 200 OK\r\nDate: ")) << all;
  }
}

TEST_F(AnswerTest, PingsAndProbesOfStreams) {
  make();
  answer_->ping();
  EXPECT_EQ(taken(), "");
  answer_->start_stream(200, "Text/Event-Stream; charset=utf-8", {});
  answer_->ping();  // something waits: no silence
  EXPECT_EQ(taken().find("ping"), std::string::npos);
  answer_->ping();
  EXPECT_EQ(taken(), "8\r\n: ping\n\n\r\n");
  EXPECT_TRUE(answer_->probe());
  EXPECT_EQ(taken(), "8\r\n: ping\n\n\r\n");
  make();
  answer_->start_stream(200, "text/plain", {});
  taken();
  answer_->ping();
  EXPECT_FALSE(answer_->probe());
  EXPECT_EQ(taken(), "");
}

// Writers, the client's end and detach() from different threads.
TEST_F(AnswerTest, Threads) {
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> wakes{0}, gone{0};
    const auto answer = std::make_shared<Answer>(AnswerTerms{.write_buffer = 4096}, [&] { ++wakes; });
    answer->start_stream(200, "text/event-stream", {});
    std::string bytes;
    answer->take(bytes);
    answer->sent(bytes.size());
    std::thread writer([&] {
      answer->on_close([&] { ++gone; });
      for (int i = 0; i < 100; ++i) answer->write("data: x\n\n");
      answer->finish();
    });
    for (int i = 0; i < round % 20; ++i) {
      bytes.clear();
      answer->take(bytes);
      answer->sent(bytes.size());
    }
    answer->client_gone();
    answer->run_closers();
    answer->detach();
    writer.join();
    // Told at most once; not at all if it finished before, in which case it is complete.
    bytes.clear();
    EXPECT_EQ(gone, answer->take(bytes).end == AnswerEnd::kComplete ? 0 : 1);
  }
}

}  // namespace
}  // namespace mimo::http
