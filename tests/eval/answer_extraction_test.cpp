#include "eval/answer_extraction.h"

#include <gtest/gtest.h>

namespace mimo {
namespace {

struct Case {
  const char* text;
  const char* expected;  // "": none
};

TEST(ExtractAnswer, FollowsTheOrderOfRules) {
  const Case cases[] = {
      // 1. The last box.
      {"The answer is \\boxed{42}.", "42"},
      {"\\boxed{1} no, \\boxed{2}", "2"},
      {"\\boxed{\\$1,234.50}", "1234.50"},
      {"\\boxed{18 \\text{ dollars}}", "18"},
      {"\\boxed{\\text{about } 18}", "18"},
      {"\\boxed{-7}", "-7"},
      {"\\boxed{\xE2\x88\x92"
       "7}",
       "-7"},
      {"\\boxed{x = 5}", "5"},
      {"\\boxed{3 + 4 = 7}", "7"},
      {"\\boxed{\\frac{1}{2}}", "1/2"},
      {"\\boxed{\\dfrac{3}{4} \\text{ hours}}", "3/4"},
      {"\\boxed{1{,}234}", "1234"},
      {"\\boxed{1,\\!234}", "1234"},
      {"\\boxed{25\\%}", "25%"},
      {"\\boxed{42.}", "42"},
      {"\\boxed{\\boxed{9}}", "9"},
      {"\\boxed{{8}}", "8"},
      {"The answer is 5, that is \\boxed{6}", "6"},
      // A box without a partner or a number is passed over.
      {"\\boxed{3} and then \\boxed{4", "3"},
      {"\\boxed{yes}. The answer is 12.", "12"},
      {"\\boxed{}", ""},
      // 2. Markers.
      {"So the answer is 42.", "42"},
      {"The answer is: $42.50 a week. In 3 weeks more.", "42.50"},
      {"The answer is 3 + 4 = 7. Checked twice.", "7"},
      {"The answer is **1,000** apples", "1000"},
      {"The answer is 3. Wait, the answer is 4.", "4"},
      {"The answer is unclear. The final answer is 8, of 9.", "8"},
      {"ANSWER: 17\nBye 5", "17"},
      {"The answer is\n\n12 eggs\n7", "12"},
      // 3. The last number.
      {"2 + 3 = 5 eggs, thus 15 in 3 days", "3"},
      {"5 apples", "5"},
      {"She has $1,234,567.", "1234567"},
      {"minus -3", "-3"},
      {"5-3", "3"},
      {".5", ".5"},
      {"It costs 0.5", "0.5"},
      {"**5***6**", "6"},
      {"", ""},
      {"no digits here", ""},
      {"\\", ""},
      {"\\boxed{", ""},
  };
  for (const Case& one : cases) {
    const std::optional<std::string> got = extract_answer(one.text);
    EXPECT_EQ(got.value_or(""), one.expected) << one.text;
  }
}

TEST(ExtractAnswer, TakesLinearTime) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "\\boxed{";
  EXPECT_FALSE(extract_answer(text));
  text += std::string(200'000, '}');
  EXPECT_FALSE(extract_answer(text));
  std::string fractions;
  for (int i = 0; i < 200'000; ++i) fractions += "\\frac{";
  EXPECT_FALSE(extract_answer(fractions));
}

TEST(LastInteger, IgnoresCommasAndDecimals) {
  const Case cases[] = {{"#### 1,234", "1234"}, {"12 then 34.", "34"},
                        {"3.50", "50"},         {"-5", "5"},
                        {"none", ""},           {"", ""},
                        {"007", "007"},         {"5,", "5"}};
  for (const Case& one : cases) EXPECT_EQ(last_integer(one.text).value_or(""), one.expected) << one.text;
}

TEST(CompareNumbers, HasThreeGradesOfEquality) {
  const auto match = [](const char* a, const char* b) {
    const NumberMatch m = compare_numbers(a, b);
    return std::string(m.exact ? "e" : "") + (m.close ? "c" : "") + (m.lenient ? "l" : "");
  };
  EXPECT_EQ(match("42", "42"), "ecl");
  EXPECT_EQ(match("42.0", "42"), "ecl");
  EXPECT_EQ(match("1/2", "0.5"), "ecl");
  EXPECT_EQ(match(".5", "0.5"), "ecl");
  EXPECT_EQ(match("-0", "0"), "ecl");
  EXPECT_EQ(match("100001", "100000"), "cl");
  EXPECT_EQ(match("0.33333", "1/3"), "cl");
  EXPECT_EQ(match("25%", "0.25"), "l");
  EXPECT_EQ(match("0.25", "25"), "l");
  EXPECT_EQ(match("25%", "25"), "ecl");
  EXPECT_EQ(match("43", "42"), "");
  EXPECT_EQ(match("-42", "42"), "");
  EXPECT_EQ(match("5/0", "5"), "");
  EXPECT_EQ(match("", "5"), "");
  EXPECT_EQ(match("5", "five"), "");
  EXPECT_EQ(match("1e5", "100000"), "ecl");
}

TEST(NormaliseNumber, RejectsTextWithoutANumber) {
  EXPECT_EQ(normalise_number(" 1,234 ").value_or(""), "1234");
  EXPECT_EQ(normalise_number("$5.").value_or(""), "5");
  EXPECT_FALSE(normalise_number("five"));
  EXPECT_FALSE(normalise_number(""));
}

}  // namespace
}  // namespace mimo
