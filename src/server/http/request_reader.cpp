// The only file with Beast's parser.
#include "server/http/request_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/optional/optional.hpp>
#include <utility>

#include "server/http/ascii.h"

namespace mimo::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;

using ErrorCode = beast::error_code;

// Of one chunk's size line, or of all trailers: nobody needs more.
constexpr std::size_t kChunkLineLimit = 8u << 10;

// A body is trusted with its announced size only after this much of it has come.
constexpr std::size_t kBelievable = 1u << 20;

// Beast's string_body reserves the announced length at once, which a client can make 64 MiB without sending anything.
struct CautiousBody {
  using value_type = std::string;

  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(bhttp::header<kIsRequest, Fields>& /*header*/, value_type& body) : body_(body) {}

    void init(const boost::optional<std::uint64_t>& length, ErrorCode& error) {
      announced_ = length ? static_cast<std::size_t>(*length) : 0;
      body_.reserve(std::min(announced_, kBelievable));
      error = {};
    }

    template <class Buffers>
    std::size_t put(const Buffers& buffers, ErrorCode& error) {
      error = {};
      std::size_t taken = 0;
      for (const asio::const_buffer buffer : beast::buffers_range_ref(buffers)) {
        if (body_.size() + buffer.size() > body_.capacity() && announced_ > body_.capacity())
          body_.reserve(announced_);
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
        taken += buffer.size();
      }
      return taken;
    }

    void finish(ErrorCode& error) { error = {}; }

   private:
    value_type& body_;
    std::size_t announced_ = 0;
  };
};

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

// What is wrong with Transfer-Encoding, Host or Expect, which the parser does not judge; status 0: nothing.
RequestReader::Failure judge(const RequestReader::Head& head, bool chunked) {
  int hosts = 0;
  bool encoded = false;
  for (const auto& [name, value] : head.headers) {
    if (name == "host") ++hosts;
    if (name == "transfer-encoding") {
      encoded = true;
      if (!equal_ignoring_case(trim(value), "chunked"))
        return {400, "Transfer-Encoding: only 'chunked' is supported"};
    }
    if (name == "expect" && !equal_ignoring_case(trim(value), "100-continue"))
      return {417, "Expect: only '100-continue' is supported"};
  }
  if (encoded && (head.http10 || !chunked)) return {400, "Transfer-Encoding: not allowed here"};
  if (hosts > 1 || (hosts == 0 && !head.http10)) return {400, "Host: expected exactly one such header"};
  return {0, {}};
}

RequestReader::Failure describe(const ErrorCode& error, const RequestReader::Limits& limits, bool in_body) {
  const auto too_large = [&] {
    return RequestReader::Failure{413,
                                  fmt::format("the body has more than {} bytes, the limit", limits.body)};
  };
  if (error == bhttp::error::header_limit && !in_body)
    return {431, fmt::format("request line and headers have more than {} bytes, the limit", limits.header)};
  if (error == bhttp::error::body_limit) return too_large();
  if (error == bhttp::error::bad_version) return {505, "expected HTTP/1.1 or HTTP/1.0"};
  if (error == bhttp::error::bad_content_length || error == bhttp::error::multiple_content_length)
    return {400, "Content-Length: expected one number, and no Transfer-Encoding beside it"};
  if (error == bhttp::error::bad_transfer_encoding)
    return {400, "Transfer-Encoding: expected 'chunked' once, and no Content-Length beside it"};
  if (in_body) return {400, fmt::format("the chunked body is malformed ({})", error.message())};
  return {400, fmt::format("the request is malformed ({})", error.message())};
}

}  // namespace

struct RequestReader::Parser {
  bhttp::request_parser<CautiousBody> request;
  Head head;
  std::size_t head_bytes = 0;
  bool has_head = false;
};

RequestReader::RequestReader(const Limits& limits) : limits_(limits) {}

RequestReader::~RequestReader() = default;

