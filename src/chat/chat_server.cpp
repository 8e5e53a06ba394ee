#include "chat/chat_server.h"

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <utility>

#include "bench/sse_reader.h"

namespace mimo {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr std::chrono::milliseconds kPoll{30};  // between questions whether to stop
constexpr std::chrono::seconds kConnectTimeout{10};
constexpr std::chrono::seconds kSilence{600};  // a long prompt takes its time
constexpr std::size_t kMaxBody = 16u << 20;    // of an answer that is no stream
constexpr std::size_t kShownBody = 300;
constexpr std::uint32_t kMaxHeader = 64u << 10;

Status cancelled() { return fail(ErrorCode::kCancelled, "stopped"); }

// What the body of an error says, on one line.
std::string words_of(const std::string& body) {
  if (const Result<json::value> parsed = parse_json(body, "error")) {
    boost::system::error_code ignored;
    for (const char* place : {"/error/message", "/message", "/error", "/detail"}) {
      const json::value* message = parsed->find_pointer(place, ignored);
      if (message != nullptr && message->is_string()) return std::string(message->get_string());
    }
  }
  std::string shown = body.substr(0, kShownBody);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) c = ' ';
  }
  return shown;
}

// Keeps what an operation ended with.
struct IntoError {
  beast::error_code* error;
  void operator()(beast::error_code code) const { *error = code; }
  void operator()(beast::error_code code, std::size_t /*bytes*/) const { *error = code; }
  void operator()(beast::error_code code, const asio::ip::tcp::endpoint& /*peer*/) const { *error = code; }
};

// One request over a connection of its own. Operations run one at a time, in portions between which `stop` is asked.
class Call {
 public:
  Call(const HttpUrl& url, const ChatServer::Stop& stop) : url_(url), stop_(stop) {}

  // Sends, and reads the head of the answer.
  Result<unsigned> send(http::verb method, const std::string& path, const std::string& api_key,
                        const std::string& body) {
    if (const Status connected = connect(); !connected) return forward_error(connected);
    http::request<http::string_body> request(method, url_.path + path, 11);
    request.set(http::field::host, url_.authority());
    request.set(http::field::user_agent, "mimo");
    request.set(http::field::connection, "close");
    request.set(http::field::accept, method == http::verb::get ? "application/json" : "text/event-stream");
    if (!api_key.empty()) request.set(http::field::authorization, "Bearer " + api_key);
    if (method == http::verb::post) {
      request.set(http::field::content_type, "application/json");
      request.body() = body;
      request.prepare_payload();
    }
    stream_.expires_after(kSilence);
    http::async_write(stream_, request, into_error());
    if (const Status written = finish(); !written) return forward_error(written);
    parser_.header_limit(kMaxHeader);
    parser_.body_limit(boost::none);
    stream_.expires_after(kSilence);
    http::async_read_header(stream_, buffer_, parser_, into_error());
    if (const Status read = finish(); !read) return forward_error(read);
    return parser_.get().result_int();
  }

  bool is_event_stream() const {
    return parser_.get()[http::field::content_type].starts_with("text/event-stream");
  }

  // The next bytes of the body; none: its end.
  Result<std::string_view> read() {
    while (!parser_.is_done()) {
      auto& body = parser_.get().body();
      body.data = bytes_.data();
      body.size = bytes_.size();
      body.more = true;
      stream_.expires_after(kSilence);
      http::async_read_some(stream_, buffer_, parser_, into_error());
      if (const Status got = finish(); !got) return forward_error(got);
      const std::size_t count = bytes_.size() - body.size;
      if (count > 0) return std::string_view(bytes_.data(), count);
    }
    return std::string_view();
  }

  Result<std::string> read_all() {
    std::string all;
    for (;;) {
      const Result<std::string_view> part = read();
      if (!part) return forward_error(part);
      if (part->empty()) return all;
      all += *part;
      if (all.size() > kMaxBody)
        return fail(ErrorCode::kLimit, "{}: an answer of more than {} bytes", url_.authority(), kMaxBody);
    }
  }

