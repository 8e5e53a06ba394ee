#include "text/tokenizer_added.h"

#include <algorithm>

namespace mimo {

std::vector<TextRange> ranges_after_edits(const std::vector<TextRange>& ranges,
                                          const std::vector<TextEdit>& edits) {
  // The last edit that starts before `pos`; null if there is none.
  const auto edit_before = [&edits](std::size_t pos) -> const TextEdit* {
    const auto after =
        std::lower_bound(edits.begin(), edits.end(), pos,
                         [](const TextEdit& edit, std::size_t p) { return edit.from_begin < p; });
    return after == edits.begin() ? nullptr : &*(after - 1);
  };
  std::vector<TextRange> out;
  for (const TextRange& range : ranges) {
    std::size_t begin = range.begin;
    if (const TextEdit* edit = edit_before(begin)) {
      begin = begin < edit->from_end ? edit->to_end : edit->to_end + (begin - edit->from_end);
    }
    std::size_t end = range.end;
    if (const TextEdit* edit = edit_before(end)) {
      end = end < edit->from_end ? edit->to_begin : edit->to_end + (end - edit->from_end);
    }
    if (begin < end) out.push_back({begin, end});
  }
  return out;
}

AddedTokenMatcher::AddedTokenMatcher() : nodes_(1) {}

std::uint32_t AddedTokenMatcher::child(std::uint32_t node, unsigned char byte) const {
  for (const auto& [edge, target] : nodes_[node].children) {
    if (edge == byte) return target;
  }
  return 0;
}

void AddedTokenMatcher::add(std::string_view content, TokenId id) {
  starts_[static_cast<unsigned char>(content[0])] = true;
  std::uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    std::uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<std::uint32_t>(nodes_.size());
      nodes_[node].children.emplace_back(byte, next);
      nodes_.emplace_back();
    }
    node = next;
  }
  nodes_[node].id = id;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text, std::size_t begin,
                                                                std::size_t end) const {
  for (std::size_t start = begin; start < end; ++start) {
    if (!starts_[static_cast<unsigned char>(text[start])]) continue;
    std::optional<Match> longest;
    std::uint32_t node = 0;
    for (std::size_t pos = start; pos < end; ++pos) {
      node = child(node, static_cast<unsigned char>(text[pos]));
      if (node == 0) break;
      if (nodes_[node].id >= 0) longest = Match{start, pos + 1, nodes_[node].id};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace mimo
