// What constraints know of a tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mimo::grammar {

// Ordinary tokens as a tree over their bytes, laid out so that a walk reads memory in order and jumps over
// whole branches.
class VocabularyTree {
 public:
  struct Node {
    std::uint32_t end = 0;    // first node behind this one's branch; its children begin right behind it
    std::int32_t token = -1;  // whose bytes end here; -1: none
    std::uint16_t depth = 0;  // bytes from the root, from 1 on
    std::uint8_t byte = 0;
  };

  // (bytes, id) of each token; bytes are not empty, distinct, and may be gone afterwards.
  explicit VocabularyTree(std::vector<std::pair<std::string_view, std::int32_t>> tokens);

  // In depth-first order.
  const std::vector<Node>& nodes() const { return nodes_; }
  // Of the longest token.
  std::size_t max_depth() const { return max_depth_; }

 private:
  std::vector<Node> nodes_;
  std::size_t max_depth_ = 0;
};

class Vocabulary {
 public:
  // `bytes` of id i, empty for what is no ordinary token: gaps and control tokens, which no text of a grammar
  // is made of.
  Vocabulary(std::span<const std::string_view> bytes, std::vector<std::int32_t> end_tokens);

  std::string_view bytes(std::int32_t token) const {
    if (token < 0 || static_cast<std::size_t>(token) + 1 >= begins_.size()) return {};
    const auto at = static_cast<std::size_t>(token);
    return std::string_view(arena_).substr(begins_[at], begins_[at + 1] - begins_[at]);
  }
  std::size_t size() const { return begins_.size() - 1; }
  std::size_t mask_words() const { return (size() + 31) / 32; }
  bool ends(std::int32_t token) const;
  const std::vector<std::int32_t>& end_tokens() const { return end_tokens_; }
  const VocabularyTree& tree() const { return tree_; }

 private:
  std::string arena_;
  std::vector<std::size_t> begins_;
  std::vector<std::int32_t> end_tokens_;
  VocabularyTree tree_;
};

}  // namespace mimo::grammar
