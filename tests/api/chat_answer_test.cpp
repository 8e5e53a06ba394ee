// Answers of /v1/chat/completions: the order of events, and that streams and whole bodies say the same.
#include "api/chat_answer.h"

#include <gmock/gmock.h>

#include "api/api_fixture.h"
#include "api/openai_checker.h"
#include "api/scripted_answer.h"

namespace mimo {
namespace {

using testing::HasSubstr;

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"write","parameters":{"type":"object","properties":{
        "path":{"type":"string"},"lines":{"type":"integer"}}}}},
      {"type":"function","function":{"name":"now"}}])";

constexpr const char* kAnswers[] = {
    "Hello",
    "",
    "<think>some thoughts</think>Hello",
    "<think>only thoughts",
    "<think></think>\n\nHello 🦙👩‍💻अ \"quoted\" \\ \x01 end",
    "I will look it up. <tool_call><function=now></function></tool_call> Done.",
    "<think>t</think>A<tool_call><function=write><parameter=path>a "
    "\"b\".txt\n</parameter><parameter=lines>3</parameter>"
    "</function></tool_call>\n<tool_call><function=now></function></tool_call>",
    "<tool_call><function=gone></function></tool_call>",
    "<think>I will call<tool_call><function=now></function></tool_call>",
};

ApiRequest request_of(std::string members, bool stream) {
  if (stream) members += R"(,"stream":true,"stream_options":{"include_usage":true})";
  return chat(members);
}

AnswerHead head_for(const Script& script) {
  AnswerHead head = test_head();
  head.spell = script.speller();
  return head;
}

// C10, C11, C13, C15, C16, C17, C25, C29: for every answer, cut at every length, in steps of 1 to 8 tokens.
TEST(ChatAnswers, C15StreamsAndWholeBodiesSayTheSame) {
  for (const char* text : kAnswers) {
    const Script whole(text);
    for (std::size_t length = 1; length <= whole.size(); ++length) {
      Script script = whole;
      if (length < whole.size()) script.cut(length);
      const std::string members =
          std::string(kTools) + R"(,"logprobs":true,"top_logprobs":2,"return_token_ids":true)";
      const ApiRequest plain = request_of(members, false);
      const SeenAnswer body = read_body(run_scripts(plain, {script}, head_for(script)));
      const std::size_t tokens = script.size();
      EXPECT_EQ(body.choices.at(0).logprobs.size(), tokens);
      EXPECT_EQ(body.choices.at(0).token_ids.size(), tokens);
      EXPECT_THAT(body.usage, HasSubstr(fmt::format("\"completion_tokens\":{},", tokens)));
      for (const std::size_t burst : {1, 2, 3, 8}) {
        SCOPED_TRACE(fmt::format("{} ... {} tokens, {} a step", text, length, burst));
        const std::string stream =
            run_scripts(request_of(members, true), {script}, head_for(script), {.burst = burst});
        SeenAnswer seen = StreamChecker({.include_usage = true}).read(stream, 1);
        SeenChoice& choice = seen.choices.at(0);
        // The one permitted difference: a call that was cut stays visible as such in a stream, and is text
        // in a whole body.
        if (choice.calls.size() > body.choices.at(0).calls.size()) {
          ASSERT_EQ(choice.calls.size(), body.choices.at(0).calls.size() + 1);
          EXPECT_FALSE(parse_json(choice.calls.back().arguments, "arguments"));
          EXPECT_EQ(choice.finish_reason, "length");
          EXPECT_TRUE(body.choices.at(0).content.starts_with(choice.content));
          choice.calls.pop_back();
          choice.content = body.choices.at(0).content;
        }
        expect_same(seen, body);
        EXPECT_EQ(seen.usage, body.usage);
        EXPECT_EQ(choice.finish_reason == "tool_calls", !choice.calls.empty() && length == whole.size());
      }
    }
  }
}

