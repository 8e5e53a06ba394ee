#include "text/grammar/vocabulary.h"

#include <algorithm>

#include "core/check.h"

namespace mimo::grammar {

VocabularyTree::VocabularyTree(std::vector<std::pair<std::string_view, std::int32_t>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  std::vector<std::uint32_t> path;  // nodes from the root to the last token
  std::string_view last;
  for (const auto& [bytes, id] : tokens) {
    MIMO_CHECK(!bytes.empty() && bytes.size() < 65536 && bytes != last);
    std::size_t common = 0;
    while (common < last.size() && common < bytes.size() && last[common] == bytes[common]) ++common;
    for (; path.size() > common; path.pop_back()) {
      nodes_[path.back()].end = static_cast<std::uint32_t>(nodes_.size());
    }
    for (std::size_t at = common; at < bytes.size(); ++at) {
      path.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back({.end = 0,
                        .token = at + 1 == bytes.size() ? id : -1,
                        .depth = static_cast<std::uint16_t>(at + 1),
                        .byte = static_cast<std::uint8_t>(bytes[at])});
    }
    max_depth_ = std::max(max_depth_, bytes.size());
    last = bytes;
  }
  for (; !path.empty(); path.pop_back()) nodes_[path.back()].end = static_cast<std::uint32_t>(nodes_.size());
}

namespace {

std::vector<std::pair<std::string_view, std::int32_t>> ordinary(std::span<const std::string_view> bytes) {
  std::vector<std::pair<std::string_view, std::int32_t>> out;
  for (std::size_t id = 0; id < bytes.size(); ++id) {
    if (!bytes[id].empty()) out.emplace_back(bytes[id], static_cast<std::int32_t>(id));
  }
  return out;
}

}  // namespace

Vocabulary::Vocabulary(std::span<const std::string_view> bytes, std::vector<std::int32_t> end_tokens)
    : end_tokens_(std::move(end_tokens)), tree_(ordinary(bytes)) {
  begins_.reserve(bytes.size() + 1);
  for (const std::string_view one : bytes) {
    begins_.push_back(arena_.size());
    arena_ += one;
  }
  begins_.push_back(arena_.size());
}

bool Vocabulary::ends(std::int32_t token) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

}  // namespace mimo::grammar
