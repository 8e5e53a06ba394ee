#include "cache/page_pool.h"

#include "core/check.h"

namespace mimo {

PagePool::PagePool(const char* name, std::int64_t pages)
    : name_(name), entries_(static_cast<std::size_t>(pages)) {
  free_.reserve(static_cast<std::size_t>(pages));
  for (std::int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<std::int32_t>(page));
}

const PagePool::Entry& PagePool::entry(std::int32_t page) const {
  MIMO_CHECK(page >= 0 && page < capacity(), "{} pool: no page {}", name_, page);
  return entries_[static_cast<std::size_t>(page)];
}

Result<std::int32_t> PagePool::allocate() {
  if (free_.empty()) {
    return fail(ErrorCode::kLimit, "{} KV pool: all {} pages are in use", name_, capacity());
  }
  const std::int32_t page = free_.back();
  free_.pop_back();
  entry(page).users = 1;
  return page;
}

void PagePool::share(std::int32_t page) {
  Entry& e = entry(page);
  MIMO_CHECK(e.users > 0 || e.held, "{} pool: page {} is free and cannot be shared", name_, page);
  if (e.users++ > 0) return;
  --cached_;
  if (on_cached_) on_cached_(page, false);
}

void PagePool::release(std::int32_t page) {
  Entry& e = entry(page);
  MIMO_CHECK(e.users > 0, "{} pool: page {} freed twice", name_, page);
  if (--e.users > 0) return;
  if (!e.held) {
    free_page(page);
    return;
  }
  ++cached_;
  if (on_cached_) on_cached_(page, true);
}

void PagePool::hold(std::int32_t page) {
  Entry& e = entry(page);
  MIMO_CHECK(e.users > 0 && !e.held, "{} pool: page {} cannot be held ({} users, held: {})", name_, page,
             e.users, e.held);
  e.held = true;
}

void PagePool::drop(std::int32_t page) {
  Entry& e = entry(page);
  MIMO_CHECK(e.held, "{} pool: page {} is not held", name_, page);
  e.held = false;
  if (e.users > 0) return;
  --cached_;
  free_page(page);
}

void PagePool::free_page(std::int32_t page) {
  if (on_free_) on_free_(page);
  free_.push_back(page);
}

Status PagePool::verify() const {
  std::vector<bool> listed(entries_.size(), false);
  for (const std::int32_t page : free_) {
    const Entry& e = entry(page);
    if (listed[static_cast<std::size_t>(page)] || e.users != 0 || e.held) {
      return fail(ErrorCode::kInternal, "{} pool: free page {} has {} users, held: {}, listed before: {}",
                  name_, page, e.users, e.held, bool{listed[static_cast<std::size_t>(page)]});
    }
    listed[static_cast<std::size_t>(page)] = true;
  }
  std::int64_t cached = 0;
  std::int64_t owned = 0;
  for (const Entry& e : entries_) {
    if (e.users < 0) return fail(ErrorCode::kInternal, "{} pool: a page has {} users", name_, e.users);
    if (e.users > 0) ++owned;
    if (e.users == 0 && e.held) ++cached;
  }
  if (cached != cached_ || owned != owned_pages()) {
    return fail(ErrorCode::kInternal,
                "{} pool: {} cached and {} owned pages counted, {} and {} expected of {} with {} free", name_,
                cached, owned, cached_, owned_pages(), capacity(), free_pages());
  }
  return {};
}

}  // namespace mimo
