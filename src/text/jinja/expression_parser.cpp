#include "text/jinja/expression_parser.h"

#include <charconv>
#include <cstdlib>

namespace mimo::jinja {

// --- expressions, one function per precedence level, loosest first

ExprPtr ExpressionParser::parse_expression(bool with_conditional) {
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

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (is_name("or")) {
    const int line = next().line;
    left = make(ExprKind::kOr, line, std::move(left), parse_and());
  }
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (is_name("and")) {
    const int line = next().line;
    left = make(ExprKind::kAnd, line, std::move(left), parse_not());
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  const int line = next().line;
  return make(ExprKind::kNot, line, parse_not());
}

ExprPtr ExpressionParser::parse_compare() {
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

ExprPtr ExpressionParser::binary(int line, Op op, ExprPtr left, ExprPtr right) {
  ExprPtr expr = make(ExprKind::kBinary, line, std::move(left), std::move(right));
  expr->op = op;
  return expr;
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (is_op("+") || is_op("-")) {
    const Token op = next();
    left = binary(op.line, op.text == "+" ? Op::kAdd : Op::kSub, std::move(left), parse_concat());
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  ExprPtr first = parse_product();
  if (!is_op("~")) return first;
  ExprPtr concat = make(ExprKind::kConcat, current().line, std::move(first));
  while (skip_op("~")) add(*concat, parse_product());
  return concat;
}

ExprPtr ExpressionParser::parse_product() {
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

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (is_op("**")) {
    const int line = next().line;
    left = binary(line, Op::kPow, std::move(left), parse_unary(true));
  }
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filter) {
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

ExprPtr ExpressionParser::parse_primary(bool with_namespace) {
  const Token token = current();
  switch (token.type) {
    case Tok::kName:
      return parse_name(with_namespace);
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
    case Tok::kInt:
      next();
      return constant(token.line, integer(token));
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
    default:
      break;
  }
  error("unexpected {}", describe(token));
}

ExprPtr ExpressionParser::parse_name(bool with_namespace) {
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

Value ExpressionParser::integer(const Token& token) {
  std::string digits(token.text);
  std::erase(digits, '_');
  const int base = digits.size() < 2           ? 10
                   : (digits[1] | 0x20) == 'x' ? 16
                   : (digits[1] | 0x20) == 'o' ? 8
                   : (digits[1] | 0x20) == 'b' ? 2
                                               : 10;
  std::int64_t value = 0;
  const char* begin = digits.data() + (base == 10 ? 0 : 2);
  if (std::from_chars(begin, digits.data() + digits.size(), value, base).ec != std::errc()) {
    error(token.line, ErrorCode::kUnsupported, "the integer {} does not fit in 64 bits", token.text);
  }
  return Int{value};
}

bool ExpressionParser::is_tuple_end(const TupleOptions& options) const {
  const Tok type = current().type;
  if (type == Tok::kPrintEnd || type == Tok::kBlockEnd || is_op(")")) return true;
  return (options.ends_at_in && is_name("in")) || (options.ends_at_recursive && is_name("recursive"));
}

ExprPtr ExpressionParser::parse_tuple(const TupleOptions& options) {
  const int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect_op(",");
    if (is_tuple_end(options)) break;
    items.push_back(options.names_only ? parse_target_item(options)
                                       : parse_expression(options.with_conditional));
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

ExprPtr ExpressionParser::parse_target_item(const TupleOptions& options) {
  const Nesting nesting(*this);
  return parse_primary(options.with_namespace);
}

ExprPtr ExpressionParser::parse_list() {
  ExprPtr list = make(ExprKind::kList, next().line);
  while (!is_op("]")) {
    if (!list->children.empty()) expect_op(",");
    if (is_op("]")) break;
    add(*list, parse_expression());
  }
  expect_op("]");
  return list;
}

ExprPtr ExpressionParser::parse_dict() {
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

ExprPtr ExpressionParser::parse_postfix(ExprPtr expr) {
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

ExprPtr ExpressionParser::parse_subscript(ExprPtr expr) {
  const Token token = next();
  if (token.text == ".") {
    const Token name = next();
    if (name.type == Tok::kName) {
      ExprPtr attribute = make(ExprKind::kAttribute, token.line, std::move(expr));
      attribute->name = std::string(name.text);
      return attribute;
    }
    if (name.type != Tok::kInt)
      error(name.line, ErrorCode::kInvalidArgument, "expected a name or number after '.'");
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
  if (indices.size() == 1)
    return make(ExprKind::kItem, token.line, std::move(expr), std::move(indices.front()));
  ExprPtr tuple = make(ExprKind::kTuple, token.line);
  for (ExprPtr& index : indices) add(*tuple, std::move(index));
  return make(ExprKind::kItem, token.line, std::move(expr), std::move(tuple));
}

// The arguments' own depth counts for `owner`.
void ExpressionParser::parse_args(Expr& owner) {
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

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  const int line = current().line;
  if (callee->kind == ExprKind::kName) called_.emplace_back(callee->name, line);
  ExprPtr call = make(ExprKind::kCall, line, std::move(callee));
  parse_args(*call);
  return call;
}

ExprPtr ExpressionParser::parse_filters_and_tests(ExprPtr expr) {
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

std::string ExpressionParser::dotted_name() {
  std::string name = expect_name();
  while (skip_op(".")) {
    name += '.';
    name += expect_name();
  }
  return name;
}

// One filter, at its name.
ExprPtr ExpressionParser::parse_filter(ExprPtr input) {
  const int line = current().line;
  const std::string name = dotted_name();
  ExprPtr filter = make(ExprKind::kFilter, line, std::move(input));
  filter->name = name;
  filter->filter = find_filter(name);
  if (filter->filter == nullptr) error(line, ErrorCode::kUnsupported, "there is no filter '{}'", name);
  if (is_op("(")) parse_args(*filter);
  return filter;
}

ExprPtr ExpressionParser::parse_test(ExprPtr input) {
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
  } else if ((type == Tok::kName || type == Tok::kString || type == Tok::kInt || type == Tok::kFloat ||
              is_op("[") || is_op("{")) &&
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

ExprPtr ExpressionParser::parse_target(TupleOptions options) {
  options.names_only = true;
  ExprPtr target = parse_tuple(options);
  check_target(*target);
  return target;
}
void ExpressionParser::check_target(const Expr& target) {
  if (target.kind == ExprKind::kTuple) {
    for (const ExprPtr& item : target.children) check_target(*item);
  } else if (target.kind == ExprKind::kName) {
    stored(target.name);
  } else if (target.kind != ExprKind::kNamespaceRef) {
    error(target.line, ErrorCode::kInvalidArgument,
          "only names, tuples of names and namespace attributes can be assigned");
  }
}
std::pair<std::string, Symbol> ExpressionParser::target_name() {
  if (current().type != Tok::kName) error("expected a name, got {}", describe(current()));
  const ExprPtr target = parse_name(false);
  if (target->kind != ExprKind::kName)
    error(target->line, ErrorCode::kInvalidArgument, "a constant cannot be assigned");
  stored(target->name);
  return {target->name, target->symbol};
}

}  // namespace mimo::jinja
