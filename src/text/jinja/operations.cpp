// Truth, comparison, membership and arithmetic with Python's rules.
#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja/runtime.h"
#include "text/jinja/string_methods.h"

namespace mimo::jinja {
namespace {

double as_double(const Value& value) {
  return value.is_integral() ? static_cast<double>(value.integral()) : value.real();
}

// Exact for ints up to 2^64, where a double is not.
long double as_wide(const Value& value) {
  return value.is_integral() ? static_cast<long double>(value.integral())
                             : static_cast<long double>(value.real());
}

const char* op_name(Op op) {
  switch (op) {
    case Op::kAdd:
      return "+";
    case Op::kSub:
      return "-";
    case Op::kMul:
      return "*";
    case Op::kDiv:
      return "/";
    case Op::kFloorDiv:
      return "//";
    case Op::kMod:
      return "%";
    case Op::kPow:
      return "** or pow()";
    default:
      return "?";
  }
}

Value escape_markup(Runtime& runtime, const Text& text) {
  Text escaped = escape_html(runtime, text);
  escaped.set_markup(true);
  return escaped;
}

[[noreturn]] void int_overflow(Runtime& runtime) {
  runtime.raise(ErrorCode::kLimit, "integer arithmetic beyond 128 bits");
}

Int int_power(Runtime& runtime, Int base, Int exponent) {
  Int result = 1;
  while (exponent > 0) {
    if (exponent & 1) {
      if (__builtin_mul_overflow(result, base, &result)) int_overflow(runtime);
    }
    exponent >>= 1;
    if (exponent > 0) {
      // Powers of 0, 1 and -1 never overflow, so this ends after at most 127 doublings of the exponent.
      if (__builtin_mul_overflow(base, base, &base)) int_overflow(runtime);
    }
  }
  return result;
}

Value int_arithmetic(Runtime& runtime, Op op, Int a, Int b) {
  Int result = 0;
  switch (op) {
    case Op::kAdd:
      if (__builtin_add_overflow(a, b, &result)) int_overflow(runtime);
      return result;
    case Op::kSub:
      if (__builtin_sub_overflow(a, b, &result)) int_overflow(runtime);
      return result;
    case Op::kMul:
      if (__builtin_mul_overflow(a, b, &result)) int_overflow(runtime);
      return result;
    case Op::kDiv:
      if (b == 0) runtime.type_error("division by zero");
      return static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b));
    case Op::kFloorDiv:
    case Op::kMod: {
      if (b == 0) runtime.type_error("integer division or modulo by zero");
      if (b == -1) {  // the smallest int has no negative
        if (op == Op::kMod) return Int{0};
        if (__builtin_sub_overflow(Int{0}, a, &result)) int_overflow(runtime);
        return result;
      }
      const Int rest = a % b;
      const bool adjust = rest != 0 && ((rest < 0) != (b < 0));
      if (op == Op::kMod) return adjust ? rest + b : rest;
      return a / b - (adjust ? 1 : 0);
    }
    case Op::kPow:
      if (b >= 0) return int_power(runtime, a, b);
      if (a == 0) runtime.type_error("0.0 cannot be raised to a negative power");
      return std::pow(static_cast<double>(a), static_cast<double>(b));
    default:
      return None{};
  }
}

Value float_arithmetic(Runtime& runtime, Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      if (b == 0) runtime.type_error("float division by zero");
      return a / b;
    case Op::kFloorDiv:
    case Op::kMod: {
      if (b == 0) runtime.type_error("float floor division or modulo by zero");
      double rest = std::fmod(a, b);
      double quotient = (a - rest) / b;
      if (rest != 0) {
        if ((b < 0) != (rest < 0)) {
          rest += b;
          quotient -= 1;
        }
      } else {
        rest = std::copysign(0.0, b);
      }
      if (op == Op::kMod) return rest;
      if (quotient == 0) return std::copysign(0.0, a / b);
      double floored = std::floor(quotient);
      if (quotient - floored > 0.5) floored += 1;
      return floored;
    }
    case Op::kPow: {
      if (a == 0 && b < 0) runtime.type_error("0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
        runtime.raise(ErrorCode::kUnsupported, "a negative number raised to a fraction (a complex number)");
      }
      const double result = std::pow(a, b);
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) {
        runtime.type_error("result of ** is too large");
      }
      return result;
    }
    default:
      return None{};
  }
}

}  // namespace