TEST(ChatAnswers, PartsGoWhereTheyBelong) {
  const Script script(kAnswers[6]);
  const SeenAnswer body = read_body(run_scripts(request_of(kTools, false), {script}, head_for(script)));
  const SeenChoice& choice = body.choices.at(0);
  EXPECT_EQ(choice.reasoning, "t");
  EXPECT_EQ(choice.content, "A");
  EXPECT_EQ(choice.calls,
            (std::vector<SeenCall>{{"write", R"({"path":"a \"b\".txt\n","lines":3})"}, {"now", "{}"}}));
  EXPECT_EQ(choice.finish_reason, "tool_calls");
  EXPECT_NE(choice.call_ids[0], choice.call_ids[1]);
  EXPECT_EQ(choice.call_ids[0].size(), 29u);
}

TEST(ChatAnswers, ContentIsNullWhereThereIsSomethingElse) {
  const auto body = [](const char* text) {
    const Script script(text);
    return run_scripts(request_of(kTools, false), {script}, head_for(script));
  };
  EXPECT_THAT(body(kAnswers[3]), HasSubstr(R"("content":null,"reasoning_content":"only thoughts")"));
  EXPECT_THAT(body("<tool_call><function=now></function></tool_call>"), HasSubstr(R"("content":null)"));
  EXPECT_THAT(body(""), HasSubstr(R"("content":"","reasoning_content":null)"));
}

// C15: with several choices each ends once, and the stream ends after the last.
TEST(ChatAnswers, C15SeveralChoices) {
  for (const char* members : {R"("n":3)", R"("n":3,"logprobs":true)"}) {
    const std::vector<Script> scripts = {Script("short"), Script(kAnswers[6]),
                                         Script("<think>x</think>yes yes yes")};
    const AnswerHead head = head_for(scripts[1]);
    const std::string with_tools = std::string(kTools) + "," + members;
    const SeenAnswer body = read_body(run_scripts(request_of(with_tools, false), scripts, head));
    const SeenAnswer seen =
        StreamChecker({.include_usage = true})
            .read(run_scripts(request_of(with_tools, true), scripts, head, {.burst = 2}), 3);
    expect_same(seen, body);
    EXPECT_EQ(seen.usage, body.usage);
    EXPECT_EQ(body.choices.at(1).finish_reason, "tool_calls");
    EXPECT_EQ(body.choices.at(2).finish_reason, "stop");
    // The prompt counts once, the completions together.
    const std::size_t tokens = scripts[0].size() + scripts[1].size() + scripts[2].size();
    EXPECT_THAT(body.usage,
                HasSubstr(fmt::format(R"("prompt_tokens":10,"completion_tokens":{},"total_tokens":{})",
                                      tokens, tokens + 10)));
  }
}

// C16: usage only where it was asked for.
TEST(ChatAnswers, C16Usage) {
  const Script script("<think>hm</think>Hello there");
  const auto stream = [&](const char* members) {
    return run_scripts(chat(std::string(R"("stream":true)") + members), {script}, head_for(script));
  };
  const std::string expected = fmt::format(
      R"({{"prompt_tokens":10,"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":4}},)"
      R"("completion_tokens_details":{{"reasoning_tokens":3}}}})",
      script.size(), script.size() + 10);
  EXPECT_EQ(StreamChecker({}).read(stream(""), 1).usage, "");
  EXPECT_EQ(StreamChecker({}).read(stream(R"(,"stream_options":{"include_usage":false})"), 1).usage, "");
  EXPECT_EQ(StreamChecker({.include_usage = true})
                .read(stream(R"(,"stream_options":{"include_usage":true})"), 1)
                .usage,
            expected);
  EXPECT_EQ(StreamChecker({.include_usage = true, .continuous_usage = true})
                .read(stream(R"(,"stream_options":{"include_usage":true,"continuous_usage_stats":true})"), 1)
                .usage,
            expected);
  EXPECT_EQ(read_body(run_scripts(chat(""), {script}, head_for(script))).usage, expected);
}

// C25: one entry for each token, wherever it went; bytes joined are what the model wrote.
TEST(ChatAnswers, C25LogprobsAreComplete) {
  const char* text = "<think>th🦙ought</think>cont<tool_call><function=now></function></tool_call>";
  const Script script(text, 2);
  const std::string members = std::string(kTools) + R"(,"logprobs":true,"top_logprobs":2)";
  const SeenAnswer body = read_body(run_scripts(request_of(members, false), {script}, head_for(script)));
  const json::array& entries = body.choices.at(0).logprobs;
  ASSERT_EQ(entries.size(), script.size());
  std::string joined;
  for (const json::value& entry : entries) {
    EXPECT_EQ(entry.at("top_logprobs").as_array().size(), 2u);
    if (entry.at("bytes").is_null()) continue;
    for (const json::value& byte : entry.at("bytes").as_array()) joined += static_cast<char>(byte.as_int64());
  }
  EXPECT_EQ(joined, text);
  EXPECT_EQ(entries[0].at("token"), "<think>");
  EXPECT_EQ(entries[entries.size() - 1].at("token"), "<|im_end|>");
  EXPECT_TRUE(entries[entries.size() - 1].at("bytes").is_null());
  EXPECT_DOUBLE_EQ(entries[3].at("logprob").as_double(), -1.5);
  // Without top_logprobs the lists are empty; without logprobs there is nothing.
  const SeenAnswer none = read_body(run_scripts(chat(R"("logprobs":true)"), {script}, head_for(script)));
  EXPECT_EQ(none.choices.at(0).logprobs.size(), script.size());
  for (const json::value& entry : none.choices.at(0).logprobs) {
    EXPECT_TRUE(entry.at("top_logprobs").as_array().empty());
  }
  EXPECT_THAT(run_scripts(chat(""), {script}, head_for(script)), HasSubstr(R"("logprobs":null)"));
}

// C45 of the traps: JSON has no infinity.
TEST(ChatAnswers, InfiniteLogprobsStayJson) {
  const ApiRequest request = chat(R"("logprobs":true,"top_logprobs":1)");
  const std::unique_ptr<AnswerWriter> writer = make_answer_writer(request, test_head());
  std::string out;
  const std::vector<SampledToken> tokens = {{.id = 1, .logprob = -INFINITY, .top = {{2, NAN}}}};
  const RequestUsage usage;
  writer->push(0, {.tokens = tokens, .usage = usage}, out);
  writer->finish(0, {}, out);
  const SeenAnswer body = read_body(out);
  EXPECT_EQ(body.choices.at(0).logprobs[0].at("logprob"), -9999.0);
  EXPECT_EQ(body.choices.at(0).logprobs[0].at("top_logprobs").at(0).at("logprob"), -9999.0);
}

TEST(ChatAnswers, FinishReasons) {
  const ApiRequest request = chat("");
  const auto reason = [](const ApiRequest& asked, const AnswerEnd& end, bool strict = false) {
    return std::string(finish_reason(asked, end, strict));
  };
  const auto ended = [](FinishReason why, int calls = 0) {
    return AnswerEnd{.finish = Finish{why}, .calls = calls};
  };
  EXPECT_EQ(reason(request, ended(FinishReason::kEos)), "stop");
  EXPECT_EQ(reason(request, ended(FinishReason::kStopToken)), "stop");
  EXPECT_EQ(reason(request, ended(FinishReason::kStopString)), "stop");
  EXPECT_EQ(reason(request, ended(FinishReason::kLength)), "length");
  EXPECT_EQ(reason(request, ended(FinishReason::kLength, 2)), "length");
  EXPECT_EQ(reason(request, ended(FinishReason::kEos, 1)), "tool_calls");
  EXPECT_EQ(reason(request, {.calls = 1}), "tool_calls");
  EXPECT_EQ(reason(request, {.aborted = true}), "abort");
  ApiRequest named;
  named.tool_choice = ToolChoice::kNamed;
  EXPECT_EQ(reason(named, ended(FinishReason::kEos, 1)), "tool_calls");
  EXPECT_EQ(reason(named, ended(FinishReason::kEos, 1), true), "stop");
  ApiRequest legacy;
  legacy.legacy_functions = true;
  EXPECT_EQ(reason(legacy, ended(FinishReason::kEos, 1)), "function_call");
}

TEST(ChatAnswers, StopReasonNamesWhatMatched) {
  Script script("Hello");
  const auto stop_reason_of = [&](Finish finish) {
    script.finish = finish;
    const ApiRequest plain = request_of(R"("stop":["a","b\"c"])", false);
    const ApiRequest stream = request_of(R"("stop":["a","b\"c"])", true);
    const SeenAnswer body = read_body(run_scripts(plain, {script}, head_for(script)));
    expect_same(
        StreamChecker({.include_usage = true}).read(run_scripts(stream, {script}, head_for(script)), 1),
        body);
    return body.choices.at(0).stop_reason;
  };
  EXPECT_EQ(stop_reason_of({.reason = FinishReason::kEos, .token_id = 2}), "null");
  EXPECT_EQ(stop_reason_of({.reason = FinishReason::kLength}), "null");
  EXPECT_EQ(stop_reason_of({.reason = FinishReason::kStopToken, .token_id = 5}), "5");
  EXPECT_EQ(stop_reason_of({.reason = FinishReason::kStopString, .stop_index = 1}), R"("b\"c")");
}

