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
  int window = 128;           // tokens a window layer's query sees, itself included
  int eviction_interval = 0;  // window pages are freed when they hold so many tokens; 0: at once

  // The largest position that is not above `position` and begins a page.
  std::int64_t floor(std::int64_t position) const { return position / page_size * page_size; }
  // Page of the oldest key that a query at `position` sees in a window layer.
  std::int64_t first_window_page(std::int64_t position) const {
    const std::int64_t first = position - (window - 1);
    return first > 0 ? first / page_size : 0;
  }
};

// See SequencePages::keep_behind.
constexpr std::int64_t turn_end_keep(const PageLayout& layout) { return layout.page_size - 1; }

// Pages of a prefix that is computed already, entry p those of page p; window entries that left the window are
// -1, and none after the first other one is. One user of each page belongs to whoever has this.
struct PrefixPages {
  std::vector<std::int32_t> full;
  std::vector<std::int32_t> window;
};

class SequencePages {
 public:
  // The pools must outlive the sequence.
  SequencePages(const PageLayout& layout, PagePool& full, PagePool& window);
  // A sequence that begins with whole pages of others; takes over their users. They are never written: the
  // first row to come has a page of its own.
  SequencePages(const PageLayout& layout, PagePool& full, PagePool& window, PrefixPages&& prefix);
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
  void commit(std::int64_t tokens) {
    advance(tokens);
    trim();
  }
  // The two halves of commit. Between them every window page of the step is still there, so that the prefix
  // cache can take those around positions in the middle of a long chunk; it costs no page.
  void advance(std::int64_t tokens);
  void trim();

  // From now on trim() spares the pages of `tokens` more tokens behind the window, which costs that much of the
  // window pool and at most a page for this sequence. For the prefix cache, which can only take what is there:
  // turn_end_keep() at any time, so that the last whole page before `length` has its window, and
  // prompt_end_extra() until the end of a prompt is inserted, whatever the length of its last chunk.
  void keep_behind(std::int64_t tokens) { keep_behind_ = tokens; }

  // The entry's page is another one from now on, with the same content: the sequence becomes one more user of
  // that one and lets go of its own. For the prefix cache, between steps.
  void replace_full(std::size_t index, std::int32_t page);
  void replace_window(std::size_t index, std::int32_t page);

  const PageLayout& layout() const { return layout_; }
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
  std::int64_t keep_behind_ = 0;
};

}  // namespace mimo
