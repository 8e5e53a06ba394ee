// Filters over lists and dicts. Those that Python implements as generators return a one-shot Generator here
// too, since templates can tell the difference (a generator is always true and has no length).
#include <algorithm>
#include <cctype>
#include <numeric>
#include <unordered_map>

#include "text/jinja/filters.h"
#include "text/jinja/string_methods.h"

namespace mimo::jinja {

std::vector<Value> attribute_path(Runtime& runtime, const Value& attribute) {
  if (attribute.is_none()) return {};
  if (!attribute.is_string()) return {attribute};
  std::vector<Value> path;
  const Text& text = attribute.text();
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = std::min(text.bytes().find('.', begin), text.size());
    const std::string part = text.bytes().substr(begin, dot - begin);
    const bool digits =
        !part.empty() && part.size() < 18 &&
        std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
    runtime.charge_items(1);
    path.emplace_back(digits ? Value(Int{std::stoll(part)}) : Value(text.slice(begin, dot)));
    if (dot == text.size()) return path;
    begin = dot + 1;
  }
}

Value follow_path(Runtime& runtime, Value value, const std::vector<Value>& path) {
  for (const Value& key : path) value = runtime.item(value, key);
  return value;
}

Value ignore_case(Runtime& runtime, const Value& value) {
  return value.is_string() ? Value(lower(runtime, value.text())) : value;
}

namespace {

Value length_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "length", call, {});
  return runtime.length(input);
}

Value list_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "list", call, {});
  return runtime.make_list(runtime.iterate(input)->items);
}

Value first_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "first", call, {});
  if (input.is(Kind::kGenerator)) {
    Generator& generator = input.generator();
    if (generator.next < generator.items.size()) return generator.items[generator.next++];
    if (generator.error) throw RenderError{*generator.error, false};
    return runtime.missing("there is no first item, the sequence was empty");
  }
  if (input.is_string())
    return input.text().size() > 0 ? runtime.item(input, 0) : runtime.missing("the string is empty");
  const ListPtr items = runtime.iterate(input);
  return items->items.empty() ? runtime.missing("there is no first item, the sequence was empty")
                              : items->items[0];
}

// Python's reversed(): sequences and dicts only.
void require_reversible(Runtime& runtime, const Value& input) {
  if (input.is_undefined()) runtime.undefined_error(input);
  if (input.is_string() || input.is(Kind::kList) || input.is(Kind::kDict)) return;
  runtime.type_error("'{}' object is not reversible", type_name(input));
}

Value last_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "last", call, {});
  if (input.is_undefined()) return runtime.missing("there is no last item, the sequence was empty");
  require_reversible(runtime, input);
  if (input.is_string())
    return input.text().size() > 0 ? runtime.item(input, -1) : runtime.missing("the string is empty");
  const ListPtr items = runtime.iterate(input);
  return items->items.empty() ? runtime.missing("there is no last item, the sequence was empty")
                              : items->items.back();
}

Value reverse_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "reverse", call, {});
  if (input.is_string()) return runtime.slice(input, None{}, None{}, -1);
  if (input.is(Kind::kGenerator)) {
    std::vector<Value> items = runtime.iterate(input)->items;
    std::reverse(items.begin(), items.end());
    return runtime.make_list(std::move(items));
  }
  const ListPtr items = runtime.iterate(input);
  return runtime.make_generator(
      [&](std::vector<Value>& out) { out.assign(items->items.rbegin(), items->items.rend()); });
}

Value join_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "join", call, {"d", "attribute"});
  const std::vector<Value> path = args.has_value(1) ? attribute_path(runtime, args[1]) : std::vector<Value>();
  const ListPtr items = runtime.iterate(input);
  std::vector<TextPtr> parts;
  parts.reserve(items->items.size());
  for (const Value& item : items->items) {
    runtime.charge();
    parts.push_back(runtime.str_ptr(follow_path(runtime, item, path)));
  }
  return join(runtime, args.has(0) ? *runtime.str_ptr(args[0]) : Text(), parts);
}

Value items_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "items", call, {});
  return runtime.make_generator([&](std::vector<Value>& out) {
    if (input.is_undefined()) return;
    if (!input.is(Kind::kDict))
      runtime.type_error("can only get item pairs from a mapping, not from {}", type_name(input));
    for (const auto& [key, value] : input.dict().entries) {
      out.push_back(runtime.make_list({key, value}, ListKind::kTuple));
    }
  });
}

// --- map, select and their like

