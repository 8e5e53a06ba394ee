#include "server/http/target.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace mimo::http {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

bool starts_with_scheme(std::string_view raw, std::string_view scheme) {
  return raw.size() >= scheme.size() &&
         std::equal(scheme.begin(), scheme.end(), raw.begin(), [](char want, char have) {
           return want == (have >= 'A' && have <= 'Z' ? have | 0x20 : have);
         });
}

// Length of the UTF-8 sequence that starts here, 0 if it is not one.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool surrogate = first == 0xed && second > 0x9f;
  const bool too_large = first == 0xf4 && second > 0x8f;
  return overlong || surrogate || too_large ? 0 : length;
}

}  // namespace

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

Result<Target> parse_target(std::string_view raw) {
  const auto wrong = [](std::string_view what) {
    return fail(ErrorCode::kInvalidArgument, "request target: {}", what);
  };
  if (raw == "*") return Target{"*", {}};
  bool absolute = false;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!starts_with_scheme(raw, scheme)) continue;
    raw.remove_prefix(scheme.size());
    const std::size_t end = raw.find_first_of("/?");
    if (end == 0 || raw.empty()) return wrong("the absolute form names no host");
    raw = end == std::string_view::npos ? "" : raw.substr(end);
    absolute = true;
    break;
  }
  const std::size_t mark = raw.find('?');
  std::string_view encoded = raw.substr(0, mark);
  if (absolute && encoded.empty()) encoded = "/";
  Target target;
  if (mark != std::string_view::npos) target.query = raw.substr(mark + 1);
  if (!encoded.starts_with('/')) return wrong("expected a path that starts with '/'");
  target.path.reserve(encoded.size());
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    char c = encoded[i];
    if (c == '#') return wrong("a fragment ('#') is not allowed");
    if (c == '%') {
      const int high = i + 2 < encoded.size() ? hex_value(encoded[i + 1]) : -1;
      const int low = i + 2 < encoded.size() ? hex_value(encoded[i + 2]) : -1;
      if (high < 0 || low < 0) return wrong("'%' must be followed by two hexadecimal digits");
      c = static_cast<char>(high << 4 | low);
      i += 2;
    }
    // Paths end up in logs and error texts.
    if (is_control(c)) return wrong("control characters are not allowed in the path");
    target.path += c;
  }
  if (!valid_utf8(target.path)) return wrong("the path is not valid UTF-8");
  return target;
}

}  // namespace mimo::http
