// Filters over strings, numbers and single values.
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <unordered_map>

#include "text/jinja/filters.h"
#include "text/jinja/string_methods.h"
#include "text/jinja/unicode_text.h"

namespace mimo::jinja {
namespace {

template <Text (*kChange)(Runtime&, const Text&)>
Value change_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "the filter", call, {});
  return kChange(runtime, *runtime.str_ptr(input));
}

Value trim_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "trim", call, {"chars"});
  const Text* chars = args.has_value(0) ? &require_text(runtime, args[0], "the argument of trim") : nullptr;
  return strip(runtime, *runtime.str_ptr(input), chars, Side::kBoth);
}

Value string_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "string", call, {});
  return runtime.str_ptr(input);
}

Value replace_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "replace", call, {"old", "new", "count"}, 2);
  const Int count = args.has_value(2) ? require_int(runtime, args[2], "the count of replace") : -1;
  return replace(runtime, *runtime.str_ptr(input), *runtime.str_ptr(args[0]), *runtime.str_ptr(args[1]),
                 count);
}

Value default_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "default", call, {"default_value", "boolean"});
  if (input.is_undefined() || (args.flag(1) && !runtime.truthy(input)))
    return args.has(0) ? args[0] : Value(Text());
  return input;
}

Value indent_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "indent", call, {"width", "first", "blank"});
  if (input.is_undefined()) runtime.undefined_error(input);
  Text with_end = require_text(runtime, input, "the input of indent");
  Text indentation;
  if (args.has(0) && args[0].is_string()) {
    indentation = args[0].text();
  } else {
    const Int width = args.has(0) ? require_int(runtime, args[0], "the width of indent") : 4;
    indentation = runtime.binary(Op::kMul, Text(" ", false), width).text();
  }
  with_end.append("\n", false);
  const std::vector<Text> lines = split_lines(runtime, with_end, false);
  const bool blank = args.flag(2);
  Text out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", false);
    const bool indented = i == 0 ? args.flag(1) : blank || lines[i].size() > 0;
    runtime.charge_text(lines[i].size() + (indented ? indentation.size() : 0));
    if (indented) out.append(indentation);
    out.append(lines[i]);
    if (out.size() > runtime.limits().max_output_bytes) {
      runtime.raise(ErrorCode::kLimit, "a string of more than {} bytes", runtime.limits().max_output_bytes);
    }
  }
  return out;
}

Value escape_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "escape", call, {});
  const TextPtr text = runtime.str_ptr(input);
  if (text->markup()) return text;
  Text escaped = escape_html(runtime, *text);
  escaped.set_markup(true);
  return escaped;
}

Value safe_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "safe", call, {});
  runtime.charge_text(runtime.str_ptr(input)->size());
  Text text = runtime.str(input);
  text.set_markup(true);
  return text;
}

// --- numbers

// Text of a Python int or float literal without surrounding space and without its underscores; nothing where
// an underscore is misplaced.
std::optional<std::string> number_text(std::string_view text) {
  const std::size_t begin = skip_space(text, 0);
  const std::string_view inner = text.substr(begin, trim_right_end(text, begin) - begin);
  std::string out;
  for (std::size_t i = 0; i < inner.size(); ++i) {
    if (inner[i] != '_') {
      out += inner[i];
      continue;
    }
    const auto alnum = [&](std::size_t at) {
      return at < inner.size() && std::isalnum(static_cast<unsigned char>(inner[at]));
    };
    if (i == 0 || !alnum(i - 1) || !alnum(i + 1)) return std::nullopt;
  }
  return out;
}

// int(text, base) of Python for bases 2 to 36; nothing where it raises ValueError.
std::optional<Int> parse_int(Runtime& runtime, std::string_view text, Int base) {
  const std::optional<std::string> clean = number_text(text);
  if (!clean || clean->empty()) return std::nullopt;
  std::size_t pos = 0;
  bool negative = false;
  if ((*clean)[0] == '+' || (*clean)[0] == '-') negative = (*clean)[pos++] == '-';
  if (pos + 1 < clean->size() && (*clean)[pos] == '0') {
    const char prefix = static_cast<char>((*clean)[pos + 1] | 0x20);
    if ((base == 16 && prefix == 'x') || (base == 8 && prefix == 'o') || (base == 2 && prefix == 'b'))
      pos += 2;
  }
  if (pos == clean->size()) return std::nullopt;
  Int value = 0;
  bool overflow = false;
  for (; pos < clean->size(); ++pos) {
    const char c = (*clean)[pos];
    const int digit = c >= '0' && c <= '9'                          ? c - '0'
                      : std::isalpha(static_cast<unsigned char>(c)) ? (c | 0x20) - 'a' + 10
                                                                    : 99;
    if (digit >= base) return std::nullopt;
    overflow |=
        __builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, Int{digit}, &value);
  }
  if (overflow) runtime.raise(ErrorCode::kLimit, "an integer beyond 128 bits");
  return negative ? -value : value;
}