// map('filter', ...), map(attribute=..., default=...)
Value map_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  return runtime.make_generator([&](std::vector<Value>& out) {
    if (!runtime.truthy(input)) return;
    FilterFn filter = nullptr;
    std::vector<Value> path;
    std::optional<Value> fallback;
    CallArgs rest;
    if (call.positional.empty()) {
      const Bound args(runtime, "map", call, {"attribute", "default"}, 1);
      path = attribute_path(runtime, args[0]);
      if (args.has_value(1)) fallback = args[1];
    } else {
      const std::string name = require_text(runtime, call.positional[0], "the filter name of map").bytes();
      filter = find_filter(name);
      if (filter == nullptr) runtime.raise(ErrorCode::kUnsupported, "there is no filter '{}'", name);
      rest.positional.assign(call.positional.begin() + 1, call.positional.end());
      rest.named = call.named;
    }
    const ListPtr items = runtime.iterate(input);
    for (const Value& item : items->items) {
      runtime.charge();
      if (filter != nullptr) {
        CallArgs copy = rest;
        out.push_back(filter(runtime, item, copy));
        continue;
      }
      Value value = item;
      for (const Value& key : path) {
        value = runtime.item(value, key);
        if (fallback && value.is_undefined()) value = *fallback;
      }
      out.push_back(std::move(value));
    }
  });
}

template <bool kByAttribute, bool kKeep>
Value select_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  return runtime.make_generator([&](std::vector<Value>& out) {
    if (!runtime.truthy(input)) return;
    std::size_t next = 0;
    std::vector<Value> path;
    if (kByAttribute) {
      if (call.positional.empty()) runtime.type_error("missing parameter for attribute name");
      path = attribute_path(runtime, call.positional[next++]);
    }
    TestFn test = nullptr;
    CallArgs rest;
    if (next < call.positional.size()) {
      const std::string name =
          require_text(runtime, call.positional[next++], "the test name of select").bytes();
      test = find_test(name);
      if (test == nullptr) runtime.raise(ErrorCode::kUnsupported, "there is no test '{}'", name);
      rest.positional.assign(call.positional.begin() + static_cast<std::ptrdiff_t>(next),
                             call.positional.end());
      rest.named = call.named;
    }
    const ListPtr items = runtime.iterate(input);
    for (const Value& item : items->items) {
      runtime.charge();
      const Value value = follow_path(runtime, item, path);
      CallArgs copy = rest;
      const bool holds = test != nullptr ? test(runtime, value, copy) : runtime.truthy(value);
      if (holds == kKeep) out.push_back(item);
    }
  });
}

// --- order

// Stable order of `keys` by Python's `<` (of the keys themselves, or of lists of keys).
std::vector<std::size_t> sorted_places(Runtime& runtime, const std::vector<std::vector<Value>>& keys,
                                       bool reverse) {
  std::vector<std::size_t> places(keys.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  const auto before = [&](std::size_t a, std::size_t b) {
    if (reverse) std::swap(a, b);
    for (std::size_t i = 0; i < keys[a].size(); ++i) {
      if (runtime.equals(keys[a][i], keys[b][i])) continue;
      return runtime.less(keys[a][i], keys[b][i]);
    }
    return false;
  };
  // A merge sort of our own: the library's may run off its range when NaNs make the order inconsistent.
  std::vector<std::size_t> other(places.size());
  for (std::size_t width = 1; width < places.size(); width *= 2) {
    for (std::size_t low = 0; low < places.size(); low += 2 * width) {
      const std::size_t middle = std::min(low + width, places.size());
      const std::size_t high = std::min(low + 2 * width, places.size());
      std::size_t left = low, right = middle;
      for (std::size_t k = low; k < high; ++k) {
        const bool take_right = left == middle || (right < high && before(places[right], places[left]));
        other[k] = take_right ? places[right++] : places[left++];
      }
    }
    std::swap(places, other);
  }
  return places;
}

Value sort_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "sort", call, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::vector<Value>> paths;
  if (args.has(2) && args[2].is_string()) {
    const std::string& all = args[2].bytes();
    for (std::size_t begin = 0; begin <= all.size();) {
      const std::size_t comma = std::min(all.find(',', begin), all.size());
      paths.push_back(attribute_path(runtime, Text(all.substr(begin, comma - begin), false)));
      begin = comma + 1;
    }
  } else {
    paths.push_back(args.has(2) ? attribute_path(runtime, args[2]) : std::vector<Value>());
  }
  const bool case_sensitive = args.flag(1);
  const ListPtr items = runtime.iterate(input);
  runtime.charge_items(items->items.size() * (1 + paths.size()));
  std::vector<std::vector<Value>> keys;
  for (const Value& item : items->items) {
    std::vector<Value> key;
    for (const auto& path : paths) {
      Value part = follow_path(runtime, item, path);
      key.push_back(case_sensitive ? std::move(part) : ignore_case(runtime, part));
    }
    keys.push_back(std::move(key));
  }
  std::vector<Value> out;
  for (const std::size_t place : sorted_places(runtime, keys, args.flag(0)))
    out.push_back(items->items[place]);
  return runtime.make_list(std::move(out));
}

