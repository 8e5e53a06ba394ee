#include "eval/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/version.hpp>
#include <optional>
#include <utility>

namespace mimo {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

using Request = http::request<http::string_body>;
using Parser = http::response_parser<http::string_body>;

// Headers longer than this come from no chat server.
constexpr std::uint32_t kMaxHeader = 64u << 10;

}  // namespace

// Asynchronous operations run one at a time to their end: the form in which Beast offers time-outs.
struct HttpClient::Connection {
  Connection(HttpUrl u, const HttpOptions& o) : url(std::move(u)), options(o) {}

  // Runs what was just started; its handler has set `error`.
  void finish() {
    context.restart();
    context.run();
  }

  // Sets *error from a handler of any operation.
  static auto into(beast::error_code& error) {
    return [&error](beast::error_code code, auto&&... /*unused*/) { error = code; };
  }

  Status connect() {
    asio::ip::tcp::resolver resolver(context);
    beast::error_code error;
    // The system's resolver has time limits of its own.
    const auto addresses = resolver.resolve(url.host, url.port, error);
    if (error) {
      return fail(ErrorCode::kNotFound, "{}: the host is not known ({})", url.authority(), error.message());
    }
    stream.emplace(context);
    stream->expires_after(options.connect_timeout);
    stream->async_connect(addresses, into(error));
    finish();
    if (error) {
      stream.reset();
      return fail(ErrorCode::kInternal, "{}: cannot connect: {}", url.authority(),
                  describe(error, options.connect_timeout));
    }
    beast::error_code ignored;
    stream->socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    buffer.clear();
    return {};
  }

  static std::string describe(const beast::error_code& error, std::chrono::milliseconds limit) {
    if (error == beast::error::timeout)
      return fmt::format("no answer within {:g} s", static_cast<double>(limit.count()) / 1000);
    if (error == http::error::end_of_stream) return "the server closed the connection without an answer";
    return error.message();
  }

  // One exchange over the open connection. `unused`: nothing of an answer had arrived when it failed.
  Result<HttpReply> exchange(Request& request, bool& unused) {
    unused = true;
    beast::error_code error;
    stream->expires_after(options.request_timeout);
    http::async_write(*stream, request, into(error));
    finish();
    Parser parser;
    parser.body_limit(options.max_body);
    parser.header_limit(kMaxHeader);
    if (!error) {
      http::async_read_header(*stream, buffer, parser, into(error));
      finish();
      if (!error) {
        unused = false;
        http::async_read(*stream, buffer, parser, into(error));
        finish();
      }
      if (parser.got_some() || error == beast::error::timeout) unused = false;
    }
    if (error) {
      stream.reset();
      if (error == http::error::body_limit) {
        return fail(ErrorCode::kLimit, "{}: the answer has more than {} bytes", url.authority(),
                    options.max_body);
      }
      return fail(ErrorCode::kInternal, "{}: {}", url.authority(), describe(error, options.request_timeout));
    }
    HttpReply response{parser.get().result_int(), std::move(parser.get().body())};
    if (!parser.get().keep_alive()) stream.reset();
    return response;
  }

  Result<HttpReply> send(Request request) {
    const bool kept = stream.has_value();
    if (!kept) {
      if (Status connected = connect(); !connected) return forward_error(connected);
    }
    bool unused = false;
    Result<HttpReply> response = exchange(request, unused);
    // A server may close an idle connection at any time; the request then never reached it.
    if (response || !kept || !unused) return response;
    if (Status connected = connect(); !connected) return forward_error(connected);
    return exchange(request, unused);
  }

  Request make(http::verb method, const std::string& path, const Headers& headers) const {
    Request request(method, url.path + path, 11);
    request.set(http::field::host, url.authority());
    request.set(http::field::user_agent, "mimo");
    request.set(http::field::accept, "application/json");
    for (const auto& [name, value] : headers) request.set(name, value);
    return request;
  }

  HttpUrl url;
  HttpOptions options;
  asio::io_context context{1};
  std::optional<beast::tcp_stream> stream;  // none: not connected
  beast::flat_buffer buffer;
};

HttpClient::HttpClient(HttpUrl url, const HttpOptions& options)
    : connection_(std::make_unique<Connection>(std::move(url), options)) {}

HttpClient::~HttpClient() = default;

Result<HttpReply> HttpClient::get(const std::string& path, const Headers& headers) {
  return connection_->send(connection_->make(http::verb::get, path, headers));
}

Result<HttpReply> HttpClient::post(const std::string& path, const Headers& headers, std::string body) {
  Request request = connection_->make(http::verb::post, path, headers);
  request.set(http::field::content_type, "application/json");
  request.body() = std::move(body);
  request.prepare_payload();
  return connection_->send(std::move(request));
}

}  // namespace mimo
