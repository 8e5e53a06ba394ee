#include "text/grammar/ebnf_grammar.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/grammar/expression.h"
#include "text/unicode_utf8.h"

namespace mimo::grammar {
namespace {

constexpr int kMaxDepth = 64;  // parentheses
constexpr int kMaxCount = 100'000;

using Kind = Expression::Kind;

bool name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

class EbnfParser {
 public:
  EbnfParser(GrammarBuilder& builder, std::string_view text) : builder_(builder), text_(text) {}

  std::int32_t parse() {
    for (skip_space(); more(); skip_space()) {
      const std::size_t begin = pos_;
      const std::string_view name = take_name();
      skip_space();
      if (name.empty() || !take("::=")) {
        pos_ = begin;
        fail("expected NAME ::= ...");
        break;
      }
      const std::int32_t rule = rule_named(name);
      if (defined_[rule]) {
        pos_ = begin;
        fail(fmt::format("the rule {} is defined twice", name));
        break;
      }
      defined_[rule] = true;
      const Expression body = choice(0);
      const Rule added = builder_.rule(rule);
      builder_.empty(emit_expression(builder_, added.start, body, Spelling::kText), added.end);
    }
    for (const auto& [name, rule] : rules_) {
      if (!defined_[rule])
        builder_.fail(ErrorCode::kInvalidArgument, "the rule {} is used but not defined", name);
    }
    const auto root = rules_.find("root");
    if (root != rules_.end()) return root->second;
    builder_.fail(ErrorCode::kInvalidArgument, "there is no rule named root");
    return 0;
  }

 private:
  bool more() { return !builder_.failed() && pos_ < text_.size(); }
  bool at(std::string_view text) const { return text_.substr(pos_).starts_with(text); }

  bool take(std::string_view text) {
    if (builder_.failed() || !at(text)) return false;
    pos_ += text.size();
    return true;
  }

  void fail(std::string_view what) {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(pos_), '\n');
    builder_.fail(ErrorCode::kInvalidArgument, "line {}: {}", line, what);
  }

  void skip_space() {
    while (pos_ < text_.size()) {
      if (text_[pos_] == '#') {
        pos_ = std::min(text_.find('\n', pos_), text_.size());
      } else if (text_[pos_] == ' ' || text_[pos_] == '\t' || text_[pos_] == '\r' || text_[pos_] == '\n') {
        ++pos_;
      } else {
        return;
      }
    }
  }

  std::string_view take_name() {
    const std::size_t begin = pos_;
    while (pos_ < text_.size() && name_char(text_[pos_])) ++pos_;
    return text_.substr(begin, pos_ - begin);
  }

  std::int32_t rule_named(std::string_view name) {
    const auto known = rules_.find(name);
    if (known != rules_.end()) return known->second;
    const std::int32_t rule = builder_.add_rule(fmt::format("the rule {}", name));
    rules_.emplace(name, rule);
    return rule;
  }

  // A name with ::= behind it begins the next rule.
  bool at_rule() {
    const std::size_t begin = pos_;
    const bool named = !take_name().empty();
    skip_space();
    const bool found = named && at("::=");
    pos_ = begin;
    return found;
  }

  Expression choice(int depth) {
    Expression out;
    out.kind = Kind::kChoice;
    do {
      out.children.push_back(sequence(depth));
      skip_space();
    } while (take("|"));
    return out;
  }

  Expression sequence(int depth) {
    Expression out;
    for (skip_space(); more() && text_[pos_] != '|' && text_[pos_] != ')' && !at_rule(); skip_space()) {
      Expression item = atom(depth);
      repeat(item);
      out.children.push_back(std::move(item));
    }
    return out;
  }

  Expression atom(int depth) {
    const char c = text_[pos_];
    if (c == '"' || c == '\'') return literal(c);
    if (c == '[') return chars_expression(char_class());
    if (c == '.') {
      ++pos_;
      return chars_expression(CodePointSet::all());
    }
    if (c == '(') {
      if (depth >= kMaxDepth) {
        builder_.fail(ErrorCode::kLimit, "parentheses are nested deeper than {} levels", kMaxDepth);
        return {};
      }
      ++pos_;
      Expression out = choice(depth + 1);
      if (!take(")")) fail("expected )");
      return out;
    }
    if (name_char(c)) {
      Expression out;
      out.kind = Kind::kRule;
      out.rule = rule_named(take_name());
      return out;
    }
    fail(fmt::format("unexpected '{}'", text_.substr(pos_, utf8_read(text_, pos_).length)));
    return {};
  }

