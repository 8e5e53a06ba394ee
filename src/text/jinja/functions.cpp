// The global functions of chat templates.
#include <array>

#include "text/jinja/runtime.h"

namespace mimo::jinja {
namespace {

// The sandbox of the reference has the same bound.
constexpr Int kMaxRange = 100'000;

Value range(Runtime& runtime, CallArgs& call) {
  const Bound args(runtime, "range", call, {"", "", ""}, 1);
  Int numbers[3] = {0, 0, 1};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!args.has(i)) continue;
    numbers[i] = require_int(runtime, args[i], "the argument of range");
    constexpr Int kMost = Int{1} << 62;  // keeps the arithmetic below within 128 bits
    if (numbers[i] > kMost || numbers[i] < -kMost) runtime.raise(ErrorCode::kLimit, "a range beyond 62 bits");
  }
  if (!args.has(1)) std::swap(numbers[0], numbers[1]);
  const auto [start, stop, step] = numbers;
  if (step == 0) runtime.type_error("range() arg 3 must not be zero");
  Int count = 0;
  if (step > 0 && start < stop) count = (stop - start - 1) / step + 1;
  if (step < 0 && start > stop) count = (start - stop - 1) / -step + 1;
  if (count > kMaxRange)
    runtime.raise(ErrorCode::kLimit, "a range of more than {} items", static_cast<int>(kMaxRange));
  runtime.charge_items(static_cast<std::size_t>(count));
  auto list = std::make_shared<List>();
  list->kind = ListKind::kRange;
  list->start = start;
  list->stop = stop;
  list->step = step;
  for (Int i = 0; i < count; ++i) list->items.emplace_back(start + i * step);
  return ListPtr(std::move(list));
}

// dict(mapping or pairs, key=value ...)
Dict build_dict(Runtime& runtime, CallArgs& args) {
  Dict dict;
  if (args.positional.size() > 1)
    runtime.type_error("dict expected at most 1 argument, got {}", args.positional.size());
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is(Kind::kDict)) {
      runtime.charge_items(source.dict().entries.size());
      dict = source.dict();
    } else {
      const ListPtr pairs = runtime.iterate(source);
      for (const Value& pair : pairs->items) {
        const ListPtr two = runtime.iterate(pair);
        if (two->items.size() != 2)
          runtime.type_error("dictionary update sequence element has length {}; 2 is required",
                             two->items.size());
        runtime.require_hashable(two->items[0]);
        runtime.charge(1 + (two->items[0].is_string() ? 0 : dict.entries.size() / 16));
        dict.set(two->items[0], two->items[1]);
      }
    }
  }
  for (auto& [name, value] : args.named) dict.set(Text(name, true), value);
  return dict;
}

Value make_dict(Runtime& runtime, CallArgs& args) { return runtime.make_dict(build_dict(runtime, args)); }
Value make_namespace(Runtime& runtime, CallArgs& args) {
  return runtime.make_namespace(build_dict(runtime, args));
}

Value raise_exception(Runtime& runtime, CallArgs& call) {
  const Bound args(runtime, "raise_exception", call, {"message"}, 1);
  throw RenderError{{ErrorCode::kInvalidArgument, runtime.str(args[0]).bytes()}, true};
}

Value strftime_now(Runtime& runtime, CallArgs& call) {
  const Bound args(runtime, "strftime_now", call, {"format"}, 1);
  const std::string& format = require_text(runtime, args[0], "the format of strftime_now").bytes();
  if (format.empty()) return Text();
  if (format.size() > 256 || format.find('\0') != std::string::npos) {
    runtime.raise(ErrorCode::kLimit, "a time format of more than 256 bytes or with a zero byte");
  }
  const std::time_t now = runtime.now().value_or(std::time(nullptr));
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 8192> buffer;
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &local);
  return runtime.make_text(Text(std::string(buffer.data(), size), false));
}

}  // namespace

const Function* find_function(std::string_view name) {
  static constexpr Function kFunctions[] = {
      {"range", range},
      {"dict", make_dict},
      {"namespace", make_namespace},
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now},
  };
  for (const Function& function : kFunctions) {
    if (name == function.name) return &function;
  }
  return nullptr;
}

}  // namespace mimo::jinja
