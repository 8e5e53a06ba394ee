// Bytes of a connection into requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/exchange.h"

namespace mimo::http {

// One at a time: append() what arrives, and next() until it needs more; begin() after the answer.
class RequestReader {
 public:
  struct Limits {
    std::size_t header = 32u << 10;
    std::size_t body = 64u << 20;
  };

  enum class Event {
    kNeedMore,
    kHead,   // head() is valid, until begin(); once
    kDone,   // take_body() is valid
    kError,  // failure() is valid; nothing more can be read from this connection. After kHead: head() is valid
  };

  struct Head {
    std::string method;
    std::string target;
    HttpHeaders headers;  // names in lower case
    bool http10 = false;
    bool keep_alive = true;
    bool wants_continue = false;  // Expect: 100-continue
  };

  struct Failure {
    int status = 400;
    std::string message;
  };

  explicit RequestReader(const Limits& limits);
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;
  ~RequestReader();

  void append(std::string_view bytes);
  Event next();
  void begin();

  Head& head();
  std::string take_body();
  const Failure& failure() const { return failure_; }

  bool started() const;  // bytes of the current request have arrived
  bool in_body() const;  // its head is complete
  std::size_t body_bytes() const;
  std::size_t unread() const;  // appended and not parsed

 private:
  struct Parser;

  Event fail_with(int status, std::string message);
  Event read_head();
  Event read_body();

  const Limits limits_;
  std::string input_;  // from read_ on: not parsed
  std::size_t read_ = 0;
  std::unique_ptr<Parser> parser_;  // only while a request is being read: idle connections stay small
  Failure failure_;
};

}  // namespace mimo::http