// float(text) of Python.
std::optional<double> parse_float(std::string_view text) {
  const std::optional<std::string> clean = number_text(text);
  if (!clean || clean->empty() || clean->find('\0') != std::string::npos) return std::nullopt;
  const std::string lower = to_lower(*clean);
  const std::string_view unsigned_part =
      std::string_view(lower).substr(lower[0] == '+' || lower[0] == '-' ? 1 : 0);
  const bool word = unsigned_part == "inf" || unsigned_part == "infinity" || unsigned_part == "nan";
  // strtod also reads hexadecimal and nan(...), which Python does not.
  if (!word && unsigned_part.find_first_not_of("0123456789.e+-") != std::string_view::npos)
    return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(lower.c_str(), &end);
  if (end != lower.c_str() + lower.size()) return std::nullopt;
  return value;
}

std::optional<double> to_float(Runtime& runtime, const Value& value) {
  if (value.is_undefined()) runtime.undefined_error(value);
  if (value.is_integral()) return static_cast<double>(value.integral());
  if (value.is(Kind::kFloat)) return value.real();
  if (value.is_string()) {
    runtime.charge(value.text().size() / 16);
    return parse_float(value.bytes());
  }
  return std::nullopt;
}

// int(float); nothing for infinities and NaN.
std::optional<Int> truncate(Runtime& runtime, double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (std::abs(value) >= 1e38) runtime.raise(ErrorCode::kLimit, "an integer beyond 128 bits");
  return static_cast<Int>(value);
}

Value int_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "int", call, {"default", "base"});
  const Value fallback = args.has(0) ? args[0] : Value(0);
  if (input.is_undefined()) runtime.undefined_error(input);
  if (input.is_integral()) return input.integral();
  if (input.is(Kind::kFloat) && std::isinf(input.real()))
    runtime.type_error("cannot convert float infinity to integer");
  if (input.is_string()) {
    const Int base = args.has(1) ? require_int(runtime, args[1], "the base of int") : 10;
    if (base < 2 || base > 36)
      runtime.raise(ErrorCode::kUnsupported, "int with base {}", int_to_string(base));
    runtime.charge(input.text().size() / 16);
    if (const std::optional<Int> value = parse_int(runtime, input.bytes(), base)) return *value;
  }
  const std::optional<double> real = to_float(runtime, input);
  if (!real) return fallback;
  const std::optional<Int> value = truncate(runtime, *real);
  return value ? Value(*value) : fallback;
}

Value float_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "float", call, {"default"});
  const std::optional<double> value = to_float(runtime, input);
  if (value) return *value;
  return args.has(0) ? args[0] : Value(0.0);
}

Value abs_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "abs", call, {});
  if (input.is_undefined()) runtime.undefined_error(input);
  if (input.is(Kind::kFloat)) return std::abs(input.real());
  if (!input.is_integral()) runtime.type_error("bad operand type for abs(): '{}'", type_name(input));
  return input.integral() < 0 ? runtime.negate(input) : Value(input.integral());
}

// round(int, -digits): to a multiple of a power of ten, ties to the even multiple.
Value round_int(Runtime& runtime, Int value, Int digits) {
  if (digits >= 0) return value;
  if (digits < -37) return Int{0};
  const Int unit = runtime.binary(Op::kPow, 10, -digits).integral();
  Int quotient = value / unit;
  const Int rest = value % unit;
  const Int distance = rest < 0 ? -rest : rest;
  if (distance > unit - distance || (distance == unit - distance && quotient % 2 != 0))
    quotient += value < 0 ? -1 : 1;
  return runtime.binary(Op::kMul, quotient, unit);
}

