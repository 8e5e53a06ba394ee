// One HTTP request and its answer, as handlers see them. The listener implements it; tests have their own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mimo {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // upper case
  std::string path;     // percent-decoded, without the query; "/v1/models"
  std::string query;    // as sent, without '?'
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string id;      // X-Request-Id of the client if it is harmless, else a random one
  std::string client;  // address of the other end; empty: not known

  // The first header of this (lower-case) name; empty: none.
  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;  // besides Content-Type, Content-Length, X-Request-Id, CORS
};

// All methods may be called from any thread. An answer is either one respond(), or start_stream(), any number of
// write(), and finish(). What is called after the end, or after the client has gone, does nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const HttpRequest& request() const = 0;

  virtual void respond(HttpResponse response) = 0;

  virtual void start_stream(int status, std::string content_type, HttpHeaders headers) = 0;
  // Queues bytes for the client. False: it is gone, or so slow that its buffer is full; in that case the
  // connection is closed at the last whole write.
  virtual bool write(std::string bytes) = 0;
  virtual void finish() = 0;

  // `gone` is called once, from the listener's thread, if the client goes away or is cut off before the answer
  // is complete; at once if that has happened already.
  virtual void on_close(std::function<void()> gone) = 0;
};

using Handler = std::function<void(std::shared_ptr<Exchange>)>;

}  // namespace mimo
