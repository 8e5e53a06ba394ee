#include "text/python_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <vector>

namespace mimo {
namespace {

// Decodes one code point at `pos` and moves past it; a byte that is not valid UTF-8 stands for itself as
// U+FFFD.
char32_t next_code_point(std::string_view text, std::size_t& pos) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(pos);
  const int length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
  if (length == 0 || pos + static_cast<std::size_t>(length) > text.size()) {
    ++pos;
    return 0xFFFD;
  }
  char32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
  for (int i = 1; i < length; ++i) {
    const unsigned char next = byte(pos + static_cast<std::size_t>(i));
    if (next >> 6 != 2) {
      ++pos;
      return 0xFFFD;
    }
    code = code << 6 | (next & 0x3Fu);
  }
  pos += static_cast<std::size_t>(length);
  return code;
}

class Writer {
 public:
  explicit Writer(const PythonJsonOptions& options) : options_(options) {}

  void write(const json::value& value, int level) {
    switch (value.kind()) {
      case json::kind::null:
        out += "null";
        return;
      case json::kind::bool_:
        out += value.get_bool() ? "true" : "false";
        return;
      case json::kind::int64:
        out += fmt::format("{}", value.get_int64());
        return;
      case json::kind::uint64:
        out += fmt::format("{}", value.get_uint64());
        return;
      case json::kind::double_:
        out += python_json_float(value.get_double());
        return;
      case json::kind::string: {
        const json::string& text = value.get_string();
        append_python_json_string(out, {text.data(), text.size()}, options_.ensure_ascii);
        return;
      }
      case json::kind::array: {
        const json::array& array = value.get_array();
        if (array.empty()) {
          out += "[]";
          return;
        }
        out += '[';
        for (std::size_t i = 0; i < array.size(); ++i) {
          if (i > 0) out += options_.item_separator;
          new_line(level + 1);
          write(array[i], level + 1);
        }
        new_line(level);
        out += ']';
        return;
      }
      case json::kind::object:
        write_object(value.get_object(), level);
        return;
    }
  }

  std::string out;

 private:
  void new_line(int level) {
    if (options_.indent < 0) return;
    out += '\n';
    out.append(static_cast<std::size_t>(options_.indent) * static_cast<std::size_t>(level), ' ');
  }

  void write_object(const json::object& object, int level) {
    if (object.empty()) {
      out += "{}";
      return;
    }
    std::vector<const json::key_value_pair*> entries;
    entries.reserve(object.size());
    for (const json::key_value_pair& entry : object) entries.push_back(&entry);
    if (options_.sort_keys) {  // byte order of UTF-8 is code point order
      std::sort(entries.begin(), entries.end(),
                [](const auto* a, const auto* b) { return a->key() < b->key(); });
    }
    out += '{';
    bool first = true;
    for (const json::key_value_pair* entry : entries) {
      if (!first) out += options_.item_separator;
      first = false;
      new_line(level + 1);
      append_python_json_string(out, {entry->key().data(), entry->key().size()}, options_.ensure_ascii);
      out += options_.key_separator;
      write(entry->value(), level + 1);
    }
    new_line(level);
    out += '}';
  }

  const PythonJsonOptions& options_;
};

}  // namespace

std::string python_float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  std::string out;
  if (text[0] == '-') {
    out += '-';
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  int exponent = 0;
  // from_chars takes no plus sign.
  const std::size_t digits_at = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + digits_at, text.data() + text.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += '.' + digits.substr(1);
    out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  } else {
    const auto whole = static_cast<std::size_t>(exponent) + 1;
    if (digits.size() <= whole) {
      out += digits + std::string(whole - digits.size(), '0') + ".0";
    } else {
      out += digits.substr(0, whole) + '.' + digits.substr(whole);
    }
  }
  return out;
}

std::string python_json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return python_float_repr(value);
}

void append_python_json_string(std::string& out, std::string_view text, bool ensure_ascii) {
  out += '"';
  std::size_t plain_from = 0;  // start of the bytes that are copied as they are
  std::size_t pos = 0;
  const auto flush = [&](std::size_t end) { out.append(text.substr(plain_from, end - plain_from)); };
  while (pos < text.size()) {
    const auto byte = static_cast<unsigned char>(text[pos]);
    if (byte >= 0x20 && byte != '"' && byte != '\\' && (byte < 0x7F || !ensure_ascii)) {
      ++pos;
      continue;
    }
    flush(pos);
    switch (byte) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (byte < 0x20) {
          out += fmt::format("\\u{:04x}", byte);
        } else {
          const std::uint32_t code = next_code_point(text, pos);
          --pos;  // undone by the step below
          if (code < 0x10000) {
            out += fmt::format("\\u{:04x}", code);
          } else {
            const std::uint32_t rest = code - 0x10000;
            out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
          }
        }
    }
    ++pos;
    plain_from = pos;
  }
  flush(text.size());
  out += '"';
}

std::string python_json(const json::value& value, const PythonJsonOptions& options) {
  Writer writer(options);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace mimo
