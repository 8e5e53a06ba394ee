// The parsed form of a template. Built once, never changed, shared by all renders.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace mimo::jinja {

using FilterFn = Value (*)(Runtime& runtime, const Value& input, CallArgs& args);
using TestFn = bool (*)(Runtime& runtime, const Value& input, CallArgs& args);

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<std::unique_ptr<Stmt>>;

// Index of a variable name in Program::names.
using Symbol = int;

enum class ExprKind {
  kConst,
  kName,
  kList,
  kTuple,
  kDict,       // children alternate key, value
  kAttribute,  // .name
  kItem,       // [children[1]]
  kSlice,      // children[0] [children[1] : children[2] : children[3]], the last three may be null
  kCall,
  kFilter,
  kTest,
  kNot,
  kNegate,
  kPlus,
  kAnd,
  kOr,
  kConditional,  // condition, then, else (null: undefined)
  kCompare,      // children[0] ops[0] children[1] ops[1] ...
  kConcat,
  kBinary,
  kNamespaceRef,  // assignment target: symbol . name
};

enum class Op { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct ArgExprs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, star_star;
};

struct Expr {
  ExprKind kind;
  int line = 0;
  int depth = 1;  // height of the tree below
  Op op = Op::kAdd;
  Symbol symbol = -1;
  Value constant;
  std::string name;
  std::vector<ExprPtr> children;
  std::vector<Op> ops;
  std::unique_ptr<ArgExprs> args;
  FilterFn filter = nullptr;
  TestFn test = nullptr;
};

enum class StmtKind {
  kData,
  kPrint,
  kFor,
  kIf,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,  // {% generation %}: the body, with a scope of its own
  kBreak,
  kContinue,
};

struct MacroDef {
  std::string name;
  Symbol symbol = -1;
  std::vector<Symbol> params;
  std::vector<ExprPtr> defaults;  // of the last defaults.size() parameters
  Body body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  TextPtr data;    // kData
  ExprPtr expr;    // kPrint, kFor (iterable), kSet (value), kCallBlock (the call)
  ExprPtr target;  // kFor, kSet, kSetBlock
  ExprPtr filter;  // kFor (condition); kSetBlock, kFilterBlock: chain whose innermost input is null
  std::vector<std::pair<ExprPtr, Body>> branches;     // kIf
  std::vector<std::pair<ExprPtr, ExprPtr>> bindings;  // kWith: target, value
  Body body, otherwise;
  std::unique_ptr<MacroDef> macro;  // kMacro, kCallBlock (the anonymous caller)
};

struct Program {
  Body body;
  std::vector<std::string> names;  // of all variables, by Symbol
  std::unordered_map<std::string, Symbol> symbols;
  Symbol loop = -1, caller = -1, varargs = -1, kwargs = -1;
};

// Null when the engine has no such filter, test or global function.
FilterFn find_filter(std::string_view name);
TestFn find_test(std::string_view name);
const Function* find_function(std::string_view name);

}  // namespace mimo::jinja
