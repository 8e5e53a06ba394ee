// Attributes, items, slices, iteration and length, as Jinja's sandbox resolves them.
#include <algorithm>

#include "text/jinja/loop.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode_text.h"

namespace mimo::jinja {
namespace {

// Position of Python index `index` in `size` items, or npos.
std::size_t wrap_index(Int index, std::size_t size) {
  if (index < 0) index += static_cast<Int>(size);
  if (index < 0 || index >= static_cast<Int>(size)) return std::string::npos;
  return static_cast<std::size_t>(index);
}

struct SliceRange {
  Int start, stop, step;
  std::size_t count;
};

// Python's slice.indices().
SliceRange resolve_slice(Runtime& runtime, const Value& start, const Value& stop, const Value& step,
                         std::size_t size) {
  const auto bound = [&](const Value& value, Int otherwise, Int low, Int high) {
    if (value.is_none()) return otherwise;
    if (!value.is_integral())
      runtime.type_error("slice indices must be integers or None, not '{}'", type_name(value));
    Int index = value.integral();
    if (index < 0) index += static_cast<Int>(size);
    return std::clamp(index, low, high);
  };
  Int by = 1;
  if (!step.is_none()) {
    if (!step.is_integral())
      runtime.type_error("slice indices must be integers or None, not '{}'", type_name(step));
    by = step.integral();
    if (by == 0) runtime.type_error("slice step cannot be zero");
  }
  const Int low = by > 0 ? 0 : -1;
  const Int high = static_cast<Int>(size) + (by > 0 ? 0 : -1);
  const Int first = bound(start, by > 0 ? low : high, low, high);
  const Int last = bound(stop, by > 0 ? high : low, low, high);
  std::size_t count = 0;
  if (by > 0 && first < last) count = static_cast<std::size_t>((last - first - 1) / by + 1);
  if (by < 0 && first > last) {
    // Written so that the smallest integer as step does not overflow.
    count = static_cast<std::size_t>((last - first + 1) / by + 1);
  }
  return {first, last, by, count};
}

Value loop_attribute(Runtime& runtime, const Value& value, const std::string& name) {
  LoopState& loop = value.loop();
  if (name == "index0") return loop.index0;
  if (name == "index") return loop.index0 + 1;
  if (name == "first") return loop.index0 == 0;
  if (name == "last") return loop.peek() == nullptr;
  if (name == "length") return loop.length();
  if (name == "revindex") return loop.length() - loop.index0;
  if (name == "revindex0") return loop.length() - loop.index0 - 1;
  if (name == "depth") return loop.depth0 + 1;
  if (name == "depth0") return loop.depth0;
  if (name == "previtem")
    return loop.previous ? *loop.previous : runtime.missing("there is no previous item");
  if (name == "nextitem") {
    const Value* next = loop.peek();
    return next != nullptr ? *next : runtime.missing("there is no next item");
  }
  return runtime.missing(fmt::format("'loop' has no attribute '{}'", name));
}

Value undefined_attribute(Runtime& runtime, const Value& value, const std::string& name) {
  return runtime.missing(fmt::format("'{}' object has no attribute '{}'", type_name(value), name));
}

// A method of the value, or nothing where Python has none of that name.
std::optional<Value> method(Runtime& runtime, const Value& value, const std::string& name) {
  switch (find_method(value, name)) {
    case MethodState::kNone:
      return std::nullopt;
    case MethodState::kForbidden:
      return runtime.missing(
          fmt::format("access to attribute '{}' of '{}' object is unsafe", name, type_name(value)));
    case MethodState::kCallable:
      break;
  }
  if (1 + value_depth(value) > runtime.limits().max_value_depth) {
    runtime.raise(ErrorCode::kLimit, "values nested more than {} levels deep",
                  runtime.limits().max_value_depth);
  }
  return MethodPtr(std::make_shared<const Method>(Method{value, name}));
}

}  // namespace

Value Runtime::attribute(const Value& value, const std::string& name) {
  switch (value.kind()) {
    case Kind::kUndefined:
      undefined_error(value);
    case Kind::kNamespace: {
      const Value* found = value.space().attributes.find(name);
      return found != nullptr ? *found : undefined_attribute(*this, value, name);
    }
    case Kind::kMacro:
      if (name == "name") return Text(value.macro().def->name, true);
      return undefined_attribute(*this, value, name);
    case Kind::kLoop: {
      if (const auto found = method(*this, value, name)) return *found;
      return loop_attribute(*this, value, name);
    }
    case Kind::kDict: {
      if (const auto found = method(*this, value, name)) return *found;
      const Value* found = value.dict().find(name);
      return found != nullptr ? *found : undefined_attribute(*this, value, name);
    }
    default: {
      if (const auto found = method(*this, value, name)) return *found;
      return undefined_attribute(*this, value, name);
    }
  }
}

Value Runtime::item(const Value& value, const Value& key) {
  if (value.is_undefined()) undefined_error(value);
  if (value.is(Kind::kDict)) {
    if (hashable(key)) {
      const Value* found = key.is_string() ? value.dict().find(key.bytes()) : value.dict().find_other(key);
      if (found != nullptr) return *found;
    }
  } else if (value.is(Kind::kList) && key.is_integral()) {
    const List& list = value.list();
    const bool indexed =
        list.kind == ListKind::kList || list.kind == ListKind::kTuple || list.kind == ListKind::kRange;
    const std::size_t at = wrap_index(key.integral(), list.items.size());
    if (indexed && at != std::string::npos) return list.items[at];
    return missing(
        fmt::format("'{}' object has no element {}", type_name(value), int_to_string(key.integral())));
  } else if (value.is_string() && key.is_integral()) {
    const Text& text = value.text();
    charge(text.size() / 16);
    const std::size_t at = wrap_index(key.integral(), count_characters(text.bytes()));
    if (at == std::string::npos) return missing("string index out of range");
    const std::size_t begin = byte_offset(text.bytes(), at);
    std::size_t length = 0;
    decode_at(text.bytes(), begin, length);
    return text.slice(begin, begin + length);
  }
  if (!key.is_string()) return missing(fmt::format("'{}' object has no such element", type_name(value)));
  if (value.is(Kind::kDict)) {  // the key is not there; a method of that name still is
    if (const auto found = method(*this, value, key.bytes())) return *found;
    return undefined_attribute(*this, value, key.bytes());
  }
  return attribute(value, key.bytes());
}

Value Runtime::slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is_undefined()) undefined_error(value);
  if (value.is_string()) {
    const Text& text = value.text();
    const std::string& bytes = text.bytes();
    charge(bytes.size() / 4);
    const SliceRange range = resolve_slice(*this, start, stop, step, count_characters(bytes));
    if (range.count == 0) return Text();
    charge_text(bytes.size());
    if (range.step == 1) {
      const std::size_t begin = byte_offset(bytes, static_cast<std::size_t>(range.start));
      const std::string_view rest = std::string_view(bytes).substr(begin);
      return text.slice(begin, begin + byte_offset(rest, range.count));
    }
    charge_items(count_characters(bytes));
    std::vector<std::size_t> offsets;
    for (std::size_t pos = 0, length = 0; pos < bytes.size(); pos += length) {
      decode_at(bytes, pos, length);
      offsets.push_back(pos);
    }
    offsets.push_back(bytes.size());
    Text out;
    for (std::size_t i = 0; i < range.count; ++i) {
      const auto at = static_cast<std::size_t>(range.start + static_cast<Int>(i) * range.step);
      out.append_slice(text, offsets[at], offsets[at + 1]);
    }
    return out;
  }
  if (!value.is(Kind::kList)) type_error("'{}' object cannot be sliced", type_name(value));
  const List& list = value.list();
  if (list.kind != ListKind::kList && list.kind != ListKind::kTuple && list.kind != ListKind::kRange) {
    type_error("'{}' object cannot be sliced", type_name(value));
  }
  const SliceRange range = resolve_slice(*this, start, stop, step, list.items.size());
  charge_items(range.count);
  auto part = std::make_shared<List>();
  part->kind = list.kind;
  part->depth = list.depth;
  part->items.reserve(range.count);
  for (std::size_t i = 0; i < range.count; ++i) {
    part->items.push_back(
        list.items[static_cast<std::size_t>(range.start + static_cast<Int>(i) * range.step)]);
  }
  if (list.kind == ListKind::kRange) {
    // Only for printing. range() takes 64-bit numbers, so this stops at slices of slices with absurd steps.
    if (__builtin_mul_overflow(list.step, range.step, &part->step) ||
        __builtin_mul_overflow(list.step, range.start, &part->start) ||
        __builtin_add_overflow(list.start, part->start, &part->start) ||
        __builtin_mul_overflow(list.step, range.stop, &part->stop) ||
        __builtin_add_overflow(list.start, part->stop, &part->stop)) {
      raise(ErrorCode::kLimit, "a range beyond 128 bits");
    }
  }
  return ListPtr(std::move(part));
}

