#include "text/grammar/code_points.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "text/unicode.h"

namespace mimo::grammar {
namespace {

constexpr std::uint32_t kLast = 0x10FFFF;

// Writes UTF-8 ranges that end in one state. Continuation bytes that take anything are shared.
class Utf8Emitter {
 public:
  Utf8Emitter(GrammarBuilder& builder, std::int32_t from, std::int32_t to)
      : builder_(builder), from_(from), tails_{to, -1, -1, -1} {}

  void range(std::uint32_t low, std::uint32_t high) {
    static constexpr std::uint32_t kEnds[] = {0x7F, 0x7FF, 0xFFFF, kLast};
    for (int length = 1; length <= 4 && low <= high; ++length) {
      const std::uint32_t end = std::min(high, kEnds[length - 1]);
      if (low > end) continue;
      split(from_, low, end, length);
      low = end + 1;
    }
  }

 private:
  // The state from which `count` continuation bytes of any value lead to the end.
  std::int32_t tail(std::size_t count) {
    for (std::size_t i = 1; i <= count; ++i) {
      if (tails_[i] >= 0) continue;
      tails_[i] = builder_.add_state();
      builder_.bytes(tails_[i], tails_[i - 1], 0x80, 0xBF);
    }
    return tails_[count];
  }

  // `low` and `high` are spelled with `length` bytes, of which those behind `depth` remain.
  void split(std::int32_t from, std::uint32_t low, std::uint32_t high, int length) {
    emit(from, low, high, length - 1, length);
  }

  static std::uint8_t byte_of(std::uint32_t code_point, int remaining, int length) {
    const std::uint32_t bits = code_point >> (6 * remaining);
    if (remaining != length - 1) return static_cast<std::uint8_t>(0x80 | (bits & 0x3F));
    if (length == 1) return static_cast<std::uint8_t>(bits);
    static constexpr std::uint32_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    return static_cast<std::uint8_t>(kLead[length] | bits);
  }

  // Bytes with `remaining` more behind the current one.
  void emit(std::int32_t from, std::uint32_t low, std::uint32_t high, int remaining, int length) {
    const std::uint8_t first = byte_of(low, remaining, length);
    const std::uint8_t last = byte_of(high, remaining, length);
    if (remaining == 0) {
      builder_.bytes(from, tails_[0], first, last);
      return;
    }
    const std::uint32_t span = 1U << (6 * remaining);
    const std::uint32_t mask = span - 1;
    const bool whole = (low & mask) == 0 && (high & mask) == mask;
    if (whole) {
      builder_.bytes(from, tail(static_cast<std::size_t>(remaining)), first, last);
      return;
    }
    if (first == last) {
      const std::int32_t next = builder_.add_state();
      builder_.bytes(from, next, first, first);
      emit(next, low, high, remaining - 1, length);
      return;
    }
    if ((low & mask) != 0) {
      emit(from, low, low | mask, remaining, length);
      low = (low | mask) + 1;
    }
    const std::uint32_t whole_end = (high & mask) == mask ? high : (high & ~mask) - 1;
    if (low <= whole_end && low < high) {
      emit(from, low, whole_end, remaining, length);
      low = whole_end + 1;
    }
    if (low <= high) emit(from, low, high, remaining, length);
  }

  GrammarBuilder& builder_;
  std::int32_t from_;
  std::array<std::int32_t, 4> tails_;
};

CodePointSet unicode_class(bool (*belongs)(CharClass)) {
  const UnicodeTable& table = UnicodeTable::get();
  CodePointSet set;
  for (std::uint32_t c = 0x80; c <= kLast;) {
    if (!belongs(table.char_class(c))) {
      ++c;
      continue;
    }
    const std::uint32_t low = c;
    while (c <= kLast && belongs(table.char_class(c))) ++c;
    set.add(low, c - 1);
  }
  return set;
}

CodePointSet without(const CodePointSet& ascii, bool (*belongs)(CharClass)) {
  CodePointSet all = ascii;
  all.add(unicode_class(belongs));
  return all.complement();
}

}  // namespace

CodePointSet::CodePointSet(std::initializer_list<Range> ranges) {
  for (const Range& range : ranges) add(range.low, range.high);
}

const CodePointSet& CodePointSet::all() {
  static const CodePointSet set{{0, 0xD7FF}, {0xE000, kLast}};
  return set;
}

void CodePointSet::add(std::uint32_t low, std::uint32_t high) {
  // Mostly called in ascending order: then only the back is touched.
  auto begin = std::partition_point(ranges_.begin(), ranges_.end(),
                                    [low](const Range& range) { return range.high + 1 < low; });
  auto end = begin;
  for (; end != ranges_.end() && end->low <= high + 1; ++end) {
    low = std::min(low, end->low);
    high = std::max(high, end->high);
  }
  begin = ranges_.erase(begin, end);
  ranges_.insert(begin, {low, high});
}

void CodePointSet::add(const CodePointSet& other) {
  for (const Range& range : other.ranges_) add(range.low, range.high);
}

CodePointSet CodePointSet::complement() const {
  CodePointSet out;
  std::uint32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.low > next) out.add(next, range.low - 1);
    next = range.high + 1;
  }
  if (next <= kLast) out.add(next, kLast);
  return out.intersected(all());
}