// C12: the answer ends after the first call.
TEST(ChatAnswers, C12OneCallOnly) {
  const Script script(kAnswers[6]);
  for (const bool stream : {false, true}) {
    const std::string members = std::string(kTools) + R"(,"parallel_tool_calls":false)";
    const std::string out =
        run_scripts(request_of(members, stream), {script}, head_for(script), {.burst = 4});
    const SeenAnswer seen = stream ? StreamChecker({.include_usage = true}).read(out, 1) : read_body(out);
    EXPECT_EQ(seen.choices.at(0).calls.size(), 1u);
    EXPECT_EQ(seen.choices.at(0).finish_reason, "tool_calls");
  }
}

TEST(ChatAnswers, LegacyFunctionCalls) {
  const Script script("<tool_call><function=now></function></tool_call>");
  const char* functions = R"("functions":[{"name":"now"}])";
  const std::string body = run_scripts(request_of(functions, false), {script}, head_for(script));
  EXPECT_THAT(body, HasSubstr(R"("function_call":{"name":"now","arguments":"{}"})"));
  EXPECT_THAT(body, testing::Not(HasSubstr("tool_calls")));
  const SeenAnswer seen = StreamChecker({.include_usage = true})
                              .read(run_scripts(request_of(functions, true), {script}, head_for(script)), 1);
  expect_same(seen, read_body(body));
  EXPECT_EQ(seen.choices.at(0).finish_reason, "function_call");
}

