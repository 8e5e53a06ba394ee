// Executes statements and evaluates expressions of a Program.
#include <algorithm>

#include "text/jinja/loop.h"
#include "text/jinja/runtime.h"
#include "text/jinja/string_methods.h"

namespace mimo::jinja {
namespace {

// A look at the clock costs about 25 ns; a step is about as much.
constexpr std::uint64_t kStepsPerClockCheck = 4096;

}  // namespace

// Bounds recursion through statements, expressions and macros together.
class Runtime::Depth {
 public:
  explicit Depth(Runtime& runtime) : runtime_(runtime) {
    if (++runtime_.depth_ > runtime_.limits_.max_render_depth) {
      --runtime_.depth_;
      runtime_.raise(ErrorCode::kLimit, "nested or recursive more than {} levels deep",
                     runtime_.limits_.max_render_depth);
    }
  }
  ~Depth() { --runtime_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Runtime& runtime_;
};

// Opens a scope for one block and returns to the scope before, also when the block ends in an error.
class Runtime::ScopeGuard {
 public:
  ScopeGuard(Runtime& runtime, Scope* parent)
      : runtime_(runtime), before_(runtime.scope_), scope_(runtime.push_scope(parent)) {
    runtime_.scope_ = scope_;
  }
  ~ScopeGuard() {
    runtime_.scope_ = before_;
    runtime_.pop_scope(scope_);
  }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

  Scope& scope() { return *scope_; }

 private:
  Runtime& runtime_;
  Scope* before_;
  Scope* scope_;
};

Runtime::Runtime(const Program& program, const Limits& limits, std::optional<std::time_t> now)
    : program_(program),
      limits_(limits),
      now_(now),
      deadline_(std::chrono::steady_clock::now() + std::chrono::milliseconds(limits.max_wall_ms)) {
  scope_ = push_scope(nullptr);
}

void Runtime::define(std::string_view name, const Value& value) {
  const auto found = program_.symbols.find(std::string(name));
  if (found != program_.symbols.end()) set(*scope_, found->second, value);
}

void Runtime::check_steps() {
  if (steps_ > limits_.max_steps) raise(ErrorCode::kLimit, "more than {} steps of work", limits_.max_steps);
  if (std::chrono::steady_clock::now() > deadline_) {
    raise(ErrorCode::kLimit, "rendering took more than {} ms", limits_.max_wall_ms);
  }
  next_check_ = std::min(steps_ + kStepsPerClockCheck, limits_.max_steps + 1);
}

void Runtime::charge_text(std::size_t bytes) {
  if (bytes > limits_.max_output_bytes) {
    raise(ErrorCode::kLimit, "a string of more than {} bytes", limits_.max_output_bytes);
  }
  allocated_ += bytes;
  if (allocated_ > limits_.max_alloc_bytes) {
    raise(ErrorCode::kLimit, "more than {} bytes of values made", limits_.max_alloc_bytes);
  }
  charge(bytes / 16);
}

void Runtime::charge_items(std::size_t items) {
  if (items > limits_.max_list_items) {
    raise(ErrorCode::kLimit, "a list of more than {} items", limits_.max_list_items);
  }
  charge_text(0);
  allocated_ += items * sizeof(Value);
  charge(items);
}

Value Runtime::make_list(std::vector<Value> items, ListKind kind) {
  charge_items(items.size());
  auto list = std::make_shared<List>();
  list->kind = kind;
  for (const Value& item : items) list->depth = std::max(list->depth, 1 + value_depth(item));
  list->items = std::move(items);
  Value value(ListPtr(std::move(list)));
  add_depth(value);
  return value;
}

Value Runtime::make_dict(Dict dict) {
  charge_items(dict.entries.size());
  Value value(DictPtr(std::make_shared<const Dict>(std::move(dict))));
  add_depth(value);
  return value;
}

Value Runtime::make_text(Text text) {
  charge_text(text.size());
  return Value(std::move(text));
}

Value Runtime::make_namespace(Dict attributes) {
  charge_items(attributes.entries.size() + 4);
  namespaces_.push_back({std::move(attributes)});
  return Value(&namespaces_.back());
}

// Refuses a value that nests too deep for the recursive walks over values, its destructor included.
void Runtime::add_depth(const Value& value) {
  if (value_depth(value) > limits_.max_value_depth) {
    raise(ErrorCode::kLimit, "values nested more than {} levels deep", limits_.max_value_depth);
  }
}

// --- scopes

Scope* Runtime::push_scope(Scope* parent) {
  if (free_scopes_.empty()) {
    charge_text(sizeof(Scope));
    scopes_.emplace_back();
    free_scopes_.push_back(&scopes_.back());
  }
  Scope* scope = free_scopes_.back();
  free_scopes_.pop_back();
  scope->parent = parent;
  return scope;
}

void Runtime::pop_scope(Scope* scope) {
  if (scope->captured) return;
  scope->variables.clear();
  free_scopes_.push_back(scope);
}

void Runtime::set(Scope& scope, Symbol symbol, Value value) {
  for (auto& [name, old] : scope.variables) {
    if (name == symbol) {
      old = std::move(value);
      return;
    }
  }
  scope.variables.emplace_back(symbol, std::move(value));
}

const Value* Runtime::lookup(Symbol symbol) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    for (const auto& [name, value] : scope->variables) {
      if (name == symbol) return &value;
    }
  }
  return nullptr;
}

