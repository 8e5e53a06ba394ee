// The HTTP/1.1 server: listener, connections, limits, keys, CORS. It knows no JSON and no engine; routes lead to
// handlers, which answer through Exchange.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "server/exchange.h"
#include "server/http/http_options.h"

namespace mimo {

class HttpServer {
 public:
  // Listens and answers until stop(). Errors name the option: a port in use (kBusy), an unknown host, a route that
  // exists twice, an empty key.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, std::vector<HttpRoute> routes);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // stop(), and joins the I/O threads; not from a handler

  std::uint16_t port() const;  // the bound one
  std::string url() const;     // "http://127.0.0.1:8000"
  const std::vector<HttpRoute>& routes() const;
  HttpStats stats() const;

  // Ends the service in good order; returns when all is over. New requests get 503, idle connections are closed,
  // running answers go on for at most `time`; what runs then is handed to the hook `cut`, and after `cut_grace` to
  // stop(). Returns how many answers had to be cut. stop() from another thread shortens it. Not from a handler.
  std::size_t drain(std::chrono::milliseconds time);

  // Closes everything now; Exchange::on_close callbacks have run when it returns (from a handler or hook: soon after).
  void stop();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// What stands for {name} in `pattern`, a route's path that leads to `path`; empty if it has no parameter.
std::string_view route_parameter(std::string_view pattern, std::string_view path);

// An error answer: Anthropic's form for paths under /v1/messages, OpenAI's for all others.
HttpResponse http_error(int status, std::string_view path, std::string_view message);

}  // namespace mimo