void RequestReader::append(std::string_view bytes) {
  if (read_ == input_.size()) {
    input_.clear();
    read_ = 0;
  } else if (read_ > input_.size() / 2) {
    input_.erase(0, read_);
    read_ = 0;
  }
  input_ += bytes;
}

void RequestReader::begin() {
  parser_.reset();
  if (read_ == input_.size()) {
    input_ = {};  // idle connections keep nothing
    read_ = 0;
  }
}

RequestReader::Head& RequestReader::head() { return parser_->head; }

std::string RequestReader::take_body() { return std::move(parser_->request.get().body()); }

bool RequestReader::started() const { return parser_ != nullptr || unread() != 0; }

bool RequestReader::in_body() const { return parser_ != nullptr && parser_->has_head; }

std::size_t RequestReader::body_bytes() const { return in_body() ? parser_->request.get().body().size() : 0; }

std::size_t RequestReader::unread() const { return input_.size() - read_; }

RequestReader::Event RequestReader::fail_with(int status, std::string message) {
  failure_ = {status, std::move(message)};
  return Event::kError;
}

RequestReader::Event RequestReader::next() {
  if (failure_.message.empty()) return in_body() ? read_body() : read_head();
  return Event::kError;
}

RequestReader::Event RequestReader::read_head() {
  if (parser_ == nullptr) {
    // Empty lines before a request are a habit of old clients.
    while (read_ < input_.size() && (input_[read_] == '\r' || input_[read_] == '\n')) ++read_;
    if (unread() == 0) return Event::kNeedMore;
    parser_ = std::make_unique<Parser>();
    parser_->request.header_limit(static_cast<std::uint32_t>(limits_.header));
    parser_->request.body_limit(boost::none);
  }
  Parser& parser = *parser_;
  ErrorCode error;
  while (!parser.request.is_header_done()) {
    const std::size_t taken = parser.request.put(asio::buffer(input_.data() + read_, unread()), error);
    read_ += taken;
    parser.head_bytes += taken;
    // The parser limits what one call sees; lines that came and were taken one by one are counted here.
    const bool needs_more = error == bhttp::error::need_more;
    if (parser.head_bytes + (needs_more ? unread() : 0) > limits_.header) error = bhttp::error::header_limit;
    if (error && !(needs_more && error == bhttp::error::need_more)) break;
    if (needs_more) return Event::kNeedMore;
  }
  if (error) {
    Failure failure = describe(error, limits_, false);
    return fail_with(failure.status, std::move(failure.message));
  }

  const auto& message = parser.request.get();
  Head& head = parser.head;
  head.method = view(message.method_string());
  head.target = view(message.target());
  head.http10 = message.version() == 10;
  head.keep_alive = message.keep_alive();
  for (const auto& field : message) {
    std::string name = to_lower(view(field.name_string()));
    head.wants_continue |= name == "expect" && !head.http10;
    head.headers.emplace_back(std::move(name), view(field.value()));
  }
  parser.has_head = true;
  // What is wrong with a readable head is next()'s to tell, after those who may not ask at all are sent away.
  failure_ = judge(head, parser.request.chunked());
  const auto length = parser.request.content_length();
  if (failure_.message.empty() && length && *length > limits_.body)
    failure_ = describe(bhttp::error::body_limit, limits_, true);
  parser.request.body_limit(limits_.body);  // for chunks
  return Event::kHead;
}

RequestReader::Event RequestReader::read_body() {
  Parser& parser = *parser_;
  while (!parser.request.is_done()) {
    if (unread() == 0) return Event::kNeedMore;
    ErrorCode error;
    read_ += parser.request.put(asio::buffer(input_.data() + read_, unread()), error);
    if (error == bhttp::error::need_more) {
      if (unread() <= kChunkLineLimit) return Event::kNeedMore;
      return fail_with(400, "the chunked body is malformed (a line or the trailers are too long)");
    }
    if (error) {
      Failure failure = describe(error, limits_, true);
      return fail_with(failure.status, std::move(failure.message));
    }
  }
  return Event::kDone;
}

}  // namespace mimo::http
