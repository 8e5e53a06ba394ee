#include "eval/problem_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/jsonl.h"
#include "eval/temp_file.h"

namespace mimo {
namespace {

using test::TempFile;
using ::testing::HasSubstr;

std::string user_text(const Problem& problem) {
  return std::string(problem.messages.at(0).at("content").as_string());
}

TEST(Jsonl, SkipsBlankLinesAndReadsTheLastOne) {
  const TempFile file("{\"a\":1}\n\n  \r\n{\"a\":2}");
  std::vector<std::string> where;
  ASSERT_TRUE(read_jsonl(file.path(), [&](const JsonLine& line) -> Status {
    where.push_back(line.where());
    return {};
  }));
  EXPECT_EQ(where, (std::vector<std::string>{file.path() + ":1", file.path() + ":4"}));
}

TEST(Jsonl, ErrorsNameFileAndLine) {
  const TempFile file("{\"id\":\"a\",\"question\":\"q\",\"answer\":\"1\"}\n{bad}\n");
  const auto loaded = load_nano_gsm(file.path());
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error().message, HasSubstr(file.path() + ":2: "));
  const auto missing = load_nano_gsm("/nonexistent/file.jsonl");
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("/nonexistent/file.jsonl"));
}

// A second line that each loader must refuse, and what its message must name.
struct BadLine {
  const char* line;
  const char* named;
};

template <class Load>
void expect_refused(const char* good, const std::vector<BadLine>& bad, Load load) {
  for (const BadLine& one : bad) {
    const TempFile file(std::string(good) + "\n" + one.line + "\n");
    const Result<std::vector<Problem>> loaded = load(file.path());
    ASSERT_FALSE(loaded) << one.line;
    EXPECT_THAT(loaded.error().message, HasSubstr(file.path() + ":2: ")) << one.line;
    EXPECT_THAT(loaded.error().message, HasSubstr(one.named)) << one.line;
  }
  const TempFile empty("\n");
  const Result<std::vector<Problem>> loaded = load(empty.path());
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error().message, HasSubstr("no problems"));
}

TEST(NanoGsm, AsksTheQuestionAlone) {
  const TempFile file(R"({"id":"p1","question":"1 + 1?","answer":"2"})");
  const auto problems = load_nano_gsm(file.path());
  ASSERT_TRUE(problems) << problems.error().message;
  ASSERT_EQ(problems->size(), 1u);
  const Problem& one = problems->front();
  EXPECT_EQ(json::serialize(one.messages), R"([{"role":"user","content":"1 + 1?"}])");
  EXPECT_EQ(std::get<ExpectedNumber>(one.expected).value, "2");
  EXPECT_EQ(std::get<ExpectedNumber>(one.expected).rule, ExpectedNumber::Rule::kExact);
  EXPECT_FALSE(one.enable_thinking);
}

TEST(NanoGsm, RefusesBadLines) {
  expect_refused(R"({"id":"a","question":"q","answer":"1"})",
                 {{R"([1])", "expected an object, got a list"},
                  {R"({"question":"q","answer":"1"})", "\"id\""},
                  {R"({"id":5,"question":"q","answer":"1"})", "expected text, got a number"},
                  {R"({"id":"b","question":"","answer":"1"})", "\"question\""},
                  {R"({"id":"b","question":"q","answer":1})", "\"answer\""},
                  {R"({"id":"b","question":"q","answer":"one"})", "expected a number, got \"one\""},
                  {R"({"id":"a","question":"q","answer":"1"})", "occurs twice"}},
                 load_nano_gsm);
}

TEST(Toolcall, ReadsToolsMessagesAndCalls) {
  const TempFile file(
      R"({"id":"t1","tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":"x"}],"expected":[{"name":"f","arguments":{"a":1}}],"enable_thinking":false})"
      "\n"
      R"({"id":"t2","tools":[],"messages":[{"role":"user","content":"x"}],"expected":[]})");
  const auto problems = load_toolcall(file.path());
  ASSERT_TRUE(problems) << problems.error().message;
  ASSERT_EQ(problems->size(), 2u);
  EXPECT_EQ((*problems)[0].enable_thinking, false);
  EXPECT_EQ(std::get<ExpectedCalls>((*problems)[0].expected).calls.at(0).name, "f");
  EXPECT_EQ((*problems)[1].enable_thinking, std::nullopt);
  EXPECT_EQ((*problems)[1].index, 1u);
}

