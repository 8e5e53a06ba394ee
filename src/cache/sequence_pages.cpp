#include "cache/sequence_pages.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace mimo {

SequencePages::SequencePages(const PageLayout& layout, PagePool& full, PagePool& window)
    : layout_(layout), full_(&full), window_(&window) {}

SequencePages::SequencePages(const PageLayout& layout, PagePool& full, PagePool& window, PrefixPages&& prefix)
    : layout_(layout),
      full_(&full),
      window_(&window),
      full_pages_(std::move(prefix.full)),
      window_pages_(std::move(prefix.window)) {
  MIMO_CHECK(full_pages_.size() == window_pages_.size(), "prefix of {} full and {} window pages",
             full_pages_.size(), window_pages_.size());
  length_ = std::ssize(full_pages_) * layout_.page_size;
  while (window_begin_ < window_pages_.size() && window_pages_[window_begin_] < 0) ++window_begin_;
  MIMO_CHECK(length_ == 0 || static_cast<std::int64_t>(window_begin_) <= layout_.first_window_page(length_),
             "prefix of {} tokens with window pages from {} on only", length_, window_begin_);
}

SequencePages::~SequencePages() {
  for (const std::int32_t page : full_pages_) full_->release(page);
  for (std::size_t i = window_begin_; i < window_pages_.size(); ++i) window_->release(window_pages_[i]);
}

std::int64_t SequencePages::full_pages_needed(std::int64_t tokens) const {
  return std::max<std::int64_t>(
      0, pages_for(length_ + tokens, layout_.page_size) - static_cast<std::int64_t>(full_pages_.size()));
}

std::int64_t SequencePages::window_pages_needed(std::int64_t tokens) const {
  return std::max<std::int64_t>(
      0, pages_for(length_ + tokens, layout_.page_size) - static_cast<std::int64_t>(window_pages_.size()));
}

Status SequencePages::extend(std::int64_t tokens) {
  const std::int64_t full = full_pages_needed(tokens);
  const std::int64_t window = window_pages_needed(tokens);
  if (full > full_->free_pages() || window > window_->free_pages()) {
    return fail(ErrorCode::kLimit,
                "KV cache: {} tokens more need {} full and {} window pages; {} and {} are free", tokens, full,
                window, full_->free_pages(), window_->free_pages());
  }
  // Cannot fail any more: the counts were checked and one thread owns the pools.
  for (std::int64_t i = 0; i < full; ++i) full_pages_.push_back(*full_->allocate());
  for (std::int64_t i = 0; i < window; ++i) window_pages_.push_back(*window_->allocate());
  return {};
}

void SequencePages::advance(std::int64_t tokens) {
  length_ += tokens;
  MIMO_CHECK(pages_for(length_, layout_.page_size) <= static_cast<std::int64_t>(full_pages_.size()),
             "commit of {} tokens without room", tokens);
}

void SequencePages::trim() {
  const std::int64_t first_kept = std::max<std::int64_t>(0, length_ - (layout_.window - 1) - keep_behind_);
  const auto keep = std::min(static_cast<std::size_t>(first_kept / layout_.page_size), window_pages_.size());
  const std::int64_t due =
      (static_cast<std::int64_t>(keep) - static_cast<std::int64_t>(window_begin_)) * layout_.page_size;
  if (due < layout_.eviction_interval) return;
  for (; window_begin_ < keep; ++window_begin_) {
    window_->release(window_pages_[window_begin_]);
    window_pages_[window_begin_] = -1;
  }
}

void SequencePages::replace_full(std::size_t index, std::int32_t page) {
  full_->share(page);
  full_->release(std::exchange(full_pages_[index], page));
}

void SequencePages::replace_window(std::size_t index, std::int32_t page) {
  MIMO_CHECK(index >= window_begin_, "window page {} has left the window", index);
  window_->share(page);
  window_->release(std::exchange(window_pages_[index], page));
}

}  // namespace mimo
