// Methods of str, list, dict and loop. Names that Python has and this engine does not are known too, so that
// they are refused by name when they are called.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "text/jinja/loop.h"
#include "text/jinja/runtime.h"
#include "text/jinja/string_methods.h"
#include "text/jinja/unicode_text.h"

namespace mimo::jinja {
namespace {

using MethodFn = Value (*)(Runtime& runtime, const Value& self, CallArgs& args);
using MethodTable = std::unordered_map<std::string_view, MethodFn>;

const Text* optional_chars(Runtime& runtime, const Bound& args, const char* what) {
  return args.has_value(0) ? &require_text(runtime, args[0], what) : nullptr;
}

template <Side kSide>
Value strip_method(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "strip", call, {""});
  return strip(runtime, self.text(), optional_chars(runtime, args, "the argument of strip"), kSide);
}

template <Text (*kChange)(Runtime&, const Text&)>
Value change_method(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "a case method", call, {});
  return kChange(runtime, self.text());
}

// Splits at white space; `from_right` counts the splits from the end.
std::vector<Value> split_space(Runtime& runtime, const Text& text, Int most, bool from_right) {
  const std::string& bytes = text.bytes();
  std::vector<std::pair<std::size_t, std::size_t>> words;
  std::size_t pos = skip_space(bytes, 0);
  while (pos < bytes.size()) {
    std::size_t end = pos;
    for (std::size_t length = 0; end < bytes.size(); end += length) {
      if (is_space(decode_at(bytes, end, length))) break;
    }
    runtime.charge_items(1);
    words.emplace_back(pos, end);
    pos = skip_space(bytes, end);
  }
  if (most >= 0 && static_cast<Int>(words.size()) > most) {
    const auto keep = static_cast<std::size_t>(most);
    if (from_right) {
      // The words before the last `most` stay together, with what was between them, without the space at the
      // start.
      const std::size_t joined = words.size() - keep - 1;
      words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(joined));
      words[0].first = 0;
    } else {
      // The rest stays as it is, the space at its end included.
      words.resize(keep + 1);
      words[keep].second = bytes.size();
    }
  }
  std::vector<Value> parts;
  for (const auto& [begin, end] : words) parts.emplace_back(text.slice(begin, end));
  return parts;
}

std::vector<Value> split_at(Runtime& runtime, const Text& text, const std::string& separator, Int most,
                            bool from_right) {
  const std::string& bytes = text.bytes();
  std::vector<Value> parts;
  if (from_right) {
    std::size_t end = bytes.size();
    while (most != 0) {
      if (end < separator.size()) break;
      const std::size_t at = bytes.rfind(separator, end - separator.size());
      if (at == std::string::npos) break;
      runtime.charge_items(1);
      parts.emplace_back(text.slice(at + separator.size(), end));
      end = at;
      --most;
    }
    parts.emplace_back(text.slice(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  std::size_t begin = 0;
  while (most != 0) {
    const std::size_t at = bytes.find(separator, begin);
    if (at == std::string::npos) break;
    runtime.charge_items(1);
    parts.emplace_back(text.slice(begin, at));
    begin = at + separator.size();
    --most;
  }
  parts.emplace_back(text.slice(begin, bytes.size()));
  return parts;
}

template <bool kFromRight>
Value split_method(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "split", call, {"sep", "maxsplit"});
  const Int most = args.has(1) ? require_int(runtime, args[1], "maxsplit") : -1;
  runtime.charge_text(self.text().size());
  if (!args.has_value(0)) return runtime.make_list(split_space(runtime, self.text(), most, kFromRight));
  const Text& separator = require_text(runtime, args[0], "the separator of split");
  if (separator.size() == 0) runtime.type_error("empty separator");
  return runtime.make_list(split_at(runtime, self.text(), separator.bytes(), most, kFromRight));
}

template <bool kFromRight>
Value partition_method(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "partition", call, {""}, 1);
  const Text& separator = require_text(runtime, args[0], "the separator of partition");
  if (separator.size() == 0) runtime.type_error("empty separator");
  const Text& text = self.text();
  runtime.charge_text(text.size());
  const std::size_t at =
      kFromRight ? text.bytes().rfind(separator.bytes()) : text.bytes().find(separator.bytes());
  if (at == std::string::npos) {
    if (kFromRight) return runtime.make_list({Text(), Text(), self}, ListKind::kTuple);
    return runtime.make_list({self, Text(), Text()}, ListKind::kTuple);
  }
  return runtime.make_list({text.slice(0, at), args[0], text.slice(at + separator.size(), text.size())},
                           ListKind::kTuple);
}

// The part of a string that the optional start and end arguments (in characters) select, as byte offsets;
// nothing when start lies behind the end of the string.
struct Window {
  std::size_t begin, end, first_character;
  bool valid;
};
Window window(Runtime& runtime, const Text& text, const Bound& args) {
  const auto count = static_cast<Int>(count_characters(text.bytes()));
  runtime.charge(text.size() / 16);
  const auto bound = [&](std::size_t i, Int otherwise) {
    if (!args.has_value(i)) return otherwise;
    Int index = require_int(runtime, args[i], "a string index");
    if (index < 0) index = std::max(Int{0}, index + count);
    return index;
  };
  const Int start = bound(1, 0);
  const Int end = std::min(bound(2, count), count);
  if (start > end) return {0, 0, 0, false};
  return {byte_offset(text.bytes(), static_cast<std::size_t>(start)),
          byte_offset(text.bytes(), static_cast<std::size_t>(end)), static_cast<std::size_t>(start), true};
}

template <bool kAtStart>
Value affix_method(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, kAtStart ? "startswith" : "endswith", call, {"", "", ""}, 1);
  const Window part = window(runtime, self.text(), args);
  const std::string_view text = std::string_view(self.bytes()).substr(part.begin, part.end - part.begin);
  const auto matches = [&](const Value& affix) {
    const std::string& wanted = require_text(runtime, affix, "the argument of startswith/endswith").bytes();
    runtime.charge();
    if (!part.valid || wanted.size() > text.size()) return false;
    return kAtStart ? text.starts_with(wanted) : text.ends_with(wanted);
  };
  if (args[0].is(Kind::kList) && args[0].list().kind == ListKind::kTuple) {
    const std::vector<Value>& options = args[0].list().items;
    return std::any_of(options.begin(), options.end(), matches);
  }
  return matches(args[0]);
}

