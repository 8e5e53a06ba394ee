// Copies of KV pages between the pools and host memory, in the background. The host tier decides what goes
// where; an implementation knows how bytes travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mimo {

enum class PageKind : std::uint8_t { kFull, kWindow };

class PageMover {
 public:
  struct Copy {
    PageKind kind = PageKind::kFull;
    std::int32_t page = -1;  // of the pool
    std::int32_t slot = -1;  // of the host memory of this kind
    std::uint64_t owner =
        0;  // names the content: kept with the slot when it is filled, compared when it is read
  };
  struct Done {
    std::uint64_t batch = 0;
    bool ok = true;  // false: a slot did not hold what was expected, and the pages of the batch are not valid
  };

  PageMover() = default;
  PageMover(const PageMover&) = delete;
  PageMover& operator=(const PageMover&) = delete;
  virtual ~PageMover() = default;

  // Start a batch and return. Until it is reported as done the caller keeps its pages and slots out of all other
  // use but reading pages that are copied out. Batches of either kind take effect in the order they were
  // started, and after all work on the device that was submitted before: the kernels that computed a page to be
  // copied out, and those that last touched the memory that is copied into.
  virtual void copy_out(std::uint64_t batch, std::vector<Copy> copies) = 0;  // pages to slots
  virtual void copy_in(std::uint64_t batch, std::vector<Copy> copies) = 0;   // slots to pages

  // Batches that have ended since the last call; work on the device that is submitted from now on sees the
  // pages. wait() blocks until there is one; there must be a batch under way.
  virtual std::vector<Done> poll() = 0;
  virtual std::vector<Done> wait() = 0;

  virtual std::size_t page_bytes(PageKind kind) const = 0;
};

}  // namespace mimo