bool Runtime::iterable(const Value& value) const {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kDict:
    case Kind::kGenerator:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

ListPtr Runtime::iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::kList:
      charge(value.list().items.size() / 16);
      return value.list_ptr();
    case Kind::kUndefined:
      return std::make_shared<const List>();
    case Kind::kDict: {
      charge_items(value.dict().entries.size());
      auto keys = std::make_shared<List>();
      keys->items.reserve(value.dict().entries.size());
      for (const auto& entry : value.dict().entries) keys->items.push_back(entry.first);
      keys->depth = value.dict().depth;
      return keys;
    }
    case Kind::kString: {
      const Text& text = value.text();
      const std::size_t count = count_characters(text.bytes());
      charge_items(count * 4);  // each character becomes a string of its own
      auto characters = std::make_shared<List>();
      characters->items.reserve(count);
      for (std::size_t pos = 0, length = 0; pos < text.size(); pos += length) {
        decode_at(text.bytes(), pos, length);
        characters->items.emplace_back(text.slice(pos, pos + length));
      }
      return characters;
    }
    case Kind::kGenerator: {
      Generator& generator = value.generator();
      charge_items(generator.items.size() - generator.next);
      auto rest = std::make_shared<List>();
      rest->items.assign(generator.items.begin() + static_cast<std::ptrdiff_t>(generator.next),
                         generator.items.end());
      rest->depth = generator.depth;
      generator.next = generator.items.size();
      if (generator.error) throw RenderError{*generator.error, false};
      return rest;
    }
    case Kind::kLoop:
      raise(ErrorCode::kUnsupported, "iterating over 'loop' is not supported");
    default:
      type_error("'{}' object is not iterable", type_name(value));
  }
}

std::size_t Runtime::length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      charge(value.text().size() / 16);
      return count_characters(value.bytes());
    case Kind::kList:
      return value.list().items.size();
    case Kind::kDict:
      return value.dict().entries.size();
    case Kind::kLoop:
      return value.loop().length();
    default:
      type_error("object of type '{}' has no len()", type_name(value));
  }
}

}  // namespace mimo::jinja
