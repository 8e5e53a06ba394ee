// Who uses the pages of one kind of layer. Holds no memory itself: a page is a number that all layers of that
// kind share.
//
// A page has users (sequences, copies under way), counted, and may be held by the prefix cache on top of that.
// It is free when nobody uses or holds it, `cached` when only the prefix cache holds it, and owned otherwise:
// free + cached + owned = capacity at any time. A page with more than one user, or held, is never written.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/result.h"

namespace mimo {

class PagePool {
 public:
  // `name` ("full", "window") is for messages.
  PagePool(const char* name, std::int64_t pages);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // One page with one user, or a kLimit error when none is free.
  Result<std::int32_t> allocate();
  // One more user of a page that is used or held.
  void share(std::int32_t page);
  // One user less. A page that has none is a bug of the caller and ends the program.
  void release(std::int32_t page);

  // The prefix cache's own reference, at most one for a page; taken while the page has a user.
  void hold(std::int32_t page);
  void drop(std::int32_t page);

  const char* name() const { return name_; }
  std::int64_t capacity() const { return static_cast<std::int64_t>(entries_.size()); }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t cached_pages() const { return cached_; }
  std::int64_t owned_pages() const { return capacity() - free_pages() - cached_; }
  // What can be had: the prefix cache gives up what only it holds.
  std::int64_t available_pages() const { return free_pages() + cached_; }

  std::int32_t users(std::int32_t page) const { return entry(page).users; }
  bool held(std::int32_t page) const { return entry(page).held; }

  // Called with every page that becomes free, before it can be handed out again: tests fill it with NaN.
  void on_free(std::function<void(std::int32_t page)> call) { on_free_ = std::move(call); }
  // Called when a held page loses its last user (cached = true) or gets one again (false). For the prefix
  // cache.
  void on_cached(std::function<void(std::int32_t page, bool cached)> call) { on_cached_ = std::move(call); }

  // Counts everything again: what a difference says is a bug. For tests and strict checking.
  Status verify() const;

 private:
  struct Entry {
    std::int32_t users = 0;
    bool held = false;
  };

  const Entry& entry(std::int32_t page) const;
  Entry& entry(std::int32_t page) { return const_cast<Entry&>(std::as_const(*this).entry(page)); }
  void free_page(std::int32_t page);

  const char* name_;
  std::vector<std::int32_t> free_;  // the next one to hand out is at the back
  std::vector<Entry> entries_;
  std::int64_t cached_ = 0;
  std::function<void(std::int32_t)> on_free_;
  std::function<void(std::int32_t, bool)> on_cached_;
};

}  // namespace mimo
