// Splits text into the pieces inside which BPE merges may happen. Each supported pattern of tokenizer.json is
// a hand-written scanner: one forward pass, constant stack and linear time on every input, which a
// backtracking regex engine does not give for runs of a million equal characters.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "text/unicode.h"

namespace mimo {

enum class SplitPattern {
  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|
  // ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  // Combining marks are no letters: they end a word, as in the released tokenizers.
  kQwen2,
  // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
};

// The pattern written exactly as `regex`; nothing if it is not one of ours.
std::optional<SplitPattern> split_pattern_from_regex(std::string_view regex);

class PreTokenizer {
 public:
  explicit PreTokenizer(SplitPattern pattern) : pattern_(pattern), table_(UnicodeTable::get()) {}

  // End of the piece that starts at `pos` < text.size(). The text is valid UTF-8 and `pos` the start of a
  // piece; the pieces cover the text without gaps.
  std::size_t piece_end(std::string_view text, std::size_t pos) const;

 private:
  SplitPattern pattern_;
  const UnicodeTable& table_;
};

}  // namespace mimo
