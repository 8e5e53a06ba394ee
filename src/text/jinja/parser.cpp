#include "text/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <set>
#include <tuple>

#include "text/jinja/lexer.h"
#include "text/jinja/unicode_text.h"

namespace mimo::jinja {
namespace {

// Thrown inside the parser only; parse_program turns it into a Result.
struct ParseError {
  Error error;
};

class Parser {
 public:
  Parser(const std::vector<Token>& tokens, const Limits& limits, Program& program)
      : tokens_(tokens), limits_(limits), program_(program) {
    program_.loop = symbol("loop");
    program_.caller = symbol("caller");
    program_.varargs = symbol("varargs");
    program_.kwargs = symbol("kwargs");
  }

  void run() {
    program_.body = parse_body({}, "");
    for (const auto& [name, line] : called_) {
      // `caller` exists inside macros that a call block invokes; elsewhere calling it fails when it is reached.
      if (name != "caller" && !stored_.contains(name) && find_function(name) == nullptr) {
        error(line, ErrorCode::kUnsupported, "there is no function '{}'", name);
      }
    }
  }

 private:
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
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > parser_.limits_.max_parse_depth) {
        parser_.error(parser_.current().line, ErrorCode::kLimit, "nested more than {} levels deep",
                      parser_.limits_.max_parse_depth);
      }
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
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
      case Tok::kEnd: return "the end of the template";
      case Tok::kBlockEnd: return "'%}'";
      case Tok::kPrintEnd: return "'}}'";
      case Tok::kString: return "a string";
      default: return fmt::format("'{}'", token.text);
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

  // --- expressions, one function per precedence level, loosest first

  ExprPtr parse_expression(bool with_conditional = true) {
    if (!with_conditional) {
      const Nesting nesting(*this);
      return parse_or();
    }
    const Nesting nesting(*this);
    const int line = current().line;
    ExprPtr expr = parse_or();
    while (skip_name("if")) {
      ExprPtr test = parse_or();
      ExprPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
      ExprPtr choice = make(ExprKind::kConditional, line, std::move(test), std::move(expr));
      add(*choice, std::move(otherwise));
      expr = std::move(choice);
    }
    return expr;
  }

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    while (is_name("or")) {
      const int line = next().line;
      left = make(ExprKind::kOr, line, std::move(left), parse_and());
    }
    return left;
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    while (is_name("and")) {
      const int line = next().line;
      left = make(ExprKind::kAnd, line, std::move(left), parse_not());
    }
    return left;
  }

  ExprPtr parse_not() {
    if (!is_name("not")) return parse_compare();
    const Nesting nesting(*this);
    const int line = next().line;
    return make(ExprKind::kNot, line, parse_not());
  }

  ExprPtr parse_compare() {
    const int line = current().line;
    ExprPtr expr = parse_sum();
    std::vector<Op> ops;
    std::vector<ExprPtr> operands;
    while (true) {
      if (current().type == Tok::kOp) {
        constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt},
                                                            {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
        const auto* found = std::find_if(std::begin(kOps), std::end(kOps),
                                         [&](const auto& entry) { return entry.first == current().text; });
        if (found == std::end(kOps)) break;
        next();
        ops.push_back(found->second);
      } else if (skip_name("in")) {
        ops.push_back(Op::kIn);
      } else if (is_name("not") && look().type == Tok::kName && look().text == "in") {
        next();
        next();
        ops.push_back(Op::kNotIn);
      } else {
        break;
      }
      operands.push_back(parse_sum());
    }
    if (ops.empty()) return expr;
    ExprPtr compare = make(ExprKind::kCompare, line, std::move(expr));
    for (ExprPtr& operand : operands) add(*compare, std::move(operand));
    compare->ops = std::move(ops);
    return compare;
  }

  ExprPtr binary(int line, Op op, ExprPtr left, ExprPtr right) {
    ExprPtr expr = make(ExprKind::kBinary, line, std::move(left), std::move(right));
    expr->op = op;
    return expr;
  }

  ExprPtr parse_sum() {
    ExprPtr left = parse_concat();
    while (is_op("+") || is_op("-")) {
      const Token op = next();
      left = binary(op.line, op.text == "+" ? Op::kAdd : Op::kSub, std::move(left), parse_concat());
    }
    return left;
  }

