// Sets of Unicode characters, and the bytes that spell them in plain text and inside a JSON string.
#pragma once

#include <cstdint>
#include <vector>

#include "text/grammar/grammar_builder.h"

namespace mimo::grammar {

// How a character is written.
enum class Spelling : std::uint8_t {
  kText,        // UTF-8
  kJsonString,  // UTF-8, with the one shortest escape where JSON wants one
};

class CodePointSet {
 public:
  struct Range {
    std::uint32_t low;
    std::uint32_t high;  // inclusive
  };

  CodePointSet() = default;
  CodePointSet(std::initializer_list<Range> ranges);

  // All characters; surrogates are none.
  static const CodePointSet& all();

  void add(std::uint32_t low, std::uint32_t high);
  void add(const CodePointSet& other);
  CodePointSet complement() const;
  CodePointSet intersected(const CodePointSet& other) const;

  bool empty() const { return ranges_.empty(); }
  // Sorted, without overlap or contact.
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// Classes of regular expressions: \d, \w and \s hold ASCII only; their complements leave out whatever some
// dialect counts as a digit, letter or space, so that a text is right in all of them.
const CodePointSet& digit_class();
const CodePointSet& word_class();
const CodePointSet& space_class();
const CodePointSet& not_digit_class();
const CodePointSet& not_word_class();
const CodePointSet& not_space_class();

// One character of `set` between the two states.
void emit_char(GrammarBuilder& builder, std::int32_t from, std::int32_t to, const CodePointSet& set,
               Spelling spelling);

}  // namespace mimo::grammar
