#include "server/http/io_loop.h"

#include <pthread.h>
#include <signal.h>

#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/http/server_context.h"

namespace mimo::http {
namespace {

namespace asio = boost::asio;

// One timer a thread instead of one a connection. Limits are seconds; a client's disappearance must show within one.
constexpr std::chrono::milliseconds kTick{100};

constexpr std::size_t kScratch = 64u << 10;

}  // namespace

struct IoLoop::Impl {
  explicit Impl(ServerContext& s) : server(s) {}

  // Connections may leave while a loop over them runs.
  std::vector<std::shared_ptr<Connection>> snapshot() const {
    std::vector<std::shared_ptr<Connection>> all;
    all.reserve(connections.size());
    for (const auto& entry : connections) all.push_back(entry.second);
    return all;
  }

  void arm_timer() {
    if (timer_armed || stopping || connections.empty()) return;
    timer_armed = true;
    timer.expires_after(kTick);
    timer.async_wait([this](const boost::system::error_code& error) {
      timer_armed = false;
      if (error) return;
      const auto now = Connection::Clock::now();
      for (const auto& connection : snapshot()) connection->tick(now);
      arm_timer();
    });
  }

  void adopt(UniqueFd socket, bool over_limit, IoLoop& loop) {
    if (stopping) {
      left();
      return;
    }
    std::shared_ptr<Connection> connection = make_connection(loop, server, std::move(socket));
    connections.emplace(connection.get(), connection);
    arm_timer();
    connection->start(over_limit);
  }

  // The counterpart of the listener's count.
  void left() {
    --server.counters.connections;
    server.changed();
  }

  void run() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);  // signals are for the main thread
    while (true) {
      try {
        context.run();
        break;
      } catch (const std::exception& error) {
        // What threw has left its connection to the timer.
        server.problem(std::string("I/O thread: ") + error.what());
      }
    }
    ended = true;
    server.changed();
  }

  ServerContext& server;
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  asio::steady_timer timer{context};
  bool timer_armed = false;
  bool stopping = false;
  std::atomic<bool> ended{true};
  std::unordered_map<const Connection*, std::shared_ptr<Connection>> connections;
  std::vector<char> scratch = std::vector<char>(kScratch);
  std::thread thread;
};

IoLoop::IoLoop(ServerContext& server) : impl_(std::make_unique<Impl>(server)) {}

IoLoop::~IoLoop() {
  stop();
  join();
}

void IoLoop::start() {
  impl_->ended = false;
  impl_->thread = std::thread([this] { impl_->run(); });
}

void IoLoop::post(std::function<void()> task) { asio::post(impl_->context, std::move(task)); }

void IoLoop::adopt(UniqueFd socket, bool over_limit) {
  asio::post(impl_->context, [this, socket = std::move(socket), over_limit]() mutable {
    impl_->adopt(std::move(socket), over_limit, *this);
  });
}

void IoLoop::drain() {
  post([this] {
    for (const auto& connection : impl_->snapshot()) connection->drain();
  });
}

void IoLoop::cut(std::function<void(int)> done) {
  post([this, done = std::move(done)] {
    int running = 0;
    for (const auto& connection : impl_->snapshot()) running += connection->cut() ? 1 : 0;
    done(running);
  });
}

void IoLoop::stop() {
  post([this] {
    impl_->stopping = true;
    for (const auto& connection : impl_->snapshot()) connection->close();
    impl_->timer.cancel();
    impl_->work.reset();
  });
}

void IoLoop::join() {
  if (impl_->thread.joinable()) impl_->thread.join();
}

bool IoLoop::ended() const { return impl_->ended; }

bool IoLoop::is_this_thread() const { return impl_->thread.get_id() == std::this_thread::get_id(); }

asio::io_context& IoLoop::context() { return impl_->context; }

std::span<char> IoLoop::scratch() { return impl_->scratch; }

void IoLoop::remove(Connection& connection) {
  if (impl_->connections.erase(&connection) != 0) impl_->left();
}

}  // namespace mimo::http
