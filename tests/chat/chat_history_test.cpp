#include "chat/chat_history.h"

#include <gtest/gtest.h>

namespace mimo {
namespace {

TEST(ChatHistory, RequestsHaveWhatWasSetAndNothingElse) {
  ChatHistory history;
  history.ask("hi");
  EXPECT_EQ(json::serialize(history.request("m")),
            R"({"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,)"
            R"("stream_options":{"include_usage":true},"timings":true})");
  history.system = std::string("s");
  history.thinking = false;
  ASSERT_TRUE(history.set("temperature", "0.5"));
  ASSERT_TRUE(history.set("seed", "18446744073709551615"));
  const json::object request = history.request("");
  EXPECT_FALSE(request.contains("model"));
  EXPECT_EQ(request.at("messages").at(0).at("content"), "s");
  EXPECT_EQ(request.at("temperature"), 0.5);
  EXPECT_EQ(request.at("seed"), 18446744073709551615U);
  EXPECT_EQ(request.at("chat_template_kwargs").at("enable_thinking"), false);
  ASSERT_TRUE(history.set("temperature", ""));
  EXPECT_FALSE(history.request("").contains("temperature"));
  EXPECT_EQ(history.get("temperature"), "");
  EXPECT_EQ(json::serialize(history.saved()),
            R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}],)"
            R"("chat_template_kwargs":{"enable_thinking":false}})");
}

TEST(ChatHistory, SettingsAreNumbers) {
  ChatHistory history;
  for (const char* value : {"x", "true", "1 2", "[1]", "1e999", "nan"}) {
    const Status set = history.set("top_p", value);
    ASSERT_FALSE(set) << value;
    EXPECT_NE(set.error().message.find(value), std::string::npos);
  }
  const Status unknown = history.set("heat", "1");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("temperature, top_p"), std::string::npos);
}

TEST(ChatHistory, AQuestionWithoutAnswerIsTakenBack) {
  ChatHistory history;
  history.ask("one");
  history.take_back();
  EXPECT_TRUE(history.empty());
  history.ask("two");
  history.clear();
  EXPECT_TRUE(history.empty());
}

}  // namespace
}  // namespace mimo