TEST(Toolcall, RefusesBadLines) {
  expect_refused(R"({"id":"a","tools":[],"messages":[],"expected":[]})",
                 {{R"({"id":"b","messages":[],"expected":[]})", "\"tools\""},
                  {R"({"id":"b","tools":{},"messages":[],"expected":[]})", "expected a list, got an object"},
                  {R"({"id":"b","tools":[],"messages":[],"expected":[{"name":"f"}]})", "entry 0"},
                  {R"({"id":"b","tools":[],"messages":[],"expected":[{"name":"f","arguments":{}}]})",
                   "no tool is called \"f\""},
                  {R"({"id":"b","tools":[],"messages":[],"expected":[],"enable_thinking":"yes"})",
                   "\"enable_thinking\""},
                  {R"({"id":"a","tools":[],"messages":[],"expected":[]})", "occurs twice"}},
                 load_toolcall);
}

constexpr const char* kGsm = R"({"question":"Eggs?","answer":"2*3=<<2*3=6>>6 eggs\nso 1,006.\n#### 1,006"})"
                             "\n"
                             R"({"question":"Days?","answer":"7\n#### 7"})";

TEST(Gsm8k, ChatProtocolAsksForABox) {
  const TempFile file(kGsm);
  const auto problems = load_gsm8k(file.path(), {});
  ASSERT_TRUE(problems) << problems.error().message;
  ASSERT_EQ(problems->size(), 2u);
  EXPECT_EQ(problems->front().id, "gsm8k-0001");
  EXPECT_EQ(user_text(problems->front()),
            "Eggs?\nPlease reason step by step, and put your final answer within \\boxed{}.");
  EXPECT_EQ(std::get<ExpectedNumber>(problems->front().expected).value, "1006");
  EXPECT_EQ(std::get<ExpectedNumber>(problems->front().expected).rule, ExpectedNumber::Rule::kEvalscope);
}

TEST(Gsm8k, ChatExamplesComeFromTheOtherFile) {
  const TempFile file(kGsm);
  const TempFile train(R"({"question":"Train?","answer":"1+1=<<1+1=2>>2\n#### 2"})");
  const auto problems = load_gsm8k(file.path(), {.shots = 1, .shots_file = train.path()});
  ASSERT_TRUE(problems) << problems.error().message;
  EXPECT_EQ(problems->size(), 2u);
  const std::string text = user_text(problems->front());
  EXPECT_THAT(text, HasSubstr("Problem: Train?\nSolution: 1+1=2\nThe answer is \\boxed{2}."));
  EXPECT_THAT(text, HasSubstr("Problem: Eggs?\nPlease reason"));
  EXPECT_EQ(text.find("<<"), std::string::npos);
  const auto few = load_gsm8k(file.path(), {.shots = 2, .shots_file = train.path()});
  ASSERT_FALSE(few);
  EXPECT_THAT(few.error().message, HasSubstr("--shots asks for 2"));
}

TEST(Gsm8k, CompletionProtocolTakesShotsFromTheFileItself) {
  const TempFile file(kGsm);
  const auto problems = load_gsm8k(
      file.path(), {.protocol = Gsm8kOptions::Protocol::kCompletion, .shots = 1, .shots_file = {}});
  ASSERT_TRUE(problems) << problems.error().message;
  ASSERT_EQ(problems->size(), 1u);
  EXPECT_EQ(problems->front().id, "gsm8k-0002");
  EXPECT_TRUE(problems->front().completion.starts_with("Question: Eggs?\nAnswer: 2*3=<<2*3=6>>6"));
  EXPECT_TRUE(problems->front().completion.ends_with("Question: Days?\nAnswer:"));
  EXPECT_EQ(problems->front().stop.size(), 3u);
  const auto none = load_gsm8k(
      file.path(), {.protocol = Gsm8kOptions::Protocol::kCompletion, .shots = 2, .shots_file = {}});
  EXPECT_FALSE(none);
}

TEST(Gsm8k, RefusesBadLines) {
  expect_refused(R"({"question":"q","answer":"#### 1"})",
                 {{R"({"question":"q"})", "\"answer\""},
                  {R"({"question":"q","answer":"just 5"})", "after \"####\""},
                  {R"({"question":"q","answer":"#### five"})", "after \"####\""}},
                 [](const std::string& path) { return load_gsm8k(path, {}); });
}

}  // namespace
}  // namespace mimo
