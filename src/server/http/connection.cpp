#include "server/http/connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "server/http/answer.h"
#include "server/http/http_server.h"
#include "server/http/io_loop.h"
#include "server/http/request_id.h"
#include "server/http/request_reader.h"
#include "server/http/server_context.h"
#include "server/http/target.h"

namespace mimo::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using SystemError = boost::system::error_code;
using std::chrono::milliseconds;

// Of the requests that a client sends ahead while one is answered; more stays in the kernel.
constexpr std::size_t kReadAhead = 64u << 10;

// Sent in one turn before other connections get theirs.
constexpr std::size_t kSendTurn = 1u << 20;

// Capacity of the send buffer that an idle stream may keep.
constexpr std::size_t kKeptCapacity = 16u << 10;

// After a client has shut its sending side: how often to try whether it still listens.
constexpr milliseconds kProbe{500};

// A refused client that keeps sending is read at most this long.
constexpr milliseconds kLongestLinger{30'000};

enum class State {
  kIdle,    // nothing of a request has arrived
  kHead,    // part of a head
  kBody,    // a head, part of a body
  kAnswer,  // a whole request (or a refused one) and its answer
  kLinger,  // all is sent; the client is still sending
  kClosed,
};

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);  // fails only where the system lacks the option
}

void tune(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A host that vanished without a word is noticed in about a minute.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  // Otherwise the kernel takes megabytes for a client that does not read, before our own bound is reached.
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 128 << 10);
}

// Without the port; empty: not known.
std::string peer_address(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[INET6_ADDRSTRLEN] = "";
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  const void* bytes = nullptr;
  if (address.ss_family == AF_INET) bytes = &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  if (address.ss_family == AF_INET6) bytes = &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (bytes == nullptr || inet_ntop(address.ss_family, bytes, text, sizeof text) == nullptr) return {};
  return text;
}

// One request is answered after the other. Reading goes on during the answer: that is how a disconnect is noticed
// while nothing is being written. All of it runs on the loop's thread; only Answer is shared with others.
class TcpConnection final : public Connection, public std::enable_shared_from_this<TcpConnection> {
 public:
  TcpConnection(IoLoop& loop, ServerContext& server, UniqueFd socket)
      : loop_(loop),
        server_(server),
        options_(server.options),
        socket_(loop.context()),
        reader_({.header = options_.header_limit, .body = options_.body_limit}) {
    SystemError error;
    // The protocol matters only to functions that are not called here.
    socket_.assign(tcp::v4(), socket.get(), error);
    if (!error) {
      socket.release();
      socket_.non_blocking(true, error);
      tune(socket_.native_handle());
    }
  }

  void start(bool over_limit) override {
    deadline_ = Clock::now() + options_.header_timeout;
    if (!socket_.is_open()) {
      leave();
      return;
    }
    if (over_limit) refuse(unavailable_answer({}, "too many connections"), {.keep_alive = false});
    arm_read();
  }

  void tick(Clock::time_point now) override;
  void drain() override {
    if (state_ == State::kIdle) leave();
    if (answer_ != nullptr) answer_->close_after();
  }
  bool cut() override;
  void close() override;

 private:
  struct RefusalTerms {
    bool keep_alive = false;
  };

  // --- reading
  void arm_read();
  void on_readable();
  void received(std::string_view bytes);
  void pause_if_full();
  void on_end_of_input();
  void advance();
  void wait_for_more();

  // --- one request
  bool on_head();
  void on_refusable(const HttpResponse& response);
  void take_head(RequestReader::Head& head);
  void begin_answer(bool keep_alive);
  void refuse(const HttpResponse& response, RefusalTerms terms);
  void dispatch();
  void finished(const Answer::Progress& progress);
  void next_request();
  void log(int status);

  // --- writing
  void flush();
  void send_continue();

  // --- ending
  void lost();
  void drop_answer(int status);
  void linger();
  void leave();
  void hard_leave();
  void probe_client(Clock::time_point now);

