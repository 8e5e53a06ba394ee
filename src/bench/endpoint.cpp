#include "bench/endpoint.h"

#include "core/check.h"

namespace mimo {

const char* endpoint_path(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kCompletions:
      return "/v1/completions";
    case Endpoint::kChat:
      return "/v1/chat/completions";
    case Endpoint::kMessages:
      return "/v1/messages";
  }
  return "";
}

std::string request_body(const RequestStyle& style, const LoadPrompt& prompt) {
  MIMO_CHECK(prompt.ids.empty() || style.endpoint == Endpoint::kCompletions, "ids go to completions only");
  json::object body;
  body["model"] = style.model;
  body["max_tokens"] = prompt.output_tokens;
  body["temperature"] = style.temperature;
  body["stream"] = style.stream;
  if (style.ignore_eos) body["ignore_eos"] = true;
  if (style.return_token_ids) body["return_token_ids"] = true;
  if (style.stream && style.endpoint != Endpoint::kMessages) {
    // Without a running count nobody knows how many tokens an event carries.
    body["stream_options"] = json::object{{"include_usage", true}, {"continuous_usage_stats", true}};
  }
  if (style.endpoint == Endpoint::kCompletions) {
    if (prompt.ids.empty()) {
      body["prompt"] = prompt.text;
    } else {
      json::array ids;
      ids.reserve(prompt.ids.size());
      for (const std::int32_t id : prompt.ids) ids.emplace_back(id);
      body["prompt"] = std::move(ids);
    }
  } else if (!prompt.messages.empty()) {
    body["messages"] = prompt.messages;
  } else {
    body["messages"] = json::array{json::object{{"role", "user"}, {"content", prompt.text}}};
  }
  for (const auto& [key, value] : style.extra) body[key] = value;
  return json::serialize(body);
}

}  // namespace mimo
