#include "text/jinja/lexer.h"

#include <algorithm>
#include <cctype>

#include "text/jinja/unicode_text.h"

namespace mimo::jinja {
namespace {

enum class Tag { kBlock, kPrint, kComment };

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80); }
bool is_name_char(char c) { return is_name_start(c) || std::isdigit(static_cast<unsigned char>(c)); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Status run() {
    while (pos_ < source_.size()) {
      const std::size_t open = next_open(pos_);
      if (open == std::string_view::npos) {
        add_data(source_.substr(pos_));
        break;
      }
      const char kind = source_[open + 1];
      const Tag tag = kind == '%' ? Tag::kBlock : kind == '{' ? Tag::kPrint : Tag::kComment;
      std::size_t inner = open + 2;
      char sign = 0;
      if (inner < source_.size() && (source_[inner] == '-' || source_[inner] == '+')) sign = source_[inner++];
      add_data(left_trim(source_.substr(pos_, open - pos_), sign, tag != Tag::kPrint));
      advance(inner);
      const Status done = tag == Tag::kComment          ? comment()
                          : tag == Tag::kBlock && raw() ? Status()
                                                        : inside(tag);
      if (!done) return done;
      if (!raw_error_.empty()) return fail(ErrorCode::kInvalidArgument, "{}", raw_error_);
    }
    tokens.push_back({Tok::kEnd, line_, {}});
    return {};
  }

  std::vector<Token> tokens;

 private:
  bool at(std::string_view text, std::size_t pos) const { return source_.substr(pos, text.size()) == text; }

  std::size_t next_open(std::size_t from) const {
    while ((from = source_.find('{', from)) != std::string_view::npos && from + 1 < source_.size()) {
      const char next = source_[from + 1];
      if (next == '%' || next == '{' || next == '#') return from;
      ++from;
    }
    return std::string_view::npos;
  }

  // Moves to `to` and counts the lines passed.
  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    pos_ = to;
  }

  void add_data(std::string_view text) {
    if (!text.empty()) tokens.push_back({Tok::kData, line_, text});
  }

  // Data in front of a tag, after `-` or lstrip_blocks have taken their part.
  std::string_view left_trim(std::string_view text, char sign, bool block) const {
    if (sign == '-') return text.substr(0, trim_right_end(text, 0));
    if (sign == '+' || !block) return text;
    const std::size_t newline = text.rfind('\n');
    const std::size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_start == 0 && !line_starting_) return text;
    const std::size_t end = trim_right_end(text, line_start);
    return end == line_start ? text.substr(0, line_start) : text;
  }

  // Matches the end of a tag at `pos`; returns where the text after it starts, or npos. A print tag has no
  // `+}}` and no newline trimming.
  std::size_t tag_end(std::size_t pos, char mark, bool print) const {
    const char close[3] = {mark, '}', 0};
    if (!print && pos < source_.size() && source_[pos] == '+' && at(close, pos + 1)) return pos + 3;
    if (pos < source_.size() && source_[pos] == '-' && at(close, pos + 1))
      return skip_space(source_, pos + 3);
    if (!at(close, pos)) return std::string_view::npos;
    pos += 2;
    if (!print && pos < source_.size() && source_[pos] == '\n') ++pos;
    return pos;
  }

  void close_tag(std::size_t to) {
    advance(to);
    line_starting_ = source_[to - 1] == '\n';
  }

  Status comment() {
    for (std::size_t at_end = pos_; (at_end = source_.find("#}", at_end)) != std::string_view::npos;
         ++at_end) {
      const bool signed_end = at_end > pos_ && (source_[at_end - 1] == '-' || source_[at_end - 1] == '+');
      close_tag(tag_end(signed_end ? at_end - 1 : at_end, '#', false));
      return {};
    }
    return fail(ErrorCode::kInvalidArgument, "line {}: a comment {{# has no end", line_);
  }

  // {% raw %} ... {% endraw %}: true when this was one.
  bool raw() {
    std::size_t pos = skip_space(source_, pos_);
    if (!at("raw", pos)) return false;
    pos = skip_space(source_, pos + 3);
    std::size_t begin;
    if (at("-%}", pos)) {
      begin = skip_space(source_, pos + 3);
    } else if (at("%}", pos)) {
      begin = pos + 2;
    } else {
      return false;
    }
    close_tag(begin);
    for (std::size_t open = pos_; (open = source_.find("{%", open)) != std::string_view::npos; ++open) {
      std::size_t inner = open + 2;
      char sign = 0;
      if (inner < source_.size() && (source_[inner] == '-' || source_[inner] == '+')) sign = source_[inner++];
      inner = skip_space(source_, inner);
      if (!at("endraw", inner)) continue;
      const std::size_t end = tag_end(skip_space(source_, inner + 6), '%', false);
      if (end == std::string_view::npos) continue;
      add_data(left_trim(source_.substr(pos_, open - pos_), sign, true));
      close_tag(end);
      return true;
    }
    raw_error_ = fmt::format("line {}: a raw block has no end", line_);
    return true;
  }

  // Tokens of one print or block tag.
  Status inside(Tag tag) {
    const bool print = tag == Tag::kPrint;
    tokens.push_back({print ? Tok::kPrintBegin : Tok::kBlockBegin, line_, {}});
    std::vector<char> open;  // brackets; inside them `}}` and `%}` are operators
    while (true) {
      if (pos_ >= source_.size()) {
        return fail(ErrorCode::kInvalidArgument, "line {}: a tag {} has no end", tokens.back().line,
                    print ? "{{" : "{%");
      }
      if (open.empty()) {
        const std::size_t end = tag_end(pos_, print ? '}' : '%', print);
        if (end != std::string_view::npos) {
          tokens.push_back({print ? Tok::kPrintEnd : Tok::kBlockEnd, line_, {}});
          close_tag(end);
          return {};
        }
      }
      const std::size_t after_space = skip_space(source_, pos_);
      if (after_space != pos_) {
        advance(after_space);
        continue;
      }
      const Status done = token(open);
      if (!done) return done;
    }
  }

  std::size_t digits(std::size_t pos) const {  // (\d+_)*\d+, or `pos` when there is none
    std::size_t end = pos;
    while (pos < source_.size() && is_digit(source_[pos])) {
      end = ++pos;
      if (pos + 1 < source_.size() && source_[pos] == '_' && is_digit(source_[pos + 1])) ++pos;
    }
    return end;
  }

  Status number() {
    const std::size_t whole = digits(pos_);
    std::size_t end = whole;
    const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
    if (!after_dot) {
      if (end < source_.size() && source_[end] == '.') {
        const std::size_t fraction = digits(end + 1);
        if (fraction > end + 1) end = fraction;
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        std::size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        const std::size_t stop = digits(exponent);
        if (stop > exponent) end = stop;
      }
      if (end > whole) return add(Tok::kFloat, end);
    }
    end = pos_ + 1;
    const char prefix = end < source_.size() ? static_cast<char>(source_[end] | 0x20) : ' ';
    if (source_[pos_] == '0' && (prefix == 'x' || prefix == 'o' || prefix == 'b')) {
      const auto valid = [&](char c) {
        return prefix == 'x' ? std::isxdigit(static_cast<unsigned char>(c)) != 0
                             : c >= '0' && c <= (prefix == 'o' ? '7' : '1');
      };
      std::size_t pos = end + 1;
      while (pos < source_.size()) {
        const std::size_t digit = source_[pos] == '_' ? pos + 1 : pos;
        if (digit >= source_.size() || !valid(source_[digit])) break;
        pos = digit + 1;
      }
      if (pos > end + 1) return add(Tok::kInt, pos);
    }
    // A decimal number does not start with 0; what follows a zero is a token of its own.
    const bool zero = source_[pos_] == '0';
    while (end < source_.size()) {
      const std::size_t digit = source_[end] == '_' ? end + 1 : end;
      if (digit >= source_.size() || !is_digit(source_[digit]) || (zero && source_[digit] != '0')) break;
      end = digit + 1;
    }
    return add(Tok::kInt, end);
  }

  Status token(std::vector<char>& open) {
    const char c = source_[pos_];
    if (is_digit(c)) return number();
    if (is_name_start(c)) {
      std::size_t end = pos_;
      while (end < source_.size() && is_name_char(source_[end])) ++end;
      return add(Tok::kName, end);
    }
    if (c == '\'' || c == '"') {
      std::size_t end = pos_ + 1;
      while (end < source_.size() && source_[end] != c) end += source_[end] == '\\' ? 2 : 1;
      if (end >= source_.size())
        return fail(ErrorCode::kInvalidArgument, "line {}: a string has no end", line_);
      tokens.push_back({Tok::kString, line_, source_.substr(pos_ + 1, end - pos_ - 1)});
      advance(end + 1);
      return {};
    }
    for (const std::string_view op : {"//", "**", "==", "!=", ">=", "<="}) {
      if (at(op, pos_)) return add(Tok::kOp, pos_ + 2);
    }
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      return fail(ErrorCode::kInvalidArgument, "line {}: unexpected character '{}'", line_, c);
    }
    if (c == '(' || c == '[' || c == '{') {
      open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) return fail(ErrorCode::kInvalidArgument, "line {}: unexpected '{}'", line_, c);
      if (open.back() != c) {
        return fail(ErrorCode::kInvalidArgument, "line {}: unexpected '{}', expected '{}'", line_, c,
                    open.back());
      }
      open.pop_back();
    }
    return add(Tok::kOp, pos_ + 1);
  }

  Status add(Tok type, std::size_t end) {
    tokens.push_back({type, line_, source_.substr(pos_, end - pos_)});
    advance(end);
    return {};
  }

  std::string_view source_;
  std::size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::string raw_error_;
};

}  // namespace

