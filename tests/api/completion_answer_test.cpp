// Answers of /v1/completions.
#include "api/completion_answer.h"

#include <gmock/gmock.h>

#include "api/api_fixture.h"
#include "api/openai_checker.h"
#include "api/scripted_answer.h"

namespace mimo {
namespace {

using testing::HasSubstr;

AnswerHead head_for(const Script& script) {
  AnswerHead head = test_head();
  head.spell = script.speller();
  return head;
}

SeenAnswer streamed(const std::string& members, const std::vector<Script>& scripts, const AnswerHead& head,
                    std::size_t burst = 1) {
  const ApiRequest request =
      completion(members + R"(,"stream":true,"stream_options":{"include_usage":true})");
  return StreamChecker({.chat = false, .include_usage = true})
      .read(run_scripts(request, scripts, head, {.burst = burst, .parse = false}), scripts.size());
}

SeenAnswer whole(const std::string& members, const std::vector<Script>& scripts, const AnswerHead& head) {
  return read_body(run_scripts(completion(members), scripts, head, {.parse = false}), false);
}

TEST(CompletionAnswers, C15StreamsAndWholeBodiesSayTheSame) {
  for (const char* text : {"Hello world", "", "a <tool_call> stays text"}) {
    for (const std::size_t burst : {1, 3, 8}) {
      const Script script(text);
      const std::string members = R"("logprobs":2,"return_token_ids":true)";
      const SeenAnswer body = whole(members, {script}, head_for(script));
      const SeenAnswer seen = streamed(members, {script}, head_for(script), burst);
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(body.choices.at(0).lists.at(i).size(), script.size());
        EXPECT_EQ(seen.choices.at(0).lists.at(i), body.choices.at(0).lists.at(i));
      }
      EXPECT_EQ(seen.choices.at(0).content, text);
      EXPECT_EQ(seen.choices.at(0).content, body.choices.at(0).content);
      EXPECT_EQ(seen.choices.at(0).token_ids, body.choices.at(0).token_ids);
      EXPECT_EQ(seen.usage, body.usage);
    }
  }
}

TEST(CompletionAnswers, SeveralPromptsAndChoices) {
  const std::vector<Script> scripts = {Script("a"), Script("b b b b"), Script("c c"), Script("")};
  const std::string members = R"({"prompt":["x","yz"],"n":2,"echo":true)";
  AnswerHead head = test_head();
  head.prompt_texts = {"x", "yz"};
  const ApiRequest plain = accepted(ApiRoute::kCompletion, members + "}");
  const ApiRequest stream =
      accepted(ApiRoute::kCompletion, members + R"(,"stream":true,"stream_options":{"include_usage":true}})");
  const SeenAnswer body = read_body(run_scripts(plain, scripts, head, {.parse = false}), false);
  const SeenAnswer seen = StreamChecker({.chat = false, .include_usage = true, .echo = true})
                              .read(run_scripts(stream, scripts, head, {.burst = 2, .parse = false}), 4);
  expect_same(seen, body);
  EXPECT_EQ(seen.usage, body.usage);
  EXPECT_EQ(body.choices.at(0).content, "xa");
  EXPECT_EQ(body.choices.at(1).content, "xb b b b");
  EXPECT_EQ(body.choices.at(2).content, "yzc c");
  EXPECT_EQ(body.choices.at(3).content, "yz");
  // Two prompts of ten tokens.
  EXPECT_THAT(body.usage, HasSubstr(R"("prompt_tokens":20,)"));
  EXPECT_THAT(body.usage, HasSubstr(R"("cached_tokens":8)"));
}

TEST(CompletionAnswers, LogprobLists) {
  const Script script("a🦙b", 2);
  const SeenAnswer body = whole(R"("logprobs":2)", {script}, head_for(script));
  const std::vector<json::array>& lists = body.choices.at(0).lists;
  // "a" and half a llama, the rest of it, ...: a character counts where it begins.
  EXPECT_EQ(json::serialize(lists[0]),
            R"(["bytes:\\x61\\xf0","bytes:\\x9f\\xa6","bytes:\\x99\\x62","<|im_end|>"])");
  EXPECT_EQ(json::serialize(lists[3]), "[0,2,2,3]");
  for (std::size_t i = 0; i < lists[2].size(); ++i) {
    EXPECT_TRUE(lists[2][i].as_object().contains(lists[0][i].as_string()));
  }
  // The token's own entry and one other.
  EXPECT_EQ(lists[2][0].as_object().size(), 2u);
  EXPECT_TRUE(whole(R"("n":1)", {script}, head_for(script)).choices.at(0).lists.empty());
}

TEST(CompletionAnswers, PromptIds) {
  const Script script("abc");
  const ApiRequest request = completion(R"("return_token_ids":true)");
  EXPECT_THAT(run_scripts(request, {script}, head_for(script), {.parse = false}),
              HasSubstr(R"("prompt_token_ids":[7,8])"));
  const ApiRequest stream = completion(R"("return_token_ids":true,"stream":true)");
  const std::string out = run_scripts(stream, {script}, head_for(script), {.parse = false});
  EXPECT_EQ(out.find("prompt_token_ids"), out.rfind("prompt_token_ids"));
}

}  // namespace
}  // namespace mimo
