#include "bench/load_client.h"

#include <sys/resource.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "bench/answer_reader.h"
#include "bench/sse_reader.h"
#include "core/check.h"

namespace mimo {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kMaxHeader = 64u << 10;
// Of a body that is no stream.
constexpr std::size_t kMaxBody = 256u << 20;
// Read at a time: events are small, and each connection has its own.
constexpr std::size_t kReadSize = 16u << 10;
constexpr std::size_t kShownBody = 400;

Clock::duration duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

double thread_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Of a body in an error message.
std::string excerpt(std::string_view body) {
  if (body.empty()) return "empty body";
  std::string shown(body.substr(0, kShownBody));
  for (char& c : shown) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7F) c = byte < 0x20 ? ' ' : '?';
  }
  return shown;
}

}  // namespace

// One request: for load a record is read from its answer; otherwise the answer is kept as it is.
struct LoadClient::Job {
  http::request<http::string_body> request;
  Endpoint endpoint = Endpoint::kCompletions;
  bool stream = false;
  SentRequest record;
  Done done;
  std::function<void(Result<RawAnswer>)> raw;  // instead of `done`
  bool again = false;                          // on a second connection: the kept one had been closed
};

struct LoadClient::Loop {
  LoadClientOptions options;
  Clock::time_point start = Clock::now();
  asio::io_context context{1};
  tcp::resolver::results_type addresses;
  std::vector<std::shared_ptr<Connection>> idle;
  ClientCost cost;

  double now() const { return std::chrono::duration<double>(Clock::now() - start).count(); }
  http::request<http::string_body> request(http::verb method, const std::string& path,
                                           std::string body) const;
  void start_job(std::unique_ptr<Job> job);
};

