// What a load is sent to, and one prompt of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace mimo {

enum class Endpoint : std::uint8_t { kCompletions, kChat, kMessages };

// A prompt in one of three forms: ids, else messages, else text.
struct LoadPrompt {
  std::vector<std::int32_t> ids;  // completions only
  std::string text;
  json::array messages;              // chat and messages only
  std::int64_t prompt_tokens = 0;    // wanted; 0: not known
  std::int64_t output_tokens = 128;  // most
};

// How requests are written.
struct RequestStyle {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model = {};
  bool stream = true;
  bool ignore_eos = false;
  bool return_token_ids = false;
  double temperature = 0;
  json::object extra = {};  // further members of the body; they win
};

// "/v1/completions" and the like.
const char* endpoint_path(Endpoint endpoint);

// The JSON body. Ids on an endpoint that takes text only are a bug of the caller.
std::string request_body(const RequestStyle& style, const LoadPrompt& prompt);

}  // namespace mimo
