// Asks an OpenAI-compatible server.
#pragma once

#include <memory>
#include <string>

#include "eval/http_client.h"
#include "eval/runner.h"

namespace mimo {

struct UrlRunnerOptions {
  std::string model;    // as the server calls it; empty: the first of its /v1/models
  std::string api_key;  // empty: none is sent
  HttpOptions http;
};

// `url` with or without a final /v1. Conversations go to /v1/chat/completions, texts to /v1/completions, not
// streamed; `concurrency` connections, each kept alive. Fails when the server cannot be reached.
Result<std::unique_ptr<Runner>> make_url_runner(const std::string& url, const UrlRunnerOptions& options);

// The body of a request and the reading of a 200 answer, apart from any connection. `what` names the server
// in messages.
json::object chat_request(const Problem& problem, const RunSettings& settings, const std::string& model);
Result<Answer> read_chat_answer(std::string_view body, const Problem& problem, std::string_view what);

}  // namespace mimo