Value dictsort_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "dictsort", call, {"case_sensitive", "by", "reverse"});
  const std::string by =
      args.has(1) ? require_text(runtime, args[1], "'by' of dictsort").bytes() : std::string("key");
  if (by != "key" && by != "value") runtime.type_error("dictsort sorts by 'key' or 'value', not by '{}'", by);
  if (input.is_undefined()) runtime.undefined_error(input);
  if (!input.is(Kind::kDict)) runtime.type_error("'{}' object has no attribute 'items'", type_name(input));
  std::vector<std::vector<Value>> keys;
  for (const auto& [key, value] : input.dict().entries) {
    const Value& wanted = by == "key" ? key : value;
    keys.push_back({args.flag(0) ? wanted : ignore_case(runtime, wanted)});
  }
  std::vector<Value> out;
  for (const std::size_t place : sorted_places(runtime, keys, args.flag(2))) {
    const auto& [key, value] = input.dict().entries[place];
    out.push_back(runtime.make_list({key, value}, ListKind::kTuple));
  }
  return runtime.make_list(std::move(out));
}

Value unique_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "unique", call, {"case_sensitive", "attribute"});
  return runtime.make_generator([&](std::vector<Value>& out) {
    const std::vector<Value> path = args.has(1) ? attribute_path(runtime, args[1]) : std::vector<Value>();
    const ListPtr items = runtime.iterate(input);
    Dict seen;
    for (const Value& item : items->items) {
      Value key = follow_path(runtime, item, path);
      if (!args.flag(0)) key = ignore_case(runtime, key);
      runtime.require_hashable(key);
      runtime.charge(1 + (key.is_string() ? 0 : seen.entries.size() / 16));
      if ((key.is_string() ? seen.find(key.bytes()) : seen.find_other(key)) != nullptr) continue;
      seen.set(std::move(key), true);
      out.push_back(item);
    }
  });
}

template <bool kMax>
Value extreme_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, kMax ? "max" : "min", call, {"case_sensitive", "attribute"});
  const std::vector<Value> path = args.has(1) ? attribute_path(runtime, args[1]) : std::vector<Value>();
  const ListPtr items = runtime.iterate(input);
  if (items->items.empty()) return runtime.missing("no aggregated item, the sequence was empty");
  const auto key_of = [&](const Value& item) {
    const Value key = follow_path(runtime, item, path);
    return args.flag(0) ? key : ignore_case(runtime, key);
  };
  std::size_t best = 0;
  Value best_key = key_of(items->items[0]);
  for (std::size_t i = 1; i < items->items.size(); ++i) {
    Value key = key_of(items->items[i]);
    const Runtime::Order order = runtime.order(key, best_key, kMax ? ">" : "<");
    if (order != (kMax ? Runtime::Order::kGreater : Runtime::Order::kLess)) continue;
    best = i;
    best_key = std::move(key);
  }
  return items->items[best];
}

Value sum_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "sum", call, {"attribute", "start"});
  const std::vector<Value> path = args.has_value(0) ? attribute_path(runtime, args[0]) : std::vector<Value>();
  Value total = args.has(1) ? args[1] : Value(0);
  if (total.is_string()) runtime.type_error("sum() can't sum strings");
  const ListPtr items = runtime.iterate(input);
  for (const Value& item : items->items) {
    total = runtime.binary(Op::kAdd, total, follow_path(runtime, item, path));
  }
  return total;
}

Value batch_filter(Runtime& runtime, const Value& input, CallArgs& call) {
  const Bound args(runtime, "batch", call, {"linecount", "fill_with"}, 1);
  return runtime.make_generator([&](std::vector<Value>& out) {
    const ListPtr items = runtime.iterate(input);
    const Int size = require_int(runtime, args[0], "the size of batch");
    std::vector<Value> row;
    for (const Value& item : items->items) {
      if (static_cast<Int>(row.size()) == size) {
        out.push_back(runtime.make_list(std::move(row)));
        row.clear();
      }
      row.push_back(item);
    }
    if (row.empty()) return;
    if (args.has_value(1) && static_cast<Int>(row.size()) < size) {
      if (size > static_cast<Int>(runtime.limits().max_list_items)) {
        runtime.raise(ErrorCode::kLimit, "a batch of more than {} items", runtime.limits().max_list_items);
      }
      runtime.charge_items(static_cast<std::size_t>(size));
      row.resize(static_cast<std::size_t>(size), args[1]);
    }
    out.push_back(runtime.make_list(std::move(row)));
  });
}

}  // namespace

FilterFn find_sequence_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFn> table = {
      {"length", length_filter},
      {"count", length_filter},
      {"list", list_filter},
      {"first", first_filter},
      {"last", last_filter},
      {"reverse", reverse_filter},
      {"join", join_filter},
      {"items", items_filter},
      {"map", map_filter},
      {"select", select_filter<false, true>},
      {"reject", select_filter<false, false>},
      {"selectattr", select_filter<true, true>},
      {"rejectattr", select_filter<true, false>},
      {"sort", sort_filter},
      {"dictsort", dictsort_filter},
      {"unique", unique_filter},
      {"min", extreme_filter<false>},
      {"max", extreme_filter<true>},
      {"sum", sum_filter},
      {"batch", batch_filter},
  };
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace mimo::jinja
