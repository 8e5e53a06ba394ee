// Answers of /v1/messages.
#include "api/message_answer.h"

#include <gmock/gmock.h>

#include "api/anthropic_checker.h"
#include "api/api_fixture.h"
#include "api/scripted_answer.h"

namespace mimo {
namespace {

using testing::HasSubstr;

constexpr const char* kTools =
    R"("tools":[{"name":"write","input_schema":{"type":"object","properties":{"path":{"type":"string"}}}},
                {"name":"now","input_schema":{"type":"object"}}],"stop_sequences":["END"])";

ApiRequest request_of(bool stream) {
  return messages(std::string(kTools) + (stream ? R"(,"stream":true)" : ""));
}

AnswerHead message_head() {
  AnswerHead head = test_head();
  head.id = answer_id(ApiRoute::kMessages);
  return head;
}

SeenMessage whole(const Script& script) {
  return read_message(run_scripts(request_of(false), {script}, message_head()));
}
SeenMessage streamed(const Script& script, std::size_t burst) {
  return MessageChecker().read(run_scripts(request_of(true), {script}, message_head(), {.burst = burst}));
}

// C100, C102: for every answer, cut at every length, in steps of 1 to 8 tokens, with tokens of 1 to 7 bytes.
TEST(MessageAnswers, C100StreamsAndWholeBodiesSayTheSame) {
  for (const char* text : {
           "Hello",
           "",
           "<think>some thoughts</think>Hello 🦙",
           "<think>only thoughts",
           "<think>t</think>A<tool_call><function=write><parameter=path>a "
           "\"b\".txt\n</parameter></function></tool_call>"
           "\n<tool_call><function=now></function></tool_call>",
           "I look. <tool_call><function=now></function></tool_call> Done.",
       }) {
    for (const std::size_t bytes : {1, 3, 7}) {
      const Script full(text, bytes);
      for (std::size_t length = 1; length <= full.size(); ++length) {
        Script script = full;
        if (length < full.size()) script.cut(length);
        const SeenMessage body = whole(script);
        EXPECT_EQ(
            body.stop_reason == "tool_use",
            length == full.size() && std::string_view(text).find("</tool_call>") != std::string_view::npos);
        EXPECT_EQ(body.stop_reason == "max_tokens", length < full.size());
        for (const std::size_t burst : {1, 2, 8}) {
          SCOPED_TRACE(fmt::format("{} ... {} tokens of {} bytes, {} a step", text, length, bytes, burst));
          SeenMessage seen = streamed(script, burst);
          if (!seen.blocks.empty() && seen.blocks.back().type == "tool_use" &&
              !parse_json(seen.blocks.back().text, "input")) {
            // A call that was cut: visible as such in a stream, text in a whole body.
            EXPECT_EQ(seen.stop_reason, "max_tokens");
            seen.blocks.pop_back();
            const std::size_t last = body.blocks.size() - 1;
            ASSERT_EQ(body.blocks[last].type, "text");
            for (std::size_t i = 0; i < std::min(last, seen.blocks.size()); ++i) {
              EXPECT_EQ(seen.blocks[i], body.blocks[i]);
            }
          } else {
            EXPECT_EQ(seen.blocks, body.blocks);
          }
          EXPECT_EQ(seen.stop_reason, body.stop_reason);
          EXPECT_EQ(seen.usage, body.usage);
        }
      }
    }
  }
}

TEST(MessageAnswers, C102BlocksAreSeparate) {
  const SeenMessage message = whole(Script(
      "<think>t</think>A<tool_call><function=write><parameter=path>x</parameter></function></tool_call>"
      "<tool_call><function=now></function></tool_call>B"));
  EXPECT_EQ(message.blocks, (std::vector<SeenBlock>{{"thinking", "t", ""},
                                                    {"text", "A", ""},
                                                    {"tool_use", R"({"path":"x"})", "write"},
                                                    {"tool_use", "{}", "now"},
                                                    {"text", "B", ""}}));
  EXPECT_NE(message.ids[0], message.ids[1]);
  EXPECT_TRUE(message.ids[0].starts_with("toolu_"));
  EXPECT_EQ(whole(Script("")).blocks.size(), 0u);
}

TEST(MessageAnswers, C102StopReasons) {
  const auto reason = [](Finish finish) {
    Script script("Hello");
    script.finish = finish;
    const SeenMessage body = whole(script);
    const SeenMessage seen = streamed(script, 2);
    EXPECT_EQ(body.stop_reason, seen.stop_reason);
    EXPECT_EQ(body.stop_sequence, seen.stop_sequence);
    return body.stop_reason + " " + body.stop_sequence;
  };
  EXPECT_EQ(reason({.reason = FinishReason::kEos, .token_id = 1}), "end_turn null");
  EXPECT_EQ(reason({.reason = FinishReason::kStopToken, .token_id = 1}), "end_turn null");
  EXPECT_EQ(reason({.reason = FinishReason::kLength}), "max_tokens null");
  EXPECT_EQ(reason({.reason = FinishReason::kStopString, .stop_index = 0}), R"(stop_sequence "END")");
}

TEST(MessageAnswers, C102Usage) {
  const Script script("Hello");
  EXPECT_EQ(whole(script).usage,
            fmt::format(R"({{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,)"
                        R"("output_tokens":{}}})",
                        script.size()));
  EXPECT_EQ(streamed(script, 1).usage, whole(script).usage);
}

TEST(MessageAnswers, Errors) {
  const RequestUsage usage = script_usage(Script("x"), 1);
  const std::vector<AnswerDelta> deltas = {{.text = "x", .name = {}}};
  for (const bool aborted : {false, true}) {
    for (const bool stream : {false, true}) {
      const std::unique_ptr<AnswerWriter> writer = make_answer_writer(request_of(stream), message_head());
      std::string out;
      writer->push(0, {.deltas = deltas, .usage = usage}, out);
      if (aborted) {
        writer->finish(0, {.aborted = true}, out);
      } else {
        writer->fail(api_error(503, "draining"), out);
      }
      EXPECT_TRUE(writer->complete());
      const std::string so_far = out;
      writer->push(0, {.deltas = deltas, .usage = usage}, out);
      writer->finish(0, {}, out);
      writer->fail(api_error(500, "again"), out);
      EXPECT_EQ(out, so_far);
      const std::string error = stream ? MessageChecker().read(out).error : out;
      EXPECT_THAT(error, HasSubstr("overloaded_error"));
    }
  }
}

}  // namespace
}  // namespace mimo
