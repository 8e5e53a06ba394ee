// An HTTP/1.1 client for load: one thread, as many connections as there are requests in flight, each kept alive.
// Everything happens in run(), callbacks included.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "bench/endpoint.h"
#include "bench/sent_request.h"
#include "core/http_url.h"
#include "core/result.h"

namespace mimo {

struct LoadClientOptions {
  HttpUrl url;
  std::string api_key = {};
  double connect_seconds = 10;
  double request_seconds = 600;  // from the first byte sent to the last received; longer is a failure
};

// What run() cost this process.
struct ClientCost {
  double cpu_seconds = 0;  // of the thread
  double wall_seconds = 0;
  std::int64_t events = 0;  // with text
};

struct RawAnswer {
  unsigned status = 0;
  std::string body;
};

class LoadClient {
 public:
  // Looks the host up. Sends nothing.
  static Result<std::unique_ptr<LoadClient>> make(const LoadClientOptions& options);

  LoadClient(const LoadClient&) = delete;
  LoadClient& operator=(const LoadClient&) = delete;
  ~LoadClient();

  // Seconds since the client was made.
  double now() const;

  // Opens connections ahead, so that no request waits for one; those that fail are tried again when needed.
  void open(int connections);

  using Done = std::function<void(SentRequest)>;
  // Sends now. `record` has what is known before; errors of any kind are in the one that `done` gets.
  void send(Endpoint endpoint, bool stream, const std::string& body, SentRequest record, Done done);

  void at(double time, std::function<void()> call);

  // Until nothing is under way.
  void run();
  // Since the last call.
  ClientCost take_cost();

  // One exchange, to its end; not while run() runs. An empty method is a bug.
  Result<RawAnswer> ask(const std::string& method, const std::string& path, const std::string& body = {});

 private:
  struct Loop;
  struct Job;
  class Connection;

  explicit LoadClient(std::unique_ptr<Loop> loop);

  std::unique_ptr<Loop> loop_;
};

}  // namespace mimo
