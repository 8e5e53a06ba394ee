#include "text/jinja/value.h"

#include <algorithm>

#include "text/jinja/loop.h"

namespace mimo::jinja {
namespace {

// Linear search is faster below this; a message has about five keys.
constexpr std::size_t kIndexFrom = 12;

}  // namespace

std::optional<std::size_t> Dict::position(const Value& key) const {
  if (key.is_string() && !index_.empty()) {
    const auto found = index_.find(key.bytes());
    if (found == index_.end()) return std::nullopt;
    return found->second;
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (keys_equal(entries[i].first, key)) return i;
  }
  return std::nullopt;
}

const Value* Dict::find(std::string_view key) const {
  if (!index_.empty()) {
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : &entries[found->second].second;
  }
  for (const auto& [name, value] : entries) {
    if (name.is_string() && name.bytes() == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find_other(const Value& key) const {
  const std::optional<std::size_t> at = position(key);
  return at ? &entries[*at].second : nullptr;
}

void Dict::set(Value key, Value value) {
  depth = std::max(depth, 1 + std::max(value_depth(key), value_depth(value)));
  if (const std::optional<std::size_t> at = position(key)) {
    entries[*at].second = std::move(value);
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() < kIndexFrom) return;
  // The views point into shared, immutable texts, which outlive a move of the entries.
  const std::size_t from = index_.empty() ? 0 : entries.size() - 1;
  for (std::size_t i = from; i < entries.size(); ++i) {
    if (entries[i].first.is_string()) index_.emplace(entries[i].first.bytes(), i);
  }
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      switch (value.list().kind) {
        case ListKind::kList:
          return "list";
        case ListKind::kTuple:
          return "tuple";
        case ListKind::kRange:
          return "range";
        case ListKind::kItems:
          return "dict_items";
        case ListKind::kKeys:
          return "dict_keys";
        case ListKind::kValues:
          return "dict_values";
      }
      return "list";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kMacro:
      return "Macro";
    case Kind::kFunction:
      return "function";
    case Kind::kMethod:
      return "builtin_function_or_method";
    case Kind::kGenerator:
      return "generator";
    case Kind::kLoop:
      return "LoopContext";
  }
  return "object";
}

int value_depth(const Value& value) {
  switch (value.kind()) {
    case Kind::kList:
      return value.list().depth;
    case Kind::kDict:
      return value.dict().depth;
    case Kind::kMethod:
      return 1 + value_depth(value.method().self);
    case Kind::kGenerator:
      return value.generator().depth;
    case Kind::kLoop:
      return value.loop().depth;
    default:
      return 0;
  }
}

bool keys_equal(const Value& a, const Value& b) {
  if (a.is_string() || b.is_string()) return a.is_string() && b.is_string() && a.bytes() == b.bytes();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.integral() == b.integral();
    const auto real = [](const Value& v) {
      return v.is_integral() ? static_cast<long double>(v.integral()) : static_cast<long double>(v.real());
    };
    return real(a) == real(b);
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kNone:
    case Kind::kUndefined:
      return true;
    case Kind::kList: {
      const List& x = a.list();
      const List& y = b.list();
      return x.kind == y.kind &&
             std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), keys_equal);
    }
    case Kind::kNamespace:
      return &a.space() == &b.space();
    case Kind::kMacro:
      return &a.macro() == &b.macro();
    case Kind::kFunction:
      return &a.function() == &b.function();
    default:
      return false;
  }
}

Value from_json(const json::value& value, bool trusted) {
  switch (value.kind()) {
    case json::kind::null:
      return None{};
    case json::kind::bool_:
      return value.get_bool();
    case json::kind::int64:
      return Int{value.get_int64()};
    case json::kind::uint64:
      return Int{value.get_uint64()};
    case json::kind::double_:
      return value.get_double();
    case json::kind::string: {
      const json::string& text = value.get_string();
      return Text(std::string(text.data(), text.size()), trusted);
    }
    case json::kind::array: {
      auto list = std::make_shared<List>();
      list->items.reserve(value.get_array().size());
      for (const json::value& item : value.get_array()) {
        list->items.push_back(from_json(item, trusted));
        list->depth = std::max(list->depth, 1 + value_depth(list->items.back()));
      }
      return ListPtr(std::move(list));
    }
    case json::kind::object: {
      auto dict = std::make_shared<Dict>();
      dict->entries.reserve(value.get_object().size());
      for (const auto& [key, item] : value.get_object()) {
        dict->set(Text(std::string(key.data(), key.size()), trusted), from_json(item, trusted));
      }
      return DictPtr(std::move(dict));
    }
  }
  return None{};
}

}  // namespace mimo::jinja
