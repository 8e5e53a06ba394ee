#include "text/grammar/regex_syntax.h"

#include <optional>
#include <string>
#include <utility>

#include "text/unicode_utf8.h"

namespace mimo::grammar {
namespace {

// Groups in groups; parsing and emitting recurse.
constexpr int kMaxDepth = 64;
// Above it a repetition could not be built anyway.
constexpr int kMaxCount = 100'000;

using Kind = Expression::Kind;

class RegexParser {
 public:
  explicit RegexParser(std::string_view text) : text_(text) {}

  Result<Regex> parse() {
    Regex regex;
    do {
      Regex::Branch branch;
      branch.at_begin = take('^');
      branch.body = sequence(0);
      branch.at_end = take('$');
      if (!error_ && pos_ < text_.size() && text_[pos_] != '|') {
        refuse(ErrorCode::kUnsupported,
               text_[pos_] == ')' ? "has no opening parenthesis" : "is supported only at the very end");
      }
      regex.branches.push_back(std::move(branch));
    } while (!error_ && take('|'));
    if (error_) return tl::unexpected<Error>(*error_);
    return regex;
  }

 private:
  bool more() const { return !error_ && pos_ < text_.size(); }
  bool at(std::string_view text) const { return text_.substr(pos_).starts_with(text); }

