// Added tokens (control tokens such as <|im_end|>) found verbatim in text: leftmost first, the longest of
// those that start there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer_vocab.h"
#include "text/unicode_utf8.h"

namespace mimo {

// Bytes [begin, end) of a text.
struct TextRange {
  std::size_t begin;
  std::size_t end;
};

// Where the ranges (sorted, disjoint) lie after `edits` (sorted). A range that holds only a part of a
// rewritten place loses that place.
std::vector<TextRange> ranges_after_edits(const std::vector<TextRange>& ranges,
                                          const std::vector<TextEdit>& edits);

class AddedTokenMatcher {
 public:
  struct Match {
    std::size_t begin;
    std::size_t end;
    TokenId id;
  };

  AddedTokenMatcher();

  // `content` is not empty; the last one wins if it is added twice.
  void add(std::string_view content, TokenId id);

  bool empty() const { return nodes_.size() == 1; }

  // The first match that lies inside [begin, end) of the text.
  std::optional<Match> find(std::string_view text, std::size_t begin, std::size_t end) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> children;
    TokenId id = -1;
  };

  std::uint32_t child(std::uint32_t node, unsigned char byte) const;  // 0: none

  std::vector<Node> nodes_;  // a trie; nodes_[0] is the root
  std::array<bool, 256> starts_{};
};

}  // namespace mimo
