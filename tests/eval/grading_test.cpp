#include <gtest/gtest.h>

#include "eval/problem.h"

namespace mimo {
namespace {

json::value value(const char* text) { return parse_json(text, "test").value(); }

Problem number_problem(const char* reference, ExpectedNumber::Rule rule) {
  Problem problem;
  problem.expected = ExpectedNumber{reference, rule};
  return problem;
}

Answer content(const char* text) {
  Answer answer;
  answer.content = text;
  return answer;
}

TEST(Grade, NumbersByTheirRule) {
  using Rule = ExpectedNumber::Rule;
  const Problem exact = number_problem("25", Rule::kExact);
  EXPECT_TRUE(grade(exact, content("\\boxed{25}")).correct);
  EXPECT_FALSE(grade(exact, content("\\boxed{0.25}")).correct);
  const Grade nothing = grade(exact, content("I do not know"));
  EXPECT_FALSE(nothing.valid);
  EXPECT_FALSE(nothing.correct);

  const Problem lenient = number_problem("25", Rule::kEvalscope);
  const Grade share = grade(lenient, content("\\boxed{0.25}"));
  EXPECT_TRUE(share.correct);
  EXPECT_FALSE(share.correct_strict);
  EXPECT_TRUE(grade(lenient, content("\\boxed{25.001}")).correct_strict);

  const Problem last = number_problem("3", Rule::kLastInteger);
  EXPECT_TRUE(grade(last, content("\\boxed{9} then 3")).correct);
  EXPECT_FALSE(grade(last, content("\\boxed{3} then 9")).correct);
}

TEST(Grade, NumbersInReasoningDoNotCount) {
  Answer answer = content("");
  answer.reasoning = "\\boxed{25}";
  EXPECT_FALSE(grade(number_problem("25", ExpectedNumber::Rule::kExact), answer).valid);
}

TEST(Grade, TextMustContain) {
  Problem problem;
  problem.expected = ExpectedText{"1234567"};
  EXPECT_TRUE(grade(problem, content("The secret code is 1234567.")).correct);
  EXPECT_FALSE(grade(problem, content("123456")).correct);
  EXPECT_TRUE(grade(problem, content("123456")).valid);
  EXPECT_FALSE(grade(problem, content(" \n")).valid);
}

Problem call_problem(const char* arguments) {
  Problem problem;
  problem.tools =
      value(R"([{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}])")
          .as_array();
  ExpectedCalls expected;
  if (arguments != nullptr) expected.calls.push_back({"f", value(arguments).as_object()});
  problem.expected = std::move(expected);
  return problem;
}

Answer call(const char* name, const char* arguments) {
  Answer answer;
  answer.calls.push_back({name, value(arguments).as_object()});
  return answer;
}

TEST(Grade, CallsMustBeEqual) {
  const Problem problem = call_problem(R"({"n": 5, "s": "x", "o": {"a": 1, "b": [1.5]}})");
  EXPECT_TRUE(grade(problem, call("f", R"({"s":"x","n":5.0,"o":{"b":[1.5],"a":1}})")).correct);
  for (const char* wrong :
       {R"({"n":"5","s":"x","o":{"a":1,"b":[1.5]}})", R"({"n":5,"s":"x"})",
        R"({"n":5,"s":"x","o":{"a":1,"b":[1.5]},"more":1})", R"({"n":6,"s":"x","o":{"a":1,"b":[1.5]}})"}) {
    const Grade one = grade(problem, call("f", wrong));
    EXPECT_FALSE(one.correct) << wrong;
    EXPECT_TRUE(one.valid) << wrong;
  }
  EXPECT_FALSE(grade(problem, call("g", R"({"n":5,"s":"x","o":{"a":1,"b":[1.5]}})")).correct);
  EXPECT_FALSE(grade(problem, call("h", R"({})")).valid);  // not declared
  EXPECT_FALSE(grade(problem, content("plain text")).correct);

  Answer twice = call("f", R"({"n":5,"s":"x","o":{"a":1,"b":[1.5]}})");
  twice.calls.push_back(twice.calls[0]);
  EXPECT_FALSE(grade(problem, twice).correct);

  Answer malformed = call("f", R"({"n":5,"s":"x","o":{"a":1,"b":[1.5]}})");
  malformed.problems.emplace_back("cut off");
  EXPECT_FALSE(grade(problem, malformed).valid);
  EXPECT_FALSE(grade(problem, malformed).correct);
}

TEST(Grade, NoCallIsExpected) {
  const Problem problem = call_problem(nullptr);
  EXPECT_TRUE(grade(problem, content("It is warm.")).correct);
  EXPECT_FALSE(grade(problem, content("")).correct);
  EXPECT_FALSE(grade(problem, call("f", "{}")).correct);
}

TEST(JsonEqual, ComparesTypesAndValues) {
  EXPECT_TRUE(json_equal(value("5"), value("5.0")));
  EXPECT_TRUE(json_equal(value("18446744073709551615"), value("18446744073709551615")));
  EXPECT_FALSE(json_equal(value("9007199254740993"), value("9007199254740992")));
  EXPECT_FALSE(json_equal(value("5"), value("\"5\"")));
  EXPECT_FALSE(json_equal(value("1"), value("true")));
  EXPECT_FALSE(json_equal(value("null"), value("0")));
  EXPECT_FALSE(json_equal(value("[1,2]"), value("[2,1]")));
  EXPECT_FALSE(json_equal(value("[1]"), value("[1,1]")));
  EXPECT_TRUE(json_equal(value(R"({"a":1,"b":2})"), value(R"({"b":2,"a":1})")));
  EXPECT_FALSE(json_equal(value(R"({"a":1})"), value(R"({"b":1})")));
  EXPECT_FALSE(json_equal(value("1e300"), value("1")));
}

}  // namespace
}  // namespace mimo