// round(float, -digits).
double round_left(double value, Int precision) {
  if (value == 0 || precision < -310) return std::copysign(0.0, value);
  const std::string shown = fmt::format("{:.17e}", std::abs(value));
  const int exponent = std::atoi(shown.c_str() + shown.find('e') + 1);
  const int digits = exponent + 1 + static_cast<int>(precision);  // significant digits that stay
  if (digits < 0) return std::copysign(0.0, value);
  if (digits == 0) {  // zero or one unit; exactly half goes to zero, the even one
    const double unit = std::strtod(fmt::format("1e{}", -static_cast<int>(precision)).c_str(), nullptr);
    return std::copysign(std::abs(value) > unit / 2 ? unit : 0.0, value);
  }
  return std::strtod(fmt::format("{:.{}e}", value, digits - 1).c_str(), nullptr);
}

Value round_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "round", call, {"precision", "method"});
  if (input.is_undefined()) runtime.undefined_error(input);
  if (!input.is_number()) runtime.type_error("type {} doesn't define a rounding", type_name(input));
  const std::string method =
      args.has(1) ? require_text(runtime, args[1], "the method of round").bytes() : std::string("common");
  if (method != "common" && method != "ceil" && method != "floor") {
    runtime.type_error("method must be common, ceil or floor");
  }
  const Int precision = args.has(0) ? require_int(runtime, args[0], "the precision of round") : 0;
  if (method != "common") {
    const Value scale = runtime.binary(Op::kPow, 10, precision);
    const Value scaled = runtime.binary(Op::kMul, input, scale);
    if (scaled.is(Kind::kFloat)) {
      const double whole = method == "ceil" ? std::ceil(scaled.real()) : std::floor(scaled.real());
      const std::optional<Int> integer = truncate(runtime, whole);
      if (!integer) runtime.type_error("cannot convert float infinity or NaN to integer");
      return runtime.binary(Op::kDiv, *integer, scale);
    }
    return runtime.binary(Op::kDiv, scaled, scale);
  }
  if (input.is_integral()) return round_int(runtime, input.integral(), precision);
  const double value = input.real();
  if (!std::isfinite(value) || precision > 323) return value;
  // printf rounds the exact binary value half to even, which is what Python does.
  if (precision < 0) return round_left(value, precision);
  return std::strtod(fmt::format("{:.{}f}", value, static_cast<int>(precision)).c_str(), nullptr);
}

// --- JSON

Value tojson_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "tojson", call, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = args.flag(0);
  style.sort_keys = args.flag(3);
  if (args.has_value(1)) {
    if (args[1].is_string()) {
      style.indent = args[1].bytes();
    } else {
      const Int width = std::max(Int{0}, require_int(runtime, args[1], "the indent of tojson"));
      if (width > 1000) runtime.raise(ErrorCode::kLimit, "an indent of more than 1000 spaces");
      style.indent = std::string(static_cast<std::size_t>(width), ' ');
    }
    style.item_separator = std::string(1, ',');
  }
  if (args.has_value(2)) {
    const ListPtr separators = runtime.iterate(args[2]);
    if (separators->items.size() != 2) runtime.type_error("separators of tojson must be two strings");
    style.item_separator = require_text(runtime, separators->items[0], "a separator of tojson").bytes();
    style.key_separator = require_text(runtime, separators->items[1], "a separator of tojson").bytes();
  }
  return Text(runtime.to_json(input, style), false);
}

Value word_count(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "wordcount", call, {});
  const TextPtr text = runtime.str_ptr(input);
  runtime.charge(text->size() / 4);
  std::size_t count = 0;
  bool inside = false;
  for (std::size_t pos = 0, length = 0; pos < text->size(); pos += length) {
    const char32_t code = decode_at(text->bytes(), pos, length);
    const bool word = code == '_' || letter_class(code) != Letter::kNone || is_numeric(code);
    if (word && !inside) ++count;
    inside = word;
  }
  return count;
}

}  // namespace

FilterFn find_scalar_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFn> table = {
      {"trim", trim_filter},
      {"string", string_filter},
      {"lower", change_filter<lower>},
      {"upper", change_filter<upper>},
      {"capitalize", change_filter<capitalize>},
      {"title", change_filter<title_filter>},
      {"replace", replace_filter},
      {"default", default_filter},
      {"d", default_filter},
      {"indent", indent_filter},
      {"escape", escape_filter},
      {"e", escape_filter},
      {"safe", safe_filter},
      {"int", int_filter},
      {"float", float_filter},
      {"abs", abs_filter},
      {"round", round_filter},
      {"tojson", tojson_filter},
      {"wordcount", word_count},
  };
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

FilterFn find_filter(std::string_view name) {
  const FilterFn scalar = find_scalar_filter(name);
  return scalar != nullptr ? scalar : find_sequence_filter(name);
}

}  // namespace mimo::jinja