CodePointSet CodePointSet::intersected(const CodePointSet& other) const {
  CodePointSet out;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < ranges_.size() && j < other.ranges_.size()) {
    const std::uint32_t low = std::max(ranges_[i].low, other.ranges_[j].low);
    const std::uint32_t high = std::min(ranges_[i].high, other.ranges_[j].high);
    if (low <= high) out.add(low, high);
    if (ranges_[i].high < other.ranges_[j].high) {
      ++i;
    } else {
      ++j;
    }
  }
  return out;
}

const CodePointSet& digit_class() {
  static const CodePointSet set{{'0', '9'}};
  return set;
}

const CodePointSet& word_class() {
  static const CodePointSet set{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return set;
}

const CodePointSet& space_class() {
  static const CodePointSet set{{'\t', '\r'}, {' ', ' '}};
  return set;
}

const CodePointSet& not_digit_class() {
  static const CodePointSet set = without(digit_class(), [](CharClass c) { return c == CharClass::kNumber; });
  return set;
}

const CodePointSet& not_word_class() {
  static const CodePointSet set =
      without(word_class(), [](CharClass c) { return c == CharClass::kNumber || c == CharClass::kLetter; });
  return set;
}

const CodePointSet& not_space_class() {
  static const CodePointSet set = [] {
    CodePointSet spaces = space_class();
    spaces.add(0x1C, 0x1F);      // spaces to Python
    spaces.add(0xFEFF, 0xFEFF);  // a space to ECMAScript
    return without(spaces, [](CharClass c) { return c == CharClass::kSpace; });
  }();
  return set;
}

void emit_char(GrammarBuilder& builder, std::int32_t from, std::int32_t to, const CodePointSet& set,
               Spelling spelling) {
  Utf8Emitter utf8(builder, from, to);
  if (spelling == Spelling::kText) {
    const CodePointSet chars = set.intersected(CodePointSet::all());
    for (const CodePointSet::Range& range : chars.ranges()) {
      utf8.range(range.low, range.high);
    }
    return;
  }

  static const CodePointSet kPlain{{0x20, '!'}, {'#', '['}, {']', 0xD7FF}, {0xE000, kLast}};
  const CodePointSet plain = set.intersected(kPlain);
  for (const CodePointSet::Range& range : plain.ranges()) utf8.range(range.low, range.high);
  std::int32_t escape = -1;   // behind the backslash
  std::int32_t control = -1;  // behind \u00
  std::int32_t group[2] = {-1, -1};
  const auto reach = [&](std::int32_t& state, std::int32_t before, std::string_view text) {
    if (state < 0) state = builder.literal(before, text);
    return state;
  };
  static const CodePointSet kEscaped{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  const CodePointSet escaped = set.intersected(kEscaped);
  for (const CodePointSet::Range& range : escaped.ranges()) {
    for (std::uint32_t c = range.low; c <= range.high; ++c) {
      reach(escape, from, "\\");
      char letter = 0;
      switch (c) {
        case '"':
        case '\\':
          letter = static_cast<char>(c);
          break;
        case '\b':
          letter = 'b';
          break;
        case '\f':
          letter = 'f';
          break;
        case '\n':
          letter = 'n';
          break;
        case '\r':
          letter = 'r';
          break;
        case '\t':
          letter = 't';
          break;
        default:
          break;
      }
      if (letter != 0) {
        builder.bytes(escape, to, static_cast<std::uint8_t>(letter), static_cast<std::uint8_t>(letter));
        continue;
      }
      reach(control, escape, "u00");
      const std::int32_t high = reach(group[c >> 4], control, c >> 4 == 0 ? "0" : "1");
      const auto digit = static_cast<std::uint8_t>("0123456789abcdef"[c & 15]);
      builder.bytes(high, to, digit, digit);
    }
  }
}

}  // namespace mimo::grammar
