#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <tuple>
#include <utility>

#include "text/jinja/expression_parser.h"
#include "text/jinja/unicode_text.h"

namespace mimo::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  Parser(const std::vector<Token>& tokens, const Limits& limits, Program& program)
      : ExpressionParser(tokens, limits, program) {
    program_.loop = symbol("loop");
    program_.caller = symbol("caller");
    program_.varargs = symbol("varargs");
    program_.kwargs = symbol("kwargs");
  }

  void run() {
    program_.body = parse_body({}, "");
    for (const auto& [name, line] : called_) {
      // `caller` exists inside macros that a call block invokes; elsewhere calling it fails when it is
      // reached.
      if (name != "caller" && !stored_.contains(name) && find_function(name) == nullptr) {
        error(line, ErrorCode::kUnsupported, "there is no function '{}'", name);
      }
    }
  }

 private:
  // --- statements

  using Ends = std::initializer_list<std::string_view>;

  // Statements up to a tag named in `ends` (left at that name), or the end of the template when there are
  // none.
  Body parse_body(Ends ends, std::string_view opened) {
    const Nesting nesting(*this);
    const int opened_line = current().line;
    Body body;
    while (true) {
      const Token token = current();
      if (token.type == Tok::kEnd) {
        if (ends.size() > 0) {
          error(opened_line, ErrorCode::kInvalidArgument, "the tag '{}' has no '{}'", opened,
                *(ends.end() - 1));
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
    if (token.type != Tok::kName)
      error(token.line, ErrorCode::kInvalidArgument, "expected a tag name, got {}", describe(token));
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
    if (is_name("recursive"))
      error(current().line, ErrorCode::kUnsupported, "'for ... recursive' is not supported");
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
    if (stmt->expr->kind != ExprKind::kCall)
      error(line, ErrorCode::kInvalidArgument, "'call' needs a macro call");
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
