// Free list of the pages of one kind of layer. Holds no memory itself: a page is a number that all layers of
// that kind share.
#pragma once

#include <cstdint>
#include <vector>

#include "core/result.h"

namespace mimo {

class PagePool {
 public:
  // `name` ("full", "window") is for messages.
  PagePool(const char* name, std::int64_t pages);

  // One page, or a kLimit error when none is free.
  Result<std::int32_t> allocate();
  // Gives a page back. A page that is not in use is a bug of the caller and ends the program.
  void release(std::int32_t page);

  std::int64_t capacity() const { return static_cast<std::int64_t>(used_.size()); }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }

 private:
  const char* name_;
  std::vector<std::int32_t> free_;  // the next one to hand out is at the back
  std::vector<bool> used_;
};

}  // namespace mimo
