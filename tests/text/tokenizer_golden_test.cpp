// Every text of the golden file (tools/text/make_tokenizer_golden.py) through both vocabularies, both ways.
#include <gtest/gtest.h>

#include "core/json.h"
#include "text/detokenizer.h"
#include "text/tokenizer_fixture.h"
#include "text/unicode_utf8.h"

namespace mimo::test {
namespace {

constexpr std::size_t kMinTexts = 12000;

std::string from_hex(std::string_view hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return out;
}

std::string string_of(const json::value& value) {
  return {value.as_string().data(), value.as_string().size()};
}

std::vector<TokenId> ids_of(const json::value& value) {
  std::vector<TokenId> ids;
  for (const json::value& id : value.as_array()) ids.push_back(static_cast<TokenId>(id.as_int64()));
  return ids;
}

// Keys of the ids with added tokens, the ids without, and the decoded text where it is not the NFC of the
// whole.
struct Keys {
  const char* with_added;
  const char* without;
  const char* decoded;
};

void check_all(const Tokenizer& tokenizer, const Keys& keys) {
  const auto lines = read_xz(kTextData + "tokenizer_golden.jsonl.xz");
  ASSERT_TRUE(lines);
  std::size_t texts = 0;
  std::size_t failures = 0;
  for (std::size_t pos = 0; pos < lines->size();) {
    const std::size_t end = lines->find('\n', pos);
    const auto value = parse_json(std::string_view(*lines).substr(pos, end - pos), "golden line");
    pos = end + 1;
    ASSERT_TRUE(value) << value.error().message;
    const json::object& row = value->as_object();
    const std::string text = row.contains("h") ? from_hex(string_of(row.at("h"))) : string_of(row.at("t"));
    const std::string nfc = row.contains("n") ? string_of(row.at("n")) : utf8_replace_invalid(text);
    const std::string decoded = row.contains(keys.decoded) ? string_of(row.at(keys.decoded)) : nfc;
    const std::vector<TokenId> wanted = ids_of(row.at(keys.with_added));
    const std::vector<TokenId> wanted_plain =
        row.contains(keys.without) ? ids_of(row.at(keys.without)) : wanted;
    ++texts;

    const std::vector<TokenId> ids = tokenizer.encode(text, {.allow_added_tokens = true});
    const std::vector<TokenId> plain = tokenizer.encode(text, {.allow_added_tokens = false});
    std::string streamed;
    Detokenizer detokenizer(tokenizer, /*skip_special=*/false);
    for (const TokenId id : wanted) {
      const auto part = detokenizer.push(id);
      ASSERT_TRUE(part && utf8_valid(*part));
      streamed += *part;
    }
    streamed += detokenizer.finish();
    const auto back = tokenizer.decode(wanted, /*skip_special=*/false);
    const auto back_plain = tokenizer.decode(wanted_plain, /*skip_special=*/false);
    ASSERT_TRUE(back && back_plain);
    if (ids != wanted || plain != wanted_plain || *back != decoded || *back_plain != nfc ||
        streamed != decoded) {
      EXPECT_EQ(ids, wanted) << "text " << texts << ": " << text;
      EXPECT_EQ(plain, wanted_plain) << "text " << texts << ": " << text;
      EXPECT_EQ(*back, decoded);
      EXPECT_EQ(*back_plain, nfc);
      EXPECT_EQ(streamed, decoded);
      constexpr std::size_t kShown = 10;
      ASSERT_LT(++failures, kShown) << "giving up after " << texts << " texts";
    }
  }
  EXPECT_GE(texts, kMinTexts);
}

TEST(TokenizerGolden, QwenVocabulary) {
  MIMO_NEED_XZ();
  check_all(qwen_tokenizer(), {"q", "u", "nq"});
}

TEST(TokenizerGolden, TinyVocabulary) {
  MIMO_NEED_XZ();
  check_all(tiny_tokenizer(), {"m", "v", "nm"});
}

}  // namespace
}  // namespace mimo::test
