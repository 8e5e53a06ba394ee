// `mimo serve` of this same program in a process of its own, for as long as a chat lasts. What answers here is then
// what answers over the network, and Ctrl-C does not reach it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/result.h"

namespace mimo {

class LocalServer {
 public:
  // Returns when the model is loaded. `directory` empty: the bundled model. kCancelled when `stop`, which is asked many
  // times a second, says so; else the error has the server's words.
  static Result<std::unique_ptr<LocalServer>> start(const std::string& directory,
                                                    const std::function<bool()>& stop);
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;
  ~LocalServer();  // ends it

  const std::string& url() const { return url_; }
  const std::string& api_key() const { return api_key_; }  // nobody else on the machine has it

 private:
  struct Log;

  LocalServer();
  Status spawn(const std::string& directory);
  Status wait_until_ready(const std::function<bool()>& stop);

  int process_ = -1;
  std::string url_;
  std::string api_key_;
  std::unique_ptr<Log> log_;
};

}  // namespace mimo