template <bool kFromRight, bool kMustFind>
Value find_in(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "find", call, {"", "", ""}, 1);
  const std::string& wanted = require_text(runtime, args[0], "the argument of find/index").bytes();
  const Window part = window(runtime, self.text(), args);
  const std::string_view text = std::string_view(self.bytes()).substr(part.begin, part.end - part.begin);
  const std::size_t at = !part.valid  ? std::string::npos
                         : kFromRight ? text.rfind(wanted)
                                      : text.find(wanted);
  if (at != std::string::npos) return part.first_character + count_characters(text.substr(0, at));
  if (kMustFind) runtime.type_error("substring not found");
  return -1;
}

Value count_in_string(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "count", call, {"", "", ""}, 1);
  const std::string& wanted = require_text(runtime, args[0], "the argument of count").bytes();
  const Window part = window(runtime, self.text(), args);
  if (!part.valid) return 0;
  const std::string_view text = std::string_view(self.bytes()).substr(part.begin, part.end - part.begin);
  if (wanted.empty()) return count_characters(text) + 1;
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(wanted, at)) != std::string::npos; at += wanted.size()) ++count;
  return count;
}

Value replace_method(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "replace", call, {"", "", ""}, 2);
  const Int count = args.has(2) ? require_int(runtime, args[2], "the count of replace") : -1;
  return replace(runtime, self.text(), require_text(runtime, args[0], "the argument of replace"),
                 require_text(runtime, args[1], "the argument of replace"), count);
}

Value join_method(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "join", call, {""}, 1);
  const ListPtr items = runtime.iterate(args[0]);
  std::vector<TextPtr> parts;
  parts.reserve(items->items.size());
  for (const Value& item : items->items) {
    require_text(runtime, item, "each item of join");
    parts.push_back(item.text_ptr());
  }
  return join(runtime, self.text(), parts);
}

Value split_lines_method(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "splitlines", call, {"keepends"});
  const bool keep_ends = args.has(0) && require_int(runtime, args[0], "keepends") != 0;
  std::vector<Value> lines;
  for (Text& line : split_lines(runtime, self.text(), keep_ends)) lines.emplace_back(std::move(line));
  return runtime.make_list(std::move(lines));
}

template <bool kPrefix>
Value remove_affix(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, kPrefix ? "removeprefix" : "removesuffix", call, {""}, 1);
  const Text& affix = require_text(runtime, args[0], "the affix");
  const Text& text = self.text();
  const bool has = kPrefix ? text.bytes().starts_with(affix.bytes()) : text.bytes().ends_with(affix.bytes());
  if (!has) return self;
  runtime.charge_text(text.size());
  return kPrefix ? text.slice(affix.size(), text.size()) : text.slice(0, text.size() - affix.size());
}

