#include "cache/host_arena.h"

#include <new>
#include <utility>

namespace mimo {

Result<std::unique_ptr<HostArena>> HostArena::make(PageAccess access, std::int64_t full_slots,
                                                   std::int64_t window_slots) {
  const std::size_t bytes = static_cast<std::size_t>(full_slots) * access.full_bytes +
                            static_cast<std::size_t>(window_slots) * access.window_bytes;
  try {
    return std::unique_ptr<HostArena>(new HostArena(std::move(access), full_slots, window_slots));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kLimit, "host KV tier: {} bytes of memory cannot be had", bytes);
  }
}

HostArena::HostArena(PageAccess access, std::int64_t full_slots, std::int64_t window_slots)
    : access_(std::move(access)) {
  const auto prepare = [](Slots& slots, std::int64_t count, std::size_t bytes) {
    slots.memory = HugeBuffer(static_cast<std::size_t>(count) * bytes);
    slots.owners.assign(static_cast<std::size_t>(count), 0);
  };
  prepare(full_, full_slots, access_.full_bytes);
  prepare(window_, window_slots, access_.window_bytes);
  thread_ = std::thread([this] { work(); });
}

HostArena::~HostArena() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::size_t HostArena::page_bytes(PageKind kind) const {
  return kind == PageKind::kFull ? access_.full_bytes : access_.window_bytes;
}

void HostArena::copy_out(std::uint64_t batch, std::vector<Copy> copies) {
  submit({.id = batch, .out = true, .copies = std::move(copies)});
}

void HostArena::copy_in(std::uint64_t batch, std::vector<Copy> copies) {
  submit({.id = batch, .out = false, .copies = std::move(copies)});
}

void HostArena::submit(Batch batch) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(batch));
  }
  changed_.notify_all();
}

std::vector<PageMover::Done> HostArena::poll() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

std::vector<PageMover::Done> HostArena::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !done_.empty(); });
  return std::exchange(done_, {});
}

void HostArena::work() {
  for (;;) {
    Batch batch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      batch = std::move(queue_.front());
      queue_.pop_front();
    }
    const Done done{batch.id, run(batch)};
    {
      const std::lock_guard lock(mutex_);
      done_.push_back(done);
    }
    changed_.notify_all();
  }
}

bool HostArena::run(const Batch& batch) {
  bool ok = true;
  for (const Copy& copy : batch.copies) {
    Slots& slots = copy.kind == PageKind::kFull ? full_ : window_;
    const std::size_t bytes = page_bytes(copy.kind);
    const auto slot = static_cast<std::size_t>(copy.slot);
    const std::span memory(slots.memory.as<std::byte>() + slot * bytes, bytes);
    if (batch.out) {
      access_.read(copy.kind, copy.page, memory);
      slots.owners[slot] = copy.owner;
    } else if (slots.owners[slot] == copy.owner) {
      access_.write(copy.kind, copy.page, memory);
    } else {
      ok = false;
    }
  }
  return ok;
}

}  // namespace mimo
