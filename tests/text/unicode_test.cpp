#include "text/unicode.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "text/unicode_nfc.h"
#include "text/unicode_utf8.h"

namespace mimo {
namespace {

TEST(UnicodeTable, ClassesHaveTheSizesOfUnicode16) {
  const UnicodeTable& table = UnicodeTable::get();
  std::size_t counts[4] = {};
  for (std::uint32_t c = 0; c < 0x110000; ++c) ++counts[static_cast<int>(table.char_class(c))];
  EXPECT_EQ(counts[static_cast<int>(CharClass::kLetter)], 141028u);
  EXPECT_EQ(counts[static_cast<int>(CharClass::kNumber)], 1911u);
  EXPECT_EQ(counts[static_cast<int>(CharClass::kSpace)], 25u);
}

TEST(UnicodeTable, KnowsSingleCharacters) {
  const UnicodeTable& table = UnicodeTable::get();
  EXPECT_EQ(table.char_class('a'), CharClass::kLetter);
  EXPECT_EQ(table.char_class(0x4F60), CharClass::kLetter);
  EXPECT_EQ(table.char_class(0x0300), CharClass::kOther);  // a mark is no letter
  EXPECT_EQ(table.char_class(0x093E), CharClass::kOther);  // nor is a spacing vowel sign
  EXPECT_EQ(table.char_class(0x0662), CharClass::kNumber);
  EXPECT_EQ(table.char_class(0x2167), CharClass::kNumber);  // a Roman numeral
  EXPECT_EQ(table.char_class(0x00BD), CharClass::kNumber);
  EXPECT_EQ(table.char_class(0x85), CharClass::kSpace);
  EXPECT_EQ(table.char_class(0x3000), CharClass::kSpace);
  EXPECT_EQ(table.char_class(0x200B), CharClass::kOther);
  EXPECT_EQ(table.char_class(0x1C), CharClass::kOther);
  EXPECT_EQ(table.char_class(0x10FFFF), CharClass::kOther);
  EXPECT_FALSE(table.nfc_boundary(0x0301));  // composes with what stands before it
  EXPECT_FALSE(table.nfc_boundary(0x0334));  // only moves
  EXPECT_FALSE(table.nfc_may_change(0x0334));
  EXPECT_FALSE(table.nfc_boundary(0x1161));
  EXPECT_TRUE(table.nfc_may_change(0x212B));
  EXPECT_TRUE(table.nfc_boundary('a'));
  EXPECT_TRUE(table.nfc_boundary(0xAC00));
}

TEST(Utf8, ReplacesInvalidPartsAsPython) {
  EXPECT_EQ(utf8_replace_invalid("ok \xC3\xA9"), "ok \xC3\xA9");
  EXPECT_EQ(utf8_replace_invalid("\xF0\x9F\x98"), "\uFFFD");  // a cut character is one part
  EXPECT_EQ(utf8_replace_invalid("\xF0\x9F\x98z"), "\uFFFDz");
  EXPECT_EQ(utf8_replace_invalid("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate is three
  EXPECT_EQ(utf8_replace_invalid("\xC0\xAF"), "\uFFFD\uFFFD");  // so is each byte of an overlong form
  EXPECT_EQ(utf8_replace_invalid("\xE0\x80\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(utf8_replace_invalid("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(utf8_replace_invalid("\xE4\xBD\xE4\xBD\xA0"), "\uFFFD\xE4\xBD\xA0");
}

// Every first byte with all triples of bytes at the edges of UTF-8's rules; the hash comes from Python:
//   for a in range(256): for b in tails: for c in tails: for d in tails:
//     data += bytes([a, b, c, d]).decode("utf-8", "replace").encode() + b"\n"
TEST(Utf8, ReplacesInvalidPartsAsPythonForEveryFirstByte) {
  constexpr unsigned char kTails[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F,
                                      0xA0, 0xBF, 0xC0, 0xC2, 0xED, 0xF4, 0xFF};
  std::uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a
  std::size_t bytes = 0;
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
    bytes += text.size();
  };
  for (int a = 0; a < 256; ++a) {
    for (const auto b : kTails) {
      for (const auto c : kTails) {
        for (const auto d : kTails) {
          const char text[] = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c),
                               static_cast<char>(d)};
          const std::string replaced = utf8_replace_invalid({text, 4});
          add(replaced);
          add("\n");
          EXPECT_EQ(utf8_valid({text, 4}), replaced == std::string_view(text, 4));
        }
      }
    }
  }
  EXPECT_EQ(bytes, 6959088u);
  EXPECT_EQ(hash, 0x9180654101495999ull);
}

TEST(Utf8, ReportsWhatItReplaced) {
  std::vector<TextEdit> edits;
  EXPECT_EQ(utf8_replace_invalid("a\xFF"
                                 "b\xE4\xBD",
                                 &edits),
            "a\uFFFDb\uFFFD");
  ASSERT_EQ(edits.size(), 2u);
  EXPECT_EQ(edits[0].from_begin, 1u);
  EXPECT_EQ(edits[0].from_end, 2u);
  EXPECT_EQ(edits[0].to_begin, 1u);
  EXPECT_EQ(edits[0].to_end, 4u);
  EXPECT_EQ(edits[1].from_begin, 3u);
  EXPECT_EQ(edits[1].from_end, 5u);
}

TEST(Utf8, EveryCodePointSurvivesWritingAndReading) {
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text;
    utf8_append(c, text);
    const Utf8Char read = utf8_read(text, 0);
    ASSERT_TRUE(read.valid && read.code_point == c && read.length == text.size()) << c;
    ASSERT_EQ(utf8_read_valid(text.data()).code_point, c);
  }
}

TEST(Utf8Stream, EveryCutGivesTheSameText) {
  const std::string text = "a\xC3\xA9\xF0\x9F\xA6\x99\xFF\xE4\xBD\xE4\xBD\xA0\xED\xA0\x80z\xF0\x9F\x98";
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      Utf8Stream stream;
      std::string out = stream.push(std::string_view(text).substr(0, first));
      EXPECT_TRUE(utf8_valid(out));
      out += stream.push(std::string_view(text).substr(first, second - first));
      out += stream.push(std::string_view(text).substr(second));
      EXPECT_TRUE(stream.holds_bytes());
      out += stream.finish();
      EXPECT_EQ(out, utf8_replace_invalid(text));
      EXPECT_FALSE(stream.holds_bytes());
    }
  }
}

