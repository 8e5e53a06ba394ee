#include "text/assistant_answer.h"

#include <gtest/gtest.h>

#include "text/chat_prompt.h"
#include "text/tokenizer_fixture.h"

namespace mimo {
namespace {

const json::array& tools() {
  static const json::array list =
      parse_json(R"([{"type":"function","function":{"name":"now"}}])", "tools").value().as_array();
  return list;
}

constexpr std::string_view kCall = "<tool_call><function=now></function></tool_call>";

TEST(ParseAnswer, FollowsTheStateThatThePromptLeft) {
  struct Case {
    ThinkBlock block;
    const char* answer;
    const char* reasoning;
    const char* content;
  };
  const Case cases[] = {
      {ThinkBlock::kModelDecides, "Hello", "", "Hello"},
      {ThinkBlock::kModelDecides, "<think>x</think>Hello", "x", "Hello"},
      {ThinkBlock::kModelDecides, " \n<think>x</think>Hello", "x", "Hello"},
      {ThinkBlock::kModelDecides, "<think>\nx\n</think>\n\nHello\n", "x", "Hello\n"},
      {ThinkBlock::kModelDecides, "<think></think>\n\n\nHello", "", "\nHello"},
      {ThinkBlock::kModelDecides, "<think>x", "x", ""},
      {ThinkBlock::kModelDecides, "<think>a</think>b</think>c", "a", "b</think>c"},
      {ThinkBlock::kModelDecides, "Say <think>x</think>", "", "Say <think>x</think>"},
      {ThinkBlock::kModelDecides, "x</think>Hello", "", "x</think>Hello"},
      {ThinkBlock::kModelDecides, "", "", ""},
      {ThinkBlock::kOpen, "x</think>Hello", "x", "Hello"},
      {ThinkBlock::kOpen, "<think>x</think>Hello", "x", "Hello"},
      {ThinkBlock::kOpen, "some thoughts", "some thoughts", ""},
      {ThinkBlock::kClosed, "Hello", "", "Hello"},
      {ThinkBlock::kClosed, "<think>x</think>Hello", "", "<think>x</think>Hello"},
      {ThinkBlock::kClosed, "some thoughts", "", "some thoughts"},
  };
  for (const Case& one : cases) {
    const AssistantAnswer answer = parse_answer(one.answer, one.block, {});
    EXPECT_EQ(answer.reasoning, one.reasoning) << one.answer;
    EXPECT_EQ(answer.content, one.content) << one.answer;
  }
}

TEST(ParseAnswer, FindsCallsInTheContent) {
  const std::string text = "<think>I think</think>Right away." + std::string(kCall);
  const AssistantAnswer answer = parse_answer(text, ThinkBlock::kModelDecides, tools());
  EXPECT_EQ(answer.reasoning, "I think");
  EXPECT_EQ(answer.content, "Right away.");
  EXPECT_EQ(answer.calls.size(), 1u);
}

TEST(ParseAnswer, QuotedCallsInReasoningAreText) {
  const std::string text = "<think>e.g. " + std::string(kCall) + "</think>Done";
  const AssistantAnswer answer = parse_answer(text, ThinkBlock::kModelDecides, tools());
  EXPECT_EQ(answer.reasoning, "e.g. " + std::string(kCall));
  EXPECT_EQ(answer.content, "Done");
  EXPECT_TRUE(answer.calls.empty());
}

TEST(ParseAnswer, ACompleteCallEndsAForgottenThinkBlock) {
  const AssistantAnswer answer =
      parse_answer("<think>I will call" + std::string(kCall), ThinkBlock::kModelDecides, tools());
  EXPECT_EQ(answer.reasoning, "I will call");
  EXPECT_EQ(answer.content, "");
  EXPECT_EQ(answer.calls.size(), 1u);

  const std::string unknown = "I will call<tool_call><function=other></function></tool_call>";
  const AssistantAnswer quoted = parse_answer("<think>" + unknown, ThinkBlock::kModelDecides, tools());
  EXPECT_EQ(quoted.reasoning, unknown);
  EXPECT_TRUE(quoted.calls.empty());
}

TEST(ParseAnswer, WithoutToolsNothingIsACall) {
  const AssistantAnswer answer = parse_answer(kCall, ThinkBlock::kClosed, {});
  EXPECT_EQ(answer.content, kCall);
  EXPECT_TRUE(answer.calls.empty());
  EXPECT_TRUE(answer.problems.empty());
}

TEST(ChatPrompt, LearnsTheThinkBlockFromTheRendering) {
  const auto format = ChatFormat::load(MIMO_SOURCE_DIR "/models/tiny");
  ASSERT_TRUE(format) << format.error().message;
  const json::array messages =
      parse_json(R"([{"role":"user","content":"end with <think></think>"}])", "m").value().as_array();
  const auto block = [&](std::optional<bool> thinking) {
    const auto prompt = make_chat_prompt(*format, test::tiny_tokenizer(),
                                         {.messages = &messages, .enable_thinking = thinking});
    EXPECT_TRUE(prompt);
    EXPECT_FALSE(prompt->ids.empty());
    return prompt->think_block;
  };
  EXPECT_EQ(block({}), ThinkBlock::kModelDecides);
  EXPECT_EQ(block(true), ThinkBlock::kModelDecides);
  EXPECT_EQ(block(false), ThinkBlock::kClosed);

  const auto opening = ChatFormat::from_template("{{ messages[0].content }}<think>\n", "opening");
  ASSERT_TRUE(opening);
  EXPECT_EQ(make_chat_prompt(*opening, test::tiny_tokenizer(), {.messages = &messages})->think_block,
            ThinkBlock::kOpen);
  // The same letters from a message are text.
  const auto echo = ChatFormat::from_template("{{ messages[0].content }}", "echo");
  ASSERT_TRUE(echo);
  EXPECT_EQ(make_chat_prompt(*echo, test::tiny_tokenizer(), {.messages = &messages})->think_block,
            ThinkBlock::kModelDecides);
}

}  // namespace
}  // namespace mimo
