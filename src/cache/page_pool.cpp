#include "cache/page_pool.h"

#include "core/check.h"

namespace mimo {

PagePool::PagePool(const char* name, std::int64_t pages)
    : name_(name), used_(static_cast<std::size_t>(pages), false) {
  free_.reserve(static_cast<std::size_t>(pages));
  for (std::int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<std::int32_t>(page));
}

Result<std::int32_t> PagePool::allocate() {
  if (free_.empty()) {
    return fail(ErrorCode::kLimit, "{} KV pool: all {} pages are in use", name_, capacity());
  }
  const std::int32_t page = free_.back();
  free_.pop_back();
  used_[static_cast<std::size_t>(page)] = true;
  return page;
}

void PagePool::release(std::int32_t page) {
  MIMO_CHECK(page >= 0 && page < capacity() && used_[static_cast<std::size_t>(page)],
             "{} pool: page {} freed twice", name_, page);
  used_[static_cast<std::size_t>(page)] = false;
  free_.push_back(page);
}

}  // namespace mimo