TEST(Nfc, ComposesAndOrders) {
  EXPECT_EQ(to_nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(to_nfc("a\u0323\u0302"), "\u1EAD");
  EXPECT_EQ(to_nfc("a\u0302\u0323"), "\u1EAD");
  EXPECT_EQ(to_nfc("\u212B"), "\u00C5");
  EXPECT_EQ(to_nfc("\u1112\u1161\u11AB"), "\uD55C");
  EXPECT_EQ(to_nfc("\uD558\u11AB"), "\uD55C");
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093C");  // excluded from composition
  EXPECT_EQ(to_nfc("\uF900"), "\u8C48");
  EXPECT_EQ(to_nfc("\u0301e"), "\u0301e");
  EXPECT_EQ(to_nfc("x\u0334\u0301y"), "x\u0334\u0301y");
  EXPECT_EQ(to_nfc(""), "");
  // A mark newer than utf8proc's Unicode must not keep older ones from composing.
  EXPECT_EQ(to_nfc("A\u0300\U00011D44\U000113CF\u030A"), "\u00C0\U00011D44\U000113CF\u030A");
}

TEST(Nfc, QuickCheckAgreesWithTheResult) {
  EXPECT_FALSE(nfc_may_change("plain text"));
  EXPECT_FALSE(nfc_may_change("\u00E9\u4F60\uD55C"));
  EXPECT_FALSE(nfc_may_change("\u0915\u094D"));
  EXPECT_TRUE(nfc_may_change("plain text with e\u0301"));
  EXPECT_TRUE(nfc_may_change("a\u0301\u0323"));
  EXPECT_TRUE(nfc_may_change("\u0301\u0323"));
}

TEST(Nfc, EditsDescribeTheChange) {
  const std::string text = "xe\u0301y\u212Bz";
  std::vector<TextEdit> edits;
  const std::string nfc = to_nfc(text, &edits);
  EXPECT_EQ(nfc, "x\u00E9y\u00C5z");
  std::string rebuilt;
  std::size_t pos = 0;
  for (const TextEdit& edit : edits) {
    rebuilt += text.substr(pos, edit.from_begin - pos);
    EXPECT_EQ(rebuilt.size(), edit.to_begin);
    rebuilt += nfc.substr(edit.to_begin, edit.to_end - edit.to_begin);
    pos = edit.from_end;
  }
  EXPECT_EQ(rebuilt + text.substr(pos), nfc);
}

TEST(Nfc, RepeatingChangesNothing) {
  std::mt19937 random(7);
  const std::uint32_t pool[] = {'a',    ' ',    0x301, 0x323, 0x334,   0x345, 0x1100, 0x1161, 0x11A8,
                                0xAC00, 0x212B, 0x915, 0x93C, 0x958,   0xF71, 0xF72,  0xF80,  0x344,
                                0x1E9B, 0x5D0,  0x5B0, 0x5BC, 0x1D15E, 0x308, 0x3B9};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (unsigned i = random() % 12; i > 0; --i) utf8_append(pool[random() % std::size(pool)], text);
    const std::string once = to_nfc(text);
    ASSERT_TRUE(utf8_valid(once));
    ASSERT_EQ(to_nfc(once), once);
    ASSERT_TRUE(nfc_may_change(text) || once == text);
  }
}

TEST(Nfc, MarksInTheWrongOrderAreNotQuadratic) {
  std::string text = "a";
  for (int i = 0; i < 250000; ++i) text += "\u0301\u0323";
  const auto start = std::chrono::steady_clock::now();
  const std::string nfc = to_nfc(text);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(nfc.substr(0, 7), "\u1EA1\u0323\u0323");
}

}  // namespace
}  // namespace mimo