class LoadClient::Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(Loop& loop) : loop_(loop), stream_(loop.context) {}

  // Connects without a request and then waits for one.
  void warm() {
    connect([self = shared_from_this()](const beast::error_code& error) {
      if (error) return;
      self->kept_ = true;
      self->loop_.idle.push_back(self);
    });
  }

  void take(std::unique_ptr<Job> job) {
    job_ = std::move(job);
    if (connected_) return write();
    connect([self = shared_from_this()](const beast::error_code& error) {
      if (error) return self->fail_with("cannot connect", error, self->loop_.options.connect_seconds);
      self->write();
    });
  }

 private:
  template <class Then>
  void connect(Then then) {
    stream_.expires_after(duration(loop_.options.connect_seconds));
    stream_.async_connect(loop_.addresses, [self = shared_from_this(), then](const beast::error_code& error,
                                                                             const tcp::endpoint& /*peer*/) {
      if (!error) {
        beast::error_code ignored;
        self->stream_.socket().set_option(tcp::no_delay(true), ignored);
        self->stream_.expires_never();
        self->connected_ = true;
      }
      then(error);
    });
  }

  void write() {
    parser_.emplace();
    parser_->header_limit(kMaxHeader);
    parser_->body_limit(boost::none);
    whole_.clear();
    sse_ = SseReader();
    reader_.emplace(job_->endpoint, job_->record);
    stream_.expires_after(duration(loop_.options.request_seconds));
    job_->record.t0 = loop_.now();
    http::async_write(stream_, job_->request,
                      [self = shared_from_this()](const beast::error_code& error, std::size_t /*bytes*/) {
                        if (error) return self->lost(error);
                        self->read_head();
                      });
  }

  void read_head() {
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](const beast::error_code& error, std::size_t /*bytes*/) {
          if (error) return self->lost(error);
          self->check_head();
        });
  }

  void check_head() {
    const auto& head = parser_->get();
    streaming_ = job_->done && job_->stream && head.result_int() == 200;
    if (streaming_ && !std::string_view(head[http::field::content_type]).starts_with("text/event-stream")) {
      return fail_with("a stream was asked for, the answer has Content-Type " +
                       std::string(head[http::field::content_type]));
    }
    read_body();
  }

  void read_body() {
    if (parser_->is_done()) return finish();
    parser_->get().body().data = chunk_.data();
    parser_->get().body().size = chunk_.size();
    http::async_read_some(stream_, buffer_, *parser_,
                          [self = shared_from_this()](beast::error_code error, std::size_t /*bytes*/) {
                            if (error == http::error::need_buffer) error = {};
                            if (error) {
                              return self->fail_with("the answer broke off", error,
                                                     self->loop_.options.request_seconds);
                            }
                            self->received();
                          });
  }

  void received() {
    const std::string_view bytes(chunk_.data(), chunk_.size() - parser_->get().body().size);
    const double at = loop_.now();
    if (streaming_) {
      const Status fed = sse_.feed(bytes, [&](const SseEvent& event) { return reader_->event(event, at); });
      if (!fed) return fail_with(fed.error().message);
    } else {
      whole_ += bytes;
      if (whole_.size() > kMaxBody) return fail_with("the answer is too long");
      arrived_ = at;
    }
    read_body();
  }

  void finish() {
    const unsigned status = parser_->get().result_int();
    const bool keep = parser_->keep_alive();
    Status read;
    if (!job_->done) {
      // As it is.
    } else if (status != 200) {
      read = fail(ErrorCode::kInternal, "status {}: {}", status, excerpt(whole_));
    } else if (streaming_) {
      read = sse_.finish();
      if (read) read = reader_->finish();
    } else {
      read = reader_->body(whole_, arrived_);
    }
    std::unique_ptr<Job> job = std::move(job_);
    reader_.reset();
    if (keep) {
      kept_ = true;
      stream_.expires_never();
      loop_.idle.push_back(shared_from_this());
    } else {
      close();
    }
    if (job->raw) return job->raw(RawAnswer{status, std::move(whole_)});
    if (!read) job->record.error = read.error().message;
    deliver(std::move(job));
  }

  // Nothing of an answer has come. A server may close an idle connection at any time: the request then never
  // reached it, and goes out once more.
  void lost(const beast::error_code& error) {
    const bool stale = kept_ && !parser_->got_some() && error != beast::error::timeout && !job_->again;
    if (!stale) return fail_with("no answer", error, loop_.options.request_seconds);
    job_->again = true;
    close();
    std::make_shared<Connection>(loop_)->take(std::move(job_));
  }

  void fail_with(std::string_view what, const beast::error_code& error, double limit) {
    if (error == beast::error::timeout) {
      fail_with(fmt::format("{} within {:g} s", what, limit));
    } else if (error == http::error::end_of_stream || error == http::error::partial_message) {
      fail_with(fmt::format("{}: the server closed the connection", what));
    } else {
      fail_with(fmt::format("{}: {}", what, error.message()));
    }
  }

  void fail_with(std::string message) {
    close();
    std::unique_ptr<Job> job = std::move(job_);
    reader_.reset();
    message = fmt::format("{}: {}", loop_.options.url.authority(), message);
    if (job->raw) return job->raw(tl::unexpected<Error>(Error{ErrorCode::kUnavailable, std::move(message)}));
    job->record.error = std::move(message);
    if (job->record.t0 == 0) job->record.t0 = loop_.now();
    job->record.t_end = loop_.now();
    deliver(std::move(job));
  }

  void deliver(std::unique_ptr<Job> job) const {
    loop_.cost.events += std::ssize(job->record.events);
    job->done(std::move(job->record));
  }

  void close() {
    beast::error_code ignored;
    stream_.socket().close(ignored);
    connected_ = false;
  }

  Loop& loop_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::array<char, kReadSize> chunk_{};
  std::optional<http::response_parser<http::buffer_body>> parser_;
  std::unique_ptr<Job> job_;
  std::optional<AnswerReader> reader_;  // into job_->record
  SseReader sse_;
  std::string whole_;
  double arrived_ = 0;
  bool streaming_ = false;
  bool connected_ = false;
  bool kept_ = false;  // since an earlier request
};

