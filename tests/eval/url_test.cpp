#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/url_runner.h"

namespace mimo {
namespace {

using ::testing::HasSubstr;

TEST(HttpUrl, ReadsHostPortAndPath) {
  struct Case {
    const char* text;
    const char* shown;  // authority and path
  };
  for (const Case& one :
       {Case{"http://localhost", "localhost|80|"}, Case{"http://localhost:8000/", "localhost:8000|8000|"},
        Case{"http://h:1/v1/", "h:1|1|/v1"}, Case{"http://10.0.0.1:30000/a/b", "10.0.0.1:30000|30000|/a/b"},
        Case{"http://[::1]:9", "[::1]:9|9|"}, Case{"http://[::1]/v1", "[::1]|80|/v1"},
        Case{"http://h:00080", "h|80|"}}) {
    const auto url = parse_http_url(one.text);
    ASSERT_TRUE(url) << one.text << ": " << url.error().message;
    EXPECT_EQ(url->authority() + "|" + url->port + "|" + url->path, one.shown) << one.text;
  }
}

TEST(HttpUrl, RefusesWhatItCannotReach) {
  for (const char* text :
       {"", "localhost:8000", "ftp://h", "http://", "http://:80", "http://h:", "http://h:0", "http://h:65536",
        "http://h:99999999999999", "http://h:8x", "http://[::1", "http://[::1]x", "http://u@h", "http://h/?q",
        "http://h/#f", "http://h /", "http://h\n"}) {
    const auto url = parse_http_url(text);
    ASSERT_FALSE(url) << text;
    EXPECT_THAT(url.error().message, HasSubstr("http://HOST"));
  }
  const auto tls = parse_http_url("https://h");
  ASSERT_FALSE(tls);
  EXPECT_EQ(tls.error().code, ErrorCode::kUnsupported);
}

Problem chat_problem() {
  Problem problem;
  problem.id = "p";
  problem.index = 3;
  problem.messages = parse_json(R"([{"role":"user","content":"x"}])", "m").value().as_array();
  return problem;
}

TEST(ChatRequest, CarriesTheSettings) {
  Problem problem = chat_problem();
  RunSettings settings;
  settings.max_tokens = 9;
  const json::object plain = chat_request(problem, settings, "m");
  EXPECT_EQ(plain.at("model"), "m");
  EXPECT_EQ(plain.at("max_tokens"), 9);
  EXPECT_EQ(plain.at("stream"), false);
  EXPECT_FALSE(plain.contains("tools"));
  EXPECT_FALSE(plain.contains("chat_template_kwargs"));
  problem.enable_thinking = true;
  EXPECT_EQ(chat_request(problem, settings, "m").at("chat_template_kwargs").at("enable_thinking"), true);
  settings.enable_thinking = false;
  EXPECT_EQ(chat_request(problem, settings, "m").at("chat_template_kwargs").at("enable_thinking"), false);

  Problem text;
  text.completion = "Question:";
  text.stop = {"Q"};
  const json::object completion = chat_request(text, settings, "m");
  EXPECT_EQ(completion.at("prompt"), "Question:");
  EXPECT_EQ(json::serialize(completion.at("stop")), R"(["Q"])");
  EXPECT_FALSE(completion.contains("messages"));
}

TEST(ChatRequest, SeedsFollowTheProblemNotTheOrder) {
  Problem problem = chat_problem();
  RunSettings settings;
  settings.seed = 5;
  const std::uint64_t seed = problem_seed(settings, problem);
  EXPECT_LT(seed, std::uint64_t{1} << 53);
  EXPECT_EQ(chat_request(problem, settings, "m").at("seed").as_int64(), static_cast<std::int64_t>(seed));
  problem.index = 4;
  EXPECT_NE(problem_seed(settings, problem), seed);
}

TEST(ReadChatAnswer, TakesAllParts) {
  const auto answer = read_chat_answer(
      R"({"choices":[{"message":{"role":"assistant","content":null,"reasoning_content":"hm",
          "tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},
                        {"function":{"name":"g","arguments":"{oops"}},{"function":{"name":"h"}},7]},
          "finish_reason":"length","token_ids":[1,2]}],"usage":{"prompt_tokens":3,"completion_tokens":2}})",
      chat_problem(), "server");
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->content, "");
  EXPECT_EQ(answer->reasoning, "hm");
  ASSERT_EQ(answer->calls.size(), 1u);
  EXPECT_EQ(json::serialize(answer->calls[0].arguments), R"({"a":1})");
  EXPECT_EQ(answer->problems.size(), 3u);
  EXPECT_TRUE(answer->truncated);
  EXPECT_EQ(answer->token_ids, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(answer->prompt_tokens, 3);
  EXPECT_EQ(answer->completion_tokens, 2);
}

TEST(ReadChatAnswer, SplitsTagsThatTheServerLeft) {
  const auto answer = read_chat_answer(R"({"choices":[{"message":{"content":"<think>5</think>6"}}]})",
                                       chat_problem(), "server");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->reasoning, "5");
  EXPECT_EQ(answer->content, "6");
  EXPECT_FALSE(answer->token_ids);
}

TEST(ReadChatAnswer, RefusesWhatIsNoAnswer) {
  for (const char* body : {"", "oops", "[]", "{}", R"({"choices":[]})", R"({"choices":{}})",
                           R"({"choices":[5]})", R"({"choices":[{}]})", R"({"choices":[{"message":"x"}]})"}) {
    const auto answer = read_chat_answer(body, chat_problem(), "server");
    ASSERT_FALSE(answer) << body;
    EXPECT_THAT(answer.error().message, HasSubstr("server: "));
  }
  // Odd fields beside a good message harm nothing.
  EXPECT_TRUE(read_chat_answer(
      R"({"choices":[{"message":{"content":5,"tool_calls":{}},"token_ids":[-1],"finish_reason":7}],"usage":[]})",
      chat_problem(), "server"));
  Problem counted = chat_problem();
  counted.prompt_tokens = 100;
  const auto answer = read_chat_answer(
      R"({"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":99}})", counted, "server");
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().message, HasSubstr("99 prompt tokens, expected 100"));
}

}  // namespace
}  // namespace mimo
