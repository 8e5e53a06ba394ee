// The pages of both pools counted from their users' side: each one says what it uses, and what the pools
// believe must come out. For tests and strict checking, at a moment when all users are known.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page_pool.h"
#include "cache/sequence_pages.h"
#include "core/result.h"

namespace mimo {

class PageAudit {
 public:
  PageAudit(const PagePool& full, const PagePool& window);

  void add(const SequencePages& pages);
  void add_full(std::int32_t page) { ++full_users_[static_cast<std::size_t>(page)]; }
  void add_window(std::int32_t page) { ++window_users_[static_cast<std::size_t>(page)]; }

  // An error names the first page whose users differ: a leak, or a page that two believe to own.
  Status check() const;

 private:
  const PagePool* full_;
  const PagePool* window_;
  std::vector<std::int32_t> full_users_;
  std::vector<std::int32_t> window_users_;
};

}  // namespace mimo
