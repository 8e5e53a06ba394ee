// One I/O thread with its event loop and the connections that live on it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>

#include "server/http/connection.h"
#include "server/http/unique_fd.h"

namespace boost::asio {
class io_context;
}

namespace mimo::http {

class ServerContext;

class IoLoop {
 public:
  // The thread starts with start(). `server` must outlive the loop.
  explicit IoLoop(ServerContext& server);
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;
  ~IoLoop();  // stop() and join

  void start();

  // --- any thread
  void post(std::function<void()> task);
  void adopt(UniqueFd socket, bool over_limit);
  void drain();
  // The callback gets the number of answers that were running; on the loop's thread.
  void cut(std::function<void(int)> done);
  // Closes all connections and ends the thread.
  void stop();
  void join();
  bool ended() const;
  bool is_this_thread() const;

  // --- the loop's thread
  boost::asio::io_context& context();
  std::span<char> scratch();  // for reading: idle connections have no buffer of their own
  void remove(Connection& connection);

 private:
  struct Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace mimo::http