http::request<http::string_body> LoadClient::Loop::request(http::verb method, const std::string& path,
                                                           std::string body) const {
  http::request<http::string_body> message(method, options.url.path + path, 11);
  message.set(http::field::host, options.url.authority());
  message.set(http::field::user_agent, "mimo-bench");
  if (!options.api_key.empty()) message.set(http::field::authorization, "Bearer " + options.api_key);
  if (method == http::verb::post) {
    message.set(http::field::content_type, "application/json");
    message.body() = std::move(body);
    message.prepare_payload();
  }
  return message;
}

void LoadClient::Loop::start_job(std::unique_ptr<Job> job) {
  if (idle.empty()) return std::make_shared<Connection>(*this)->take(std::move(job));
  const std::shared_ptr<Connection> connection = std::move(idle.back());
  idle.pop_back();
  connection->take(std::move(job));
}

Result<std::unique_ptr<LoadClient>> LoadClient::make(const LoadClientOptions& options) {
  if (options.api_key.find_first_of("\r\n") != std::string::npos)
    return fail(ErrorCode::kInvalidArgument, "the API key holds a line break");
  auto loop = std::make_unique<Loop>();
  loop->options = options;
  tcp::resolver resolver(loop->context);
  beast::error_code error;
  loop->addresses = resolver.resolve(options.url.host, options.url.port, error);
  if (error) {
    return fail(ErrorCode::kNotFound, "{}: the host is not known ({})", options.url.authority(),
                error.message());
  }
  // A connection each: the usual soft limit of 1,024 files is too low for large loads.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  return std::unique_ptr<LoadClient>(
      new LoadClient(std::move(loop)));  // NOLINT(*-owning-memory): private constructor
}

LoadClient::LoadClient(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

LoadClient::~LoadClient() = default;

double LoadClient::now() const { return loop_->now(); }

void LoadClient::open(int connections) {
  for (auto have = static_cast<int>(loop_->idle.size()); have < connections; ++have)
    std::make_shared<Connection>(*loop_)->warm();
  run();
}

void LoadClient::send(Endpoint endpoint, bool stream, const std::string& body, SentRequest record,
                      Done done) {
  auto job = std::make_unique<Job>();
  job->request = loop_->request(http::verb::post, endpoint_path(endpoint), body);
  job->endpoint = endpoint;
  job->stream = stream;
  job->record = std::move(record);
  job->done = std::move(done);
  loop_->start_job(std::move(job));
}

void LoadClient::at(double time, std::function<void()> call) {
  auto timer = std::make_shared<asio::steady_timer>(loop_->context, loop_->start + duration(time));
  timer->async_wait([timer, call = std::move(call)](const beast::error_code& error) {
    if (!error) call();
  });
}

void LoadClient::run() {
  const double cpu = thread_cpu_seconds();
  const double begin = now();
  loop_->context.restart();
  loop_->context.run();
  loop_->cost.cpu_seconds += thread_cpu_seconds() - cpu;
  loop_->cost.wall_seconds += now() - begin;
}

ClientCost LoadClient::take_cost() { return std::exchange(loop_->cost, ClientCost()); }

Result<RawAnswer> LoadClient::ask(const std::string& method, const std::string& path,
                                  const std::string& body) {
  const http::verb verb = http::string_to_verb(method);
  MIMO_CHECK(verb != http::verb::unknown, "method {}", method);
  std::optional<Result<RawAnswer>> answer;
  auto job = std::make_unique<Job>();
  job->request = loop_->request(verb, path, body);
  job->raw = [&answer](Result<RawAnswer> got) { answer = std::move(got); };
  loop_->start_job(std::move(job));
  run();
  MIMO_CHECK(answer.has_value());
  return *std::move(answer);
}

}  // namespace mimo
