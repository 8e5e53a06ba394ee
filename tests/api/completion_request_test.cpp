// Prompts of /v1/completions.
#include <gmock/gmock.h>

#include "api/api_fixture.h"

namespace mimo {
namespace {

constexpr ApiRoute kCompletion = ApiRoute::kCompletion;

std::vector<CompletionPrompt> prompts(std::string_view prompt) {
  return accepted(kCompletion, fmt::format(R"({{"prompt":{}}})", prompt)).prompts;
}

TEST(CompletionRequest, PromptForms) {
  EXPECT_EQ(prompts(R"("abc")"), (std::vector<CompletionPrompt>{"abc"}));
  EXPECT_EQ(prompts(R"(["abc","d"])"), (std::vector<CompletionPrompt>{"abc", "d"}));
  EXPECT_EQ(prompts("[1,2.0,999]"), (std::vector<CompletionPrompt>{TokenIds{1, 2, 999}}));
  EXPECT_EQ(prompts("[[1],[2,3]]"), (std::vector<CompletionPrompt>{TokenIds{1}, TokenIds{2, 3}}));
}

// C82: the ids of a prompt are checked where they come in.
TEST(CompletionRequest, C82BadPromptsAreNamed) {
  struct Case {
    const char* prompt;
    const char* param;
  };
  for (const Case& bad : std::vector<Case>{
           {"null", "prompt"},
           {"5", "prompt"},
           {"{}", "prompt"},
           {"[]", "prompt"},
           {R"("")", "prompt"},
           {R"(["a",""])", "prompt[1]"},
           {"[[]]", "prompt[0]"},
           {"[[1],[]]", "prompt[1]"},
           {"[-1]", "prompt[0]"},
           {"[1,1000]", "prompt[1]"},
           {"[2147483648]", "prompt[0]"},
           {"[9223372036854775808]", "prompt[0]"},
           {"[1.5]", "prompt[0]"},
           {"[[1],[-1]]", "prompt[1][0]"},
           {R"([1,"a"])", "prompt[1]"},
           {R"(["a",1])", "prompt[1]"},
           {R"(["a",[1]])", "prompt[1]"},
           {"[[1],2]", "prompt[1]"},
           {"[[[1]]]", "prompt[0][0]"},
           {"[null]", "prompt[0]"},
           {"[true]", "prompt[0]"},
       }) {
    const ApiError error = refused(kCompletion, fmt::format(R"({{"prompt":{}}})", bad.prompt));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param.value_or("none"), bad.param) << bad.prompt;
  }
  EXPECT_EQ(refused(kCompletion, "{}").param.value_or("none"), "prompt");
}

TEST(CompletionRequest, PromptsTimesAnswersAreBounded) {
  std::string list = "\"a\"";
  for (int i = 1; i < 100; ++i) list += ",\"a\"";
  EXPECT_EQ(accepted(kCompletion, fmt::format(R"({{"prompt":[{}],"n":10}})", list)).prompts.size(), 100u);
  EXPECT_EQ(refused(kCompletion, fmt::format(R"({{"prompt":[{}],"n":11}})", list)).param.value_or("none"),
            "n");
  for (int i = 100; i < 1025; ++i) list += ",\"a\"";
  EXPECT_EQ(refused(kCompletion, fmt::format(R"({{"prompt":[{}]}})", list)).param.value_or("none"), "prompt");
}

}  // namespace
}  // namespace mimo
