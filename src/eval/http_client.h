// A blocking HTTP/1.1 client for one connection that is kept alive: what a load or evaluation client needs,
// with limits on everything a server could do to it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/http_url.h"
#include "core/result.h"

namespace mimo {

struct HttpReply {
  unsigned status = 0;
  std::string body;
};

struct HttpOptions {
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::milliseconds request_timeout{600'000};  // from the first byte sent to the last received
  std::uint64_t max_body = 256u << 20;                 // bytes of an answer
};

// Use one a thread.
class HttpClient {
 public:
  HttpClient(HttpUrl url, const HttpOptions& options);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  using Headers = std::map<std::string, std::string>;

  // `path` is appended to the URL's path. Connects when there is no connection; a kept one that the server
  // has closed meanwhile is replaced once, and the request sent again. Any status is a response; errors are of
  // the transport and name the server.
  Result<HttpReply> get(const std::string& path, const Headers& headers);
  Result<HttpReply> post(const std::string& path, const Headers& headers, std::string body);

 private:
  struct Connection;

  std::unique_ptr<Connection> connection_;
};

}  // namespace mimo