std::string normalise_source(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

Result<std::vector<Token>> tokenize(std::string_view source) {
  Lexer lexer(source);
  const Status done = lexer.run();
  if (!done) return forward_error(done);
  return std::move(lexer.tokens);
}

Result<std::string> unescape(std::string_view literal, int line) {
  std::string out;
  out.reserve(literal.size());
  for (std::size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\') {
      out += literal[i];
      continue;
    }
    if (++i == literal.size())
      return fail(ErrorCode::kInvalidArgument, "line {}: a string ends in a backslash", line);
    const char c = literal[i];
    std::size_t hex_digits = 0;
    switch (c) {
      case '\n':
        continue;
      case '\\':
        out += '\\';
        continue;
      case '\'':
        out += '\'';
        continue;
      case '"':
        out += '"';
        continue;
      case 'a':
        out += '\a';
        continue;
      case 'b':
        out += '\b';
        continue;
      case 'f':
        out += '\f';
        continue;
      case 'n':
        out += '\n';
        continue;
      case 'r':
        out += '\r';
        continue;
      case 't':
        out += '\t';
        continue;
      case 'v':
        out += '\v';
        continue;
      case 'x':
        hex_digits = 2;
        break;
      case 'u':
        hex_digits = 4;
        break;
      case 'U':
        hex_digits = 8;
        break;
      case 'N':
        return fail(ErrorCode::kUnsupported, "line {}: \\N{{...}} in a string is not supported", line);
      default:
        break;
    }
    char32_t code = 0;
    if (hex_digits > 0) {
      for (std::size_t digit = 0; digit < hex_digits; ++digit) {
        ++i;
        if (i >= literal.size() || !std::isxdigit(static_cast<unsigned char>(literal[i]))) {
          return fail(ErrorCode::kInvalidArgument, "line {}: truncated \\{} escape in a string", line, c);
        }
        const char h = static_cast<char>(literal[i] | 0x20);
        code = code * 16 + static_cast<char32_t>(is_digit(literal[i]) ? literal[i] - '0' : h - 'a' + 10);
      }
    } else if (c >= '0' && c <= '7') {
      std::size_t count = 0;
      while (count < 3 && i < literal.size() && literal[i] >= '0' && literal[i] <= '7') {
        code = code * 8 + static_cast<char32_t>(literal[i++] - '0');
        ++count;
      }
      --i;
    } else {
      out += '\\';
      out += c;
      continue;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      return fail(ErrorCode::kInvalidArgument, "line {}: \\{} escape is not a character", line, c);
    }
    append_utf8(out, code);
  }
  return out;
}

}  // namespace mimo::jinja
