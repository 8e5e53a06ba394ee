// A mover whose copies happen when the test says: anything from at once to long after whoever asked has gone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "cache/cache_rig.h"
#include "cache/page_mover.h"

namespace mimo::testing {

class ManualMover final : public PageMover {
 public:
  ManualMover(FakeKv& full, FakeKv& window, std::int64_t full_slots, std::int64_t window_slots)
      : full_{&full, FakeKv(full_slots, full.page_size), {}},
        window_{&window, FakeKv(window_slots, window.page_size), {}} {
    full_.owners.resize(static_cast<std::size_t>(full_slots));
    window_.owners.resize(static_cast<std::size_t>(window_slots));
  }

  void copy_out(std::uint64_t batch, std::vector<Copy> copies) override {
    queue_.push_back({batch, true, std::move(copies)});
  }
  void copy_in(std::uint64_t batch, std::vector<Copy> copies) override {
    queue_.push_back({batch, false, std::move(copies)});
  }
  std::vector<Done> poll() override { return std::exchange(done_, {}); }
  std::vector<Done> wait() override {
    while (done_.empty()) step(1);
    return poll();
  }
  std::size_t page_bytes(PageKind kind) const override {
    return static_cast<std::size_t>(kind == PageKind::kFull ? full_.kv->page_size : window_.kv->page_size) *
           sizeof(std::uint64_t);
  }

  // Does the next `copies` single copies; a batch is done with its last one.
  void step(std::int64_t copies) {
    for (; copies > 0 && !queue_.empty(); --copies) {
      Batch& batch = queue_.front();
      if (next_ < batch.copies.size()) run(batch, batch.copies[next_++]);
      if (next_ < batch.copies.size()) continue;
      done_.push_back({batch.id, batch.ok});
      queue_.pop_front();
      next_ = 0;
    }
  }
  bool idle() const { return queue_.empty(); }

  // A slot that holds something else than it should: what nobody stored, or what another one did.
  void spoil(PageKind kind, std::size_t slot) {
    (kind == PageKind::kFull ? full_ : window_).owners[slot] ^= 1;
  }
  void exchange(PageKind kind, std::int32_t a, std::int32_t b) {
    Memory& memory = kind == PageKind::kFull ? full_ : window_;
    std::swap(memory.owners[static_cast<std::size_t>(a)], memory.owners[static_cast<std::size_t>(b)]);
    std::ranges::swap_ranges(memory.slots.page(a), memory.slots.page(b));
  }

 private:
  struct Batch {
    std::uint64_t id = 0;
    bool out = false;
    std::vector<Copy> copies;
    bool ok = true;
  };
  struct Memory {
    FakeKv* kv;
    FakeKv slots;
    std::vector<std::uint64_t> owners;
  };

  void run(Batch& batch, const Copy& copy) {
    Memory& memory = copy.kind == PageKind::kFull ? full_ : window_;
    std::uint64_t& owner = memory.owners[static_cast<std::size_t>(copy.slot)];
    if (batch.out) {
      std::ranges::copy(memory.kv->page(copy.page), memory.slots.page(copy.slot).begin());
      owner = copy.owner;
    } else if (owner == copy.owner) {
      std::ranges::copy(memory.slots.page(copy.slot), memory.kv->page(copy.page).begin());
    } else {
      batch.ok = false;
    }
  }

  Memory full_;
  Memory window_;
  std::deque<Batch> queue_;
  std::size_t next_ = 0;
  std::vector<Done> done_;
};

}  // namespace mimo::testing
