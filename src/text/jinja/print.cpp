// str(), repr() and json.dumps() of values, as Python writes them.
#include <algorithm>

#include "text/jinja/runtime.h"
#include "text/jinja/unicode_text.h"
#include "text/python_json.h"

namespace mimo::jinja {
namespace {

// repr() of a string: single quotes unless only those occur inside; what cannot be printed is escaped.
void repr_string(std::string_view text, std::string& out) {
  const bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quotes ? '"' : '\'';
  out += quote;
  for (std::size_t pos = 0, length = 0; pos < text.size(); pos += length) {
    const char32_t code = decode_at(text, pos, length);
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (is_printable(code)) {
      out.append(text.substr(pos, length));
    } else if (code < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(code));
    } else if (code < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(code));
    } else if (code <= 0x10FFFF) {
      out += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(code));
    } else {  // a byte that is not UTF-8
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[pos]));
    }
  }
  out += quote;
}

}  // namespace

std::string int_to_string(Int value) {
  const bool negative = value < 0;
  // Negated in unsigned arithmetic, where the smallest value has a counterpart.
  __extension__ unsigned __int128 rest = static_cast<unsigned __int128>(value);
  if (negative) rest = 0 - rest;
  std::string digits;
  do {
    digits += static_cast<char>('0' + static_cast<int>(rest % 10));
    rest /= 10;
  } while (rest != 0);
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

void Runtime::check_growing(const std::string& out) {
  charge();
  if (out.size() > limits_.max_output_bytes) {
    raise(ErrorCode::kLimit, "a printed value of more than {} bytes", limits_.max_output_bytes);
  }
}

TextPtr Runtime::str_ptr(const Value& value) {
  if (value.is_string()) return value.text_ptr();
  return std::make_shared<const Text>(str(value));
}

Text Runtime::str(const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return Text();
  return Text(repr(value), false);
}

std::string Runtime::repr(const Value& value) {
  std::string out;
  repr_into(value, out, 0);
  charge_text(out.size());
  return out;
}

void Runtime::repr_into(const Value& value, std::string& out, int depth) {
  check_growing(out);
  if (depth > limits_.max_value_depth) raise(ErrorCode::kLimit, "a printed value is nested too deep");
  const auto sequence = [&](const char* open, const std::vector<Value>& items, const char* close) {
    out += open;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += ", ";
      repr_into(items[i], out, depth + 1);
    }
    out += close;
  };
  const auto mapping = [&](const Dict& dict) {
    out += '{';
    for (std::size_t i = 0; i < dict.entries.size(); ++i) {
      if (i > 0) out += ", ";
      repr_into(dict.entries[i].first, out, depth + 1);
      out += ": ";
      repr_into(dict.entries[i].second, out, depth + 1);
    }
    out += '}';
  };
  switch (value.kind()) {
    case Kind::kUndefined:
      out += "Undefined";
      return;
    case Kind::kNone:
      out += "None";
      return;
    case Kind::kBool:
      out += value.boolean() ? "True" : "False";
      return;
    case Kind::kInt:
      out += int_to_string(value.integral());
      return;
    case Kind::kFloat:
      out += python_float_repr(value.real());
      return;
    case Kind::kString:
      charge(value.text().size() / 16);
      if (value.text().markup()) out += "Markup(";
      repr_string(value.bytes(), out);
      if (value.text().markup()) out += ")";
      return;
    case Kind::kDict:
      mapping(value.dict());
      return;
    case Kind::kNamespace:
      out += "<Namespace ";
      mapping(value.space().attributes);
      out += '>';
      return;
    case Kind::kMacro:
      if (value.macro().def->symbol < 0) {
        out += "<Macro anonymous>";
      } else {
        out += fmt::format("<Macro '{}'>", value.macro().def->name);
      }
      return;
    case Kind::kList: {
      const List& list = value.list();
      switch (list.kind) {
        case ListKind::kList:
          sequence("[", list.items, "]");
          return;
        case ListKind::kTuple:
          sequence("(", list.items, list.items.size() == 1 ? ",)" : ")");
          return;
        case ListKind::kItems:
          sequence("dict_items([", list.items, "])");
          return;
        case ListKind::kKeys:
          sequence("dict_keys([", list.items, "])");
          return;
        case ListKind::kValues:
          sequence("dict_values([", list.items, "])");
          return;
        case ListKind::kRange:
          out += fmt::format("range({}, {}", int_to_string(list.start), int_to_string(list.stop));
          if (list.step != 1) out += ", " + int_to_string(list.step);
          out += ')';
          return;
      }
      return;
    }
    // Python would print a memory address, which is never what a prompt should hold.
    case Kind::kGenerator:
      raise(ErrorCode::kUnsupported,
            "an iterator (the result of map, select, ...) is printed; use the filter 'list' or 'join'");
    case Kind::kFunction:
      raise(ErrorCode::kUnsupported, "the function '{}' is printed", value.function().name);
    case Kind::kMethod:
      raise(ErrorCode::kUnsupported, "the method '{}' is printed without a call", value.method().name);
    case Kind::kLoop:
      raise(ErrorCode::kUnsupported, "'loop' itself is printed");
  }
}