TEST(ChatAnswers, ReasoningFields) {
  const Script script("<think>th</think>co");
  AnswerHead head = head_for(script);
  head.reasoning_field = ReasoningField::kReasoning;
  EXPECT_EQ(read_body(run_scripts(request_of(kTools, false), {script}, head), true, "reasoning")
                .choices.at(0)
                .reasoning,
            "th");
  const std::string stream = run_scripts(request_of(kTools, true), {script}, head);
  EXPECT_EQ(StreamChecker({.include_usage = true, .reasoning_field = "reasoning"})
                .read(stream, 1)
                .choices.at(0)
                .reasoning,
            "th");
  head.reasoning_field = ReasoningField::kBoth;
  const std::string both = run_scripts(request_of(kTools, false), {script}, head);
  EXPECT_EQ(read_body(both, true, "reasoning").choices.at(0).reasoning, "th");
  EXPECT_EQ(read_body(both).choices.at(0).reasoning, "th");
  EXPECT_THAT(run_scripts(request_of(kTools, true), {script}, head),
              HasSubstr(R"("delta":{"reasoning_content":"th","reasoning":"th"})"));
}

TEST(ChatAnswers, ReasoningCanBeLeftOutOrLeftIn) {
  const Script script("<think>th</think>co");
  for (const bool stream : {false, true}) {
    const auto read = [&](const char* members) {
      const std::string out = run_scripts(request_of(members, stream), {script}, head_for(script));
      return (stream ? StreamChecker({.include_usage = true}).read(out, 1) : read_body(out)).choices.at(0);
    };
    EXPECT_EQ(read(R"("include_reasoning":false)").reasoning, "");
    EXPECT_EQ(read(R"("include_reasoning":false)").content, "co");
    EXPECT_EQ(read(R"("separate_reasoning":false)").content, "<think>th</think>co");
  }
}

