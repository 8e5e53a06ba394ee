// A server to parse requests for, and short ways to make bodies.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "api/parse_requests.h"
#include "text/unicode_utf8.h"

namespace mimo {

inline constexpr int kVocab = 1000;

inline ApiContext test_context() {
  ApiContext context;
  context.models.names = {"mimo", "xiaomi/mimo-nano"};
  context.vocab = kVocab;
  context.default_params.top_p = 0.95;
  context.effort_budgets = {.low = 512, .medium = 2048, .high = 8192};
  return context;
}

// `members` without braces: "\"n\":2,\"stream\":true".
inline std::string chat_body(std::string_view members = {}) {
  return std::string(R"({"messages":[{"role":"user","content":"Hi"}])") + (members.empty() ? "" : ",") +
         std::string(members) + "}";
}
inline std::string completion_body(std::string_view members = {}) {
  return std::string(R"({"prompt":"Hi")") + (members.empty() ? "" : ",") + std::string(members) + "}";
}
inline std::string messages_body(std::string_view members = {}) {
  return std::string(R"({"max_tokens":16,"messages":[{"role":"user","content":"Hi"}])") +
         (members.empty() ? "" : ",") + std::string(members) + "}";
}

inline ApiResult<ApiRequest> parse(ApiRoute route, std::string_view body,
                                   const ApiContext& context = test_context()) {
  switch (route) {
    case ApiRoute::kChat:
      return parse_chat_request(body, context);
    case ApiRoute::kCompletion:
      return parse_completion_request(body, context);
    case ApiRoute::kMessages:
      break;
  }
  return parse_messages_request(body, context);
}

inline std::string body_for(ApiRoute route, std::string_view members) {
  switch (route) {
    case ApiRoute::kChat:
      return chat_body(members);
    case ApiRoute::kCompletion:
      return completion_body(members);
    case ApiRoute::kMessages:
      break;
  }
  return messages_body(members);
}

inline ApiRequest accepted(ApiRoute route, std::string_view body,
                           const ApiContext& context = test_context()) {
  ApiResult<ApiRequest> request = parse(route, body, context);
  EXPECT_TRUE(request) << body << "\n" << request.error().message;
  return request ? std::move(*request) : ApiRequest();
}
inline ApiRequest chat(std::string_view members) { return accepted(ApiRoute::kChat, chat_body(members)); }
inline ApiRequest completion(std::string_view members) {
  return accepted(ApiRoute::kCompletion, completion_body(members));
}
inline ApiRequest messages(std::string_view members) {
  return accepted(ApiRoute::kMessages, messages_body(members));
}

// What must hold of every error, whatever the request.
inline void check_error(const ApiError& error) {
  EXPECT_GE(error.status, 400) << error.message;
  EXPECT_LT(error.status, 500) << error.message;
  EXPECT_FALSE(error.message.empty());
  EXPECT_LT(error.message.size(), 1100u);
  EXPECT_TRUE(utf8_valid(error.message));
  EXPECT_FALSE(error.type.empty());
  for (const std::string& body : {openai_error_body(error), anthropic_error_body(error)}) {
    EXPECT_TRUE(parse_json(body, "error")) << body;
  }
}

// The error of a body that must be refused.
inline ApiError refused(ApiRoute route, std::string_view body, const ApiContext& context = test_context()) {
  const ApiResult<ApiRequest> request = parse(route, body, context);
  EXPECT_FALSE(request) << body.substr(0, 400);
  if (request) return {};
  check_error(request.error());
  return request.error();
}

}  // namespace mimo
