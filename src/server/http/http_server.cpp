#include "server/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "server/http/io_loop.h"
#include "server/http/listener.h"
#include "server/http/request_gate.h"
#include "server/http/route_table.h"
#include "server/http/server_context.h"

namespace mimo {
namespace {

using Clock = std::chrono::steady_clock;

// Connections beyond max_connections that are told so; more are closed without a word.
constexpr std::uint64_t kToldOff = 256;

Status check_options(const HttpServerOptions& options) {
  const auto wrong = [](const char* name, auto value, const char* expected) {
    return fail(ErrorCode::kInvalidArgument, "HTTP server: {} is {}, expected {}", name, value, expected);
  };
  if (options.threads < 1 || options.threads > 256) return wrong("threads", options.threads, "1 to 256");
  if (options.header_limit < 1024 || options.header_limit > (1u << 20))
    return wrong("header_limit", options.header_limit, "1024 bytes to 1 MiB");
  if (options.max_connections < 1) return wrong("max_connections", options.max_connections, "at least 1");
  if (options.write_buffer < 1024) return wrong("write_buffer", options.write_buffer, "at least 1024 bytes");
  if (options.bodies_limit < options.body_limit)
    return wrong("bodies_limit", options.bodies_limit, "at least body_limit");
  for (const auto& [name, time] : {std::pair{"header_timeout", options.header_timeout},
                                   {"idle_timeout", options.idle_timeout},
                                   {"body_timeout", options.body_timeout},
                                   {"write_timeout", options.write_timeout},
                                   {"linger_timeout", options.linger_timeout}}) {
    if (time.count() <= 0) return wrong(name, time.count(), "more than 0 ms");
  }
  return {};
}

}  // namespace

struct HttpServer::Impl {
  Impl(HttpServerOptions options, http::RequestGate gate) : context(std::move(options), std::move(gate)) {}

  ~Impl() {
    stop();
    for (const auto& loop : loops) loop->join();
  }

  Status start() {
    for (int i = 0; i < context.options.threads; ++i)
      loops.push_back(std::make_unique<http::IoLoop>(context));
    auto opened =
        http::Listener::open(context, *loops.front(), [this](http::UniqueFd fd) { adopt(std::move(fd)); });
    if (!opened) return forward_error(opened);
    listener = *std::move(opened);
    for (const auto& loop : loops) loop->start();
    listener->start();
    return {};
  }

  // On the first loop's thread.
  void adopt(http::UniqueFd socket) {
    http::Counters& counters = context.counters;
    ++counters.accepted;
    const std::uint64_t open = ++counters.connections;
    const bool over = open > context.options.max_connections;
    if (over) ++counters.over_limit;
    if (open > context.options.max_connections + kToldOff) {
      --counters.connections;
      return;
    }
    loops[next++ % loops.size()]->adopt(std::move(socket), over);
  }

  void stop() {
    if (!context.stopping.exchange(true)) {
      if (listener != nullptr) listener->close();
      for (const auto& loop : loops) loop->stop();
      context.changed();
    }
    const auto here = [](const auto& loop) { return loop->is_this_thread(); };
    if (std::any_of(loops.begin(), loops.end(), here)) return;
    const auto ended = [](const auto& loop) { return loop->ended(); };
    context.wait_until(Clock::time_point::max(),
                       [&] { return std::all_of(loops.begin(), loops.end(), ended); });
  }

  std::size_t drain(std::chrono::milliseconds time) {
    const auto quiet = [this] { return context.counters.running == 0 || context.stopping; };
    context.draining = true;
    if (!context.options.accept_while_draining) listener->close();
    for (const auto& loop : loops) loop->drain();
    std::size_t cut = 0;
    if (!context.wait_until(Clock::now() + time, quiet)) cut = cut_running();
    stop();
    return cut;
  }

  std::size_t cut_running() {
    struct Tally {
      std::atomic<std::size_t> answers{0}, loops{0};
    };
    const auto tally = std::make_shared<Tally>();
    for (const auto& loop : loops) {
      loop->cut([this, tally](int running) {
        tally->answers += static_cast<std::size_t>(running);
        ++tally->loops;
        context.changed();
      });
    }
    // Half a second more than the hook has: for the last bytes.
    const auto deadline = Clock::now() + context.options.cut_grace + std::chrono::milliseconds(500);
    context.wait_until(deadline, [&] {
      return (tally->loops == loops.size() && context.counters.running == 0) || context.stopping;
    });
    return tally->answers;
  }

  http::ServerContext context;
  std::vector<std::unique_ptr<http::IoLoop>> loops;
  std::unique_ptr<http::Listener> listener;
  std::size_t next = 0;  // loop for the next connection
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options,
                                                      std::vector<HttpRoute> routes) {
  if (Status good = check_options(options); !good) return forward_error(good);
  Result<http::RouteTable> table = http::RouteTable::make(std::move(routes));
  if (!table) return forward_error(table);
  Result<http::RequestGate> gate =
      http::RequestGate::make(*std::move(table), options.api_keys, options.cors_origins, options.unavailable);
  if (!gate) return forward_error(gate);
  options.api_keys.clear();
  auto impl = std::make_unique<Impl>(std::move(options), *std::move(gate));
  if (Status started = impl->start(); !started) return forward_error(started);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

std::uint16_t HttpServer::port() const { return impl_->listener->port(); }

std::string HttpServer::url() const { return impl_->listener->url(); }

const std::vector<HttpRoute>& HttpServer::routes() const { return impl_->context.gate.routes(); }

HttpStats HttpServer::stats() const {
  const http::Counters& now = impl_->context.counters;
  return {.connections = now.connections,
          .running = now.running,
          .accepted = now.accepted,
          .over_limit = now.over_limit,
          .requests = now.requests,
          .disconnects = now.disconnects,
          .slow_readers = now.slow_readers,
          .timeouts = now.timeouts,
          .sends = now.sends,
          .bytes_sent = now.bytes_sent};
}

std::size_t HttpServer::drain(std::chrono::milliseconds time) { return impl_->drain(time); }

void HttpServer::stop() { impl_->stop(); }

}  // namespace mimo