void Runtime::undefined_error(const Value& value) {
  const Undefined& undefined = value.undefined();
  type_error("{}", undefined.reason ? *undefined.reason : "a value is undefined");
}

bool Runtime::truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean();
    case Kind::kInt:
      return value.integral() != 0;
    case Kind::kFloat:
      return value.real() != 0;
    case Kind::kString:
      return value.text().size() > 0;
    case Kind::kList:
      return !value.list().items.empty();
    case Kind::kDict:
      return !value.dict().entries.empty();
    default:
      return true;  // also a generator, even an empty one
  }
}

bool Runtime::hashable(const Value& value) const {
  if (value.is(Kind::kDict)) return false;
  if (!value.is(Kind::kList)) return true;
  const List& list = value.list();
  if (list.kind == ListKind::kTuple) {
    return std::all_of(list.items.begin(), list.items.end(),
                       [&](const Value& item) { return hashable(item); });
  }
  return list.kind == ListKind::kRange || list.kind == ListKind::kValues;
}

void Runtime::require_hashable(const Value& value) {
  if (!hashable(value)) type_error("unhashable type: '{}'", type_name(value));
}

bool Runtime::equals(const Value& a, const Value& b) {
  charge();
  if (a.is(Kind::kList) && b.is(Kind::kList)) {
    const List& x = a.list();
    const List& y = b.list();
    if (&x == &y) return true;
    if (x.kind == ListKind::kValues || x.kind != y.kind || x.items.size() != y.items.size()) return false;
    for (std::size_t i = 0; i < x.items.size(); ++i) {
      if (!equals(x.items[i], y.items[i])) return false;
    }
    return true;
  }
  if (a.is(Kind::kDict) && b.is(Kind::kDict)) {
    const Dict& x = a.dict();
    const Dict& y = b.dict();
    if (&x == &y) return true;
    if (x.entries.size() != y.entries.size()) return false;
    for (const auto& [key, value] : x.entries) {
      const Value* other = key.is_string() ? y.find(key.bytes()) : y.find_other(key);
      if (other == nullptr || !equals(value, *other)) return false;
    }
    return true;
  }
  if (a.is_string() && b.is_string()) charge(std::min(a.text().size(), b.text().size()) / 16);
  if (a.is(Kind::kGenerator) && b.is(Kind::kGenerator)) return &a.generator() == &b.generator();
  if (a.is(Kind::kLoop) && b.is(Kind::kLoop)) return &a.loop() == &b.loop();
  return keys_equal(a, b);
}

Runtime::Order Runtime::order(const Value& a, const Value& b, const char* op) {
  charge();
  if (a.is_undefined()) undefined_error(a);
  if (b.is_undefined()) undefined_error(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) {
      const Int x = a.integral(), y = b.integral();
      return x < y ? Order::kLess : x > y ? Order::kGreater : Order::kEqual;
    }
    const long double x = as_wide(a), y = as_wide(b);
    return x < y ? Order::kLess : x > y ? Order::kGreater : x == y ? Order::kEqual : Order::kUnordered;
  }
  if (a.is_string() && b.is_string()) {  // the byte order of UTF-8 is the order of code points
    charge(std::min(a.text().size(), b.text().size()) / 16);
    const int sign = a.bytes().compare(b.bytes());
    return sign < 0 ? Order::kLess : sign > 0 ? Order::kGreater : Order::kEqual;
  }
  if (a.is(Kind::kList) && b.is(Kind::kList)) {
    const List& x = a.list();
    const List& y = b.list();
    if (x.kind == y.kind && (x.kind == ListKind::kList || x.kind == ListKind::kTuple)) {
      const std::size_t common = std::min(x.items.size(), y.items.size());
      for (std::size_t i = 0; i < common; ++i) {
        if (!equals(x.items[i], y.items[i])) return order(x.items[i], y.items[i], op);
      }
      return x.items.size() < y.items.size()   ? Order::kLess
             : x.items.size() > y.items.size() ? Order::kGreater
                                               : Order::kEqual;
    }
  }
  type_error("'{}' not supported between instances of '{}' and '{}'", op, type_name(a), type_name(b));
}