void Runtime::assign(const Expr& target, const Value& value) {
  line_ = target.line;
  charge();
  if (target.kind == ExprKind::kName) {
    set(*scope_, target.symbol, value);
    return;
  }
  if (target.kind == ExprKind::kNamespaceRef) {
    const Value* space = lookup(target.symbol);
    if (space == nullptr || !space->is(Kind::kNamespace)) {
      type_error("cannot assign attribute '{}': '{}' is not a namespace", target.name,
                 program_.names[static_cast<std::size_t>(target.symbol)]);
    }
    charge_text(sizeof(Value));
    space->space().attributes.set(Text(target.name, true), value);
    return;
  }
  const Depth depth(*this);
  const ListPtr items = iterate(value);
  if (items->items.size() != target.children.size()) {
    type_error("cannot unpack {} values into {} names", items->items.size(), target.children.size());
  }
  for (std::size_t i = 0; i < target.children.size(); ++i) assign(*target.children[i], items->items[i]);
}

// --- statements

Text Runtime::run() {
  Text out;
  try {
    exec(program_.body, out);
  } catch (RenderError& problem) {
    if (!problem.own_words) problem.error = problem.error.within(fmt::format("line {}", line_));
    throw;
  }
  return out;
}

void Runtime::emit(Text& out, const Text& text) {
  charge(1 + text.size() / 16);
  if (out.size() + text.size() > limits_.max_output_bytes) {
    raise(ErrorCode::kLimit, "an output of more than {} bytes", limits_.max_output_bytes);
  }
  allocated_ += text.size();
  out.append(text);
}

