#include "text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace mimo {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> split(std::string_view text, SplitPattern pattern = SplitPattern::kQwen2) {
  const PreTokenizer pre_tokenizer(pattern);
  std::vector<std::string> pieces;
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t end = pre_tokenizer.piece_end(text, pos);
    EXPECT_GT(end, pos);
    pieces.emplace_back(text.substr(pos, end - pos));
    pos = end;
  }
  return pieces;
}

TEST(Qwen2Split, Words) {
  EXPECT_THAT(split("Hello, world!"), ElementsAre("Hello", ",", " world", "!"));
  EXPECT_THAT(split("a\tb"), ElementsAre("a", "\tb"));
  EXPECT_THAT(split("(word"), ElementsAre("(word"));
  EXPECT_THAT(split("((word"), ElementsAre("((", "word"));
  EXPECT_THAT(split(" (word"), ElementsAre(" (", "word"));
  EXPECT_THAT(split("你好，世界"), ElementsAre("你好", "，世界"));
}

TEST(Qwen2Split, MarksAreNoLetters) {
  EXPECT_THAT(split("e\u0334x"), ElementsAre("e", "\u0334x"));
  EXPECT_THAT(split("का"), ElementsAre("क", "ा"));
}

TEST(Qwen2Split, DigitsStandAlone) {
  EXPECT_THAT(split("v12 3"), ElementsAre("v", "1", "2", " ", "3"));
  EXPECT_THAT(split("½٣"), ElementsAre("½", "٣"));
}

TEST(Qwen2Split, Contractions) {
  EXPECT_THAT(split("I'LL'x"), ElementsAre("I", "'LL", "'x"));
  EXPECT_THAT(split("we're"), ElementsAre("we", "'re"));
  EXPECT_THAT(split("'rx"), ElementsAre("'rx"));
  EXPECT_THAT(split("'street"), ElementsAre("'s", "treet"));
  EXPECT_THAT(split("'\u017Ft"), ElementsAre("'\u017F", "t"));  // a long s folds to s
  EXPECT_THAT(split("'\u212Ax"), ElementsAre("'\u212Ax"));
  EXPECT_THAT(split("!'s"), ElementsAre("!'", "s"));
  EXPECT_THAT(split("'"), ElementsAre("'"));
  EXPECT_THAT(split("'l"), ElementsAre("'l"));
}

TEST(Qwen2Split, PunctuationTakesLineEnds) {
  EXPECT_THAT(split("a;\r\n\r\n b"), ElementsAre("a", ";\r\n\r\n", " b"));
  EXPECT_THAT(split(" ...\n x"), ElementsAre(" ...\n", " x"));
}

TEST(Qwen2Split, WhiteSpace) {
  EXPECT_THAT(split("a     b"), ElementsAre("a", "    ", " b"));
  EXPECT_THAT(split("a  1"), ElementsAre("a", " ", " ", "1"));
  EXPECT_THAT(split("  \n  \n  x"), ElementsAre("  \n  \n", " ", " x"));
  EXPECT_THAT(split("  \n  "), ElementsAre("  \n", "  "));
  EXPECT_THAT(split("\nx"), ElementsAre("\n", "x"));
  EXPECT_THAT(split("\t."), ElementsAre("\t", "."));
  EXPECT_THAT(split("\u3000\u3000x"), ElementsAre("\u3000", "\u3000x"));
  EXPECT_THAT(split("   "), ElementsAre("   "));
}

TEST(Gpt2Split, Pattern) {
  const auto gpt2 = [](std::string_view text) { return split(text, SplitPattern::kGpt2); };
  EXPECT_THAT(gpt2("Hello, world!"), ElementsAre("Hello", ",", " world", "!"));
  EXPECT_THAT(gpt2("it's I'S"), ElementsAre("it", "'s", " I", "'", "S"));
  EXPECT_THAT(gpt2("a 123  b"), ElementsAre("a", " 123", " ", " b"));
  EXPECT_THAT(gpt2("x\n\n  y"), ElementsAre("x", "\n\n ", " y"));
  EXPECT_THAT(gpt2("\tword "), ElementsAre("\t", "word", " "));
}

TEST(SplitPatternFromRegex, KnowsOnlyExactPatterns) {
  EXPECT_EQ(split_pattern_from_regex(
                R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"),
            SplitPattern::kGpt2);
  EXPECT_EQ(
      split_pattern_from_regex(
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"),
      SplitPattern::kQwen2);
  EXPECT_EQ(
      split_pattern_from_regex(
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"),
      std::nullopt);
  EXPECT_EQ(split_pattern_from_regex(""), std::nullopt);
}

}  // namespace
}  // namespace mimo