// str.isdigit and the like: true when not empty and every character has the property.
template <bool (*kHas)(char32_t)>
Value all_characters(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "a character test", call, {});
  const std::string& bytes = self.bytes();
  runtime.charge(bytes.size() / 4);
  for (std::size_t pos = 0, length = 0; pos < bytes.size(); pos += length) {
    if (!kHas(decode_at(bytes, pos, length))) return false;
  }
  return !bytes.empty();
}
bool is_letter(char32_t code) { return letter_class(code) != Letter::kNone; }
bool is_letter_or_number(char32_t code) { return is_letter(code) || is_numeric(code); }

template <Letter kWanted>
Value is_case(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "isupper/islower", call, {});
  return all_cased(runtime, self.text(), kWanted);
}

template <bool kLeft>
Value justify(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "ljust/rjust", call, {"", ""}, 1);
  const Int width = require_int(runtime, args[0], "the width");
  const Text fill = args.has(1) ? require_text(runtime, args[1], "the fill character") : Text(" ", false);
  if (count_characters(fill.bytes()) != 1) runtime.type_error("the fill must be exactly one character");
  const Int missing = width - static_cast<Int>(count_characters(self.bytes()));
  if (missing <= 0) return self;
  const Value padding = runtime.binary(Op::kMul, fill, missing);
  return kLeft ? runtime.binary(Op::kAdd, self, padding) : runtime.binary(Op::kAdd, padding, self);
}

const MethodTable& string_methods() {
  static const MethodTable table = {
      {"strip", strip_method<Side::kBoth>},
      {"lstrip", strip_method<Side::kLeft>},
      {"rstrip", strip_method<Side::kRight>},
      {"split", split_method<false>},
      {"rsplit", split_method<true>},
      {"splitlines", split_lines_method},
      {"partition", partition_method<false>},
      {"rpartition", partition_method<true>},
      {"startswith", affix_method<true>},
      {"endswith", affix_method<false>},
      {"removeprefix", remove_affix<true>},
      {"removesuffix", remove_affix<false>},
      {"find", find_in<false, false>},
      {"rfind", find_in<true, false>},
      {"index", find_in<false, true>},
      {"rindex", find_in<true, true>},
      {"count", count_in_string},
      {"replace", replace_method},
      {"join", join_method},
      {"upper", change_method<upper>},
      {"lower", change_method<lower>},
      {"capitalize", change_method<capitalize>},
      {"title", change_method<title_method>},
      {"isdigit", all_characters<is_decimal>},
      {"isdecimal", all_characters<is_decimal>},
      {"isnumeric", all_characters<is_numeric>},
      {"isalpha", all_characters<is_letter>},
      {"isalnum", all_characters<is_letter_or_number>},
      {"isspace", all_characters<is_space>},
      {"isupper", is_case<Letter::kUpper>},
      {"islower", is_case<Letter::kLower>},
      {"ljust", justify<true>},
      {"rjust", justify<false>},
      {"casefold", nullptr},
      {"center", nullptr},
      {"encode", nullptr},
      {"expandtabs", nullptr},
      {"format", nullptr},
      {"format_map", nullptr},
      {"isascii", nullptr},
      {"isidentifier", nullptr},
      {"isprintable", nullptr},
      {"istitle", nullptr},
      {"maketrans", nullptr},
      {"swapcase", nullptr},
      {"translate", nullptr},
      {"zfill", nullptr},
  };
  return table;
}

// --- list and tuple

Value index_in_list(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "index", call, {"", "", ""}, 1);
  const auto size = static_cast<Int>(self.list().items.size());
  const auto bound = [&](std::size_t i, Int otherwise) {
    if (!args.has(i)) return otherwise;
    Int index = require_int(runtime, args[i], "a list index");
    if (index < 0) index = std::max(Int{0}, index + size);
    return std::min(index, size);
  };
  const Int end = bound(2, size);
  for (Int i = bound(1, 0); i < end; ++i) {
    if (runtime.equals(self.list().items[static_cast<std::size_t>(i)], args[0])) return i;
  }
  runtime.type_error("the value is not in the list");
}

Value count_in_list(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "count", call, {""}, 1);
  std::size_t count = 0;
  for (const Value& item : self.list().items) count += runtime.equals(item, args[0]) ? 1 : 0;
  return count;
}

Value copy(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "copy", call, {});
  return self;  // nothing can tell a copy of an immutable value from the value
}

const MethodTable& list_methods() {
  static const MethodTable table = {{"index", index_in_list}, {"count", count_in_list}, {"copy", copy}};
  return table;
}

