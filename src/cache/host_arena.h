// Host memory for KV pages of a backend whose own pages are in host memory too, filled and read by a thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "cache/page_mover.h"
#include "core/huge_buffer.h"
#include "core/result.h"

namespace mimo {

// How to reach the pages. Called from the thread of the arena, beside steps that use other pages.
struct PageAccess {
  std::size_t full_bytes = 0;  // of one page of all full layers
  std::size_t window_bytes = 0;
  std::function<void(PageKind, std::int32_t page, std::span<std::byte>)> read;
  std::function<void(PageKind, std::int32_t page, std::span<const std::byte>)> write;
};

class HostArena final : public PageMover {
 public:
  // What `access` reaches must outlive the arena. kLimit when the memory cannot be had.
  static Result<std::unique_ptr<HostArena>> make(PageAccess access, std::int64_t full_slots,
                                                 std::int64_t window_slots);
  // Ends what is under way.
  ~HostArena() override;

  void copy_out(std::uint64_t batch, std::vector<Copy> copies) override;
  void copy_in(std::uint64_t batch, std::vector<Copy> copies) override;
  std::vector<Done> poll() override;
  std::vector<Done> wait() override;
  std::size_t page_bytes(PageKind kind) const override;

 private:
  struct Batch {
    std::uint64_t id = 0;
    bool out = false;
    std::vector<Copy> copies;
  };
  // Host memory of one kind.
  struct Slots {
    HugeBuffer memory;
    std::vector<std::uint64_t> owners;
  };

  HostArena(PageAccess access, std::int64_t full_slots, std::int64_t window_slots);
  void submit(Batch batch);
  void work();
  bool run(const Batch& batch);

  PageAccess access_;
  Slots full_;  // of the thread
  Slots window_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> queue_;
  std::vector<Done> done_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace mimo
