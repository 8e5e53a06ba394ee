#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/tokenizer_fixture.h"
#include "text/unicode_utf8.h"

namespace mimo::test {
namespace {

std::string stream(const Tokenizer& tokenizer, std::span<const TokenId> ids, bool skip_special) {
  Detokenizer detokenizer(tokenizer, skip_special);
  std::string out;
  for (const TokenId id : ids) {
    const auto part = detokenizer.push(id);
    EXPECT_TRUE(part);
    EXPECT_TRUE(utf8_valid(*part));
    out += *part;
  }
  return out + detokenizer.finish();
}

// Emoji and rare letters take several tokens; wherever the output ends, at most the last character is
// replaced.
TEST(Detokenizer, ACutCharacterIsOneReplacementAtTheEnd) {
  MIMO_NEED_XZ();
  const std::string text = "🦙👩‍💻अ";
  for (const Tokenizer* tokenizer : {&qwen_tokenizer(), &tiny_tokenizer()}) {
    const auto ids = tokenizer->encode(text, {});
    ASSERT_GT(ids.size(), 4u);
    for (std::size_t count = 1; count <= ids.size(); ++count) {
      const std::string out = stream(*tokenizer, std::span(ids).first(count), false);
      const std::size_t replaced = out.find("\uFFFD");
      if (replaced == std::string::npos) {
        EXPECT_EQ(text.substr(0, out.size()), out);
      } else {
        EXPECT_EQ(replaced + 3, out.size());
        EXPECT_EQ(text.substr(0, replaced), out.substr(0, replaced));
      }
    }
    EXPECT_EQ(stream(*tokenizer, ids, false), text);
  }
}

TEST(Detokenizer, HoldsBackIncompleteCharacters) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  const auto byte = [&](unsigned char b) {
    const char c = static_cast<char>(b);
    return tokenizer.token_id({&c, 1}).value();
  };
  Detokenizer detokenizer(tokenizer, false);
  EXPECT_EQ(detokenizer.push(byte(0xF0)).value(), "");
  EXPECT_TRUE(detokenizer.holds_bytes());
  EXPECT_EQ(detokenizer.push(byte(0x9F)).value(), "");
  EXPECT_EQ(detokenizer.push(byte(0xA6)).value(), "");
  EXPECT_EQ(detokenizer.push(byte(0x99)).value(), "🦙");
  EXPECT_FALSE(detokenizer.holds_bytes());
  EXPECT_EQ(detokenizer.push(byte(0xE4)).value(), "");
  EXPECT_EQ(detokenizer.push(byte('a')).value(), "\uFFFDa");
  EXPECT_EQ(detokenizer.push(byte(0xE4)).value(), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, RandomIdsGiveTheTextOfAllIdsTogether) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  std::mt19937 random(9);
  for (int round = 0; round < 5000; ++round) {
    std::vector<TokenId> ids;
    // Mostly single bytes, so that characters are cut in every way.
    for (unsigned n = random() % 20; n > 0; --n)
      ids.push_back(static_cast<TokenId>(random() % (n % 4 ? 256 : 1024)));
    for (const bool skip_special : {false, true}) {
      ASSERT_EQ(stream(tokenizer, ids, skip_special),
                utf8_replace_invalid(tokenizer.decode(ids, skip_special).value()));
    }
  }
}

TEST(Detokenizer, AWrongIdIsAnErrorAndChangesNothing) {
  Detokenizer detokenizer(tiny_tokenizer(), true);
  const std::string lead = "\xC3";
  EXPECT_EQ(detokenizer.push(tiny_tokenizer().token_id(lead).value()).value(), "");
  EXPECT_FALSE(detokenizer.push(1024));
  EXPECT_FALSE(detokenizer.push(-1));
  EXPECT_EQ(detokenizer.push(994).value(), "");  // <|im_end|> is skipped
  EXPECT_EQ(detokenizer.push(tiny_tokenizer().token_id("\xA9").value()).value(), "é");
}

}  // namespace
}  // namespace mimo::test
