// Run-time values of the template language, with Python's types and identities. Lists, dicts and strings
// never change once made (the sandbox that chat templates are written for forbids list.append and the like),
// so they are shared and never copied; only a namespace can be written to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "core/json.h"
#include "text/jinja/text.h"

namespace mimo::jinja {

// Wide enough for any JSON integer that the parser keeps exact (int64 and uint64); arithmetic beyond it is an
// error.
__extension__ using Int = __int128;

class Runtime;
class Value;
struct List;
struct Dict;
struct Namespace;
struct MacroObject;
struct Function;
struct Method;
struct Generator;
struct LoopState;

struct Undefined {
  std::shared_ptr<const std::string> reason;  // "'x' is undefined"; null for a value nobody asked for by name
};
struct None {};

using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using MethodPtr = std::shared_ptr<const Method>;
using GeneratorPtr = std::shared_ptr<Generator>;
using LoopPtr = std::shared_ptr<LoopState>;

// In the order of the alternatives of Value::Data.
enum class Kind {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kDict,
  kNamespace,
  kMacro,
  kFunction,
  kMethod,
  kGenerator,
  kLoop,
};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, Int, double, TextPtr, ListPtr, DictPtr, Namespace*,
                            const MacroObject*, const Function*, MethodPtr, GeneratorPtr, LoopPtr>;

  Value() = default;
  Value(Undefined value) : data_(std::move(value)) {}
  Value(None value) : data_(value) {}
  Value(bool value) : data_(value) {}
  Value(Int value) : data_(value) {}
  Value(int value) : data_(Int{value}) {}
  Value(std::size_t value) : data_(static_cast<Int>(value)) {}
  Value(double value) : data_(value) {}
  Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}
  Value(TextPtr text) : data_(std::move(text)) {}
  Value(ListPtr list) : data_(std::move(list)) {}
  Value(DictPtr dict) : data_(std::move(dict)) {}
  Value(Namespace* space) : data_(space) {}
  Value(const MacroObject* macro) : data_(macro) {}
  Value(const Function* function) : data_(function) {}
  Value(MethodPtr method) : data_(std::move(method)) {}
  Value(GeneratorPtr generator) : data_(std::move(generator)) {}
  Value(LoopPtr loop) : data_(std::move(loop)) {}

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind_wanted) const { return kind() == kind_wanted; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_none() const { return is(Kind::kNone); }
  bool is_string() const { return is(Kind::kString); }
  bool is_number() const { return is(Kind::kBool) || is(Kind::kInt) || is(Kind::kFloat); }
  // bool or int; a bool counts as 0 or 1 in all arithmetic.
  bool is_integral() const { return is(Kind::kBool) || is(Kind::kInt); }

  // Each requires the kind of the same name.
  const Undefined& undefined() const { return std::get<Undefined>(data_); }
  bool boolean() const { return std::get<bool>(data_); }
  Int integral() const { return is(Kind::kBool) ? Int{std::get<bool>(data_)} : std::get<Int>(data_); }
  double real() const { return std::get<double>(data_); }
  const TextPtr& text_ptr() const { return std::get<TextPtr>(data_); }
  const Text& text() const { return *std::get<TextPtr>(data_); }
  const std::string& bytes() const { return text().bytes(); }
  const ListPtr& list_ptr() const { return std::get<ListPtr>(data_); }
  const List& list() const { return *std::get<ListPtr>(data_); }
  const DictPtr& dict_ptr() const { return std::get<DictPtr>(data_); }
  const Dict& dict() const { return *std::get<DictPtr>(data_); }
  Namespace& space() const { return *std::get<Namespace*>(data_); }
  const MacroObject& macro() const { return *std::get<const MacroObject*>(data_); }
  const Function& function() const { return *std::get<const Function*>(data_); }
  const Method& method() const { return *std::get<MethodPtr>(data_); }
  Generator& generator() const { return *std::get<GeneratorPtr>(data_); }
  const LoopPtr& loop_ptr() const { return std::get<LoopPtr>(data_); }
  LoopState& loop() const { return *std::get<LoopPtr>(data_); }

 private:
  Data data_;
};

// What Python type a sequence of values shows itself as.
enum class ListKind { kList, kTuple, kRange, kItems, kKeys, kValues };

struct List {
  ListKind kind = ListKind::kList;
  std::vector<Value> items;
  int depth = 1;                      // 1 + the largest depth of an item
  Int start = 0, stop = 0, step = 1;  // of a range, for printing
};

// Insertion-ordered. Keys are any hashable values and compare as Python's do (1 == 1.0 == True).
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  int depth = 1;

  // Null when absent. Strings only.
  const Value* find(std::string_view key) const;
  // Requires a key that is not a string.
  const Value* find_other(const Value& key) const;
  // Inserts or overwrites (the first key stays, as in Python). The key must be hashable.
  void set(Value key, Value value);

 private:
  std::optional<std::size_t> position(const Value& key) const;

  // Position by key text, filled once the dict is too large for a linear search.
  std::unordered_map<std::string_view, std::size_t> index_;
};

struct Namespace {
  Dict attributes;
};

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A global function.
struct Function {
  const char* name;
  Value (*call)(Runtime& runtime, CallArgs& args);
};

// A method looked up on a value and not called yet.
struct Method {
  Value self;
  std::string name;
};

// The one-shot iterator that map, select and their like return. Items are computed at once; an error met on
// the way is kept and raised only when iteration gets there, as a lazy generator would.
struct Generator {
  std::vector<Value> items;
  std::size_t next = 0;
  std::optional<Error> error;
  int depth = 1;
};

// Number and kind as Python names the type: "str", "NoneType", ...
const char* type_name(const Value& value);

// 0 for scalars.
int value_depth(const Value& value);

// Equality of two dict keys (scalars and tuples).
bool keys_equal(const Value& a, const Value& b);

// Strings inside become `trusted` or not. Depth is bounded by the JSON parser's own limit.
Value from_json(const json::value& value, bool trusted);

}  // namespace mimo::jinja
