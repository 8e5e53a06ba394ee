// Which pages hold the keys and values of one sequence, and the rule by which window pages are let go.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "core/result.h"

namespace mimo {

// Pages that hold `tokens` tokens.
constexpr std::int64_t pages_for(std::int64_t tokens, int page_size) {
  return (tokens + page_size - 1) / page_size;
}

struct PageLayout {
  int page_size = 16;
  int window = 128;  // tokens a window layer's query sees, itself included
};

class SequencePages {
 public:
  // The pools must outlive the sequence.
  SequencePages(const PageLayout& layout, PagePool& full, PagePool& window);
  SequencePages(SequencePages&&) = default;
  SequencePages& operator=(SequencePages&&) = delete;
  SequencePages(const SequencePages&) = delete;
  SequencePages& operator=(const SequencePages&) = delete;
  ~SequencePages();

  // Makes room for tokens [length, length + tokens) in both kinds of layer. On failure (pool empty) nothing
  // changes.
  Status extend(std::int64_t tokens);

  // The first `tokens` of the last extend now count: length grows by them, and window pages that no later query
  // can see are freed. A query at position p sees keys from p - window + 1 on, and the next one is at `length`.
  // The rest of the extend keeps its room: its slots are written again by the next step, which is all that
  // taking back rejected drafts needs.
  void commit(std::int64_t tokens);

  std::int64_t length() const { return length_; }
  // Entry p holds positions [p * page_size, (p + 1) * page_size); -1: left the window.
  std::span<const std::int32_t> full_pages() const { return full_pages_; }
  std::span<const std::int32_t> window_pages() const { return window_pages_; }

  // Pages of each pool that extend(tokens) would take now.
  std::int64_t full_pages_needed(std::int64_t tokens) const;
  std::int64_t window_pages_needed(std::int64_t tokens) const;

 private:
  PageLayout layout_;
  PagePool* full_;
  PagePool* window_;
  std::vector<std::int32_t> full_pages_;
  std::vector<std::int32_t> window_pages_;
  std::size_t window_begin_ = 0;  // entries before it are -1
  std::int64_t length_ = 0;
};

}  // namespace mimo