// --- dict

template <ListKind kKind>
Value dict_view(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "items/keys/values", call, {});
  std::vector<Value> items;
  items.reserve(self.dict().entries.size());
  for (const auto& [key, value] : self.dict().entries) {
    switch (kKind) {
      case ListKind::kKeys:
        items.push_back(key);
        break;
      case ListKind::kValues:
        items.push_back(value);
        break;
      default:
        items.push_back(runtime.make_list({key, value}, ListKind::kTuple));
    }
  }
  return runtime.make_list(std::move(items), kKind);
}

Value get_method(Runtime& runtime, const Value& self, CallArgs& call) {
  const Bound args(runtime, "get", call, {"", ""}, 1);
  runtime.require_hashable(args[0]);
  const Value* found =
      args[0].is_string() ? self.dict().find(args[0].bytes()) : self.dict().find_other(args[0]);
  if (found != nullptr) return *found;
  return args.has(1) ? args[1] : Value(None{});
}

const MethodTable& dict_methods() {
  static const MethodTable table = {
      {"get", get_method},
      {"items", dict_view<ListKind::kItems>},
      {"keys", dict_view<ListKind::kKeys>},
      {"values", dict_view<ListKind::kValues>},
      {"copy", copy},
      {"fromkeys", nullptr},
  };
  return table;
}

// --- loop

Value cycle(Runtime& runtime, const Value& self, CallArgs& args) {
  if (args.positional.empty() || !args.named.empty())
    runtime.type_error("cycle needs the values to go round");
  return args.positional[self.loop().index0 % args.positional.size()];
}

Value changed(Runtime& runtime, const Value& self, CallArgs& args) {
  if (!args.named.empty()) runtime.type_error("changed has no argument '{}'", args.named[0].first);
  LoopState& loop = self.loop();
  bool same = loop.last_changed.has_value() && loop.last_changed->size() == args.positional.size();
  for (std::size_t i = 0; same && i < args.positional.size(); ++i) {
    same = runtime.equals((*loop.last_changed)[i], args.positional[i]);
  }
  if (same) return false;
  for (const Value& value : args.positional) {
    // A container could hold the loop itself, and a loop that remembers itself would never be freed.
    if (!value.is_string() && !value.is_number() && !value.is_none() && !value.is_undefined()) {
      runtime.raise(ErrorCode::kUnsupported, "loop.changed with a value of type {}", type_name(value));
    }
  }
  loop.last_changed = args.positional;
  return true;
}

const MethodTable& loop_methods() {
  static const MethodTable table = {{"cycle", cycle}, {"changed", changed}};
  return table;
}

const MethodTable* methods_of(const Value& self) {
  switch (self.kind()) {
    case Kind::kString:
      return &string_methods();
    case Kind::kDict:
      return &dict_methods();
    case Kind::kLoop:
      return &loop_methods();
    case Kind::kList:
      return self.list().kind == ListKind::kList || self.list().kind == ListKind::kTuple ||
                     self.list().kind == ListKind::kRange
                 ? &list_methods()
                 : nullptr;
    default:
      return nullptr;
  }
}

constexpr std::array<std::string_view, 8> kListChanges = {"append", "clear", "pop",    "reverse",
                                                          "insert", "sort",  "extend", "remove"};
constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault", "update"};

}  // namespace

MethodState find_method(const Value& self, std::string_view name) {
  const MethodTable* table = methods_of(self);
  if (table == nullptr) return MethodState::kNone;
  if (table->contains(name)) {
    const bool lists_only = self.is(Kind::kList) && self.list().kind != ListKind::kList && name == "copy";
    return lists_only ? MethodState::kNone : MethodState::kCallable;
  }
  if (self.is(Kind::kDict)) {
    return std::find(kDictChanges.begin(), kDictChanges.end(), name) != kDictChanges.end()
               ? MethodState::kForbidden
               : MethodState::kNone;
  }
  if (self.is(Kind::kList) && self.list().kind == ListKind::kList) {
    return std::find(kListChanges.begin(), kListChanges.end(), name) != kListChanges.end()
               ? MethodState::kForbidden
               : MethodState::kNone;
  }
  return MethodState::kNone;
}

Value call_method(Runtime& runtime, const Method& method, CallArgs& args) {
  const MethodFn function = methods_of(method.self)->at(method.name);
  if (function == nullptr) {
    runtime.raise(ErrorCode::kUnsupported, "the method {}.{} is not supported", type_name(method.self),
                  method.name);
  }
  return function(runtime, method.self, args);
}

}  // namespace mimo::jinja