  IoLoop& loop_;
  ServerContext& server_;
  const HttpServerOptions& options_;
  tcp::socket socket_;
  RequestReader reader_;

  State state_ = State::kIdle;
  Clock::time_point deadline_;  // of the state; kAnswer has none
  bool reading_ = false;        // a wait is under way
  bool read_paused_ = false;    // kReadAhead is full
  bool writing_ = false;        // a wait, or another turn, is under way
  bool input_ended_ = false;    // the client has shut its sending side, or closed its socket
  bool discarding_ = false;     // what arrives belongs to a refused request

  // The current request.
  HttpRequest request_;
  const HttpRoute* route_ = nullptr;
  bool http10_ = false;
  bool keep_alive_ = true;
  BodyLease lease_;
  Clock::time_point body_started_;

  // Its answer.
  std::shared_ptr<Answer> answer_;
  std::weak_ptr<Exchange> exchange_;
  std::string client_;
  bool handled_ = false;
  std::string method_, path_, id_;  // for the log, when the handler has the request
  Clock::time_point answer_started_;
  std::uint64_t answer_bytes_ = 0;

  std::string sending_;
  std::size_t sent_ = 0;             // of sending_
  Clock::time_point last_progress_;  // of sending
  Clock::time_point next_probe_;
  milliseconds probe_interval_{kProbe};
  std::optional<Clock::time_point> cut_at_;
  Clock::time_point linger_end_;
};

// ---------------------------------------------------------------- reading

void TcpConnection::arm_read() {
  if (reading_ || read_paused_ || input_ended_ || state_ == State::kClosed) return;
  reading_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const SystemError& error) {
    self->reading_ = false;
    if (!error) self->on_readable();
  });
}

void TcpConnection::on_readable() {
  const std::span<char> scratch = loop_.scratch();
  // A bound on one turn, as for sending.
  for (int turn = 0; turn < 16 && state_ != State::kClosed && !read_paused_; ++turn) {
    SystemError error;
    const std::size_t n = socket_.read_some(asio::buffer(scratch.data(), scratch.size()), error);
    if (error == asio::error::would_block) break;
    if (error == asio::error::eof) return on_end_of_input();
    if (error) return lost();
    received({scratch.data(), n});
    if (n < scratch.size()) break;
  }
  arm_read();
}

void TcpConnection::received(std::string_view bytes) {
  if (state_ == State::kLinger) {
    deadline_ = std::min(Clock::now() + options_.linger_timeout, linger_end_);
    return;
  }
  if (state_ == State::kAnswer) {
    if (discarding_) return;
    reader_.append(bytes);
    pause_if_full();
    return;
  }
  try {
    reader_.append(bytes);
    advance();
  } catch (const std::exception& error) {
    server_.problem(std::string("reading a request: ") + error.what());
    hard_leave();
  }
}

void TcpConnection::pause_if_full() {
  if (read_paused_ || reader_.unread() <= kReadAhead) return;
  read_paused_ = true;
  next_probe_ = Clock::now();
}

void TcpConnection::on_end_of_input() {
  input_ended_ = true;
  if (state_ == State::kIdle && reader_.unread() != 0) return;  // next_request() is on its way
  if (state_ != State::kAnswer) return leave();
  if (answer_->ended()) return;
  next_probe_ = Clock::now();
  probe_client(next_probe_);
}

void TcpConnection::advance() {
  while (true) {
    switch (reader_.next()) {
      case RequestReader::Event::kNeedMore:
        return wait_for_more();
      case RequestReader::Event::kHead:
        if (!on_head()) return;
        break;
      case RequestReader::Event::kDone:
        return dispatch();
      case RequestReader::Event::kError: {
        const RequestReader::Failure& failure = reader_.failure();
        return refuse(http_error(failure.status, request_.path, failure.message), {.keep_alive = false});
      }
    }
  }
}

