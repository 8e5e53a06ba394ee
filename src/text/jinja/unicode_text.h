// The few character properties that Python string methods depend on, over UTF-8. Bytes that are not valid
// UTF-8 count as one character each and have no properties, so that nothing here can fail.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace mimo::jinja {

void append_utf8(std::string& out, char32_t code);

// Decodes the character at `pos` (< text.size()); `length` is its number of bytes. Invalid: 0xFFFFFFFF,
// length 1.
char32_t decode_at(std::string_view text, std::size_t pos, std::size_t& length);

// Number of characters.
std::size_t count_characters(std::string_view text);
// Byte offset of character `index`, or text.size() when there are fewer.
std::size_t byte_offset(std::string_view text, std::size_t index);
bool is_valid_utf8(std::string_view text);

// str.isspace of one character.
bool is_space(char32_t code);
// First byte at or after `pos` that does not start a space.
std::size_t skip_space(std::string_view text, std::size_t pos);
// End of `text` without its trailing spaces, not below `from`.
std::size_t trim_right_end(std::string_view text, std::size_t from);

enum class Letter { kNone, kLower, kUpper, kTitle, kOther };  // kOther: a letter without case
Letter letter_class(char32_t code);
bool is_decimal(char32_t code);
bool is_numeric(char32_t code);
// str.isprintable of one character: what repr() does not escape.
bool is_printable(char32_t code);

// Python's str.lower and friends, with simple one-to-one mappings plus U+00DF -> "SS" and final sigma.
void append_upper(std::string& out, char32_t code);
void append_lower(std::string& out, char32_t code);
void append_title(std::string& out, char32_t code);
// Whole strings.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);

}  // namespace mimo::jinja
