#include "text/grammar/json_grammar.h"

#include <map>
#include <utility>

#include "text/grammar/code_points.h"
#include "text/grammar/expression.h"
#include "text/grammar/tag_text.h"
#include "text/unicode_utf8.h"

namespace mimo::grammar {
namespace {

constexpr int kIndentation = 16;  // spaces behind a line break
constexpr int kDigits = 18;       // any such integer fits 64 bits

// Characters of a string that stand for themselves.
const CodePointSet& plain_chars() {
  static const CodePointSet set = [] {
    CodePointSet special{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    return special.complement();
  }();
  return set;
}

void emit_hex_digit(GrammarBuilder& builder, std::int32_t from, std::int32_t to) {
  builder.bytes(from, to, '0', '9');
  builder.bytes(from, to, 'A', 'F');
  builder.bytes(from, to, 'a', 'f');
}

std::int32_t emit_hex(GrammarBuilder& builder, std::int32_t from, int count) {
  for (int i = 0; i < count; ++i) {
    const std::int32_t next = builder.add_state();
    emit_hex_digit(builder, from, next);
    from = next;
  }
  return from;
}

}  // namespace

std::int32_t emit_digits(GrammarBuilder& builder, std::int32_t from, int least, int most) {
  const std::int32_t end = builder.add_state();
  for (int i = 0; i < most && !builder.failed(); ++i) {
    if (i >= least) builder.empty(from, end);
    const std::int32_t next = builder.add_state();
    builder.bytes(from, next, '0', '9');
    from = next;
  }
  builder.empty(from, end);
  return end;
}

std::int32_t JsonGrammar::space() {
  if (space_ >= 0) return space_;
  space_ = builder_.add_rule("white space");
  const Rule rule = builder_.rule(space_);
  builder_.empty(rule.start, rule.end);
  builder_.bytes(rule.start, rule.end, ' ', ' ');
  std::int32_t state = builder_.literal(rule.start, "\n");
  for (int i = 0; i < kIndentation; ++i) {
    builder_.empty(state, rule.end);
    state = builder_.literal(state, " ");
  }
  builder_.empty(state, rule.end);
  return space_;
}

std::int32_t emit_json_escape(GrammarBuilder& builder, std::int32_t from) {
  const std::int32_t end = builder.add_state();
  for (const char c : std::string_view("\"\\/bfnrt")) {
    builder.bytes(from, end, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c));
  }
  // \uXXXX of a character, or the two halves of one; a lone half is not accepted by readers.
  const std::int32_t unicode = builder.literal(from, "u");
  const std::int32_t first = builder.add_state();
  builder.bytes(unicode, first, '0', '9');
  for (const char base : {'A', 'a'}) {
    const auto letter = static_cast<std::uint8_t>(base);
    builder.bytes(unicode, first, letter, static_cast<std::uint8_t>(letter + 2));
    builder.bytes(unicode, first, static_cast<std::uint8_t>(letter + 4),
                  static_cast<std::uint8_t>(letter + 5));
  }
  builder.empty(emit_hex(builder, first, 3), end);
  const std::int32_t d = builder.add_state();
  builder.bytes(unicode, d, 'D', 'D');
  builder.bytes(unicode, d, 'd', 'd');
  const std::int32_t low = builder.add_state();
  builder.bytes(d, low, '0', '7');
  builder.empty(emit_hex(builder, low, 2), end);
  std::int32_t pair = builder.add_state();
  builder.bytes(d, pair, '8', '9');
  builder.bytes(d, pair, 'A', 'B');
  builder.bytes(d, pair, 'a', 'b');
  pair = builder.literal(emit_hex(builder, pair, 2), "\\u");
  const std::int32_t second_d = builder.add_state();
  builder.bytes(pair, second_d, 'D', 'D');
  builder.bytes(pair, second_d, 'd', 'd');
  const std::int32_t second = builder.add_state();
  builder.bytes(second_d, second, 'C', 'F');
  builder.bytes(second_d, second, 'c', 'f');
  builder.empty(emit_hex(builder, second, 2), end);
  return end;
}

std::int32_t JsonGrammar::string() {
  if (string_ >= 0) return string_;
  string_ = builder_.add_rule("string");
  const Rule rule = builder_.rule(string_);
  std::int32_t inside = builder_.literal(rule.start, "\"");
  if (inside_call_) {
    inside = emit_json_chars_without_tags(builder_, inside);
  } else {
    emit_char(builder_, inside, inside, plain_chars(), Spelling::kText);
    builder_.empty(emit_json_escape(builder_, builder_.literal(inside, "\\")), inside);
  }
  builder_.bytes(inside, rule.end, '"', '"');
  return string_;
}

std::int32_t JsonGrammar::integer() {
  if (integer_ >= 0) return integer_;
  integer_ = builder_.add_rule("integer");
  const Rule rule = builder_.rule(integer_);
  builder_.bytes(rule.start, rule.end, '0', '0');
  const std::int32_t first = builder_.optional_literal(rule.start, "-");
  const std::int32_t more = builder_.add_state();
  builder_.bytes(first, more, '1', '9');
  builder_.empty(emit_digits(builder_, more, 0, kDigits - 1), rule.end);
  return integer_;
}

std::int32_t JsonGrammar::number() {
  if (number_ >= 0) return number_;
  number_ = builder_.add_rule("number");
  const Rule rule = builder_.rule(number_);
  const std::int32_t first = builder_.optional_literal(rule.start, "-");
  const std::int32_t whole = builder_.add_state();
  builder_.bytes(first, whole, '0', '0');
  const std::int32_t more = builder_.add_state();
  builder_.bytes(first, more, '1', '9');
  builder_.empty(emit_digits(builder_, more, 0, kDigits - 1), whole);
  const std::int32_t decimals = builder_.add_state();
  builder_.empty(whole, decimals);
  builder_.empty(emit_digits(builder_, builder_.literal(whole, "."), 1, kDigits), decimals);
  builder_.empty(decimals, rule.end);
  const std::int32_t exponent = builder_.add_state();
  builder_.bytes(decimals, exponent, 'E', 'E');
  builder_.bytes(decimals, exponent, 'e', 'e');
  const std::int32_t sign = builder_.add_state();
  builder_.empty(exponent, sign);
  builder_.bytes(exponent, sign, '+', '+');
  builder_.bytes(exponent, sign, '-', '-');
  builder_.empty(emit_digits(builder_, sign, 1, 2), rule.end);
  return number_;
}

std::int32_t JsonGrammar::value(int depth) {
  std::int32_t& known = values_[static_cast<std::size_t>(depth)];
  if (known >= 0) return known;
  known = builder_.add_rule("value");
  const Rule rule = builder_.rule(known);
  const std::int32_t out = known;
  for (const char* word : {"true", "false", "null"})
    builder_.empty(builder_.literal(rule.start, word), rule.end);
  builder_.call(rule.start, rule.end, string());
  builder_.call(rule.start, rule.end, number());
  if (depth > 0) {
    builder_.call(rule.start, rule.end, object(depth));
    builder_.call(rule.start, rule.end, array(depth));
  }
  return out;
}

std::int32_t JsonGrammar::object(int depth) {
  std::int32_t& known = objects_[static_cast<std::size_t>(depth)];
  if (known >= 0) return known;
  known = builder_.add_rule("object");
  const std::int32_t out = known;
  const Rule rule = builder_.rule(out);
  const std::int32_t open = builder_.called(builder_.literal(rule.start, "{"), space());
  const std::int32_t key = builder_.add_state();
  builder_.empty(open, key);
  std::int32_t state = builder_.literal(builder_.called(key, string()), ":");
  state = builder_.called(builder_.called(state, space()), value(depth - 1));
  builder_.empty(builder_.called(builder_.literal(state, ","), space()), key);
  builder_.empty(builder_.literal(open, "}"), rule.end);
  builder_.empty(builder_.literal(builder_.called(state, space()), "}"), rule.end);
  return out;
}

std::int32_t JsonGrammar::array(int depth) {
  std::int32_t& known = arrays_[static_cast<std::size_t>(depth)];
  if (known >= 0) return known;
  known = builder_.add_rule("array");
  const std::int32_t out = known;
  const Rule rule = builder_.rule(out);
  const std::int32_t open = builder_.called(builder_.literal(rule.start, "["), space());
  const std::int32_t item = builder_.add_state();
  builder_.empty(open, item);
  const std::int32_t state = builder_.called(item, value(depth - 1));
  builder_.empty(builder_.called(builder_.literal(state, ","), space()), item);
  builder_.empty(builder_.literal(open, "]"), rule.end);
  builder_.empty(builder_.literal(builder_.called(state, space()), "]"), rule.end);
  return out;
}

std::int32_t JsonGrammar::string_of_length(std::int64_t least, std::int64_t most) {
  const std::int32_t out = builder_.add_rule("string");
  const Rule rule = builder_.rule(out);
  // Without characters that need \u: each position of a string is a few states less.
  static const CodePointSet kChars = [] {
    CodePointSet rare{{0, 7}, {0xB, 0xB}, {0xE, 0x1F}};
    return rare.complement();
  }();
  const std::int32_t end =
      emit_repeat(builder_, builder_.literal(rule.start, "\""), least, most, [&](std::int32_t from) {
        const std::int32_t to = builder_.add_state();
        emit_char(builder_, from, to, kChars, Spelling::kJsonString);
        return to;
      });
  builder_.empty(builder_.literal(end, "\""), rule.end);
  return out;
}

std::int32_t JsonGrammar::text_to_tag() {
  if (text_to_tag_ >= 0) return text_to_tag_;
  text_to_tag_ = builder_.add_rule("text");
  const Rule rule = builder_.rule(text_to_tag_);
  builder_.empty(emit_text_to_tag(builder_, rule.start), rule.end);
  return text_to_tag_;
}

std::int32_t JsonGrammar::key_except(const std::vector<std::string>& names) {
  struct Node {
    std::map<std::uint32_t, std::size_t> next;
    bool name = false;
  };
  std::vector<Node> trie(1);
  for (const std::string& name : names) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < name.size();) {
      const Utf8Char c = utf8_read(name, i);
      i += c.length;
      const auto [next, fresh] = trie[at].next.emplace(c.code_point, trie.size());
      const std::size_t to = next->second;
      if (fresh) trie.emplace_back();
      at = to;
    }
    trie[at].name = true;
  }
  const std::int32_t out = builder_.add_rule("key");
  const Rule rule = builder_.rule(out);
  CodePointSet used{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  if (inside_call_) used.add('<', '<');
  const CodePointSet chars = used.complement();
  const std::int32_t other = builder_.add_state();  // no longer the beginning of a name
  emit_char(builder_, other, other, chars, Spelling::kText);
  const std::int32_t close = builder_.add_state();
  builder_.bytes(close, rule.end, '"', '"');
  builder_.empty(other, close);
  std::vector<std::int32_t> states(trie.size(), -1);
  for (std::size_t i = 0; i < trie.size() && !builder_.failed(); ++i) {
    if (i == 0) states[0] = builder_.literal(rule.start, "\"");
    CodePointSet inner = used;
    for (const auto& [c, next] : trie[i].next) {
      inner.add(c, c);
      states[next] = builder_.add_state();
      emit_char(builder_, states[i], states[next], chars.intersected(CodePointSet{{c, c}}), Spelling::kText);
    }
    emit_char(builder_, states[i], other, inner.complement(), Spelling::kText);
    if (!trie[i].name && i != 0) builder_.empty(states[i], close);
  }
  return out;
}

}  // namespace mimo::grammar
