// Bodies that describe the server and its model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_context.h"
#include "api/api_request.h"
#include "core/json.h"

namespace mimo {

struct ModelCard {
  std::int64_t created = 0;  // seconds since 1970
  std::string root;          // the checkpoint's directory or name, as shown to clients
  std::int64_t max_model_len = 0;
};

// GET /v1/models: every served name.
std::string models_body(const ServedModels& models, const ModelCard& card);
// GET /v1/models/{id}; the id may hold '/'. None: not served.
std::optional<std::string> model_body(const ServedModels& models, const ModelCard& card, std::string_view id);

// POST /tokenize. `token_strs` only where they were asked for.
struct TokenizeAnswer {
  TokenIds tokens;
  std::optional<std::vector<std::string>> token_strs;
  std::int64_t max_model_len = 0;
};
std::string tokenize_body(const TokenizeAnswer& answer);

// POST /detokenize: under `prompt`, and under llama.cpp's name `content`.
std::string detokenize_body(std::string_view text);

// POST /v1/messages/count_tokens
std::string count_tokens_body(std::int64_t input_tokens);

// GET /get_model_info
struct ModelInfo {
  std::string model_path;
  std::string tokenizer_path;
  std::int64_t max_model_len = 0;
  std::int64_t vocab = 0;
};
std::string model_info_body(const ModelInfo& info);

// GET /server_info
struct ServerInfo {
  std::string version;
  std::vector<std::string> models;
  ModelInfo model;
  json::object arguments;  // flags as resolved; nothing secret
  json::object state;      // counters of the engine
};
std::string server_info_body(const ServerInfo& info);

}  // namespace mimo
