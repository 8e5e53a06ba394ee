#include "server/http/listener.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "server/http/io_loop.h"
#include "server/http/server_context.h"

namespace mimo::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCodeOfSystem = boost::system::error_code;

// When descriptors or memory have run out, only time helps.
constexpr std::chrono::milliseconds kRetry{100};

bool is_of_the_client(int error) {
  return error == ECONNABORTED || error == EINTR || error == EPROTO || error == ENETDOWN ||
         error == EHOSTUNREACH || error == ENETUNREACH || error == EPERM;
}

}  // namespace

struct Listener::Impl {
  Impl(ServerContext& s, IoLoop& l, std::function<void(UniqueFd)> a)
      : server(s), loop(l), accepted(std::move(a)), acceptor(l.context()), retry(l.context()) {}

  Status listen() {
    const HttpServerOptions& options = server.options;
    ErrorCodeOfSystem error;
    tcp::resolver resolver(loop.context());
    const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                        tcp::resolver::passive | tcp::resolver::numeric_service, error);
    if (error || found.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "--host {}: not an address of this machine nor a known name ({})", options.host,
                  error.message());
    }
    tcp::endpoint endpoint = found.begin()->endpoint();
    for (const auto& entry : found) {  // "localhost" is often ::1 first, which fewer clients try
      if (entry.endpoint().address().is_v4()) {
        endpoint = entry.endpoint();
        break;
      }
    }
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error && endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(false), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
    if (!error) acceptor.non_blocking(true, error);
    if (error) {
      const bool taken = error == asio::error::address_in_use;
      return fail(taken ? ErrorCode::kBusy : ErrorCode::kInvalidArgument,
                  "cannot listen on --host {} --port {}: {}{}", options.host, options.port, error.message(),
                  taken ? "; choose another --port" : "");
    }
    bound = acceptor.local_endpoint(error);
    return {};
  }

  void wait() {
    acceptor.async_wait(tcp::acceptor::wait_read, [this](const ErrorCodeOfSystem& error) {
      if (!error) accept_all();
    });
  }

  void accept_all() {
    if (!acceptor.is_open()) return;
    // A bound on one turn: the loop has connections to serve as well.
    for (int i = 0; i < 64; ++i) {
      UniqueFd socket(::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket.get() >= 0) {
        accepted(std::move(socket));
        continue;
      }
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK) break;
      if (is_of_the_client(error)) continue;
      server.problem(fmt::format("accepting connections: {}", std::strerror(error)));
      retry.expires_after(kRetry);
      retry.async_wait([this](const ErrorCodeOfSystem& cancelled) {
        if (!cancelled) accept_all();
      });
      return;
    }
    wait();
  }

  void close() {
    ErrorCodeOfSystem ignored;
    acceptor.close(ignored);
    retry.cancel();
  }

  ServerContext& server;
  IoLoop& loop;
  std::function<void(UniqueFd)> accepted;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  tcp::endpoint bound;
};

Listener::Listener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Listener::~Listener() = default;

Result<std::unique_ptr<Listener>> Listener::open(ServerContext& server, IoLoop& loop,
                                                 std::function<void(UniqueFd)> accepted) {
  auto impl = std::make_unique<Impl>(server, loop, std::move(accepted));
  if (Status listening = impl->listen(); !listening) return forward_error(listening);
  return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

void Listener::start() {
  impl_->loop.post([impl = impl_.get()] { impl->wait(); });
}

void Listener::close() {
  impl_->loop.post([impl = impl_.get()] { impl->close(); });
}

std::uint16_t Listener::port() const { return impl_->bound.port(); }

std::string Listener::url() const {
  const std::string address = impl_->bound.address().to_string();
  return impl_->bound.address().is_v6() ? fmt::format("http://[{}]:{}", address, port())
                                        : fmt::format("http://{}:{}", address, port());
}

}  // namespace mimo::http
