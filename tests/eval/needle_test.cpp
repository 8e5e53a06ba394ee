#include "eval/needle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "eval/problem_prompt.h"
#include "eval/temp_file.h"

namespace mimo {
namespace {

using test::TempFile;
using ::testing::HasSubstr;

class NeedleTest : public ::testing::Test {
 protected:
  NeedleTest()
      : tokenizer_(Tokenizer::load(MIMO_SOURCE_DIR "/models/tiny/tokenizer.json").value()),
        format_(ChatFormat::load(MIMO_SOURCE_DIR "/models/tiny").value()) {}

  std::int64_t prompt_tokens(const Problem& problem) const {
    return static_cast<std::int64_t>(
        make_problem_prompt(tokenizer_, &format_, problem, {}).value().ids.size());
  }

  TokenCounter counter() const {
    return {.text = [this](std::string_view text) { return tokenizer_.encode(text, EncodeOptions{}).size(); },
            .prompt = [this](const Problem& problem) -> Result<std::size_t> {
              return static_cast<std::size_t>(prompt_tokens(problem));
            }};
  }

  static NeedleMaterial material(int sentences) {
    NeedleMaterial out{"The secret code of {name} is {code}.",
                       "What is the secret code of {name}?",
                       {"Ada", "Grace", "Linus"},
                       {}};
    for (int i = 0; i < sentences; ++i) {
      std::string sentence = "Sentence number " + std::to_string(i) + " tells of";
      for (int word = 0; word < 3 + i * 7 % 11; ++word)
        sentence += word % 3 == 0 ? " caf\xC3\xA9s" : " distant hills";
      out.sentences.push_back(sentence + (i % 2 == 0 ? "." : "!\""));
    }
    return out;
  }

  static std::string message(const Problem& problem) {
    return std::string(problem.messages.at(0).at("content").as_string());
  }

  Tokenizer tokenizer_;
  ChatFormat format_;
};

TEST_F(NeedleTest, HasExactlyTheTokensAndTheNeedleOnce) {
  const NeedleBuilder builder(material(400), counter());
  for (const std::int64_t length : {200, 201, 202, 203, 204, 205, 777, 1024, 4096}) {
    for (const double depth : {0.0, 0.02, 0.5, 0.98, 1.0}) {
      const auto problem = builder.build({length, depth, 3}, 7);
      ASSERT_TRUE(problem) << problem.error().message;
      EXPECT_EQ(prompt_tokens(*problem), length);
      const std::string text = message(*problem);
      const std::string code = std::get<ExpectedText>(problem->expected).text;
      EXPECT_EQ(code.size(), 7u);
      EXPECT_EQ(text.find(code), text.rfind(code));
      const std::regex needle("[^\n] The secret code of (Ada|Grace|Linus) is " + code + "\\. [^\n]");
      EXPECT_TRUE(std::regex_search(text, needle)) << text;
      EXPECT_TRUE(
          std::regex_search(text, std::regex("\n\nWhat is the secret code of (Ada|Grace|Linus)\\?$")));
    }
  }
}

TEST_F(NeedleTest, StandsAtItsDepth) {
  const NeedleMaterial all = material(400);
  double longest = 0;
  for (const std::string& sentence : all.sentences)
    longest = std::max(longest, static_cast<double>(counter().text(" " + sentence)));
  const NeedleBuilder builder(all, counter());
  for (const double depth : {0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98}) {
    const auto problem = builder.build({4096, depth, 0}, 1);
    ASSERT_TRUE(problem);
    const std::string text = message(*problem);
    const auto count = [&](std::string_view part) {
      return static_cast<double>(tokenizer_.encode(part, EncodeOptions{}).size());
    };
    const std::size_t needle = text.find("The secret code of");
    const double before = count(std::string_view(text).substr(0, needle));
    const std::size_t rest = text.find('.', needle) + 1;
    const double after = count(std::string_view(text).substr(rest, text.find("\n\n") - rest));
    // The nearest border is at most half a sentence away, or a whole one at the ends.
    const double sentence = depth > 0.05 && depth < 0.95 ? longest / 2 : longest;
    EXPECT_NEAR(before, depth * (before + after), sentence + 2) << depth;
  }
}

TEST_F(NeedleTest, FollowsSeedAndCaseAlone) {
  const NeedleBuilder builder(material(400), counter());
  const auto text = [&](std::uint64_t sample, std::uint64_t seed, double depth) {
    return message(builder.build({1024, depth, sample}, seed).value());
  };
  EXPECT_EQ(text(0, 1, 0.5), text(0, 1, 0.5));
  EXPECT_NE(text(0, 1, 0.5), text(1, 1, 0.5));
  EXPECT_NE(text(0, 1, 0.5), text(0, 2, 0.5));
  EXPECT_NE(text(0, 1, 0.5), text(0, 1, 0.25));
}

TEST_F(NeedleTest, UsesConsecutiveSentences) {
  const NeedleMaterial all = material(400);
  const NeedleBuilder builder(all, counter());
  std::string text = message(builder.build({1024, 0.5, 0}, 5).value());
  const std::regex needle(" The secret code of \\w+ is \\d{7}\\.");
  text = std::regex_replace(text.substr(0, text.find("\n\n")), needle, "");
  std::string haystack;
  for (const std::string& sentence : all.sentences) haystack += sentence + " ";
  EXPECT_NE(haystack.find(text), std::string::npos) << text;
}

TEST_F(NeedleTest, RefusesLengthsThatDoNotFit) {
  const NeedleBuilder builder(material(40), counter());
  const auto small = builder.build({40, 0.5, 0}, 1);
  ASSERT_FALSE(small);
  EXPECT_THAT(small.error().message, HasSubstr("no room"));
  const auto large = builder.build({100000, 0.5, 0}, 1);
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message, HasSubstr("40 sentences"));
}

TEST_F(NeedleTest, ReadsItsFiles) {
  const TempFile haystack("One.\n\n  Two. \r\nThree.\n");
  const TempFile good(R"({"needle":"{name}: {code}","question":"{name}?","names":["A"]})");
  const auto loaded = load_needle_material(good.path(), haystack.path());
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->sentences, (std::vector<std::string>{"One.", "Two.", "Three."}));

  for (const auto& [text, named] :
       {std::pair{"[]", "expected an object"},
        std::pair{R"({"needle":"{name}","question":"{name}","names":["A"]})", "{code}"},
        std::pair{R"({"needle":"{name}{code}","question":"?","names":["A"]})", "{name}"},
        std::pair{R"({"needle":5,"question":"{name}","names":["A"]})", "\"needle\""},
        std::pair{R"({"needle":"{name}{code}","question":"{name}","names":[]})", "\"names\""},
        std::pair{R"({"needle":"{name}{code}","question":"{name}","names":["A",1]})", "\"names\""}}) {
    const TempFile bad(text);
    const auto refused = load_needle_material(bad.path(), haystack.path());
    ASSERT_FALSE(refused) << text;
    EXPECT_THAT(refused.error().message, HasSubstr(bad.path()));
    EXPECT_THAT(refused.error().message, HasSubstr(named));
  }
  const TempFile one("Only one.\n");
  EXPECT_FALSE(load_needle_material(good.path(), one.path()));
  EXPECT_FALSE(load_needle_material(good.path(), "/nonexistent/haystack.txt"));
}

}  // namespace
}  // namespace mimo