 private:
  // Runs what was just started.
  Status finish() {
    context_.restart();
    for (;;) {
      context_.run_for(kPoll);
      if (context_.stopped()) break;
      if (stop_()) {
        stream_.close();
        context_.run();
        return cancelled();
      }
    }
    if (error_ == http::error::need_buffer) error_ = {};
    if (!error_) return {};
    if (error_ == beast::error::timeout)
      return fail(ErrorCode::kUnavailable, "{}: no answer in time", url_.authority());
    return fail(ErrorCode::kUnavailable, "{}: {}", url_.authority(), error_.message());
  }

  Status connect() {
    asio::ip::tcp::resolver resolver(context_);
    const auto addresses = resolver.resolve(url_.host, url_.port, error_);
    if (error_) {
      return fail(ErrorCode::kNotFound, "{}: the host is not known ({})", url_.authority(), error_.message());
    }
    stream_.expires_after(kConnectTimeout);
    stream_.async_connect(addresses, into_error());
    if (const Status connected = finish(); !connected) return connected;
    beast::error_code ignored;
    stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    return {};
  }

  IntoError into_error() { return {&error_}; }

  const HttpUrl& url_;
  const ChatServer::Stop& stop_;
  asio::io_context context_{1};
  beast::tcp_stream stream_{context_};
  beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
  std::array<char, 16384> bytes_{};
  beast::error_code error_;
};

// The error of a status that is not 200.
Status refused(Call& call, unsigned status) {
  const Result<std::string> body = call.read_all();
  const std::string words = body ? words_of(*body) : std::string();
  const ErrorCode code = status == 503 || status == 429 ? ErrorCode::kBusy : ErrorCode::kInvalidArgument;
  return fail(code, "status {}: {}", status, words.empty() ? "no reason given" : words);
}

}  // namespace

ChatServer::ChatServer(HttpUrl url, std::string api_key)
    : url_(std::move(url)), api_key_(std::move(api_key)) {
  if (!url_.path.ends_with("/v1")) url_.path += "/v1";
}

Result<std::string> ChatServer::model(const Stop& stop) const {
  Call call(url_, stop);
  const Result<unsigned> status = call.send(http::verb::get, "/models", api_key_, {});
  if (!status) return forward_error(status);
  if (*status != 200) return forward_error(refused(call, *status));
  const Result<std::string> body = call.read_all();
  if (!body) return forward_error(body);
  const Result<json::value> models = parse_json(*body, url_.authority() + url_.path + "/models");
  if (!models) return forward_error(models);
  boost::system::error_code ignored;
  const json::value* id = models->find_pointer("/data/0/id", ignored);
  if (id == nullptr || !id->is_string())
    return fail(ErrorCode::kCorrupt, "{}{}/models: no data[0].id in the answer", url_.authority(), url_.path);
  return std::string(id->get_string());
}

Status ChatServer::stream(const json::object& request, const Stop& stop,
                          const std::function<Status(const json::value& chunk)>& chunk) const {
  Call call(url_, stop);
  const Result<unsigned> status =
      call.send(http::verb::post, "/chat/completions", api_key_, json::serialize(request));
  if (!status) return forward_error(status);
  if (*status != 200) return refused(call, *status);
  if (!call.is_event_stream())
    return fail(ErrorCode::kCorrupt, "{}: the answer is no event stream", url_.authority());
  bool done = false;
  const auto take = [&](const SseEvent& event) -> Status {
    if (event.data == "[DONE]") {
      done = true;
      return {};
    }
    const Result<json::value> parsed = parse_json(event.data, "event");
    if (!parsed) return forward_error(parsed);
    if (parsed->is_object() && parsed->get_object().contains("error"))
      return fail(ErrorCode::kUnavailable, "{}", words_of(std::string(event.data)));
    return chunk(*parsed);
  };
  SseReader events;
  while (!done) {
    const Result<std::string_view> bytes = call.read();
    if (!bytes) return forward_error(bytes);
    if (bytes->empty()) break;
    if (const Status fed = events.feed(*bytes, take); !fed) return fed;
    if (stop()) return cancelled();
  }
  if (!done) return fail(ErrorCode::kUnavailable, "the connection was lost before the answer was complete");
  return {};
}

}  // namespace mimo
