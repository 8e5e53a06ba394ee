#include "cache/page_audit.h"

namespace mimo {

PageAudit::PageAudit(const PagePool& full, const PagePool& window)
    : full_(&full),
      window_(&window),
      full_users_(static_cast<std::size_t>(full.capacity())),
      window_users_(static_cast<std::size_t>(window.capacity())) {}

void PageAudit::add(const SequencePages& pages) {
  for (const std::int32_t page : pages.full_pages()) add_full(page);
  for (const std::int32_t page : pages.window_pages()) {
    if (page >= 0) add_window(page);
  }
}

Status PageAudit::check() const {
  const auto compare = [](const PagePool& pool, const std::vector<std::int32_t>& users) -> Status {
    for (std::int32_t page = 0; page < pool.capacity(); ++page) {
      const std::int32_t expected = users[static_cast<std::size_t>(page)];
      if (pool.users(page) != expected) {
        return fail(ErrorCode::kInternal, "{} pool: page {} counts {} users, {} are known", pool.name(), page,
                    pool.users(page), expected);
      }
    }
    return pool.verify();
  };
  if (const Status ok = compare(*full_, full_users_); !ok) return ok;
  return compare(*window_, window_users_);
}

}  // namespace mimo
