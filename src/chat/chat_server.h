// The server that a chat talks to: ours, or another that speaks OpenAI's chat API over HTTP.
#pragma once

#include <functional>
#include <string>

#include "core/http_url.h"
#include "core/json.h"
#include "core/result.h"

namespace mimo {

class ChatServer {
 public:
  // `url`: with or without the final "/v1".
  ChatServer(HttpUrl url, std::string api_key);

  // Asked many times a second while something is awaited; true ends it with kCancelled.
  using Stop = std::function<bool()>;

  // The first name that the server offers. Errors have the server's own words where it has any.
  Result<std::string> model(const Stop& stop) const;

  // Sends `request` to /chat/completions and hands on the chunks of the stream, to its end.
  Status stream(const json::object& request, const Stop& stop,
                const std::function<Status(const json::value& chunk)>& chunk) const;

 private:
  HttpUrl url_;
  std::string api_key_;
};

}  // namespace mimo
