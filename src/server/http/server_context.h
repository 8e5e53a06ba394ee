// What all connections of a server share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "server/http/body_budget.h"
#include "server/http/http_options.h"
#include "server/http/request_gate.h"

namespace mimo::http {

struct Counters {
  std::atomic<std::uint64_t> connections{0}, running{0}, accepted{0}, over_limit{0}, requests{0},
      disconnects{0}, slow_readers{0}, timeouts{0}, sends{0}, bytes_sent{0};
};

class ServerContext {
 public:
  ServerContext(HttpServerOptions o, RequestGate g)
      : options(std::move(o)),
        gate(std::move(g)),
        bodies(std::make_shared<BodyBudget>(options.bodies_limit)) {}

  const HttpServerOptions options;  // api_keys is empty: the gate has their digests
  const RequestGate gate;
  const std::shared_ptr<BodyBudget> bodies;
  Counters counters;
  std::atomic<bool> draining{false};
  std::atomic<bool> stopping{false};

  void problem(std::string_view line) const {
    if (options.problem) options.problem(line);
  }

  // Wakes who waits in wait_until().
  void changed() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  // Waits until done() is true; false at `deadline`.
  template <class Done>
  bool wait_until(std::chrono::steady_clock::time_point deadline, Done done) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, done);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace mimo::http