TEST(ChatAnswers, TokenIdsAndTimings) {
  const Script script("Hello world");
  const std::string members =
      R"("return_token_ids":true,"timings":true,"logprobs":true,"return_tokens_as_token_ids":true)";
  const SeenAnswer body = read_body(run_scripts(request_of(members, false), {script}, head_for(script)));
  EXPECT_EQ(json::serialize(body.prompt_token_ids), "[7,8]");
  EXPECT_EQ(body.choices.at(0).token_ids.size(), script.size());
  EXPECT_EQ(body.choices.at(0).logprobs[1].at("token"), "token_id:1");
  EXPECT_EQ(body.timings,
            fmt::format(R"({{"prompt_n":6,"prompt_ms":5E2,"predicted_n":{},"predicted_ms":2.5E2,"draft_n":8,)"
                        R"("draft_n_accepted":5,"draft_steps":2,"cache_n":4}})",
                        script.size()));
  const SeenAnswer with_usage =
      StreamChecker({.include_usage = true})
          .read(run_scripts(request_of(members, true), {script}, head_for(script)), 1);
  expect_same(with_usage, body);
  EXPECT_EQ(with_usage.timings, body.timings);
  // Without the usage event they go with the last event of the last choice.
  const SeenAnswer without =
      StreamChecker({}).read(run_scripts(chat(members + R"(,"stream":true)"), {script}, head_for(script)), 1);
  EXPECT_EQ(without.timings, body.timings);
  AnswerHead always = head_for(script);
  always.timings = true;
  EXPECT_EQ(read_body(run_scripts(chat(""), {script}, always)).timings, body.timings);
}

// C95, C29: one event may hold several tokens; usage counts tokens.
TEST(ChatAnswers, C95AStepIsOneEvent) {
  const Script script("abcdefghijklmnopqrstuvwx");
  const std::string stream =
      run_scripts(request_of(R"("n":1)", true), {script}, head_for(script), {.burst = 4});
  const SeenAnswer seen = StreamChecker({.include_usage = true}).read(stream, 1);
  EXPECT_EQ(seen.events, 2 + 2);  // role, two steps with text, finish
  EXPECT_THAT(seen.usage, HasSubstr(R"("completion_tokens":9,)"));
}

TEST(ChatAnswers, RoleCanComeEarly) {
  const ApiRequest request = chat(R"("n":2,"stream":true)");
  const std::unique_ptr<AnswerWriter> writer = make_answer_writer(request, test_head());
  std::string out;
  writer->open(out);
  EXPECT_EQ(split_events(out).size(), 2u);
  const RequestUsage usage;
  const std::vector<AnswerDelta> deltas = {{.text = "x", .name = {}}};
  for (const int choice : {0, 1}) {
    writer->push(choice, {.deltas = deltas, .usage = usage}, out);
    writer->finish(choice, {}, out);
  }
  StreamChecker({}).read(out, 2);
}

// Trap 44: an error inside a stream reaches the client, and ends it.
TEST(ChatAnswers, ErrorsEndTheAnswer) {
  const RequestUsage usage;
  const std::vector<AnswerDelta> deltas = {{.text = "x", .name = {}}};
  for (const bool stream : {false, true}) {
    const std::unique_ptr<AnswerWriter> writer =
        make_answer_writer(request_of(R"("n":2)", stream), test_head());
    std::string out;
    writer->push(0, {.deltas = deltas, .usage = usage}, out);
    writer->finish(0, {}, out);
    writer->push(1, {.deltas = deltas, .usage = usage}, out);
    EXPECT_FALSE(writer->complete());
    writer->fail(api_error(503, "draining"), out);
    EXPECT_TRUE(writer->complete());
    const std::string so_far = out;
    writer->push(1, {.deltas = deltas, .usage = usage}, out);
    writer->finish(1, {}, out);
    writer->fail(api_error(500, "again"), out);
    writer->push(7, {.deltas = deltas, .usage = usage}, out);
    EXPECT_EQ(out, so_far);
    if (stream) {
      EXPECT_THAT(StreamChecker({.include_usage = true}).read(out, 2).error, HasSubstr("unavailable_error"));
    } else {
      EXPECT_EQ(parse_json(out, "body").value().at("error").at("code"), 503);
    }
  }
}

TEST(ChatAnswers, NamesAreEscaped) {
  ApiContext context = test_context();
  context.models.names = {"a\"b\xff"};
  const ApiRequest request = accepted(ApiRoute::kChat, chat_body(""), context);
  const Script script("x");
  const std::string body = run_scripts(request, {script}, head_for(script));
  EXPECT_EQ(parse_json(body, "body").value().at("model"), "a\"b\xEF\xBF\xBD");
}

}  // namespace
}  // namespace mimo