  ExprPtr parse_concat() {
    ExprPtr first = parse_product();
    if (!is_op("~")) return first;
    ExprPtr concat = make(ExprKind::kConcat, current().line, std::move(first));
    while (skip_op("~")) add(*concat, parse_product());
    return concat;
  }

  ExprPtr parse_product() {
    ExprPtr left = parse_power();
    while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
      const Token token = next();
      const Op op = token.text == "*"    ? Op::kMul
                    : token.text == "/"  ? Op::kDiv
                    : token.text == "//" ? Op::kFloorDiv
                                         : Op::kMod;
      left = binary(token.line, op, std::move(left), parse_power());
    }
    return left;
  }

  ExprPtr parse_power() {
    ExprPtr left = parse_unary(true);
    while (is_op("**")) {
      const int line = next().line;
      left = binary(line, Op::kPow, std::move(left), parse_unary(true));
    }
    return left;
  }

  ExprPtr parse_unary(bool with_filter) {
    ExprPtr expr;
    if (is_op("-") || is_op("+")) {
      const Nesting nesting(*this);
      const Token op = next();
      expr = make(op.text == "-" ? ExprKind::kNegate : ExprKind::kPlus, op.line, parse_unary(false));
    } else {
      expr = parse_primary(false);
    }
    expr = parse_postfix(std::move(expr));
    return with_filter ? parse_filters_and_tests(std::move(expr)) : std::move(expr);
  }

  ExprPtr parse_primary(bool with_namespace) {
    const Token token = current();
    switch (token.type) {
      case Tok::kName: return parse_name(with_namespace);
      case Tok::kString: {
        std::string text;
        while (current().type == Tok::kString) {  // neighbouring literals join
          const Token part = next();
          const Result<std::string> plain = unescape(part.text, part.line);
          if (!plain) throw ParseError{plain.error()};
          text += *plain;
        }
        return constant(token.line, Text(std::move(text), true));
      }
      case Tok::kInt: next(); return constant(token.line, integer(token));
      case Tok::kFloat: {
        next();
        std::string digits(token.text);
        std::erase(digits, '_');
        return constant(token.line, std::strtod(digits.c_str(), nullptr));
      }
      case Tok::kOp:
        if (token.text == "(") {
          next();
          ExprPtr expr = parse_tuple({.explicit_parentheses = true});
          expect_op(")");
          return expr;
        }
        if (token.text == "[") return parse_list();
        if (token.text == "{") return parse_dict();
        break;
      default: break;
    }
    error("unexpected {}", describe(token));
  }

  ExprPtr parse_name(bool with_namespace) {
    const Token token = next();
    const std::string name(token.text);
    if (name == "true" || name == "True") return constant(token.line, true);
    if (name == "false" || name == "False") return constant(token.line, false);
    if (name == "none" || name == "None") return constant(token.line, None{});
    ExprPtr expr = make(ExprKind::kName, token.line);
    expr->name = name;
    expr->symbol = symbol(name);
    if (with_namespace && skip_op(".")) {
      expr->kind = ExprKind::kNamespaceRef;
      expr->name = expect_name();
      return expr;
    }
    for (MacroDef* macro : macros_) {
      macro->uses_caller |= name == "caller";
      macro->uses_varargs |= name == "varargs";
      macro->uses_kwargs |= name == "kwargs";
    }
    return expr;
  }

  Value integer(const Token& token) {
    std::string digits(token.text);
    std::erase(digits, '_');
    const int base = digits.size() < 2 ? 10 : (digits[1] | 0x20) == 'x' ? 16 : (digits[1] | 0x20) == 'o' ? 8 : (digits[1] | 0x20) == 'b' ? 2 : 10;
    std::int64_t value = 0;
    const char* begin = digits.data() + (base == 10 ? 0 : 2);
    if (std::from_chars(begin, digits.data() + digits.size(), value, base).ec != std::errc()) {
      error(token.line, ErrorCode::kUnsupported, "the integer {} does not fit in 64 bits", token.text);
    }
    return Int{value};
  }

  struct TupleOptions {
    bool names_only = false;  // assignment targets: primary expressions without operators
    bool with_conditional = true;
    bool ends_at_in = false;
    bool ends_at_recursive = false;
    bool explicit_parentheses = false;
    bool with_namespace = false;
  };

  bool is_tuple_end(const TupleOptions& options) const {
    const Tok type = current().type;
    if (type == Tok::kPrintEnd || type == Tok::kBlockEnd || is_op(")")) return true;
    return (options.ends_at_in && is_name("in")) || (options.ends_at_recursive && is_name("recursive"));
  }

  ExprPtr parse_tuple(const TupleOptions& options) {
    const int line = current().line;
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    while (true) {
      if (!items.empty()) expect_op(",");
      if (is_tuple_end(options)) break;
      items.push_back(options.names_only ? parse_target_item(options) : parse_expression(options.with_conditional));
      if (!is_op(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) {
      if (!items.empty()) return std::move(items.front());
      if (!options.explicit_parentheses) error("expected an expression, got {}", describe(current()));
    }
    ExprPtr tuple = make(ExprKind::kTuple, line);
    for (ExprPtr& item : items) add(*tuple, std::move(item));
    return tuple;
  }

  ExprPtr parse_target_item(const TupleOptions& options) {
    const Nesting nesting(*this);
    return parse_primary(options.with_namespace);
  }

  ExprPtr parse_list() {
    ExprPtr list = make(ExprKind::kList, next().line);
    while (!is_op("]")) {
      if (!list->children.empty()) expect_op(",");
      if (is_op("]")) break;
      add(*list, parse_expression());
    }
    expect_op("]");
    return list;
  }

  ExprPtr parse_dict() {
    ExprPtr dict = make(ExprKind::kDict, next().line);
    while (!is_op("}")) {
      if (!dict->children.empty()) expect_op(",");
      if (is_op("}")) break;
      add(*dict, parse_expression());
      expect_op(":");
      add(*dict, parse_expression());
    }
    expect_op("}");
    return dict;
  }

  ExprPtr parse_postfix(ExprPtr expr) {
    while (true) {
      if (is_op(".") || is_op("[")) {
        expr = parse_subscript(std::move(expr));
      } else if (is_op("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_subscript(ExprPtr expr) {
    const Token token = next();
    if (token.text == ".") {
      const Token name = next();
      if (name.type == Tok::kName) {
        ExprPtr attribute = make(ExprKind::kAttribute, token.line, std::move(expr));
        attribute->name = std::string(name.text);
        return attribute;
      }
      if (name.type != Tok::kInt) error(name.line, ErrorCode::kInvalidArgument, "expected a name or number after '.'");
      return make(ExprKind::kItem, token.line, std::move(expr), constant(name.line, integer(name)));
    }
    std::vector<ExprPtr> indices;
    bool slice = false;
    ExprPtr bounds[3];
    while (!is_op("]")) {
      if (!indices.empty() || slice) expect_op(",");
      if (slice) error("a slice together with other indices is not supported");
      if (!is_op(":")) {
        indices.push_back(parse_expression());
        if (!is_op(":")) continue;
      }
      slice = true;
      if (!indices.empty()) bounds[0] = std::move(indices.back());
      const bool alone = indices.size() <= 1;
      indices.clear();
      if (!alone) error("a slice together with other indices is not supported");
      next();
      if (!is_op(":") && !is_op("]") && !is_op(",")) bounds[1] = parse_expression();
      if (skip_op(":") && !is_op("]") && !is_op(",")) bounds[2] = parse_expression();
    }
    expect_op("]");
    if (slice) {
      ExprPtr node = make(ExprKind::kSlice, token.line, std::move(expr));
      for (ExprPtr& bound : bounds) add(*node, std::move(bound));
      return node;
    }
    if (indices.size() == 1) return make(ExprKind::kItem, token.line, std::move(expr), std::move(indices.front()));
    ExprPtr tuple = make(ExprKind::kTuple, token.line);
    for (ExprPtr& index : indices) add(*tuple, std::move(index));
    return make(ExprKind::kItem, token.line, std::move(expr), std::move(tuple));
  }

  // The arguments' own depth counts for `owner`.
  void parse_args(Expr& owner) {
    owner.args = std::make_unique<ArgExprs>();
    ArgExprs& args = *owner.args;
    const int line = current().line;
    expect_op("(");
    bool require_comma = false;
    const auto ensure = [&](bool ok) {
      if (!ok) error(line, ErrorCode::kInvalidArgument, "arguments in an order that is not allowed");
    };
    while (!is_op(")")) {
      if (require_comma) {
        expect_op(",");
        if (is_op(")")) break;
      }
      if (skip_op("*")) {
        ensure(!args.star && !args.star_star);
        args.star = parse_expression();
        grow(owner, args.star);
      } else if (skip_op("**")) {
        ensure(!args.star_star);
        args.star_star = parse_expression();
        grow(owner, args.star_star);
      } else if (current().type == Tok::kName && look().type == Tok::kOp && look().text == "=") {
        ensure(!args.star_star);
        std::string name = expect_name();
        next();
        for (const auto& named : args.named) {
          if (named.first == name) error("argument '{}' is given twice", name);
        }
        args.named.emplace_back(std::move(name), parse_expression());
        grow(owner, args.named.back().second);
      } else {
        ensure(!args.star && !args.star_star && args.named.empty());
        args.positional.push_back(parse_expression());
        grow(owner, args.positional.back());
      }
      require_comma = true;
    }
    expect_op(")");
  }

  ExprPtr parse_call(ExprPtr callee) {
    const int line = current().line;
    if (callee->kind == ExprKind::kName) called_.emplace_back(callee->name, line);
    ExprPtr call = make(ExprKind::kCall, line, std::move(callee));
    parse_args(*call);
    return call;
  }

  ExprPtr parse_filters_and_tests(ExprPtr expr) {
    while (true) {
      if (is_op("|")) {
        next();
        expr = parse_filter(std::move(expr));
      } else if (is_name("is")) {
        expr = parse_test(std::move(expr));
      } else if (is_op("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  std::string dotted_name() {
    std::string name = expect_name();
    while (skip_op(".")) name += "." + expect_name();
    return name;
  }

  // One filter, at its name.
  ExprPtr parse_filter(ExprPtr input) {
    const int line = current().line;
    const std::string name = dotted_name();
    ExprPtr filter = make(ExprKind::kFilter, line, std::move(input));
    filter->name = name;
    filter->filter = find_filter(name);
    if (filter->filter == nullptr) error(line, ErrorCode::kUnsupported, "there is no filter '{}'", name);
    if (is_op("(")) parse_args(*filter);
    return filter;
  }

  ExprPtr parse_test(ExprPtr input) {
    const int line = next().line;
    const bool negated = skip_name("not");
    const std::string name = dotted_name();
    ExprPtr test = make(ExprKind::kTest, line, std::move(input));
    test->name = name;
    test->test = find_test(name);
    if (test->test == nullptr) error(line, ErrorCode::kUnsupported, "there is no test '{}'", name);
    const Tok type = current().type;
    if (is_op("(")) {
      parse_args(*test);
    } else if ((type == Tok::kName || type == Tok::kString || type == Tok::kInt || type == Tok::kFloat || is_op("[") ||
                is_op("{")) &&
               !is_name("else") && !is_name("or") && !is_name("and")) {
      if (is_name("is")) error("tests with 'is' cannot be chained");
      const Nesting nesting(*this);
      test->args = std::make_unique<ArgExprs>();
      test->args->positional.push_back(parse_postfix(parse_primary(false)));
      grow(*test, test->args->positional.back());
    }
    return negated ? make(ExprKind::kNot, line, std::move(test)) : std::move(test);
  }

  // --- assignment targets

  ExprPtr parse_target(TupleOptions options) {
    options.names_only = true;
    ExprPtr target = parse_tuple(options);
    check_target(*target);
    return target;
  }
  void check_target(const Expr& target) {
    if (target.kind == ExprKind::kTuple) {
      for (const ExprPtr& item : target.children) check_target(*item);
    } else if (target.kind == ExprKind::kName) {
      stored(target.name);
    } else if (target.kind != ExprKind::kNamespaceRef) {
      error(target.line, ErrorCode::kInvalidArgument, "only names, tuples of names and namespace attributes can be assigned");
    }
  }
  std::pair<std::string, Symbol> target_name() {
    if (current().type != Tok::kName) error("expected a name, got {}", describe(current()));
    const ExprPtr target = parse_name(false);
    if (target->kind != ExprKind::kName) error(target->line, ErrorCode::kInvalidArgument, "a constant cannot be assigned");
    stored(target->name);
    return {target->name, target->symbol};
  }

  // --- statements

  using Ends = std::initializer_list<std::string_view>;

  // Statements up to a tag named in `ends` (left at that name), or the end of the template when there are none.
  Body parse_body(Ends ends, std::string_view opened) {
    const Nesting nesting(*this);
    const int opened_line = current().line;
    Body body;
    while (true) {
      const Token token = current();
      if (token.type == Tok::kEnd) {
        if (ends.size() > 0) {
          error(opened_line, ErrorCode::kInvalidArgument, "the tag '{}' has no '{}'", opened, *(ends.end() - 1));
        }
        return body;
      }
      next();
      if (token.type == Tok::kData) {
        auto data = statement(StmtKind::kData, token.line);
        data->data = std::make_shared<const Text>(std::string(token.text), true);
        body.push_back(std::move(data));
      } else if (token.type == Tok::kPrintBegin) {
        auto print = statement(StmtKind::kPrint, token.line);
        print->expr = parse_tuple({});
        if (current().type != Tok::kPrintEnd) error("expected '}}}}', got {}", describe(current()));
        next();
        body.push_back(std::move(print));
      } else {
        if (current().type == Tok::kName &&
            std::find(ends.begin(), ends.end(), current().text) != ends.end()) {
          return body;
        }
        parse_statement(body);
        expect_block_end();
      }
    }
  }

  // The body of a tag whose end tag is `end`, from `%}` to before its own `%}`.
  Body parse_block(std::string_view tag, std::string_view end) {
    expect_block_end();
    Body body = parse_body({end}, tag);
    next();
    return body;
  }

  std::unique_ptr<Stmt> statement(StmtKind kind, int line) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  void parse_statement(Body& body) {
    const Token token = next();
    if (token.type != Tok::kName) error(token.line, ErrorCode::kInvalidArgument, "expected a tag name, got {}", describe(token));
    const std::string_view tag = token.text;
    if (tag == "print") {
      while (current().type != Tok::kBlockEnd) {
        if (current().type == Tok::kEnd) error("'print' has no end");
        auto print = statement(StmtKind::kPrint, token.line);
        print->expr = parse_expression();
        body.push_back(std::move(print));
        if (current().type != Tok::kBlockEnd) expect_op(",");
      }
      return;
    }
    std::unique_ptr<Stmt> stmt;
    if (tag == "for") {
      stmt = parse_for(token.line);
    } else if (tag == "if") {
      stmt = parse_if(token.line);
    } else if (tag == "set") {
      stmt = parse_set(token.line);
    } else if (tag == "macro") {
      stmt = parse_macro(token.line);
    } else if (tag == "call") {
      stmt = parse_call_block(token.line);
    } else if (tag == "filter") {
      stmt = statement(StmtKind::kFilterBlock, token.line);
      stmt->filter = parse_filter_chain(parse_filter(nullptr));
      stmt->body = parse_block("filter", "endfilter");
    } else if (tag == "with") {
      stmt = parse_with(token.line);
    } else if (tag == "generation") {
      stmt = statement(StmtKind::kScope, token.line);
      stmt->body = parse_block("generation", "endgeneration");
    } else if (tag == "break" || tag == "continue") {
      if (breakable_ == 0) error(token.line, ErrorCode::kInvalidArgument, "'{}' outside a for loop", tag);
      stmt = statement(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, token.line);
    } else {
      error(token.line, ErrorCode::kUnsupported, "there is no tag '{}'", tag);
    }
    body.push_back(std::move(stmt));
  }

  ExprPtr parse_filter_chain(ExprPtr filter) {
    while (skip_op("|")) filter = parse_filter(std::move(filter));
    return filter;
  }

  std::unique_ptr<Stmt> parse_for(int line) {
    auto stmt = statement(StmtKind::kFor, line);
    ++for_depth_;
    stmt->target = parse_target({.ends_at_in = true});
    if (!skip_name("in")) error("expected 'in', got {}", describe(current()));
    stmt->expr = parse_tuple({.with_conditional = false, .ends_at_recursive = true});
    if (skip_name("if")) stmt->filter = parse_expression();
    if (is_name("recursive")) error(current().line, ErrorCode::kUnsupported, "'for ... recursive' is not supported");
    expect_block_end();
    ++breakable_;
    stmt->body = parse_body({"else", "endfor"}, "for");
    --breakable_;
    if (next().text == "else") stmt->otherwise = parse_block("for", "endfor");
    --for_depth_;
    return stmt;
  }

  std::unique_ptr<Stmt> parse_if(int line) {
    auto stmt = statement(StmtKind::kIf, line);
    while (true) {
      ExprPtr test = parse_tuple({.with_conditional = false});
      expect_block_end();
      Body body = parse_body({"elif", "else", "endif"}, "if");
      stmt->branches.emplace_back(std::move(test), std::move(body));
      const std::string_view tag = next().text;
      if (tag == "elif") continue;
      if (tag == "else") stmt->otherwise = parse_block("if", "endif");
      return stmt;
    }
  }

  std::unique_ptr<Stmt> parse_set(int line) {
    ExprPtr target = parse_target({.with_namespace = true});
    if (skip_op("=")) {
      auto stmt = statement(StmtKind::kSet, line);
      stmt->target = std::move(target);
      stmt->expr = parse_tuple({});
      return stmt;
    }
    auto stmt = statement(StmtKind::kSetBlock, line);
    stmt->target = std::move(target);
    if (skip_op("|")) stmt->filter = parse_filter_chain(parse_filter(nullptr));
    stmt->body = parse_block("set", "endset");
    return stmt;
  }

  void parse_signature(MacroDef& macro) {
    expect_op("(");
    bool first = true;
    while (!is_op(")")) {
      if (!first) expect_op(",");
      first = false;
      const auto [name, param] = target_name();
      if (std::find(macro.params.begin(), macro.params.end(), param) != macro.params.end()) {
        error("parameter '{}' appears twice", name);
      }
      macro.params.push_back(param);
      if (skip_op("=")) {
        macro.defaults.push_back(parse_expression());
      } else if (!macro.defaults.empty()) {
        error("parameter '{}' without a default follows one with a default", name);
      }
    }
    expect_op(")");
  }

  void parse_macro_body(MacroDef& macro, std::string_view tag, std::string_view end) {
    const int outer_breakable = std::exchange(breakable_, 0);
    macros_.push_back(&macro);
    macro.body = parse_block(tag, end);
    macros_.pop_back();
    breakable_ = outer_breakable;
  }

  std::unique_ptr<Stmt> parse_macro(int line) {
    auto stmt = statement(StmtKind::kMacro, line);
    stmt->macro = std::make_unique<MacroDef>();
    std::tie(stmt->macro->name, stmt->macro->symbol) = target_name();
    parse_signature(*stmt->macro);
    parse_macro_body(*stmt->macro, "macro", "endmacro");
    return stmt;
  }

  std::unique_ptr<Stmt> parse_call_block(int line) {
    auto stmt = statement(StmtKind::kCallBlock, line);
    stmt->macro = std::make_unique<MacroDef>();
    stmt->macro->name = "caller";
    if (is_op("(")) parse_signature(*stmt->macro);
    stmt->expr = parse_expression();
    if (stmt->expr->kind != ExprKind::kCall) error(line, ErrorCode::kInvalidArgument, "'call' needs a macro call");
    parse_macro_body(*stmt->macro, "call", "endcall");
    return stmt;
  }

  std::unique_ptr<Stmt> parse_with(int line) {
    auto stmt = statement(StmtKind::kWith, line);
    while (current().type != Tok::kBlockEnd) {
      if (!stmt->bindings.empty()) expect_op(",");
      ExprPtr target = parse_target({});
      expect_op("=");
      stmt->bindings.emplace_back(std::move(target), parse_expression());
    }
    stmt->body = parse_block("with", "endwith");
    return stmt;
  }

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

}  // namespace

Result<Program> parse_program(std::string_view source, const Limits& limits) {
  if (source.size() > limits.max_template_bytes) {
    return fail(ErrorCode::kLimit, "a template of {} bytes, at most {} are allowed", source.size(),
                limits.max_template_bytes);
  }
  if (!is_valid_utf8(source)) return fail(ErrorCode::kCorrupt, "the template is not valid UTF-8");
  const std::string text = normalise_source(source);
  const Result<std::vector<Token>> tokens = tokenize(text);
  if (!tokens) return forward_error(tokens);
  Program program;
  try {
    Parser(*tokens, limits, program).run();
  } catch (const ParseError& problem) {
    return tl::unexpected<Error>(problem.error);
  }
  return program;
}

}  // namespace mimo::jinja
