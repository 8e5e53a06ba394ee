// A server on a free port, with routes as the real one has, and handlers that tests control.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "http/raw_client.h"
#include "server/http/http_server.h"

namespace mimo {

// Waits until the condition holds; false: not in time.
template <class Condition>
bool eventually(Condition condition, milliseconds limit = milliseconds(5000)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

// Exchanges on their way from handlers to the test.
class Inbox {
 public:
  Handler handler() {
    return [this](std::shared_ptr<Exchange> exchange) {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(exchange));
      arrived_.notify_one();
    };
  }

  // Null: none came in time.
  std::shared_ptr<Exchange> next(milliseconds limit = milliseconds(5000)) {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_until(lock, std::chrono::system_clock::now() + limit,
                             [&] { return !waiting_.empty(); }))
      return nullptr;
    std::shared_ptr<Exchange> exchange = std::move(waiting_.front());
    waiting_.pop_front();
    return exchange;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::shared_ptr<Exchange>> waiting_;
};

struct LoggedAccess {
  std::string id, method, path;
  int status = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
};

class AccessLog {
 public:
  std::function<void(const AccessRecord&)> hook() {
    return [this](const AccessRecord& record) {
      const std::lock_guard lock(mutex_);
      records_.push_back({std::string(record.id), std::string(record.method), std::string(record.path),
                          record.status, record.bytes, record.seconds});
    };
  }
  std::vector<LoggedAccess> records() {
    const std::lock_guard lock(mutex_);
    return records_;
  }
  // Waits for so many.
  std::vector<LoggedAccess> wait_for(std::size_t count) {
    eventually([&] { return records().size() >= count; });
    return records();
  }

 private:
  std::mutex mutex_;
  std::vector<LoggedAccess> records_;
};

inline HttpResponse text(std::string body) {
  return {.status = 200, .content_type = "text/plain", .body = std::move(body), .headers = {}};
}

class HttpServerTest : public ::testing::Test {
 protected:
  static HttpServerOptions quick_options() {
    HttpServerOptions options;
    options.port = 0;
    return options;
  }

  // The routes of the tests:
  //   GET /health (open, always), GET /v1/models, GET /v1/models/{id} (answers with the parameter),
  //   POST /echo (answers with the body), POST /v1/messages (echo), POST /held (to inbox_), GET /events (to inbox_)
  std::vector<HttpRoute> test_routes() {
    const Handler echo = [](const std::shared_ptr<Exchange>& exchange) {
      exchange->respond(text(exchange->request().body));
    };
    return {
        {"GET", "/health", [](const auto& exchange) { exchange->respond(text("ok")); }, Access::kOpen, true},
        {"GET", "/v1/models", [](const auto& exchange) { exchange->respond(text("models")); }},
        {"GET", "/v1/models/{id}",
         [](const auto& exchange) {
           exchange->respond(text(std::string(route_parameter("/v1/models/{id}", exchange->request().path))));
         }},
        {"POST", "/echo", echo},
        {"POST", "/v1/messages", echo},
        {"POST", "/held", inbox_.handler()},
        {"GET", "/events", inbox_.handler()},
    };
  }

  void start(HttpServerOptions options = quick_options()) { start(std::move(options), test_routes()); }
  void start(HttpServerOptions options, std::vector<HttpRoute> routes) {
    if (!options.access_log) options.access_log = log_.hook();
    auto started = HttpServer::start(std::move(options), std::move(routes));
    ASSERT_TRUE(started) << started.error().message;
    server_ = *std::move(started);
  }

  RawClient client(int receive_buffer = 0) { return RawClient(server_->port(), receive_buffer); }

  // One request on a connection of its own.
  RawResponse ask(std::string_view request) {
    RawClient one = client();
    EXPECT_TRUE(one.send(request));
    return one.response(request.starts_with("HEAD"));
  }

  // An event stream that has been answered with its head.
  struct Stream {
    RawClient client;
    std::shared_ptr<Exchange> exchange;
  };
  Stream open_stream(int receive_buffer = 0, std::string_view request = {}) {
    RawClient one = client(receive_buffer);
    EXPECT_TRUE(one.send(request.empty() ? get("/events") : std::string(request)));
    std::shared_ptr<Exchange> exchange = inbox_.next();
    EXPECT_NE(exchange, nullptr);
    if (exchange != nullptr) exchange->start_stream(200, "text/event-stream; charset=utf-8", {});
    EXPECT_TRUE(one.read_until("\r\n\r\n"));
    one.input().erase(0, one.input().find("\r\n\r\n") + 4);
    return {std::move(one), std::move(exchange)};
  }

  // Declared first: handlers run until the server is gone.
  Inbox inbox_;
  AccessLog log_;
  std::unique_ptr<HttpServer> server_;
};

// Sanitizers keep shadow memory and freed blocks: what they use says nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryCounts = false;
#elif defined(__has_feature)
constexpr bool kMemoryCounts = !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer);
#else
constexpr bool kMemoryCounts = true;
#endif

// Resident memory of this process, in bytes.
inline std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace mimo
