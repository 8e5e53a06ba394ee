#include "chat/chat_answer.h"

#include <gtest/gtest.h>

namespace mimo {
namespace {

Result<ChatPiece> take(ChatAnswer& answer, std::string_view text) {
  return answer.take(parse_json(text, "test").value());
}

TEST(ChatAnswer, IsPutTogetherFromChunks) {
  ChatAnswer answer;
  EXPECT_TRUE(answer.empty());
  EXPECT_EQ(take(answer, R"({"choices":[{"delta":{"role":"assistant","content":""}}]})")->content, "");
  EXPECT_EQ(take(answer, R"({"choices":[{"delta":{"reasoning_content":"a"}}]})")->reasoning, "a");
  EXPECT_EQ(take(answer, R"({"choices":[{"delta":{"reasoning":"b"}}]})")->reasoning, "b");
  EXPECT_EQ(take(answer, R"({"choices":[{"delta":{"content":"c"},"finish_reason":"length"}]})")->content,
            "c");
  EXPECT_TRUE(take(answer, R"({"choices":[],"usage":{"completion_tokens":5}})"));
  EXPECT_TRUE(answer.cut());
  EXPECT_EQ(json::serialize(answer.message()),
            R"({"role":"assistant","content":"c","reasoning_content":"ab"})");
}

TEST(ChatAnswer, CallsComeInPieces) {
  ChatAnswer answer;
  for (const char* part :
       {R"({"index":0,"id":"x","function":{"name":"f","arguments":""}})",
        R"({"index":0,"function":{"arguments":"{\"a\":"}})", R"({"index":0,"function":{"arguments":"1}"}})",
        R"({"index":1,"id":"y","function":{"name":"g","arguments":"{\"b"}})"}) {
    EXPECT_TRUE(take(answer, fmt::format(R"({{"choices":[{{"delta":{{"tool_calls":[{}]}}}}]}})", part)));
  }
  ASSERT_EQ(answer.calls().size(), 2U);
  EXPECT_EQ(answer.calls()[0].arguments, R"({"a":1})");
  // The second is not complete.
  EXPECT_EQ(json::serialize(answer.message().at("tool_calls")),
            R"([{"id":"x","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}])");
}

TEST(ChatAnswer, FiguresAreTheServers) {
  ChatAnswer answer;
  EXPECT_EQ(answer.figures(), "");
  EXPECT_TRUE(take(answer, R"({"choices":[],"usage":{"completion_tokens":1}})"));
  EXPECT_EQ(answer.figures(), "1 token");
  EXPECT_TRUE(take(answer, R"({"choices":[],"usage":{"completion_tokens":101},"timings":
    {"predicted_n":101,"predicted_ms":250,"draft_n":70,"draft_n_accepted":60,"draft_steps":10}})"));
  EXPECT_EQ(answer.figures(), "101 tokens, 400 tokens/s, accept length 7.00");
}

TEST(ChatAnswer, StrangeChunksAreErrorsOrIgnored) {
  ChatAnswer answer;
  EXPECT_EQ(take(answer, "[]").error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(take(answer, R"({"choices":[1]})").error().code, ErrorCode::kCorrupt);
  for (
      const char* text :
      {"{}", R"({"choices":5})", R"({"choices":[{}]})", R"({"choices":[{"delta":{"content":7}}]})",
       R"({"choices":[],"usage":{"completion_tokens":1e300},"timings":{"draft_steps":"x"}})",
       R"({"choices":[{"delta":{"tool_calls":[5,{"index":-1},{"index":1e300},{"index":0,"function":3}]}}]})"}) {
    EXPECT_TRUE(take(answer, text)) << text;
  }
  EXPECT_EQ(answer.calls().size(), 1U);
  EXPECT_FALSE(answer.message().contains("tool_calls"));
}

}  // namespace
}  // namespace mimo
