// UTF-8 reading with one rule for invalid bytes, everywhere in the text path: each maximal invalid part (the
// longest prefix of some valid character, or else one byte) counts as one U+FFFD. It is the rule of the
// Unicode standard (chapter 3, "U+FFFD Substitution of Maximal Subparts") and of Python's
// bytes.decode("utf-8", "replace").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mimo {

struct Utf8Char {
  std::uint32_t code_point;  // U+FFFD where invalid
  std::uint8_t length;       // bytes used, 1..4
  bool valid;
  bool cut;  // invalid only because the text ends inside the character
};

// The character at `pos` < text.size().
Utf8Char utf8_read(std::string_view text, std::size_t pos);

// The same for text known to be valid, without checks; `text` points at the first byte of a character.
inline Utf8Char utf8_read_valid(const char* text) {
  const auto byte = [text](int i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2, true, false};
  if (lead < 0xF0) return {(lead & 0xF) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3, true, false};
  return {(lead & 7) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4, true,
          false};
}

// Offset of the first byte that is not ASCII, from `pos` on; text.size() if there is none.
std::size_t skip_ascii(std::string_view text, std::size_t pos);

bool utf8_valid(std::string_view text);

void utf8_append(std::uint32_t code_point, std::string& out);

// A rewritten part of a text: bytes [from_begin, from_end) of the old text became [to_begin, to_end) of the
// new one.
struct TextEdit {
  std::size_t from_begin, from_end;
  std::size_t to_begin, to_end;
};

// The text with invalid parts replaced by U+FFFD. If `edits` is given, what was replaced is added to it, in
// order.
std::string utf8_replace_invalid(std::string_view text, std::vector<TextEdit>* edits = nullptr);

// Turns bytes that arrive in arbitrary cuts into text: a character is given out when it is complete. All
// outputs together equal utf8_replace_invalid of all inputs together.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  // What was held back, as U+FFFD (a cut character is one maximal invalid part); the stream is then empty
  // again.
  std::string finish();
  bool holds_bytes() const { return !held_.empty(); }

 private:
  std::string held_;  // at most 3 bytes: a proper prefix of a valid character
};

}  // namespace mimo
