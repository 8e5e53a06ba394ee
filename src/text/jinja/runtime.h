// One render: resource accounts, variable scopes and the operations of the language on values. Used by one
// thread; errors inside are RenderError exceptions that Template::render turns into a Result.
#pragma once

#include <chrono>
#include <ctime>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.h"
#include "text/jinja/ast.h"
#include "text/jinja/limits.h"
#include "text/jinja/value.h"

namespace mimo::jinja {

struct RenderError {
  Error error;
  bool own_words = false;  // raised by the template with raise_exception: the message stays as it is
};

// Variables of one block. Lookup goes from inner to outer scopes.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<Symbol, Value>> variables;
  bool captured = false;  // a macro was defined below and may outlive the block: keep the scope until the end
};

struct MacroObject {
  const MacroDef* def;
  Scope* scope;  // where it was defined
};

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // text per level
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};

class Runtime {
 public:
  Runtime(const Program& program, const Limits& limits, std::optional<std::time_t> now);
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  void define(std::string_view name, const Value& value);  // a variable of the outermost scope
  bool uses(std::string_view name) const { return program_.symbols.contains(std::string(name)); }
  Text run();

  // --- accounts
  const Limits& limits() const { return limits_; }
  std::optional<std::time_t> now() const { return now_; }
  void charge(std::uint64_t steps = 1) {
    steps_ += steps;
    if (steps_ >= next_check_) check_steps();
  }
  // Before making a string of `bytes` bytes.
  void charge_text(std::size_t bytes);
  // Before making a list or dict of `items` items.
  void charge_items(std::size_t items);
  template <class... Args>
  [[noreturn]] void raise(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    throw RenderError{{code, fmt::format(format, std::forward<Args>(args)...)}, false};
  }
  // A TypeError or ValueError of Python.
  template <class... Args>
  [[noreturn]] void type_error(fmt::format_string<Args...> format, Args&&... args) {
    throw RenderError{{ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)}, false};
  }
  [[noreturn]] void undefined_error(const Value& value);

  // --- values (operations.cpp)
  bool truthy(const Value& value);
  bool equals(const Value& a, const Value& b);
  enum class Order { kLess, kEqual, kGreater, kUnordered };
  Order order(const Value& a, const Value& b, const char* op);
  bool less(const Value& a, const Value& b) { return order(a, b, "<") == Order::kLess; }
  bool contains(const Value& container, const Value& item);
  Value binary(Op op, const Value& a, const Value& b);
  Value negate(const Value& value);
  Value concat(const std::vector<Value>& parts);  // the ~ operator
  bool hashable(const Value& value) const;
  void require_hashable(const Value& value);

  // --- access (access.cpp)
  Value attribute(const Value& value, const std::string& name);
  Value item(const Value& value, const Value& key);
  Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);
  // All items that iteration would give; shares the list when there is one. Consumes a generator.
  ListPtr iterate(const Value& value);
  bool iterable(const Value& value) const;
  // Number of items, or an error where Python's len() has none.
  std::size_t length(const Value& value);

  // --- text forms (print.cpp)
  Text str(const Value& value);         // Python's str()
  TextPtr str_ptr(const Value& value);  // the same, without a copy when it is a string already
  std::string repr(const Value& value);
  std::string to_json(const Value& value, const JsonStyle& style);

  // --- making values
  Value make_list(std::vector<Value> items, ListKind kind = ListKind::kList);
  Value make_text(Text text);
  Value make_dict(Dict dict);
  Value make_namespace(Dict attributes);
  Value missing(std::string reason) const {
    return Undefined{std::make_shared<const std::string>(std::move(reason))};
  }
  // Runs `fill(items)` at once; its error, unless a limit, is raised only when the iteration reaches it.
  template <class Fill>
  Value make_generator(Fill fill);

  Value call(const Value& callee, CallArgs& args);

 private:
  class Depth;

  void check_steps();
  void add_depth(const Value& value);

  // --- statements and expressions (evaluator.cpp)
  enum class Flow { kNormal, kBreak, kContinue };
  Flow exec(const Body& body, Text& out);
  Flow exec(const Stmt& stmt, Text& out);
  Flow exec_for(const Stmt& stmt, Text& out);
  Flow exec_if(const Stmt& stmt, Text& out);
  Flow exec_set_block(const Stmt& stmt);
  Flow exec_filter_block(const Stmt& stmt, Text& out);
  Flow exec_with(const Stmt& stmt, Text& out);
  void exec_call_block(const Stmt& stmt, Text& out);
  void emit(Text& out, const Text& text);
  void assign(const Expr& target, const Value& value);
  void set(Scope& scope, Symbol symbol, Value value);
  const Value* lookup(Symbol symbol) const;
  Value apply_filters(const Expr& chain, const Value& input);

  Value eval(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_list(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_slice(const Expr& expr);
  Value eval_call(const Expr& expr);
  Value eval_filter(const Expr& expr);
  Value eval_test(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_concat(const Expr& expr);
  void eval_args(const ArgExprs* exprs, CallArgs& args);
  Value call_macro(const MacroObject& macro, CallArgs& args);
  MacroObject* define_macro(const MacroDef& def);

  Scope* push_scope(Scope* parent);
  void pop_scope(Scope* scope);
  class ScopeGuard;

  void repr_into(const Value& value, std::string& out, int depth);
  void json_into(const Value& value, const JsonStyle& style, int level, std::string& out);
  void json_line(const JsonStyle& style, int level, std::string& out);
  void check_growing(const std::string& out);

  const Program& program_;
  const Limits& limits_;
  std::optional<std::time_t> now_;
  std::chrono::steady_clock::time_point deadline_;
  std::uint64_t steps_ = 0;
  std::uint64_t next_check_ = 0;
  std::size_t allocated_ = 0;
  int depth_ = 0;
  int line_ = 0;  // of the node in work, for messages

  std::deque<Scope> scopes_;  // stable addresses
  std::vector<Scope*> free_scopes_;
  Scope* scope_ = nullptr;
  std::deque<Namespace> namespaces_;  // owned here: values that point at each other in a ring still get freed
  std::deque<MacroObject> macros_;
};

// Arguments of a filter, test, method or function matched to parameter names; raises Python's errors for
// unknown, missing and surplus ones. A name of "" is positional only.
class Bound {
 public:
  Bound(Runtime& runtime, const char* what, CallArgs& args, std::initializer_list<const char*> params,
        std::size_t required = 0);
  bool has(std::size_t i) const { return given_[i]; }
  const Value& operator[](std::size_t i) const { return values_[i]; }
  bool has_value(std::size_t i) const { return given_[i] && !values_[i].is_none(); }
  bool flag(std::size_t i) const { return given_[i] && runtime_.truthy(values_[i]); }

 private:
  Runtime& runtime_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

template <class Fill>
Value Runtime::make_generator(Fill fill) {
  auto generator = std::make_shared<Generator>();
  try {
    fill(generator->items);
  } catch (RenderError& problem) {
    if (problem.error.code == ErrorCode::kLimit) throw;
    generator->error = std::move(problem.error);
  }
  charge_items(generator->items.size());
  for (const Value& value : generator->items) {
    generator->depth = std::max(generator->depth, 1 + value_depth(value));
  }
  if (generator->depth > limits_.max_value_depth) {
    raise(ErrorCode::kLimit, "values nested more than {} levels deep", limits_.max_value_depth);
  }
  return GeneratorPtr(std::move(generator));
}

// Methods of str, list, dict and loop (methods.cpp): whether Python has `name` on this type, and the call.
enum class MethodState { kNone, kCallable, kForbidden };
MethodState find_method(const Value& self, std::string_view name);
Value call_method(Runtime& runtime, const Method& method, CallArgs& args);

// An int argument; an error naming `what` otherwise.
Int require_int(Runtime& runtime, const Value& value, const char* what);
// A str argument.
const Text& require_text(Runtime& runtime, const Value& value, const char* what);

std::string int_to_string(Int value);

}  // namespace mimo::jinja