  bool take(char c) {
    if (error_ || pos_ >= text_.size() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }

  bool take(std::string_view text) {
    if (error_ || !at(text)) return false;
    pos_ += text.size();
    return true;
  }

  // About the text at `pos`.
  void refuse(ErrorCode code, std::string_view why) {
    if (error_) return;
    std::string part;
    for (std::size_t i = pos_; i < text_.size() && part.size() < 8;) {
      const std::size_t length = utf8_read(text_, i).length;
      part += text_.substr(i, length);
      i += length;
    }
    error_ = Error{code, fmt::format("at byte {}: '{}' {}", pos_, part, why)};
  }
  void malformed(std::string_view why) { refuse(ErrorCode::kInvalidArgument, why); }
  void unsupported(std::string_view why) { refuse(ErrorCode::kUnsupported, why); }

  std::uint32_t next_char() {
    const Utf8Char c = utf8_read(text_, pos_);
    pos_ += c.length;
    return c.code_point;
  }

  Expression choice(int depth) {
    Expression out;
    out.kind = Kind::kChoice;
    do {
      out.children.push_back(sequence(depth));
    } while (take('|'));
    if (out.children.size() == 1) {
      Expression only = std::move(out.children[0]);
      return only;
    }
    return out;
  }

  Expression sequence(int depth) {
    Expression out;
    while (more() && text_[pos_] != '|' && text_[pos_] != ')' && text_[pos_] != '$') {
      Expression item = atom(depth);
      if (error_) break;
      repeat(item);
      out.children.push_back(std::move(item));
    }
    return out;
  }

  void repeat(Expression& item) {
    if (!more()) return;
    int least = 0;
    int most = -1;
    const std::size_t begin = pos_;
    if (take('*')) {
    } else if (take('+')) {
      least = 1;
    } else if (take('?')) {
      most = 1;
    } else if (!counts(least, most)) {
      return;
    }
    if (error_) return;
    take('?');  // lazy: the same texts
    if (more() && (text_[pos_] == '*' || text_[pos_] == '+' || text_[pos_] == '?')) {
      return unsupported("repeats a repetition; write (?:...) around it");
    }
    if (most >= 0 && most < least) {
      pos_ = begin;
      return malformed("has its limits in the wrong order");
    }
    Expression out;
    out.kind = Kind::kRepeat;
    out.least = least;
    out.most = most;
    out.children.push_back(std::move(item));
    item = std::move(out);
  }

  // {m}, {m,}, {m,n}; other text in braces is ordinary text.
  bool counts(int& least, int& most) {
    const std::size_t begin = pos_;
    if (!take('{')) return false;
    const std::optional<int> low = number();
    std::optional<int> high = low;
    if (low && take(',')) high = number();
    if (!low || !take('}')) {
      pos_ = begin;
      return false;
    }
    if (*low > kMaxCount || (high && *high > kMaxCount)) {
      pos_ = begin;
      refuse(ErrorCode::kLimit, fmt::format("repeats more than {} times", kMaxCount));
      return true;
    }
    least = *low;
    most = high ? *high : -1;
    return true;
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

  Expression atom(int depth) {
    switch (text_[pos_]) {
      case '(':
        return group(depth);
      case '[':
        return chars_expression(char_class());
      case '.': {
        ++pos_;
        CodePointSet ends{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
        return chars_expression(ends.complement());
      }
      case '*':
      case '+':
      case '?':
        malformed("has nothing to repeat");
        return {};
      case '^':
        unsupported("is supported only at the beginning of the pattern or of an alternative");
        return {};
      case '\\': {
        CodePointSet set;
        escape(set, false);
        return chars_expression(std::move(set));
      }
      default: {
        const std::uint32_t c = next_char();
        return chars_expression(CodePointSet{{c, c}});
      }
    }
  }

  Expression group(int depth) {
    if (depth >= kMaxDepth) {
      refuse(ErrorCode::kLimit, fmt::format("is nested deeper than {} groups", kMaxDepth));
      return {};
    }
    const std::size_t begin = pos_;
    ++pos_;
    if (take('?')) {
      const bool named = at("P<") || (at("<") && !at("<=") && !at("<!"));
      if (named) {
        const std::size_t end = text_.find('>', pos_);
        if (end == std::string_view::npos) {
          malformed("has no '>' behind the group's name");
          return {};
        }
        pos_ = end + 1;
      } else if (!take(':')) {
        pos_ = begin;
        unsupported("(look-around, flags and conditions) is not supported");
        return {};
      }
    }
    Expression out = choice(depth + 1);
    if (!error_ && !take(')')) {
      if (pos_ < text_.size()) {
        unsupported("is supported only at the end of the pattern or of an alternative");
      } else {
        pos_ = begin;
        malformed("has no closing parenthesis");
      }
    }
    return out;
  }

  CodePointSet char_class() {
    const std::size_t begin = pos_;
    ++pos_;
    const bool negated = take('^');
    negated_ = negated;
    CodePointSet set;
    bool first = true;
    while (more() && (text_[pos_] != ']' || first)) {
      // A leading ']' is text in Python and ends the class in ECMAScript.
      if (text_[pos_] == ']') {
        unsupported("at the beginning of a class is ambiguous; write \\]");
        return set;
      }
      first = false;
      const std::size_t low_at = pos_;
      std::optional<std::uint32_t> low = class_char(set);
      if (error_) return set;
      if (at("-") && !at("-]") && more()) {
        if (!low) {
          unsupported("makes a range of a class");
          return set;
        }
        ++pos_;
        if (!more()) break;
        const std::optional<std::uint32_t> high = class_char(set);
        if (error_) return set;
        if (!high || *high < *low) {
          pos_ = low_at;
          malformed("is not a range of characters");
          return set;
        }
        set.add(*low, *high);
      } else if (low) {
        set.add(*low, *low);
      }
    }
    if (!take(']') && !error_) {
      pos_ = begin;
      malformed("has no closing bracket");
    }
    negated_ = false;
    return negated ? set.complement() : set;
  }

  // One character of a class, or none when it was a class escape, which went into `set`.
  std::optional<std::uint32_t> class_char(CodePointSet& set) {
    if (text_[pos_] != '\\') return next_char();
    CodePointSet escaped;
    const bool single = escape(escaped, true);
    if (single && !escaped.empty()) return escaped.ranges()[0].low;
    set.add(escaped);
    return {};
  }

  // At a backslash. False: a class such as \d.
  bool escape(CodePointSet& set, bool in_class) {
    const std::size_t begin = pos_;
    ++pos_;
    if (pos_ >= text_.size()) {
      pos_ = begin;
      malformed("ends the pattern");
      return true;
    }
    const std::uint32_t c = next_char();
    const auto single = [&](std::uint32_t value) {
      set.add(value, value);
      return true;
    };
    // In a negated class everything that some dialect counts as `chars`, so that what is left is right in all.
    const auto several = [&](const CodePointSet& chars, const CodePointSet& others) {
      set.add(negated_ ? others.complement() : chars);
      return false;
    };
    switch (c) {
      case 'd':
        return several(digit_class(), not_digit_class());
      case 'D':
        return several(not_digit_class(), digit_class());
      case 'w':
        return several(word_class(), not_word_class());
      case 'W':
        return several(not_word_class(), word_class());
      case 's':
        return several(space_class(), not_space_class());
      case 'S':
        return several(not_space_class(), space_class());
      case 'n':
        return single('\n');
      case 'r':
        return single('\r');
      case 't':
        return single('\t');
      case 'f':
        return single('\f');
      case 'v':
        return single('\v');
      case '0':
        return single(0);
      case 'b':
        if (in_class) return single('\b');
        break;
      case 'x':
        if (const auto value = hex(2, 2)) return single(*value);
        break;
      case 'u':
        if (take('{')) {
          const auto value = hex(1, 6);
          if (value && take('}') && *value <= 0x10FFFF) return single(*value);
        } else if (const auto value = hex(4, 4)) {
          if (*value >= 0xD800 && *value <= 0xDFFF) {
            pos_ = begin;
            unsupported("is half a character; write the character itself");
            return true;
          }
          return single(*value);
        }
        break;
      default:
        if (c >= 0x80 || (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z'))) {
          return single(c);
        }
    }
    pos_ = begin;
    unsupported("is an escape that is not supported");
    return true;
  }

  std::optional<std::uint32_t> hex(int least, int most) {
    std::uint32_t value = 0;
    int digits = 0;
    for (; digits < most && pos_ < text_.size(); ++digits, ++pos_) {
      const char c = text_[pos_];
      if (c >= '0' && c <= '9') {
        value = value * 16 + static_cast<std::uint32_t>(c - '0');
      } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
        value = value * 16 + static_cast<std::uint32_t>((c | 0x20) - 'a' + 10);
      } else {
        break;
      }
    }
    if (digits < least) return {};
    return value;
  }

  std::string_view text_;
  std::size_t pos_ = 0;
  bool negated_ = false;  // inside [^...]
  std::optional<Error> error_;
};

}  // namespace

Result<Regex> parse_regex(std::string_view pattern) { return RegexParser(pattern).parse(); }

std::int32_t emit_regex(GrammarBuilder& builder, std::int32_t from, const Regex& regex, RegexScope scope,
                        Spelling spelling) {
  const std::int32_t to = builder.add_state();
  for (const Regex::Branch& branch : regex.branches) {
    std::int32_t state = builder.add_state();
    builder.empty(from, state);
    if (scope == RegexScope::kSearch && !branch.at_begin) {
      emit_char(builder, state, state, CodePointSet::all(), spelling);
    }
    state = emit_expression(builder, state, branch.body, spelling);
    if (scope == RegexScope::kSearch && !branch.at_end) {
      const std::int32_t rest = builder.add_state();
      builder.empty(state, rest);
      emit_char(builder, rest, rest, CodePointSet::all(), spelling);
      state = rest;
    }
    builder.empty(state, to);
  }
  return to;
}

}  // namespace mimo::grammar
