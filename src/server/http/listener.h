// The listening socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/result.h"
#include "server/http/unique_fd.h"

namespace mimo::http {

class IoLoop;
class ServerContext;

class Listener {
 public:
  // Binds and listens. kBusy: the port is taken; kInvalidArgument: no such host or address.
  // Accepts from start() on, on the loop's thread, and hands each socket to `accepted`. `loop` must outlive it.
  static Result<std::unique_ptr<Listener>> open(ServerContext& server, IoLoop& loop,
                                                std::function<void(UniqueFd)> accepted);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener();  // after the loop has ended, or before it started

  void start();
  void close();  // any thread

  std::uint16_t port() const;
  std::string url() const;

 private:
  struct Impl;
  explicit Listener(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace mimo::http