std::string Runtime::to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  json_into(value, style, 0, out);
  charge_text(out.size());
  return out;
}

void Runtime::json_line(const JsonStyle& style, int level, std::string& out) {
  if (!style.indent) return;
  out += '\n';
  for (int i = 0; i < level; ++i) {
    out += *style.indent;
    check_growing(out);
  }
}

void Runtime::json_into(const Value& value, const JsonStyle& style, int level, std::string& out) {
  check_growing(out);
  switch (value.kind()) {
    case Kind::kNone:
      out += "null";
      return;
    case Kind::kBool:
      out += value.boolean() ? "true" : "false";
      return;
    case Kind::kInt:
      out += int_to_string(value.integral());
      return;
    case Kind::kFloat:
      out += python_json_float(value.real());
      return;
    case Kind::kString:
      charge(value.text().size() / 16);
      append_python_json_string(out, value.bytes(), style.ensure_ascii);
      return;
    case Kind::kList: {
      const List& list = value.list();
      if (list.kind != ListKind::kList && list.kind != ListKind::kTuple) break;
      if (list.items.empty()) {
        out += "[]";
        return;
      }
      out += '[';
      for (std::size_t i = 0; i < list.items.size(); ++i) {
        if (i > 0) out += style.item_separator;
        json_line(style, level + 1, out);
        json_into(list.items[i], style, level + 1, out);
      }
      json_line(style, level, out);
      out += ']';
      return;
    }
    case Kind::kDict: {
      const Dict& dict = value.dict();
      if (dict.entries.empty()) {
        out += "{}";
        return;
      }
      std::vector<std::size_t> places(dict.entries.size());
      for (std::size_t i = 0; i < places.size(); ++i) places[i] = i;
      if (style.sort_keys) {
        charge(places.size());
        std::stable_sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
          return less(dict.entries[a].first, dict.entries[b].first);
        });
      }
      out += '{';
      bool first = true;
      for (const std::size_t place : places) {
        const auto& [key, item] = dict.entries[place];
        if (!first) out += style.item_separator;
        first = false;
        json_line(style, level + 1, out);
        switch (key.kind()) {
          case Kind::kString:
            append_python_json_string(out, key.bytes(), style.ensure_ascii);
            break;
          case Kind::kNone:
          case Kind::kBool:
          case Kind::kInt:
          case Kind::kFloat:
            out += '"';
            json_into(key, style, level, out);
            out += '"';
            break;
          default:
            type_error("a JSON key must be a string, number, true, false or none, not {}", type_name(key));
        }
        out += style.key_separator;
        json_into(item, style, level + 1, out);
      }
      json_line(style, level, out);
      out += '}';
      return;
    }
    case Kind::kUndefined: {
      const Undefined& undefined = value.undefined();
      type_error("a value given to tojson is undefined{}", undefined.reason ? ": " + *undefined.reason : "");
    }
    default:
      break;
  }
  type_error("a value of type {} cannot be written as JSON", type_name(value));
}

}  // namespace mimo::jinja
