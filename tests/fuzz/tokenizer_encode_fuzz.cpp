// Encoding with the tiny vocabulary: the ids spell the normalised text, whatever the bytes and however the
// text is cut into pieces; and the hand-written split agrees with PCRE2 on the same pattern.
//
// The first byte chooses how the rest is read: as raw bytes, or as indices into a list of characters that
// matter to the split pattern (which finds more than raw bytes do, and needs no agreement about newer Unicode
// versions).
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "text/detokenizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode_nfc.h"
#include "text/unicode_utf8.h"

#ifdef MIMO_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace {

using mimo::TokenId;

constexpr std::string_view kCharacters[] = {
    "a",      "s",          "t",       "r",        "e",      "v",      "m",      "l",      "d",      "S",
    "L",      "Z",          "K",       "'",        " ",      "\n",     "\r",     "\t",     "1",      "0",
    ".",      "<",          "|",       ">",        "_",      "!",      "\u017F", "\u212A", "\u0301", "\u0323",
    "\u0338", "é",          "你",      "世",       "\u3000", "\u00A0", "\u0085", "\u2028", "٣",      "½",
    "Ⅷ",      "का",         "한",      "\u1112",   "\u1161", "\u11AB", "😀",      "\u200D", "\uFE0F", "\u200B",
    "\u212B", "<|im_end|>", "<think>", "</think>", "\x1C",   "\v",     "\x7F",   "ß",      "\uFFFD", "’",
    "ﬅ",      "#",          "=",       "the "};

void require(bool condition) {
  if (!condition) std::abort();
}

const mimo::Tokenizer& tokenizer() {
  static const auto loaded = mimo::Tokenizer::load(MIMO_SOURCE_DIR "/models/tiny/tokenizer.json");
  require(loaded.has_value());
  return *loaded;
}

#ifdef MIMO_HAVE_PCRE2
// The oracle: one compiled pattern, matched piece by piece.
class Pcre2Split {
 public:
  explicit Pcre2Split(const char* regex) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                          &error, &offset, nullptr);
    require(code_ != nullptr);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }

  std::size_t piece_end(std::string_view text, std::size_t pos) const {
    const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), pos,
                                  PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, match_, nullptr);
    require(found > 0);
    return pcre2_get_ovector_pointer(match_)[1];
  }

 private:
  pcre2_code* code_;
  pcre2_match_data* match_;
};

void check_split(std::string_view text) {
  struct Pattern {
    mimo::PreTokenizer scanner;
    Pcre2Split oracle;
  };
  static const auto make = [](const char* regex) {
    return Pattern{mimo::PreTokenizer(mimo::split_pattern_from_regex(regex).value()), Pcre2Split(regex)};
  };
  static const Pattern patterns[] = {
      make(
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"),
      make(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")};
  for (const Pattern& pattern : patterns) {
    for (std::size_t pos = 0; pos < text.size();) {
      const std::size_t end = pattern.scanner.piece_end(text, pos);
      require(end == pattern.oracle.piece_end(text, pos));
      pos = end;
    }
  }
}
#else
void check_split(std::string_view) {}
#endif

void check_round_trip(std::string_view text) {
  const std::vector<TokenId> plain = tokenizer().encode(text, {.allow_added_tokens = false});
  const std::string nfc = mimo::to_nfc(mimo::utf8_replace_invalid(text));
  require(tokenizer().decode(plain, false).value() == nfc);
  for (const TokenId id : plain) require(!tokenizer().is_added(id));
  require(tokenizer().encode(nfc, {.allow_added_tokens = false}) == plain);
  mimo::Detokenizer detokenizer(tokenizer(), false);
  std::string streamed;
  for (const TokenId id : plain) {
    const auto part = detokenizer.push(id);
    require(part.has_value() && mimo::utf8_valid(*part));
    streamed += *part;
  }
  require(streamed + detokenizer.finish() == nfc);
}

// `cuts` says where pieces end and which are trusted.
void check_pieces(std::string_view text, std::string_view cuts) {
  std::vector<mimo::TextPiece> pieces;
  std::vector<mimo::TextPiece> untrusted;
  std::size_t pos = 0;
  bool any_trusted = false;
  for (const char cut : cuts) {
    const auto byte = static_cast<unsigned char>(cut);
    const std::string_view part = text.substr(pos, byte >> 1 & 15);
    pieces.push_back({part, (byte & 1) != 0});
    untrusted.push_back({part, false});
    any_trusted = any_trusted || (byte & 1) != 0;
    pos += part.size();
  }
  pieces.push_back({text.substr(pos), false});
  untrusted.push_back({text.substr(pos), false});
  require(tokenizer().encode(untrusted) == tokenizer().encode(text, {.allow_added_tokens = false}));
  const std::vector<TokenId> mixed = tokenizer().encode(pieces);
  if (!any_trusted) require(mixed == tokenizer().encode(untrusted));
  // Each control token is paid for by its own spelling in trusted text.
  std::size_t trusted_bytes = 0;
  for (const mimo::TextPiece& piece : pieces) trusted_bytes += piece.trusted ? piece.text.size() : 0;
  std::size_t added_bytes = 0;
  for (const TokenId id : mixed) {
    if (tokenizer().is_added(id)) added_bytes += tokenizer().token_bytes(id).value().size();
  }
  require(added_bytes <= trusted_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string text;
  if ((data[0] & 1) == 0) {
    text = input;
  } else {
    for (const char c : input) text += kCharacters[static_cast<unsigned char>(c) % std::size(kCharacters)];
    check_split(text);
  }
  check_round_trip(text);
  check_pieces(text, input.substr(0, 8));
  return 0;
}