void TcpConnection::wait_for_more() {
  if (input_ended_) return leave();
  const Clock::time_point now = Clock::now();
  if (!reader_.started()) {
    if (server_.draining) return leave();
    if (state_ == State::kIdle) return;
    state_ = State::kIdle;
    deadline_ = now + options_.idle_timeout;
  } else if (!reader_.in_body()) {
    if (state_ == State::kHead) return;
    state_ = State::kHead;
    deadline_ = now + options_.header_timeout;
  } else {
    const std::size_t have = reader_.body_bytes();
    if (state_ != State::kBody) {
      state_ = State::kBody;
      body_started_ = now;
    }
    if (!lease_.grow_to(have)) {
      return refuse(unavailable_answer(request_.path, "the server holds too many request bodies"),
                    {.keep_alive = false});
    }
    const auto earned = std::chrono::seconds(have / std::max<std::size_t>(options_.body_bytes_per_second, 1));
    deadline_ = body_started_ + options_.body_timeout + earned;
    if (reader_.head().wants_continue) send_continue();
  }
}

// ---------------------------------------------------------------- one request

void TcpConnection::take_head(RequestReader::Head& head) {
  answer_started_ = Clock::now();
  http10_ = head.http10;
  keep_alive_ = head.keep_alive;
  request_ = {};
  request_.method = head.method;
  request_.headers = std::move(head.headers);
  request_.id = choose_request_id(request_.header("x-request-id"));
  request_.client = peer_address(socket_.native_handle());
  lease_ = BodyLease(server_.bodies);
}

// False: it is refused, and the answer is under way.
bool TcpConnection::on_head() {
  RequestReader::Head& head = reader_.head();
  take_head(head);
  Result<Target> target = parse_target(head.target);
  if (!target) {
    on_refusable(http_error(400, {}, target.error().message));
    return false;
  }
  request_.path = std::move(target->path);
  request_.query = std::move(target->query);
  RequestGate::Admission admission = server_.gate.admit(request_, server_.draining);
  if (admission.answer) {
    on_refusable(*admission.answer);
    return false;
  }
  route_ = admission.route;
  return true;
}

// A refusal costs the connection only if there is a body to come.
void TcpConnection::on_refusable(const HttpResponse& response) {
  const bool whole = reader_.next() == RequestReader::Event::kDone;
  refuse(response, {.keep_alive = whole && keep_alive_});
}

void TcpConnection::begin_answer(bool keep_alive) {
  ++server_.counters.requests;
  ++server_.counters.running;
  state_ = State::kAnswer;
  answer_bytes_ = 0;
  probe_interval_ = kProbe;
  cut_at_.reset();
  last_progress_ = answer_started_;
  method_ = request_.method;
  path_ = request_.path;
  id_ = request_.id;
  client_ = request_.client;
  AnswerTerms terms;
  terms.path = path_;
  terms.http10 = http10_;
  terms.head = method_ == "HEAD";
  terms.keep_alive = keep_alive && !server_.draining;
  terms.write_buffer = options_.write_buffer;
  terms.headers = server_.gate.cors().answer_headers(request_);
  terms.headers.emplace_back("X-Request-Id", id_);
  answer_ = std::make_shared<Answer>(std::move(terms), [weak = weak_from_this(), &context = loop_.context()] {
    asio::post(context, [weak] {
      if (const auto self = weak.lock()) self->flush();
    });
  });
}

void TcpConnection::refuse(const HttpResponse& response, RefusalTerms terms) {
  if (request_.id.empty()) {  // there was no readable head
    request_.id = choose_request_id({});
    answer_started_ = Clock::now();
    http10_ = false;
  }
  handled_ = false;
  discarding_ = !terms.keep_alive;
  begin_answer(terms.keep_alive);
  if (terms.keep_alive) reader_.begin();
  answer_->respond(response);
  request_ = {};
  flush();
}

