// The server that is measured, and what prompts for it are made with.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bench/endpoint.h"
#include "bench/load_client.h"
#include "bench/prompt_maker.h"
#include "core/json.h"
#include "core/result.h"
#include "text/tokenizer.h"

namespace mimo {

struct TargetOptions {
  std::string url = {};  // http://HOST[:PORT][/v1]
  std::string api_key = {};
  std::string model = {};           // empty: the first that the server lists
  std::string tokenizer_file = {};  // tokenizer.json; empty: no prompts are made
  double request_seconds = 600;
};

struct LoadTarget {
  std::unique_ptr<LoadClient> client;
  std::string model;
  std::unique_ptr<Tokenizer> tokenizer;  // may be null
  std::optional<PromptMaker> maker;
  json::value server;              // what it says of itself; null: nothing
  std::int64_t max_model_len = 0;  // 0: not known
  std::int64_t pool_tokens = 0;    // KV tokens; 0: not known
};

// Reaches the server; an error names what is wrong.
Result<LoadTarget> open_target(const TargetOptions& options);

// Tokens that the server's chat template adds to a text, asked with one request of one output token; 0 for
// completions.
Result<std::int64_t> template_overhead(LoadTarget& target, const RequestStyle& style);

// kUnavailable: the server has no such route, or requests run.
Status flush_cache(LoadClient& client);

}  // namespace mimo
