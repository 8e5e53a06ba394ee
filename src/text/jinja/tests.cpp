// The tests behind `is`.
#include <unordered_map>

#include "text/jinja/runtime.h"
#include "text/jinja/string_methods.h"

namespace mimo::jinja {
namespace {

using Order = Runtime::Order;

template <bool (*kHolds)(Runtime&, const Value&)>
bool plain(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "the test", call, {});
  return kHolds(runtime, input);
}

template <bool (*kHolds)(Runtime&, const Value&, const Value&)>
bool with_one(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "the test", call, {""}, 1);
  return kHolds(runtime, input, args[0]);
}

bool is_true(Runtime&, const Value& v) { return v.is(Kind::kBool) && v.boolean(); }
bool is_false(Runtime&, const Value& v) { return v.is(Kind::kBool) && !v.boolean(); }
bool is_defined(Runtime&, const Value& v) { return !v.is_undefined(); }
bool is_undefined(Runtime&, const Value& v) { return v.is_undefined(); }
bool is_none(Runtime&, const Value& v) { return v.is_none(); }
bool is_boolean(Runtime&, const Value& v) { return v.is(Kind::kBool); }
bool is_integer(Runtime&, const Value& v) { return v.is(Kind::kInt); }
bool is_float(Runtime&, const Value& v) { return v.is(Kind::kFloat); }
bool is_number(Runtime&, const Value& v) { return v.is_number(); }
bool is_string(Runtime&, const Value& v) { return v.is_string(); }
bool is_mapping(Runtime&, const Value& v) { return v.is(Kind::kDict); }
bool is_iterable(Runtime& runtime, const Value& v) { return runtime.iterable(v); }

// Has a length and can be indexed: also a dict, a string and (in Jinja) an undefined value.
bool is_sequence(Runtime&, const Value& v) {
  if (v.is_undefined() || v.is_string() || v.is(Kind::kDict)) return true;
  if (!v.is(Kind::kList)) return false;
  const ListKind kind = v.list().kind;
  return kind == ListKind::kList || kind == ListKind::kTuple || kind == ListKind::kRange;
}

bool is_callable(Runtime&, const Value& v) {
  return v.is_undefined() || v.is(Kind::kMacro) || v.is(Kind::kFunction) || v.is(Kind::kMethod) ||
         v.is(Kind::kLoop);
}

bool is_lower(Runtime& runtime, const Value& v) { return all_cased(runtime, runtime.str(v), Letter::kLower); }
bool is_upper(Runtime& runtime, const Value& v) { return all_cased(runtime, runtime.str(v), Letter::kUpper); }

bool remainder_is(Runtime& runtime, const Value& v, const Value& divisor, Int wanted) {
  return runtime.equals(runtime.binary(Op::kMod, v, divisor), wanted);
}
bool is_odd(Runtime& runtime, const Value& v) { return remainder_is(runtime, v, 2, 1); }
bool is_even(Runtime& runtime, const Value& v) { return remainder_is(runtime, v, 2, 0); }
bool is_divisible(Runtime& runtime, const Value& v, const Value& by) {
  return remainder_is(runtime, v, by, 0);
}

bool equal(Runtime& runtime, const Value& a, const Value& b) { return runtime.equals(a, b); }
bool unequal(Runtime& runtime, const Value& a, const Value& b) { return !runtime.equals(a, b); }
bool is_less(Runtime& runtime, const Value& a, const Value& b) {
  return runtime.order(a, b, "<") == Order::kLess;
}
bool is_greater(Runtime& runtime, const Value& a, const Value& b) {
  return runtime.order(a, b, ">") == Order::kGreater;
}
bool at_most(Runtime& runtime, const Value& a, const Value& b) {
  const Order order = runtime.order(a, b, "<=");
  return order == Order::kLess || order == Order::kEqual;
}
bool at_least(Runtime& runtime, const Value& a, const Value& b) {
  const Order order = runtime.order(a, b, ">=");
  return order == Order::kGreater || order == Order::kEqual;
}
bool is_in(Runtime& runtime, const Value& item, const Value& container) {
  return runtime.contains(container, item);
}

// Python's `is`, where it does not depend on the interpreter: singletons, or the same object.
bool is_same(Runtime&, const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kNone:
      return true;
    case Kind::kList:
      return a.list_ptr() == b.list_ptr();
    case Kind::kDict:
      return a.dict_ptr() == b.dict_ptr();
    case Kind::kUndefined:
      return false;
    default:
      return keys_equal(a, b);
  }
}

bool names_filter(Runtime& runtime, const Value& v) {
  runtime.require_hashable(v);
  return v.is_string() && find_filter(v.bytes()) != nullptr;
}
bool names_test(Runtime& runtime, const Value& v) {
  runtime.require_hashable(v);
  return v.is_string() && find_test(v.bytes()) != nullptr;
}
bool is_escaped(Runtime&, const Value& v) { return v.is_string() && v.text().markup(); }

}  // namespace

TestFn find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, TestFn> table = {
      {"defined", plain<is_defined>},
      {"undefined", plain<is_undefined>},
      {"none", plain<is_none>},
      {"boolean", plain<is_boolean>},
      {"true", plain<is_true>},
      {"false", plain<is_false>},
      {"integer", plain<is_integer>},
      {"float", plain<is_float>},
      {"number", plain<is_number>},
      {"string", plain<is_string>},
      {"mapping", plain<is_mapping>},
      {"sequence", plain<is_sequence>},
      {"iterable", plain<is_iterable>},
      {"callable", plain<is_callable>},
      {"lower", plain<is_lower>},
      {"upper", plain<is_upper>},
      {"odd", plain<is_odd>},
      {"even", plain<is_even>},
      {"divisibleby", with_one<is_divisible>},
      {"filter", plain<names_filter>},
      {"test", plain<names_test>},
      {"escaped", plain<is_escaped>},
      {"sameas", with_one<is_same>},
      {"in", with_one<is_in>},
      {"==", with_one<equal>},
      {"eq", with_one<equal>},
      {"equalto", with_one<equal>},
      {"!=", with_one<unequal>},
      {"ne", with_one<unequal>},
      {"<", with_one<is_less>},
      {"lt", with_one<is_less>},
      {"lessthan", with_one<is_less>},
      {"<=", with_one<at_most>},
      {"le", with_one<at_most>},
      {">", with_one<is_greater>},
      {"gt", with_one<is_greater>},
      {"greaterthan", with_one<is_greater>},
      {">=", with_one<at_least>},
      {"ge", with_one<at_least>},
  };
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace mimo::jinja
