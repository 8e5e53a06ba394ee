// Bodies that are too large, too deep, or no JSON.
#include <gmock/gmock.h>

#include "api/api_fixture.h"

namespace mimo {
namespace {

using testing::HasSubstr;

constexpr ApiRoute kRoutes[] = {ApiRoute::kChat, ApiRoute::kCompletion, ApiRoute::kMessages};

std::string repeated(std::string_view item, int count, std::string_view separator = "") {
  std::string out;
  for (int i = 0; i < count; ++i) {
    if (i > 0) out += separator;
    out += item;
  }
  return out;
}

// Every parser, so that none is forgotten.
void refuse_everywhere(std::string_view body, int status) {
  for (const ApiRoute route : kRoutes) EXPECT_EQ(refused(route, body).status, status) << body.substr(0, 80);
  const ApiContext context = test_context();
  const auto tokenize = parse_tokenize_request(body, context);
  const auto detokenize = parse_detokenize_request(body, context);
  const auto count = parse_count_tokens_request(body, context);
  ASSERT_FALSE(tokenize);
  ASSERT_FALSE(detokenize);
  ASSERT_FALSE(count);
  for (const ApiError& error : {tokenize.error(), detokenize.error(), count.error()}) {
    EXPECT_EQ(error.status, status) << body.substr(0, 80);
    check_error(error);
  }
}

// C83: depth is bounded wherever the brackets stand.
TEST(RequestLimits, C83Depth) {
  for (const int depth : {200, 3000, 100000}) {
    const std::string nested = repeated("[", depth);
    refuse_everywhere(nested, 400);
    refuse_everywhere(nested + repeated("]", depth), 400);
    refuse_everywhere(repeated(R"({"a":)", depth), 400);
    for (const ApiRoute route : kRoutes) {
      for (const char* field : {"foo", "tools", "messages", "metadata"}) {
        const ApiError error =
            refused(route, fmt::format(R"({{"{}":{}{}}})", field, nested, repeated("]", depth)));
        EXPECT_EQ(error.status, 400);
        EXPECT_THAT(error.message, HasSubstr("line 1")) << field;
      }
    }
    // In an argument of history it is text.
    EXPECT_TRUE(parse_chat_request(
        fmt::format(
            R"({{"messages":[{{"role":"assistant","tool_calls":[{{"function":{{"name":"f","arguments":"{}"}}}}]}}]}})",
            nested),
        test_context()));
  }
  // Within the limit.
  EXPECT_EQ(chat("\"foo\":" + repeated("[", 100) + repeated("]", 100)).unknown_fields.size(), 1u);
}

TEST(RequestLimits, C83Numbers) {
  const std::string message = R"({"role":"user","content":"x"})";
  const auto of = [](const std::string& list) { return R"({"max_tokens":1,"messages":[)" + list + "]}"; };
  for (const ApiRoute route : {ApiRoute::kChat, ApiRoute::kMessages}) {
    accepted(route, of(repeated(message, 8192, ",")));
    EXPECT_THAT(refused(route, of(repeated(message, 10000, ","))).message, HasSubstr("at most 8192"));
    const std::string parts = repeated(R"({"type":"text","text":"x"})", 4097, ",");
    EXPECT_EQ(refused(route, of(R"({"role":"user","content":[)" + parts + "]}")).param.value_or("none"),
              "messages[0].content");
  }
  std::string tools;
  std::string anthropic_tools;
  for (int i = 0; i < 129; ++i) {
    tools += fmt::format(R"({}{{"type":"function","function":{{"name":"f{}"}}}})", i > 0 ? "," : "", i);
    anthropic_tools += fmt::format(R"({}{{"name":"f{}","input_schema":{{}}}})", i > 0 ? "," : "", i);
  }
  EXPECT_EQ(refused(ApiRoute::kChat, chat_body("\"tools\":[" + tools + "]")).param.value_or("none"), "tools");
  EXPECT_EQ(refused(ApiRoute::kMessages, messages_body("\"tools\":[" + anthropic_tools + "]"))
                .param.value_or("none"),
            "tools");
  const std::string stops = repeated("\"x\"", 10000, ",");
  EXPECT_EQ(refused(ApiRoute::kChat, chat_body("\"stop\":[" + stops + "]")).param.value_or("none"), "stop");
  EXPECT_EQ(refused(ApiRoute::kMessages, messages_body("\"stop_sequences\":[" + stops + "]"))
                .param.value_or("none"),
            "stop_sequences");
  const std::string calls = repeated(R"({"function":{"name":"f"}})", 1025, ",");
  EXPECT_EQ(refused(ApiRoute::kChat, of(R"({"role":"assistant","tool_calls":[)" + calls + "]}"))
                .param.value_or("none"),
            "messages[0].tool_calls");
  EXPECT_EQ(refused(ApiRoute::kChat, chat_body("\"stop_token_ids\":[" + repeated("1", 1025, ",") + "]"))
                .param.value_or("none"),
            "stop_token_ids");
  EXPECT_EQ(refused(ApiRoute::kChat, chat_body("\"stop\":\"" + std::string(4097, 'x') + "\""))
                .param.value_or("none"),
            "stop");
}

// C83: texts that are no JSON, or JSON that two readers would read differently.
TEST(RequestLimits, C83BrokenJson) {
  for (const std::string body : {
           "",
           " \n",
           "{",
           "}",
           "nonsense",
           "null",
           "5",
           "\"x\"",
           "[]",
           "{\"a\":NaN}",
           "{\"a\":Infinity}",
           "{\"a\":-Infinity}",
           "{\"a\":1e999}",
           "{\"a\":01}",
           "{\"a\":1}{}",
           "{\"a\":1,}",
           "{'a':1}",
           "{\"a\":1,\"a\":2}",
           "{\"a\":{\"b\":1,\"b\":2}}",
           "{\"a\":\"\\ud800\"}",
           "{\"a\":\"\\udc00\"}",
           "{\"a\":\"\\ud800x\"}",
           "{\"a\":\"\xff\"}",
           "{\"a\":\"\xc3\"}",
           "{\"a\":\"\xed\xa0\x80\"}",
           "{\"\xff\":1}",
           "{\"a\":\"\x01\"}",
           "{\"a\":\"\\x\"}",
           "\xef\xbb\xbf{}",
           "{\"a\":tru}",
           "// c\n{}",
       }) {
    refuse_everywhere(body, 400);
  }
  // The largest characters are legal.
  EXPECT_TRUE(parse_chat_request(chat_body(R"("user":"\ud83e\udd99 🦙")"), test_context()));
  // A name of a megabyte does not make a message of a megabyte.
  const std::string key(1u << 20, 'k');
  refuse_everywhere(fmt::format(R"({{"{0}":1,"{0}":2}})", key), 400);
}

// C86: the size of a body is bounded, and a large legal one passes.
TEST(RequestLimits, C86BodySize) {
  ApiContext context = test_context();
  context.limits.max_body_bytes = 1u << 20;
  const auto body = [](std::size_t bytes) {
    std::string text = R"({"messages":[{"role":"user","content":"XX"}]})";
    text.replace(text.find("XX"), 2, std::string(bytes - text.size() + 2, 'x'));
    return text;
  };
  EXPECT_TRUE(parse_chat_request(body(8192), context));
  EXPECT_TRUE(parse_chat_request(body(1u << 20), context));
  const ApiError error = refused(ApiRoute::kChat, body((1u << 20) + 1), context);
  EXPECT_EQ(error.status, 413);
  EXPECT_EQ(error.type, "request_too_large");
  EXPECT_THAT(error.message, HasSubstr("1048577"));
  EXPECT_THAT(error.message, HasSubstr("1048576"));
}

}  // namespace
}  // namespace mimo
