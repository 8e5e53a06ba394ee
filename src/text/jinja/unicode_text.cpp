#include "text/jinja/unicode_text.h"

#include <utf8proc.h>

namespace mimo::jinja {
namespace {

constexpr char32_t kInvalid = 0xFFFFFFFF;

utf8proc_category_t category(char32_t code) {
  return code > 0x10FFFF ? UTF8PROC_CATEGORY_CN : utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

}  // namespace

void append_utf8(std::string& out, char32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

char32_t decode_at(std::string_view text, std::size_t pos, std::size_t& length) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(pos);
  length = 1;
  if (lead < 0x80) return lead;
  const std::size_t want = lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
  if (want == 0 || text.size() - pos < want) return kInvalid;
  char32_t code = lead & (0x7Fu >> want);
  for (std::size_t i = 1; i < want; ++i) {
    if (byte(pos + i) >> 6 != 2) return kInvalid;
    code = code << 6 | (byte(pos + i) & 0x3Fu);
  }
  constexpr char32_t kSmallest[5] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[want] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return kInvalid;
  length = want;
  return code;
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t pos = 0, length = 0; pos < text.size(); pos += length) {
    decode_at(text, pos, length);
    ++count;
  }
  return count;
}

std::size_t byte_offset(std::string_view text, std::size_t index) {
  std::size_t pos = 0;
  for (std::size_t length = 0; index > 0 && pos < text.size(); --index) {
    decode_at(text, pos, length);
    pos += length;
  }
  return pos;
}

bool is_valid_utf8(std::string_view text) {
  for (std::size_t pos = 0, length = 0; pos < text.size(); pos += length) {
    if (decode_at(text, pos, length) == kInvalid) return false;
  }
  return true;
}

bool is_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

std::size_t skip_space(std::string_view text, std::size_t pos) {
  for (std::size_t length = 0; pos < text.size(); pos += length) {
    if (!is_space(decode_at(text, pos, length))) break;
  }
  return pos;
}

std::size_t trim_right_end(std::string_view text, std::size_t from) {
  std::size_t end = text.size();
  while (end > from) {
    std::size_t start = end - 1;
    while (start > from && end - start < 4 && (static_cast<unsigned char>(text[start]) >> 6) == 2) --start;
    std::size_t length = 0;
    const char32_t code = decode_at(text, start, length);
    if (start + length != end || !is_space(code)) break;
    end = start;
  }
  return end;
}

Letter letter_class(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_LL:
      return Letter::kLower;
    case UTF8PROC_CATEGORY_LU:
      return Letter::kUpper;
    case UTF8PROC_CATEGORY_LT:
      return Letter::kTitle;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return Letter::kOther;
    default:
      return Letter::kNone;
  }
}

bool is_decimal(char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }

bool is_numeric(char32_t code) {
  const utf8proc_category_t kind = category(code);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_printable(char32_t code) {
  if (code < 0x7F) return code >= 0x20;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void append_upper(std::string& out, char32_t code) {
  if (code == 0xDF) {
    out += "SS";
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
  }
}

void append_lower(std::string& out, char32_t code) {
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

void append_title(std::string& out, char32_t code) {
  if (code == 0xDF) {
    out += "Ss";
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))));
  }
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t pos = 0, length = 0; pos < text.size(); pos += length) {
    const char32_t code = decode_at(text, pos, length);
    code == kInvalid ? out.append(text.substr(pos, 1)), void() : append_upper(out, code);
  }
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool after_letter = false;
  for (std::size_t pos = 0, length = 0; pos < text.size(); pos += length) {
    const char32_t code = decode_at(text, pos, length);
    if (code == kInvalid) {
      out += text[pos];
      after_letter = false;
      continue;
    }
    if (code == 0x3A3) {  // capital sigma is written differently at the end of a word
      std::size_t next_length = 0;
      const bool before_letter = pos + length < text.size() &&
                                 letter_class(decode_at(text, pos + length, next_length)) != Letter::kNone;
      append_utf8(out, after_letter && !before_letter ? 0x3C2 : 0x3C3);
    } else {
      append_lower(out, code);
    }
    after_letter = letter_class(code) != Letter::kNone;
  }
  return out;
}

}  // namespace mimo::jinja
