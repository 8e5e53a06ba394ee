// One client connection.
#pragma once

#include <chrono>
#include <memory>

#include "server/http/unique_fd.h"

namespace mimo::http {

class IoLoop;
class ServerContext;

// All methods on the loop's thread. The loop holds it until it calls IoLoop::remove().
class Connection {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Connection() = default;

  // `over_limit`: answers 503 to whatever comes.
  virtual void start(bool over_limit) = 0;
  // A few times a second: time limits, pings, clients that vanished.
  virtual void tick(Clock::time_point now) = 0;
  // Closes if no request is under way; else after it.
  virtual void drain() = 0;
  // The time for answers is over. True: one was running.
  virtual bool cut() = 0;
  // Now, whatever is under way.
  virtual void close() = 0;
};

std::shared_ptr<Connection> make_connection(IoLoop& loop, ServerContext& server, UniqueFd socket);

}  // namespace mimo::http