void TcpConnection::dispatch() {
  request_.body = reader_.take_body();
  reader_.begin();
  if (!lease_.grow_to(request_.body.size())) {
    return refuse(unavailable_answer(request_.path, "the server holds too many request bodies"),
                  {.keep_alive = keep_alive_});
  }
  handled_ = true;
  begin_answer(keep_alive_);
  pause_if_full();
  auto exchange = std::make_shared<HttpExchange>(std::move(request_), std::move(lease_), answer_);
  request_ = {};
  lease_ = {};
  exchange_ = exchange;
  try {
    route_->handler(std::move(exchange));
  } catch (const std::exception& error) {
    server_.problem(std::string("handler of ") + route_->path + ": " + error.what());
    answer_->abandon();
  }
  flush();
}

void TcpConnection::log(int status) {
  --server_.counters.running;
  if (server_.draining) server_.changed();
  if (!options_.access_log) return;
  options_.access_log({.id = id_,
                       .method = method_,
                       .path = path_,
                       .client = client_,
                       .handled = handled_,
                       .status = status,
                       .bytes = answer_bytes_,
                       .seconds = std::chrono::duration<double>(Clock::now() - answer_started_).count()});
}

// Everything of the answer is with the kernel.
void TcpConnection::finished(const Answer::Progress& progress) {
  const bool slow = progress.end == AnswerEnd::kSlow;
  if (slow) ++server_.counters.slow_readers;
  log(slow ? 499 : answer_->status());
  answer_->detach();
  answer_.reset();
  const bool keep = progress.end == AnswerEnd::kComplete && progress.keep_alive && !server_.draining;
  if (!keep) return linger();
  state_ = State::kIdle;
  deadline_ = Clock::now() + options_.idle_timeout;
  if (reader_.unread() == 0) return next_request();
  // By way of the loop: a long row of pipelined requests would otherwise be as many nested calls.
  asio::post(loop_.context(), [self = shared_from_this()] {
    if (self->state_ == State::kIdle) self->next_request();
  });
}

void TcpConnection::next_request() {
  read_paused_ = false;
  try {
    advance();
  } catch (const std::exception& error) {
    server_.problem(std::string("reading a request: ") + error.what());
    return hard_leave();
  }
  arm_read();
}

// ---------------------------------------------------------------- writing

void TcpConnection::flush() {
  if (answer_ == nullptr) return;
  answer_->run_closers();  // also while the client takes nothing: that may be why it ended
  if (writing_) return;
  for (std::size_t turn = 0; turn < kSendTurn;) {
    if (sent_ == sending_.size()) {
      sending_.clear();
      sent_ = 0;
      if (sending_.capacity() > kKeptCapacity) sending_ = {};
      const Answer::Progress progress = answer_->take(sending_);
      if (progress.end != AnswerEnd::kRunning) answer_->run_closers();
      if (sending_.empty()) {
        if (progress.end != AnswerEnd::kRunning) finished(progress);
        return;
      }
    }
    SystemError error;
    ++server_.counters.sends;
    const std::size_t n =
        socket_.write_some(asio::buffer(sending_.data() + sent_, sending_.size() - sent_), error);
    if (error == asio::error::would_block) {
      writing_ = true;
      socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const SystemError& failed) {
        self->writing_ = false;
        if (!failed) self->flush();
      });
      return;
    }
    if (error) return lost();
    sent_ += n;
    turn += n;
    answer_bytes_ += n;
    server_.counters.bytes_sent += n;
    last_progress_ = Clock::now();
    answer_->sent(n);
  }
  writing_ = true;
  asio::post(loop_.context(), [self = shared_from_this()] {
    self->writing_ = false;
    self->flush();
  });
}

// Nothing else is being sent before the answer, so the kernel has room for these few bytes.
void TcpConnection::send_continue() {
  constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  reader_.head().wants_continue = false;
  if (reader_.body_bytes() != 0) return;  // it did not wait
  SystemError error;
  if (socket_.write_some(asio::buffer(kContinue.data(), kContinue.size()), error) != kContinue.size()) lost();
}

// ---------------------------------------------------------------- time

