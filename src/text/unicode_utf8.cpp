#include "text/unicode_utf8.h"

#include <cstring>

namespace mimo {
namespace {

constexpr std::uint32_t kReplacement = 0xFFFD;
constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

}  // namespace

Utf8Char utf8_read(std::string_view text, std::size_t pos) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[pos + i]));
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  // Bounds of the second byte exclude overlong forms, surrogates and code points above U+10FFFF.
  std::uint32_t low = 0x80;
  std::uint32_t high = 0xBF;
  std::uint8_t length = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {kReplacement, 1, false, false};
  }
  std::uint32_t code_point = lead & (0x7Fu >> length);
  for (std::uint8_t i = 1; i < length; ++i) {
    if (pos + i >= text.size()) return {kReplacement, i, false, true};
    const std::uint32_t next = byte(i);
    if (next < low || next > high) return {kReplacement, i, false, false};
    code_point = code_point << 6 | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {code_point, length, true, false};
}

std::size_t skip_ascii(std::string_view text, std::size_t pos) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080ull;
  while (pos + 8 <= text.size()) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + pos, 8);
    if ((word & kHighBits) != 0) break;
    pos += 8;
  }
  while (pos < text.size() && static_cast<unsigned char>(text[pos]) < 0x80) ++pos;
  return pos;
}

bool utf8_valid(std::string_view text) {
  std::size_t pos = 0;
  while (pos < text.size()) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      pos = skip_ascii(text, pos);
      continue;
    }
    const Utf8Char c = utf8_read(text, pos);
    if (!c.valid) return false;
    pos += c.length;
  }
  return true;
}

void utf8_append(std::uint32_t code_point, std::string& out) {
  const auto put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::string utf8_replace_invalid(std::string_view text, std::vector<TextEdit>* edits) {
  std::string out;
  out.reserve(text.size());
  std::size_t pos = 0;
  while (pos < text.size()) {
    const Utf8Char c = utf8_read(text, pos);
    if (c.valid) {
      out.append(text.substr(pos, c.length));
    } else {
      if (edits != nullptr) {
        edits->push_back({pos, pos + c.length, out.size(), out.size() + kReplacementUtf8.size()});
      }
      out.append(kReplacementUtf8);
    }
    pos += c.length;
  }
  return out;
}

std::string Utf8Stream::push(std::string_view bytes) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::move(held_);
    held_.clear();
    joined.append(bytes);
    bytes = joined;
  }
  std::string out;
  out.reserve(bytes.size());
  std::size_t pos = 0;
  while (pos < bytes.size()) {
    const Utf8Char c = utf8_read(bytes, pos);
    if (c.cut) {
      held_.assign(bytes.substr(pos));
      break;
    }
    out.append(c.valid ? bytes.substr(pos, c.length) : kReplacementUtf8);
    pos += c.length;
  }
  return out;
}

std::string Utf8Stream::finish() {
  if (held_.empty()) return {};
  held_.clear();
  return std::string(kReplacementUtf8);
}

}  // namespace mimo
