#include "text/pretokenizer.h"

#include "text/unicode_utf8.h"

namespace mimo {
namespace {

constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Text with a class for each character; positions are byte offsets.
class Scanner {
 public:
  Scanner(std::string_view text, const UnicodeTable& table) : text_(text), table_(table) {}

  struct Char {
    CharClass char_class;
    std::size_t next;  // offset after the character
  };

  bool at_end(std::size_t pos) const { return pos >= text_.size(); }
  char byte(std::size_t pos) const { return text_[pos]; }
  bool is_line_end(std::size_t pos) const { return text_[pos] == '\r' || text_[pos] == '\n'; }

  Char read(std::size_t pos) const {
    const Utf8Char c = utf8_read_valid(text_.data() + pos);
    return {table_.char_class(c.code_point), pos + c.length};
  }

  bool is(std::size_t pos, CharClass wanted) const { return !at_end(pos) && read(pos).char_class == wanted; }

  // End of the run of `wanted` characters at `pos`.
  std::size_t skip(std::size_t pos, CharClass wanted) const {
    while (!at_end(pos)) {
      const Char c = read(pos);
      if (c.char_class != wanted) break;
      pos = c.next;
    }
    return pos;
  }

  std::size_t skip_line_ends(std::size_t pos) const {
    while (!at_end(pos) && is_line_end(pos)) ++pos;
    return pos;
  }

  // Length of the contraction ('s 't 're 've 'm 'll 'd) at `pos`, 0 if there is none.
  std::size_t contraction(std::size_t pos, bool ignore_case) const {
    if (at_end(pos) || byte(pos) != '\'' || at_end(pos + 1)) return 0;
    // Under (?i) a long s (U+017F) folds to s; no other character outside ASCII folds to one of these
    // letters.
    if (ignore_case && text_.substr(pos + 1, 2) == "\xC5\xBF") return 3;
    const auto letter = [&](std::size_t i) -> char {
      if (at_end(pos + i)) return 0;
      const char c = byte(pos + i);
      return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    switch (letter(1)) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return 2;
      case 'r':
      case 'v':
        return letter(2) == 'e' ? 3 : 0;
      case 'l':
        return letter(2) == 'l' ? 3 : 0;
      default:
        return 0;
    }
  }

  // A run of white space.
  struct SpaceRun {
    std::size_t end;
    std::size_t last;            // start of its last character
    std::size_t after_line_end;  // end of the last \r or \n in it; 0 if there is none
  };

  SpaceRun space_run(std::size_t pos) const {
    SpaceRun run{pos, pos, 0};
    while (!at_end(run.end)) {
      const Char c = read(run.end);
      if (c.char_class != CharClass::kSpace) break;
      if (is_line_end(run.end)) run.after_line_end = c.next;
      run.last = run.end;
      run.end = c.next;
    }
    return run;
  }

  // End of `\s+(?!\S)|\s+` for a run that starts at `pos`: without its last character when text follows, so
  // that the last space can start the next piece; at least one character.
  std::size_t spaces(const SpaceRun& run, std::size_t pos) const {
    return at_end(run.end) || run.last == pos ? run.end : run.last;
  }

  std::size_t qwen2_piece(std::size_t pos) const {
    if (const std::size_t length = contraction(pos, /*ignore_case=*/true)) return pos + length;
    const Char first = read(pos);
    if (first.char_class == CharClass::kLetter) return skip(first.next, CharClass::kLetter);
    if (first.char_class == CharClass::kNumber) return first.next;
    // One character before a word belongs to it, unless it ends a line.
    if (!is_line_end(pos) && is(first.next, CharClass::kLetter)) return skip(first.next, CharClass::kLetter);
    if (first.char_class == CharClass::kOther) return skip_line_ends(skip(first.next, CharClass::kOther));
    if (byte(pos) == ' ' && is(first.next, CharClass::kOther)) {
      return skip_line_ends(skip(first.next, CharClass::kOther));
    }
    const SpaceRun run = space_run(pos);
    return run.after_line_end != 0 ? run.after_line_end : spaces(run, pos);
  }

  std::size_t gpt2_piece(std::size_t pos) const {
    if (const std::size_t length = contraction(pos, /*ignore_case=*/false)) return pos + length;
    const Char first = read(pos);
    if (first.char_class != CharClass::kSpace) return skip(first.next, first.char_class);
    if (byte(pos) == ' ' && !at_end(first.next)) {
      const Char second = read(first.next);
      if (second.char_class != CharClass::kSpace) return skip(second.next, second.char_class);
    }
    return spaces(space_run(pos), pos);
  }

 private:
  std::string_view text_;
  const UnicodeTable& table_;
};

}  // namespace

std::optional<SplitPattern> split_pattern_from_regex(std::string_view regex) {
  if (regex == kQwen2Regex) return SplitPattern::kQwen2;
  if (regex == kGpt2Regex) return SplitPattern::kGpt2;
  return std::nullopt;
}

std::size_t PreTokenizer::piece_end(std::string_view text, std::size_t pos) const {
  const Scanner scanner(text, table_);
  return pattern_ == SplitPattern::kQwen2 ? scanner.qwen2_piece(pos) : scanner.gpt2_piece(pos);
}

}  // namespace mimo
