// What the dialects have to know of the server: set once at start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampling_params.h"

namespace mimo {

// Names under which the model is served.
struct ServedModels {
  std::vector<std::string> names;  // the first one is the default and is echoed
  bool accept_any = false;

  bool serves(std::string_view name) const {
    if (accept_any) return true;
    for (const std::string& served : names) {
      if (served == name) return true;
    }
    return false;
  }
};

// Bounds on what one request may hold, each far above what real clients send.
struct ApiLimits {
  std::size_t max_body_bytes = std::size_t{64} << 20;  // base64 media are the large ones
  std::size_t max_depth = 128;                         // of the JSON; schemas nest deepest
  std::size_t max_messages = 8192;
  std::size_t max_parts = 4096;       // of one message
  std::size_t max_tools = 128;        // of the request, and of one message; each costs prompt tokens
  std::size_t max_tool_calls = 1024;  // of one message
  std::int64_t max_n = 128;
  std::size_t max_choices = 1024;           // prompts x n of one request
  std::size_t max_schema_bytes = 1u << 20;  // of a schema, regex, grammar or list of choices
};

// Tokens of reasoning for the efforts a client can name; none: no limit.
struct EffortBudgets {
  std::optional<std::int64_t> low;  // "minimal" too
  std::optional<std::int64_t> medium;
  std::optional<std::int64_t> high;  // "xhigh" and "max" have no limit
};

struct ApiContext {
  ServedModels models;
  int vocab = 0;                        // of the tokenizer: token ids of clients are below
  SamplingParams default_params;        // from the checkpoint's generation_config
  std::optional<bool> enable_thinking;  // none: the chat template decides
  EffortBudgets effort_budgets;
  bool priorities = false;           // the field priority counts; else only 0 is taken
  bool keep_billing_header = false;  // Anthropic clients: see messages_request.cpp
  ApiLimits limits;
};

}  // namespace mimo