  void repeat(Expression& item) {
    while (more()) {
      int least = 0;
      int most = -1;
      if (take("*")) {
      } else if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (take("{")) {
        skip_space();
        const std::optional<int> low = number();
        skip_space();
        most = low.value_or(0);
        if (low && take(",")) {
          skip_space();
          most = number().value_or(-1);
          skip_space();
        }
        if (!low || !take("}") || *low > kMaxCount || most > kMaxCount || (most >= 0 && most < *low)) {
          return fail(fmt::format("expected {{m}}, {{m,}} or {{m,n}} with m <= n <= {}", kMaxCount));
        }
        least = *low;
      } else {
        return;
      }
      if (item.kind == Kind::kRepeat && item.children[0].kind == Kind::kRepeat) {
        return fail("more than two repetition marks in a row");
      }
      Expression out;
      out.kind = Kind::kRepeat;
      out.least = least;
      out.most = most;
      out.children.push_back(std::move(item));
      item = std::move(out);
    }
  }

  std::optional<int> number() {
    int value = 0;
    const std::size_t begin = pos_;
    for (; pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9'; ++pos_) {
      if (value <= kMaxCount) value = value * 10 + (text_[pos_] - '0');
    }
    if (pos_ == begin) return {};
    return value;
  }

  Expression literal(char quote) {
    Expression out;
    ++pos_;
    while (more() && text_[pos_] != quote && text_[pos_] != '\n') {
      const std::uint32_t c = character();
      out.children.push_back(chars_expression(CodePointSet{{c, c}}));
    }
    if (!take(std::string_view(&quote, 1))) fail("a text has no closing quote");
    return out;
  }

  CodePointSet char_class() {
    ++pos_;
    const bool negated = take("^");
    CodePointSet set;
    while (more() && text_[pos_] != ']') {
      const std::uint32_t low = character();
      std::uint32_t high = low;
      if (at("-") && !at("-]")) {
        ++pos_;
        if (!more()) break;
        high = character();
      }
      if (high < low) {
        fail("a range of characters runs backwards");
        return set;
      }
      set.add(low, high);
    }
    if (!take("]")) fail("a class has no closing bracket");
    return negated ? set.complement() : set;
  }

  std::uint32_t character() {
    const Utf8Char c = utf8_read(text_, pos_);
    pos_ += c.length;
    if (c.code_point != '\\') return c.code_point;
    if (pos_ >= text_.size()) {
      fail("a backslash ends the grammar");
      return 0;
    }
    const char escaped = text_[pos_++];
    switch (escaped) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'b':
        return '\b';
      case '0':
        return 0;
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      default:
        break;
    }
    if (name_char(escaped) && escaped != '-' && escaped != '_') {
      fail(fmt::format("the escape \\{} is not supported", escaped));
    }
    if (static_cast<unsigned char>(escaped) >= 0x80) {
      --pos_;
      const Utf8Char whole = utf8_read(text_, pos_);
      pos_ += whole.length;
      return whole.code_point;
    }
    return static_cast<unsigned char>(escaped);
  }

  std::uint32_t hex(int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = pos_ < text_.size() ? text_[pos_] : ' ';
      if (c >= '0' && c <= '9') {
        value = value * 16 + static_cast<std::uint32_t>(c - '0');
      } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
        value = value * 16 + static_cast<std::uint32_t>((c | 0x20) - 'a' + 10);
      } else {
        fail(fmt::format("expected {} hexadecimal digits", digits));
        return 0;
      }
      ++pos_;
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      fail("an escape is no character");
      return 0;
    }
    return value;
  }

  GrammarBuilder& builder_;
  std::string_view text_;
  std::size_t pos_ = 0;
  std::map<std::string, std::int32_t, std::less<>> rules_;
  std::map<std::int32_t, bool> defined_;
};

}  // namespace

std::int32_t emit_ebnf(GrammarBuilder& builder, std::string_view text) {
  return EbnfParser(builder, text).parse();
}

}  // namespace mimo::grammar