Runtime::Flow Runtime::exec(const Body& body, Text& out) {
  for (const auto& stmt : body) {
    const Flow flow = exec(*stmt, out);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Runtime::Flow Runtime::exec(const Stmt& stmt, Text& out) {
  line_ = stmt.line;
  charge();
  const Depth depth(*this);
  switch (stmt.kind) {
    case StmtKind::kData:
      emit(out, *stmt.data);
      return Flow::kNormal;
    case StmtKind::kPrint:
      emit(out, *str_ptr(eval(*stmt.expr)));
      return Flow::kNormal;
    case StmtKind::kFor:
      return exec_for(stmt, out);
    case StmtKind::kIf:
      return exec_if(stmt, out);
    case StmtKind::kSet:
      assign(*stmt.target, eval(*stmt.expr));
      return Flow::kNormal;
    case StmtKind::kSetBlock:
      return exec_set_block(stmt);
    case StmtKind::kMacro:
      set(*scope_, stmt.macro->symbol, Value(static_cast<const MacroObject*>(define_macro(*stmt.macro))));
      return Flow::kNormal;
    case StmtKind::kCallBlock:
      exec_call_block(stmt, out);
      return Flow::kNormal;
    case StmtKind::kFilterBlock:
      return exec_filter_block(stmt, out);
    case StmtKind::kWith:
      return exec_with(stmt, out);
    case StmtKind::kScope: {
      ScopeGuard guard(*this, scope_);
      return exec(stmt.body, out);
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Runtime::Flow Runtime::exec_if(const Stmt& stmt, Text& out) {
  for (const auto& [test, body] : stmt.branches) {
    if (truthy(eval(*test))) return exec(body, out);
  }
  return exec(stmt.otherwise, out);
}

Runtime::Flow Runtime::exec_for(const Stmt& stmt, Text& out) {
  auto loop = std::make_shared<LoopState>();
  loop->source = iterate(eval(*stmt.expr));
  loop->depth = 1 + loop->source->depth;
  const Value loop_value(loop);
  add_depth(loop_value);
  if (stmt.filter) {
    loop->filter = [this, &stmt, outer = scope_](const Value& item) {
      charge();
      ScopeGuard guard(*this, outer);
      assign(*stmt.target, item);
      return truthy(eval(*stmt.filter));
    };
  }
  // The filter looks at this block's variables: it must not be asked again once the block is gone, by a
  // template that kept `loop` in a namespace.
  struct FilterEnd {
    LoopState& state;
    ~FilterEnd() { state.filter = nullptr, state.cursor = state.source->items.size(); }
  } const filter_end{*loop};

  bool completed_one = false;  // Jinja runs `else` also when every pass ended in break or continue
  while (loop->advance()) {
    charge();
    ScopeGuard guard(*this, scope_);
    set(guard.scope(), program_.loop, loop_value);
    assign(*stmt.target, *loop->current);
    const Flow flow = exec(stmt.body, out);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) completed_one = true;
  }
  if (completed_one || stmt.otherwise.empty()) return Flow::kNormal;
  ScopeGuard guard(*this, scope_);
  return exec(stmt.otherwise, out);
}

Runtime::Flow Runtime::exec_set_block(const Stmt& stmt) {
  Text text;
  {
    ScopeGuard guard(*this, scope_);
    const Flow flow = exec(stmt.body, text);
    if (flow != Flow::kNormal) return flow;
  }
  Value value = make_text(std::move(text));
  if (stmt.filter) value = apply_filters(*stmt.filter, value);
  assign(*stmt.target, value);
  return Flow::kNormal;
}

Runtime::Flow Runtime::exec_filter_block(const Stmt& stmt, Text& out) {
  Text text;
  ScopeGuard guard(*this, scope_);
  const Flow flow = exec(stmt.body, text);
  if (flow != Flow::kNormal) return flow;
  emit(out, *str_ptr(apply_filters(*stmt.filter, make_text(std::move(text)))));
  return Flow::kNormal;
}

// Filters of a set or filter block: the innermost one has no input expression.
Value Runtime::apply_filters(const Expr& chain, const Value& input) {
  const Depth depth(*this);
  const Expr* inner = chain.children.empty() ? nullptr : chain.children[0].get();
  const Value value = inner != nullptr ? apply_filters(*inner, input) : input;
  CallArgs args;
  eval_args(chain.args.get(), args);
  line_ = chain.line;
  return chain.filter(*this, value, args);
}

Runtime::Flow Runtime::exec_with(const Stmt& stmt, Text& out) {
  std::vector<Value> values;
  for (const auto& binding : stmt.bindings) values.push_back(eval(*binding.second));
  ScopeGuard guard(*this, scope_);
  for (std::size_t i = 0; i < values.size(); ++i) assign(*stmt.bindings[i].first, values[i]);
  return exec(stmt.body, out);
}

void Runtime::exec_call_block(const Stmt& stmt, Text& out) {
  const Value caller(static_cast<const MacroObject*>(define_macro(*stmt.macro)));
  const Value callee = eval(*stmt.expr->children[0]);
  CallArgs args;
  eval_args(stmt.expr->args.get(), args);
  args.named.emplace_back("caller", caller);
  line_ = stmt.line;
  emit(out, *str_ptr(call(callee, args)));
}

// --- macros

MacroObject* Runtime::define_macro(const MacroDef& def) {
  charge_text(sizeof(MacroObject));
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent)
    scope->captured = true;
  macros_.push_back({&def, scope_});
  return &macros_.back();
}

Value Runtime::call_macro(const MacroObject& macro, CallArgs& args) {
  const Depth depth(*this);
  const MacroDef& def = *macro.def;
  const std::size_t count = def.params.size();
  ScopeGuard guard(*this, macro.scope);
  Scope& scope = guard.scope();

  std::vector<bool> given(count, false);
  for (std::size_t i = 0; i < std::min(count, args.positional.size()); ++i) {
    set(scope, def.params[i], args.positional[i]);
    given[i] = true;
  }
  Value caller = missing("'caller' is undefined");
  bool explicit_caller = false;
  for (const Symbol param : def.params) explicit_caller |= param == program_.caller;
  Dict extra;
  for (auto& [name, value] : args.named) {
    const auto symbol = program_.symbols.find(name);
    const auto at = symbol == program_.symbols.end()
                        ? def.params.end()
                        : std::find(def.params.begin(), def.params.end(), symbol->second);
    if (at != def.params.end()) {
      const auto index = static_cast<std::size_t>(at - def.params.begin());
      if (given[index]) type_error("macro '{}' got two values for argument '{}'", def.name, name);
      set(scope, *at, value);
      given[index] = true;
    } else if (name == "caller" && def.uses_caller && !explicit_caller) {
      caller = value;
    } else if (def.uses_kwargs) {
      extra.set(Text(name, true), value);
    } else {
      type_error("macro '{}' takes no keyword argument '{}'", def.name, name);
    }
  }
  if (args.positional.size() > count && !def.uses_varargs) {
    type_error("macro '{}' takes not more than {} argument(s)", def.name, count);
  }
  if (def.uses_caller && !explicit_caller) set(scope, program_.caller, caller);
  if (def.uses_kwargs) set(scope, program_.kwargs, make_dict(std::move(extra)));
  if (def.uses_varargs) {
    std::vector<Value> rest;
    for (std::size_t i = count; i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    set(scope, program_.varargs, make_list(std::move(rest), ListKind::kTuple));
  }
  const std::size_t first_default = count - def.defaults.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (given[i]) continue;
    const std::string& name = program_.names[static_cast<std::size_t>(def.params[i])];
    // A parameter hides a variable of the same name outside, also while its own default is evaluated.
    set(scope, def.params[i], missing(fmt::format("parameter '{}' was not provided", name)));
    if (i >= first_default) set(scope, def.params[i], eval(*def.defaults[i - first_default]));
  }
  Text out;
  exec(def.body, out);
  return make_text(std::move(out));
}

Value Runtime::call(const Value& callee, CallArgs& args) {
  const int line = line_;
  Value result;
  switch (callee.kind()) {
    case Kind::kUndefined:
      undefined_error(callee);
    case Kind::kMacro:
      result = call_macro(callee.macro(), args);
      break;
    case Kind::kFunction:
      result = callee.function().call(*this, args);
      break;
    case Kind::kMethod:
      result = call_method(*this, callee.method(), args);
      break;
    default:
      type_error("'{}' object is not callable", type_name(callee));
  }
  line_ = line;
  return result;
}

// --- expressions

Value Runtime::eval(const Expr& expr) {
  charge();
  const Depth depth(*this);
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.constant;
    case ExprKind::kName:
      return eval_name(expr);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return eval_list(expr);
    case ExprKind::kDict:
      return eval_dict(expr);
    case ExprKind::kAttribute: {
      const Value value = eval(*expr.children[0]);
      line_ = expr.line;
      return attribute(value, expr.name);
    }
    case ExprKind::kItem: {
      const Value value = eval(*expr.children[0]);
      const Value key = eval(*expr.children[1]);
      line_ = expr.line;
      return item(value, key);
    }
    case ExprKind::kSlice:
      return eval_slice(expr);
    case ExprKind::kCall:
      return eval_call(expr);
    case ExprKind::kFilter:
      return eval_filter(expr);
    case ExprKind::kTest:
      return eval_test(expr);
    case ExprKind::kNot:
      return !truthy(eval(*expr.children[0]));
    case ExprKind::kNegate:
      return negate(eval(*expr.children[0]));
    case ExprKind::kPlus: {
      Value value = eval(*expr.children[0]);
      if (value.is_undefined()) undefined_error(value);
      if (!value.is_number()) type_error("bad operand type for unary +: '{}'", type_name(value));
      return value.is(Kind::kBool) ? Value(value.integral()) : value;
    }
    case ExprKind::kAnd: {
      Value left = eval(*expr.children[0]);
      return truthy(left) ? eval(*expr.children[1]) : left;
    }
    case ExprKind::kOr: {
      Value left = eval(*expr.children[0]);
      return truthy(left) ? left : eval(*expr.children[1]);
    }
    case ExprKind::kConditional:
      if (truthy(eval(*expr.children[0]))) return eval(*expr.children[1]);
      if (expr.children[2]) return eval(*expr.children[2]);
      return missing("an inline if without else was false");
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kConcat:
      return eval_concat(expr);
    case ExprKind::kBinary: {
      const Value left = eval(*expr.children[0]);
      const Value right = eval(*expr.children[1]);
      line_ = expr.line;
      return binary(expr.op, left, right);
    }
    case ExprKind::kNamespaceRef:
      break;  // only an assignment target
  }
  return None{};
}

Value Runtime::eval_name(const Expr& expr) {
  line_ = expr.line;
  if (const Value* found = lookup(expr.symbol)) return *found;
  if (const Function* function = find_function(expr.name)) return function;
  return missing(fmt::format("'{}' is undefined", expr.name));
}

Value Runtime::eval_list(const Expr& expr) {
  std::vector<Value> items;
  items.reserve(expr.children.size());
  for (const ExprPtr& child : expr.children) items.push_back(eval(*child));
  return make_list(std::move(items), expr.kind == ExprKind::kTuple ? ListKind::kTuple : ListKind::kList);
}

Value Runtime::eval_dict(const Expr& expr) {
  Dict dict;
  for (std::size_t i = 0; i < expr.children.size(); i += 2) {
    Value key = eval(*expr.children[i]);
    Value value = eval(*expr.children[i + 1]);
    line_ = expr.line;
    require_hashable(key);
    charge(1 + (key.is_string() ? 0 : dict.entries.size() / 16));
    dict.set(std::move(key), std::move(value));
  }
  return make_dict(std::move(dict));
}

Value Runtime::eval_slice(const Expr& expr) {
  const Value value = eval(*expr.children[0]);
  Value bounds[3] = {None{}, None{}, None{}};
  for (std::size_t i = 0; i < 3; ++i) {
    if (expr.children[i + 1]) bounds[i] = eval(*expr.children[i + 1]);
  }
  line_ = expr.line;
  return slice(value, bounds[0], bounds[1], bounds[2]);
}

Value Runtime::eval_call(const Expr& expr) {
  const Value callee = eval(*expr.children[0]);
  CallArgs args;
  eval_args(expr.args.get(), args);
  line_ = expr.line;
  return call(callee, args);
}

void Runtime::eval_args(const ArgExprs* exprs, CallArgs& args) {
  if (exprs == nullptr) return;
  for (const ExprPtr& positional : exprs->positional) args.positional.push_back(eval(*positional));
  for (const auto& [name, value] : exprs->named) args.named.emplace_back(name, eval(*value));
  if (exprs->star) {
    const ListPtr items = iterate(eval(*exprs->star));
    charge_items(items->items.size());
    args.positional.insert(args.positional.end(), items->items.begin(), items->items.end());
  }
  if (exprs->star_star) {
    const Value mapping = eval(*exprs->star_star);
    if (!mapping.is(Kind::kDict))
      type_error("the argument after ** must be a mapping, not {}", type_name(mapping));
    charge_items(mapping.dict().entries.size());
    for (const auto& [name, value] : mapping.dict().entries) {
      if (!name.is_string()) type_error("keywords must be strings");
      for (const auto& given : args.named) {
        charge();
        if (given.first == name.bytes()) type_error("argument '{}' is given twice", name.bytes());
      }
      args.named.emplace_back(name.bytes(), value);
    }
  }
}

Value Runtime::eval_filter(const Expr& expr) {
  const Value input = eval(*expr.children[0]);
  CallArgs args;
  eval_args(expr.args.get(), args);
  line_ = expr.line;
  return expr.filter(*this, input, args);
}

Value Runtime::eval_test(const Expr& expr) {
  const Value input = eval(*expr.children[0]);
  CallArgs args;
  eval_args(expr.args.get(), args);
  line_ = expr.line;
  return expr.test(*this, input, args);
}

Value Runtime::eval_compare(const Expr& expr) {
  Value left = eval(*expr.children[0]);
  for (std::size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.children[i + 1]);
    line_ = expr.line;
    bool holds = false;
    switch (expr.ops[i]) {
      case Op::kEq:
        holds = equals(left, right);
        break;
      case Op::kNe:
        holds = !equals(left, right);
        break;
      case Op::kLt:
        holds = order(left, right, "<") == Order::kLess;
        break;
      case Op::kGt:
        holds = order(left, right, ">") == Order::kGreater;
        break;
      case Op::kLe: {
        const Order order_of = order(left, right, "<=");
        holds = order_of == Order::kLess || order_of == Order::kEqual;
        break;
      }
      case Op::kGe: {
        const Order order_of = order(left, right, ">=");
        holds = order_of == Order::kGreater || order_of == Order::kEqual;
        break;
      }
      case Op::kIn:
        holds = contains(right, left);
        break;
      case Op::kNotIn:
        holds = !contains(right, left);
        break;
      default:
        break;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Runtime::eval_concat(const Expr& expr) {
  std::vector<Value> parts;
  parts.reserve(expr.children.size());
  for (const ExprPtr& child : expr.children) parts.push_back(eval(*child));
  line_ = expr.line;
  return concat(parts);
}

}  // namespace mimo::jinja