bool Runtime::contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is_string())
        type_error("'in <string>' requires string as left operand, not {}", type_name(item));
      charge(container.text().size() / 16);
      return container.bytes().find(item.bytes()) != std::string::npos;
    case Kind::kDict:
      require_hashable(item);
      charge(container.dict().entries.size() / 16);
      return (item.is_string() ? container.dict().find(item.bytes()) : container.dict().find_other(item)) !=
             nullptr;
    case Kind::kGenerator: {
      Generator& generator = container.generator();
      while (generator.next < generator.items.size()) {
        if (equals(generator.items[generator.next++], item)) return true;
      }
      if (generator.error) throw RenderError{*generator.error, false};
      return false;
    }
    case Kind::kList:
      if (container.list().kind == ListKind::kKeys) require_hashable(item);
      for (const Value& candidate : container.list().items) {
        if (equals(candidate, item)) return true;
      }
      return false;
    default:
      type_error("argument of type '{}' is not iterable", type_name(container));
  }
}

Value Runtime::binary(Op op, const Value& a, const Value& b) {
  if (a.is_undefined()) undefined_error(a);
  if (b.is_undefined()) undefined_error(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return int_arithmetic(*this, op, a.integral(), b.integral());
    return float_arithmetic(*this, op, as_double(a), as_double(b));
  }
  if (op == Op::kAdd) {
    if (a.is_string() && b.is_string()) {
      const bool markup = a.text().markup() || b.text().markup();
      if (markup && !a.text().markup()) return binary(op, escape_markup(*this, a.text()), b);
      if (markup && !b.text().markup()) return binary(op, a, escape_markup(*this, b.text()));
      charge_text(a.text().size() + b.text().size());
      Text sum;
      sum.reserve(a.text().size() + b.text().size());
      sum.append(a.text());
      sum.append(b.text());
      sum.set_markup(markup);
      return sum;
    }
    if (a.is(Kind::kList) && b.is(Kind::kList) && a.list().kind == b.list().kind &&
        (a.list().kind == ListKind::kList || a.list().kind == ListKind::kTuple)) {
      charge_items(a.list().items.size() + b.list().items.size());
      std::vector<Value> items = a.list().items;
      items.insert(items.end(), b.list().items.begin(), b.list().items.end());
      return make_list(std::move(items), a.list().kind);
    }
  }
  if (op == Op::kMul && (a.is_integral() || b.is_integral())) {
    const Value& sequence = a.is_integral() ? b : a;
    const Int times = std::max(Int{0}, (a.is_integral() ? a : b).integral());
    const bool string = sequence.is_string();
    if (string || (sequence.is(Kind::kList) &&
                   (sequence.list().kind == ListKind::kList || sequence.list().kind == ListKind::kTuple))) {
      const std::size_t size = string ? sequence.text().size() : sequence.list().items.size();
      const std::size_t most = string ? limits_.max_output_bytes : limits_.max_list_items;
      if (size > 0 && times > static_cast<Int>(most / size)) {
        raise(ErrorCode::kLimit, "a repeated {} of more than {} {}", type_name(sequence), most,
              string ? "bytes" : "items");
      }
      const std::size_t count = size == 0 ? 0 : static_cast<std::size_t>(times);
      if (string) {
        charge_text(size * count);
        Text product;
        product.reserve(size * count);
        for (std::size_t i = 0; i < count; ++i) product.append(sequence.text());
        product.set_markup(sequence.text().markup());
        return product;
      }
      charge_items(size * count);
      std::vector<Value> items;
      items.reserve(size * count);
      for (std::size_t i = 0; i < count; ++i) {
        items.insert(items.end(), sequence.list().items.begin(), sequence.list().items.end());
      }
      return make_list(std::move(items), sequence.list().kind);
    }
  }
  if (op == Op::kMod && a.is_string()) {
    raise(ErrorCode::kUnsupported, "formatting a string with % is not supported");
  }
  type_error("unsupported operand type(s) for {}: '{}' and '{}'", op_name(op), type_name(a), type_name(b));
}

Value Runtime::negate(const Value& value) {
  if (value.is_undefined()) undefined_error(value);
  if (value.is_integral()) return int_arithmetic(*this, Op::kSub, 0, value.integral());
  if (value.is(Kind::kFloat)) return -value.real();
  type_error("bad operand type for unary -: '{}'", type_name(value));
}

Value Runtime::concat(const std::vector<Value>& parts) {
  std::vector<TextPtr> texts;
  texts.reserve(parts.size());
  for (const Value& part : parts) texts.push_back(str_ptr(part));
  return join(*this, Text(), texts);
}

}  // namespace mimo::jinja
