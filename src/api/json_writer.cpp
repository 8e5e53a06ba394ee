#include "api/json_writer.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <iterator>

#include "text/unicode_utf8.h"

namespace mimo {
namespace {

// What stands behind the backslash; 0: written as it is; 'u': as \u00XX.
constexpr std::array<char, 128> kEscapes = [] {
  std::array<char, 128> table{};
  for (std::size_t i = 0; i < 0x20; ++i) table[i] = 'u';
  table[0x7F] = 'u';
  table['\b'] = 'b';
  table['\f'] = 'f';
  table['\n'] = 'n';
  table['\r'] = 'r';
  table['\t'] = 't';
  table['"'] = '"';
  table['\\'] = '\\';
  return table;
}();

constexpr char kHex[] = "0123456789abcdef";

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  std::size_t start = 0;  // of what is not written yet
  std::size_t i = 0;
  while (i < text.size()) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x80) {
      const Utf8Char character = utf8_read(text, i);
      if (!character.valid) {
        out.append(text, start, i - start);
        out += "\xEF\xBF\xBD";
        start = i + character.length;
      }
      i += character.length;
      continue;
    }
    const char escape = kEscapes[byte];
    if (escape != 0) {
      out.append(text, start, i - start);
      out += '\\';
      out += escape;
      if (escape == 'u') {
        out += "00";
        out += kHex[byte >> 4];
        out += kHex[byte & 15];
      }
      start = i + 1;
    }
    ++i;
  }
  out.append(text, start, text.size() - start);
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

void append_json_float(std::string& out, float value) {
  if (!std::isfinite(value)) {
    out += value > 0 ? "9999.0" : "-9999.0";
    return;
  }
  const std::size_t start = out.size();
  fmt::format_to(std::back_inserter(out), "{}", value);
  // "-0.0" and "3.0" rather than "-0" and "3": some readers take those for integers.
  if (out.find_first_of(".e", start) == std::string::npos) out += ".0";
}

}  // namespace mimo
