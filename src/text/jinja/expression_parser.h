// The expression half of the parser: precedence levels, literals, calls, filters, tests and assignment
// targets, plus what both halves share (the token cursor, errors, nesting, names).
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"
#include "text/jinja/limits.h"

namespace mimo::jinja {

// Thrown inside the parser only; parse_program turns it into a Result.
struct ParseError {
  Error error;
};

class ExpressionParser {
 public:
  ExpressionParser(const ExpressionParser&) = delete;
  ExpressionParser& operator=(const ExpressionParser&) = delete;

 protected:
  // All three must outlive the parser.
  ExpressionParser(const std::vector<Token>& tokens, const Limits& limits, Program& program)
      : tokens_(tokens), limits_(limits), program_(program) {}
  ~ExpressionParser() = default;

  template <class... Args>
  [[noreturn]] void error(int line, ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    throw ParseError{
        {code, fmt::format("line {}: {}", line, fmt::format(format, std::forward<Args>(args)...))}};
  }
  template <class... Args>
  [[noreturn]] void error(fmt::format_string<Args...> format, Args&&... args) {
    error(current().line, ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
  }

  // Counts nesting of everything that recurses.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > parser_.limits_.max_parse_depth) {
        parser_.error(parser_.current().line, ErrorCode::kLimit, "nested more than {} levels deep",
                      parser_.limits_.max_parse_depth);
      }
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  // --- tokens

  const Token& current() const { return tokens_[pos_]; }
  const Token& look() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  Token next() {
    const Token token = current();
    if (pos_ + 1 < tokens_.size()) ++pos_;
    return token;
  }
  bool is_op(std::string_view text) const { return current().type == Tok::kOp && current().text == text; }
  bool is_name(std::string_view text) const { return current().type == Tok::kName && current().text == text; }
  bool skip_op(std::string_view text) { return is_op(text) && (next(), true); }
  bool skip_name(std::string_view text) { return is_name(text) && (next(), true); }
  std::string describe(const Token& token) const {
    switch (token.type) {
      case Tok::kEnd:
        return "the end of the template";
      case Tok::kBlockEnd:
        return "'%}'";
      case Tok::kPrintEnd:
        return "'}}'";
      case Tok::kString:
        return "a string";
      default:
        return fmt::format("'{}'", token.text);
    }
  }
  void expect_op(std::string_view text) {
    if (!skip_op(text)) error("expected '{}', got {}", text, describe(current()));
  }
  std::string expect_name() {
    if (current().type != Tok::kName) error("expected a name, got {}", describe(current()));
    return std::string(next().text);
  }
  void expect_block_end() {
    if (current().type != Tok::kBlockEnd) error("expected '%}}', got {}", describe(current()));
    next();
  }

  // --- names

  Symbol symbol(const std::string& name) {
    const auto [at, is_new] = program_.symbols.emplace(name, static_cast<Symbol>(program_.names.size()));
    if (is_new) program_.names.push_back(name);
    return at->second;
  }
  void stored(const std::string& name) {
    if (name == "loop" && for_depth_ > 0) error("'loop' cannot be assigned inside a for loop");
    stored_.insert(name);
  }

  // --- building

  ExprPtr make(ExprKind kind, int line) {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    return expr;
  }
  void grow(Expr& expr, const ExprPtr& child) {
    if (!child) return;
    expr.depth = std::max(expr.depth, child->depth + 1);
    if (expr.depth > limits_.max_expression_depth) {
      error(expr.line, ErrorCode::kLimit, "an expression with more than {} chained operations",
            limits_.max_expression_depth);
    }
  }
  void add(Expr& expr, ExprPtr child) {
    grow(expr, child);
    expr.children.push_back(std::move(child));
  }
  ExprPtr make(ExprKind kind, int line, ExprPtr a) {
    ExprPtr expr = make(kind, line);
    add(*expr, std::move(a));
    return expr;
  }
  ExprPtr make(ExprKind kind, int line, ExprPtr a, ExprPtr b) {
    ExprPtr expr = make(kind, line, std::move(a));
    add(*expr, std::move(b));
    return expr;
  }
  ExprPtr constant(int line, Value value) {
    ExprPtr expr = make(ExprKind::kConst, line);
    expr->constant = std::move(value);
    return expr;
  }

  // --- expressions (expression_parser.cpp)

  struct TupleOptions {
    bool names_only = false;  // assignment targets: primary expressions without operators
    bool with_conditional = true;
    bool ends_at_in = false;
    bool ends_at_recursive = false;
    bool explicit_parentheses = false;
    bool with_namespace = false;
  };

  ExprPtr parse_expression(bool with_conditional = true);
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr binary(int line, Op op, ExprPtr left, ExprPtr right);
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter);
  ExprPtr parse_primary(bool with_namespace);
  ExprPtr parse_name(bool with_namespace);
  Value integer(const Token& token);
  bool is_tuple_end(const TupleOptions& options) const;
  ExprPtr parse_tuple(const TupleOptions& options);
  ExprPtr parse_target_item(const TupleOptions& options);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr expr);
  void parse_args(Expr& owner);
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_filters_and_tests(ExprPtr expr);
  std::string dotted_name();
  ExprPtr parse_filter(ExprPtr input);
  ExprPtr parse_test(ExprPtr input);
  ExprPtr parse_target(TupleOptions options);
  void check_target(const Expr& target);
  std::pair<std::string, Symbol> target_name();

  const std::vector<Token>& tokens_;
  const Limits& limits_;
  Program& program_;
  std::size_t pos_ = 0;
  int nesting_ = 0;
  int for_depth_ = 0;  // for tags around, also across macros
  int breakable_ = 0;  // for tags that a break here would end
  std::vector<MacroDef*> macros_;
  std::set<std::string> stored_;                     // names assigned anywhere
  std::vector<std::pair<std::string, int>> called_;  // plain names called, with line
};

}  // namespace mimo::jinja