void TcpConnection::tick(Clock::time_point now) {
  const auto self = shared_from_this();
  switch (state_) {
    case State::kIdle:
    case State::kHead:
    case State::kBody:
      if (now < deadline_) return;
      ++server_.counters.timeouts;
      if (state_ == State::kIdle) return leave();
      return refuse(http_error(408, request_.path,
                               state_ == State::kHead ? "the request's head did not arrive in time"
                                                      : "the request's body did not arrive in time"),
                    {.keep_alive = false});
    case State::kLinger:
      if (now >= deadline_) leave();
      return;
    case State::kClosed:
      return;
    case State::kAnswer:
      break;
  }
  const bool ended = answer_->ended();
  if (ended && writing_ && now - last_progress_ >= options_.write_timeout) {
    return hard_leave();
  }
  if (ended) return;
  if (cut_at_ && now >= *cut_at_) {
    answer_->cut();
    return flush();
  }
  if (input_ended_ || read_paused_) {
    probe_client(now);
    if (state_ != State::kAnswer || answer_ == nullptr) return;
  }
  if (options_.ping_interval.count() > 0 && now - last_progress_ >= options_.ping_interval) {
    answer_->ping();
    last_progress_ = now;
    flush();
  }
}

// Reading tells nothing any more: the client has shut its sending side, or closed its socket, which looks the same;
// or it has sent so much ahead that the end would be far behind. Only a closed socket answers bytes with a reset.
void TcpConnection::probe_client(Clock::time_point now) {
  pollfd poll_fd{.fd = socket_.native_handle(), .events = 0, .revents = 0};
  if (::poll(&poll_fd, 1, 0) > 0) return lost();
  const bool streaming = answer_->status() != 0;
  if (streaming) next_probe_ = std::min(next_probe_, now + kProbe);
  if (now < next_probe_ || !answer_->probe()) return;
  next_probe_ = now + probe_interval_;
  if (!streaming) probe_interval_ *= 2;  // there are only nine characters
  flush();
}

bool TcpConnection::cut() {
  if (state_ != State::kAnswer) {
    leave();
    return false;
  }
  answer_->close_after();
  if (answer_->ended()) return false;
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  if (!options_.cut || exchange == nullptr) {
    answer_->cut();
    flush();
    return true;
  }
  cut_at_ = Clock::now() + options_.cut_grace;
  try {
    options_.cut(exchange);
  } catch (const std::exception& error) {
    server_.problem(std::string("ending an answer: ") + error.what());
    answer_->cut();
  }
  flush();
  return true;
}

// ---------------------------------------------------------------- ending

void TcpConnection::lost() {
  if (answer_ != nullptr) {
    ++server_.counters.disconnects;
    answer_->client_gone();
    drop_answer(499);
  }
  leave();
}

void TcpConnection::close() {
  if (answer_ != nullptr) {
    answer_->cut();
    flush();  // what the kernel takes at once
  }
  if (answer_ != nullptr) drop_answer(answer_->status());
  leave();
}

// Its bytes did not all get through.
void TcpConnection::drop_answer(int status) {
  const std::shared_ptr<Answer> answer = std::exchange(answer_, nullptr);
  answer->run_closers();
  answer->detach();
  log(status);
}

// Closing while the client still sends makes its kernel throw away our last words; so the rest is read first.
void TcpConnection::linger() {
  const bool client_closes = !discarding_ && !keep_alive_ && reader_.unread() == 0;
  if (input_ended_ || client_closes) return leave();
  SystemError ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  state_ = State::kLinger;
  read_paused_ = false;
  linger_end_ = Clock::now() + kLongestLinger;
  deadline_ = Clock::now() + options_.linger_timeout;
  arm_read();
}

void TcpConnection::leave() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  const auto self = shared_from_this();
  SystemError ignored;
  socket_.close(ignored);
  lease_ = {};
  loop_.remove(*this);
}

// With a reset: what the kernel still holds is not waited for.
void TcpConnection::hard_leave() {
  SystemError ignored;
  if (socket_.is_open()) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  lost();
}

}  // namespace

std::shared_ptr<Connection> make_connection(IoLoop& loop, ServerContext& server, UniqueFd socket) {
  return std::make_shared<TcpConnection>(loop, server, std::move(socket));
}

}  // namespace mimo::http
