#include "text/jinja/string_methods.h"

#include <algorithm>

namespace mimo::jinja {
namespace {

constexpr char32_t kInvalid = 0xFFFFFFFF;

// Set membership of one character of `text` at `pos` in the characters of `chars` (white space when null).
bool strippable(std::string_view text, std::size_t pos, std::size_t length, char32_t code,
                const Text* chars) {
  if (chars == nullptr) return is_space(code);
  const std::string_view set = chars->bytes();
  const std::string_view one = text.substr(pos, length);
  for (std::size_t at = 0, step = 0; at < set.size(); at += step) {
    decode_at(set, at, step);
    if (set.substr(at, step) == one) return true;
  }
  return false;
}

}  // namespace

Text strip(Runtime& runtime, const Text& text, const Text* chars, Side side) {
  const std::string& bytes = text.bytes();
  runtime.charge_text(bytes.size());
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  const std::uint64_t cost = chars == nullptr ? 0 : chars->size() / 16;
  if (side != Side::kRight) {
    for (std::size_t length = 0; begin < end; begin += length) {
      runtime.charge(cost);
      const char32_t code = decode_at(bytes, begin, length);
      if (!strippable(bytes, begin, length, code, chars)) break;
    }
  }
  while (side != Side::kLeft && end > begin) {
    runtime.charge(cost);
    std::size_t start = end - 1;
    while (start > begin && end - start < 4 && (static_cast<unsigned char>(bytes[start]) >> 6) == 2) --start;
    std::size_t length = 0;
    char32_t code = decode_at(bytes, start, length);
    if (start + length != end) {  // not UTF-8: take the last byte alone
      start = end - 1;
      length = 1;
      code = kInvalid;
    }
    if (!strippable(bytes, start, length, code, chars)) break;
    end = start;
  }
  return text.slice(begin, end);
}

Text map_characters(Runtime& runtime, const Text& text,
                    const std::function<void(char32_t, std::string&)>& change) {
  const std::string& bytes = text.bytes();
  runtime.charge_text(bytes.size());
  runtime.charge(bytes.size() / 4);
  Text out;
  std::string piece;
  std::size_t pos = 0;
  for (const Text::Span& span : text.spans()) {
    piece.clear();
    while (pos < span.end) {
      std::size_t length = 0;
      const char32_t code = decode_at(bytes, pos, length);
      if (code == kInvalid) {
        piece += bytes[pos];
      } else {
        change(code, piece);
      }
      pos += length;
    }
    out.append(piece, span.trusted);
  }
  return out;
}

Text upper(Runtime& runtime, const Text& text) {
  return map_characters(runtime, text, [](char32_t code, std::string& out) { append_upper(out, code); });
}

Text lower(Runtime& runtime, const Text& text) {
  if (text.spans().size() == 1) {  // the usual case, with the context that a final sigma needs
    runtime.charge_text(text.size());
    runtime.charge(text.size() / 4);
    return Text(to_lower(text.bytes()), text.spans()[0].trusted);
  }
  return map_characters(runtime, text, [](char32_t code, std::string& out) { append_lower(out, code); });
}

Text capitalize(Runtime& runtime, const Text& text) {
  bool first = true;
  return map_characters(runtime, text, [&](char32_t code, std::string& out) {
    first ? append_title(out, code) : append_lower(out, code);
    first = false;
  });
}

Text title_filter(Runtime& runtime, const Text& text) {
  bool start = true;
  return map_characters(runtime, text, [&](char32_t code, std::string& out) {
    const bool separator =
        is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
    if (separator) {
      append_utf8(out, code);
    } else {
      start ? append_upper(out, code) : append_lower(out, code);
    }
    start = separator;
  });
}

Text title_method(Runtime& runtime, const Text& text) {
  bool after_cased = false;
  return map_characters(runtime, text, [&](char32_t code, std::string& out) {
    after_cased ? append_lower(out, code) : append_title(out, code);
    const Letter kind = letter_class(code);
    after_cased = kind == Letter::kLower || kind == Letter::kUpper || kind == Letter::kTitle;
  });
}

Text replace(Runtime& runtime, const Text& text, const Text& from, const Text& to, Int count) {
  const std::string& bytes = text.bytes();
  runtime.charge(bytes.size() / 16);
  Text out;
  std::size_t copied = 0;  // start of what is not in `out` yet
  const auto step = [&](std::size_t at, std::size_t skip) {
    out.append_slice(text, copied, at);
    out.append(to);
    copied = at + skip;
    runtime.charge();
    if (out.size() > runtime.limits().max_output_bytes) {
      runtime.raise(ErrorCode::kLimit, "a string of more than {} bytes", runtime.limits().max_output_bytes);
    }
  };
  if (from.size() == 0) {  // before every character and at the end
    std::size_t pos = 0;
    for (std::size_t length = 0; count != 0; pos += length, --count) {
      step(pos, 0);
      if (pos == bytes.size()) break;
      decode_at(bytes, pos, length);
    }
  } else {
    for (std::size_t at = 0; count != 0 && (at = bytes.find(from.bytes(), at)) != std::string::npos;
         --count) {
      step(at, from.size());
      at += from.size();
    }
  }
  out.append_slice(text, copied, bytes.size());
  runtime.charge_text(out.size());
  return out;
}

std::vector<Text> split_lines(Runtime& runtime, const Text& text, bool keep_ends) {
  const std::string& bytes = text.bytes();
  runtime.charge_text(bytes.size());
  runtime.charge(bytes.size() / 4);
  std::vector<Text> lines;
  std::size_t begin = 0;
  for (std::size_t pos = 0, length = 0; pos < bytes.size();) {
    const char32_t code = decode_at(bytes, pos, length);
    const bool line_end = (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
                          code == 0x2028 || code == 0x2029;
    std::size_t next = pos + length;
    if (line_end) {
      if (code == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      runtime.charge_items(1);
      lines.push_back(text.slice(begin, keep_ends ? next : pos));
      begin = next;
    }
    pos = next;
  }
  if (begin < bytes.size()) lines.push_back(text.slice(begin, bytes.size()));
  return lines;
}

Text join(Runtime& runtime, const Text& separator, const std::vector<TextPtr>& parts) {
  std::size_t bytes = 0;
  for (const TextPtr& part : parts) {
    bytes += part->size() + separator.size();
    if (bytes > runtime.limits().max_output_bytes) {
      runtime.raise(ErrorCode::kLimit, "a string of more than {} bytes", runtime.limits().max_output_bytes);
    }
  }
  runtime.charge_text(bytes);
  Text out;
  out.reserve(bytes);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(*parts[i]);
  }
  return out;
}

bool all_cased(Runtime& runtime, const Text& text, Letter wanted) {
  runtime.charge(text.size() / 4);
  bool any = false;
  for (std::size_t pos = 0, length = 0; pos < text.size(); pos += length) {
    const Letter kind = letter_class(decode_at(text.bytes(), pos, length));
    if (kind == Letter::kNone || kind == Letter::kOther) continue;
    if (kind != wanted) return false;
    any = true;
  }
  return any;
}

Text escape_html(Runtime& runtime, const Text& text) {
  Text out = map_characters(runtime, text, [](char32_t code, std::string& to) {
    switch (code) {
      case '&':
        to += "&amp;";
        return;
      case '<':
        to += "&lt;";
        return;
      case '>':
        to += "&gt;";
        return;
      case '\'':
        to += "&#39;";
        return;
      case '"':
        to += "&#34;";
        return;
      default:
        append_utf8(to, code);
    }
  });
  runtime.charge_text(out.size());
  return out;
}

}  // namespace mimo::jinja
