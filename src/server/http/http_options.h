// What the HTTP server is told, and what it tells about itself.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/exchange.h"

namespace mimo {

enum class Access {
  kKey,   // an API key is needed if the server has any
  kOpen,  // for everybody: health checks
};

struct HttpRoute {
  std::string method;  // "GET" serves HEAD as well
  // "/v1/models", or with one parameter at the end, "/v1/models/{id}", which takes the rest of the path, '/' included.
  std::string path;
  Handler handler;  // runs on an I/O thread: it must not block
  Access access = Access::kKey;
  bool always = false;  // also while HttpServerOptions::unavailable gives a reason, and while draining
};

// One finished request, for the access log. The views are valid during the call.
struct AccessRecord {
  std::string_view id;
  std::string_view method;  // empty: the request line could not be read
  std::string_view path;    // without the query
  std::string_view client;  // address
  bool handled = false;     // it reached the handler of its route
  int status = 0;           // 499: the client went away, or was cut off for not reading
  std::uint64_t bytes = 0;  // taken by the kernel, head and framing included
  double seconds = 0;       // from the end of the request's head to the end of the answer
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address, or a name that resolves to one
  std::uint16_t port = 8000;       // 0: any free one
  int threads = 2;                 // I/O threads; a connection stays on one

  std::size_t header_limit = 32u << 10;       // bytes of request line and headers: 431
  std::size_t body_limit = 64u << 20;         // bytes of one body: 413
  std::size_t bodies_limit = 1024u << 20;     // bytes of all bodies held by requests in progress: 503
  std::size_t max_connections = 4096;         // 503 beyond
  std::size_t write_buffer = 1u << 20;        // bytes of a stream waiting for its client; see Exchange::write
  std::size_t body_bytes_per_second = 16384;  // slower uploads get 408 when body_timeout is used up

  std::chrono::milliseconds header_timeout{
      10'000};                                      // from the first byte of a request to the end of its head
  std::chrono::milliseconds idle_timeout{75'000};   // between requests
  std::chrono::milliseconds body_timeout{30'000};   // plus one second per body_bytes_per_second received
  std::chrono::milliseconds write_timeout{30'000};  // without progress, once nothing more is to come
  std::chrono::milliseconds linger_timeout{2'000};  // reading what an already refused client still sends
  std::chrono::milliseconds ping_interval{15'000};  // of silence on an event stream; 0: no pings
  std::chrono::milliseconds cut_grace{1'000};       // for answers to end themselves after `cut`

  std::vector<std::string> api_keys;      // none: every route is open
  std::vector<std::string> cors_origins;  // "*" or "https://host[:port]"; none: CORS is off

  // While draining new connections are still answered, with 503: load balancers and clients learn more from that
  // than from a refused connection. False: the port closes at once.
  bool accept_while_draining = true;

  // All hooks run on I/O threads, several at a time, and must not block.
  std::function<std::string()> unavailable;  // why requests get 503 ("model is loading"); empty: they do not
  std::function<void(const AccessRecord&)> access_log;
  std::function<void(std::string_view)>
      problem;  // one line for the operator: accept errors, handlers that throw
  // The time of drain() is over: end this answer, at best with an error event, within cut_grace.
  std::function<void(const std::shared_ptr<Exchange>&)> cut;
};

struct HttpStats {
  std::uint64_t connections = 0;   // now open
  std::uint64_t running = 0;       // requests being answered now
  std::uint64_t accepted = 0;      // the rest: since the start
  std::uint64_t over_limit = 0;    // connections refused for max_connections
  std::uint64_t requests = 0;      // answers begun, refusals included
  std::uint64_t disconnects = 0;   // clients gone before their answer was complete
  std::uint64_t slow_readers = 0;  // clients cut off for not reading
  std::uint64_t timeouts = 0;      // 408, and connections closed for silence
  std::uint64_t sends = 0;         // system calls that wrote
  std::uint64_t bytes_sent = 0;
};

}  // namespace mimo
