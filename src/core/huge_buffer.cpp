#include "core/huge_buffer.h"

#include <sys/mman.h>

#include <new>

namespace mimo {
namespace {

constexpr std::size_t kHugePage = 2u << 20;

}  // namespace

HugeBuffer::HugeBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  // Over-allocate so that large buffers start on a huge-page border; the kernel gives whole pages back
  // untouched.
  const bool large = bytes >= kHugePage;
  const std::size_t mapped = large ? bytes + kHugePage : bytes;
  void* base =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  auto* start = static_cast<std::uint8_t*>(base);
  if (large) {
    const auto address = reinterpret_cast<std::uintptr_t>(start);
    const std::size_t skip = (kHugePage - address % kHugePage) % kHugePage;
    if (skip > 0) ::munmap(start, skip);
    start += skip;
    const std::size_t page = 4096;
    const std::size_t used = (bytes + page - 1) / page * page;
    const std::size_t tail = mapped - skip - used;
    if (tail > 0) ::munmap(start + used, tail);
    ::madvise(start, used, MADV_HUGEPAGE);
  }
  data_ = start;
}

HugeBuffer::~HugeBuffer() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace mimo
