// Prefixes in host memory: what the prefix cache has evicted can be brought back instead of computed again. Full
// pages of all that was committed and the window pages of reuse points are copied out while they are still on
// the device, so that eviction stays what it is. Its own index; one thread, copies in the background.
//
// Rules that keep a copy from ever being somebody else's (each was a real corruption somewhere):
//   * only whole committed pages are copied out, and pages under copy have the tier as a user: neither an abort
//     nor a finish nor an eviction can free them before the copy has ended;
//   * a slot being copied out or in is pinned and not given to anything else;
//   * a prefix is found only once every part of it (full pages and window pages) is complete;
//   * tokens and salt are compared token by token when it is looked up, and the slot names its content once more
//     when it is read (PageMover::Copy::owner).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/page_audit.h"
#include "cache/page_mover.h"
#include "cache/page_pool.h"
#include "cache/page_trie.h"
#include "cache/prefix_tree.h"
#include "cache/sequence_pages.h"
#include "core/result.h"

namespace mimo {

// Window pages that one reuse point needs.
constexpr std::int64_t window_record_pages(const PageLayout& layout) {
  return pages_for(layout.window - 1, layout.page_size);
}

struct HostTierSize {
  std::int64_t full_slots = 0;      // pages of all full layers
  std::int64_t window_records = 0;  // reuse points, window_record_pages() pages of all window layers each
};

// Three quarters for full pages, the rest for windows, each with an attachment of `attachment_bytes`.
// kInvalidArgument if a part of it would hold nothing.
Result<HostTierSize> host_tier_size(std::uint64_t bytes, const PageLayout& layout,
                                    std::size_t full_page_bytes, std::size_t window_page_bytes,
                                    std::size_t attachment_bytes = 0);

struct HostTierStats {
  std::int64_t stored_full = 0;  // pages, over all time
  std::int64_t stored_window = 0;
  std::int64_t loaded_full = 0;
  std::int64_t loaded_window = 0;
  std::int64_t evicted_full = 0;  // slots
  std::int64_t evicted_records = 0;
  std::int64_t not_stored = 0;       // pages and records for which no slot could be had
  std::int64_t restores = 0;         // that became ready
  std::int64_t restored_tokens = 0;  // that these loaded
  std::int64_t failed_restores = 0;  // a slot did not hold what was expected
};

// A prefix on its way back. Whoever drops it gives it up; its pages are freed when the copies have ended.
class HostRestore {
 public:
  enum class State : std::uint8_t {
    kLoading,
    kReady,
    kFailed,  // a copy was not what it should be; nothing of it is used
  };

  State state() const { return state_; }
  std::int64_t tokens() const { return tokens_; }         // of the prefix
  std::int64_t loaded_tokens() const { return loaded_; }  // of these, whose full pages come from the host
  const std::shared_ptr<const CacheAttachment>& attachment() const { return attachment_; }
  // The prefix, as a sequence that has computed it. Once, when ready; before that, for a PageAudit only.
  SequencePages take();
  const std::optional<SequencePages>& pages() const { return pages_; }

 private:
  friend class HostTier;
  State state_ = State::kLoading;
  std::int64_t tokens_ = 0;
  std::int64_t loaded_ = 0;
  std::shared_ptr<const CacheAttachment> attachment_;
  std::optional<SequencePages> pages_;
};

class HostTier {
 public:
  struct Options {
    HostTierSize size;
    // A restore that saves fewer tokens than this is not worth its latency.
    std::int64_t min_restore_tokens = 256;
  };

  // All of them must outlive the tier; the mover has `size` slots: full_slots, and window_records *
  // window_record_pages().
  HostTier(const PageLayout& layout, PagePool& full, PagePool& window, PrefixTree& tree, PageMover& mover,
           const Options& options);
  HostTier(const HostTier&) = delete;
  HostTier& operator=(const HostTier&) = delete;
  ~HostTier();  // waits for the copies

  // Starts copying out what of the whole pages of [0, tokens.size()) the tier does not have, and the windows at
  // `points` that `pages` still has (ReusePoint::extra and rank do not matter here). For the end of a prompt of n
  // tokens the point is n - 1: that serves the same prompt and longer ones. After PrefixTree::insert(), before
  // trim(). When there is no slot for a page, what is behind it is left out.
  void store(std::span<const std::int32_t> tokens, std::string_view salt, const SequencePages& pages,
             std::span<const ReusePoint> points);

  // Keeps `attachment` beside the window at the end of `prefix` (whole pages), if there is one and it has not a
  // larger one already.
  void attach(std::span<const std::int32_t> prefix, std::string_view salt,
              std::shared_ptr<const CacheAttachment> attachment);

  // The longest prefix of a prompt that can be made whole with what the tier has, given that the prefix tree can
  // reuse `on_device` of it; 0 if that is not at least min_restore_tokens more.
  std::int64_t find(std::span<const std::int32_t> tokens, std::string_view salt, const PrefixProbe& on_device,
                    std::int64_t limit = INT64_MAX) const;

  // Starts bringing back the prefix of `length` tokens that find() has just named: takes pages that the tree has
  // as they are and makes room for the others. kLimit if there is no room, kNotFound if it is gone since; nothing
  // has changed then. When ready, its user puts it into the tree like a computed one.
  Result<std::shared_ptr<HostRestore>> restore(std::span<const std::int32_t> tokens, std::string_view salt,
                                               std::int64_t length);

  // Takes notice of copies that have ended; called between steps. True if there were any.
  bool poll();
  // The same after waiting for one. False if none is under way. For a caller that needs pages which only the
  // tier uses.
  bool wait();
  // Waits for all, then forgets everything.
  void flush();

  std::int64_t full_capacity() const { return options_.size.full_slots; }
  std::int64_t window_records() const { return options_.size.window_records; }
  std::int64_t full_used() const { return options_.size.full_slots - std::ssize(free_slots_); }
  std::int64_t records_used() const { return options_.size.window_records - std::ssize(free_records_); }
  std::int64_t copies_under_way() const { return std::ssize(under_way_); }  // batches
  const HostTierStats& stats() const { return stats_; }

  // The pages that copies under way use; a restore that is ready is its owner's to add.
  void add_users(PageAudit& audit) const;
  // Walks everything and compares it with what is kept count of. For tests and strict checking.
  Status verify() const;

 private:
  using Id = PageTrie::Id;
  enum class State : std::uint8_t {
    kBroken,  // holds nothing of use; stored anew when there is an occasion
    kStoring,
    kStored,
  };
  struct Entry {  // of a node
    std::int32_t slot = -1;
    std::int32_t record = -1;
    State state = State::kBroken;
    bool listed = false;  // in leaves_
    std::int32_t pins = 0;
    std::uint64_t use = 0;
  };
  struct Record {
    Id node = PageTrie::kNone;  // at its position
    State state = State::kBroken;
    bool listed = false;  // in records_lru_
    std::int32_t pins = 0;
    std::uint64_t use = 0;
    std::shared_ptr<const CacheAttachment> attachment;
  };
  // One batch of the mover: what it pins here, and the pages it uses.
  struct Transfer {
    std::vector<PageMover::Copy> copies;
    std::vector<Id> nodes;
    std::vector<std::int32_t> records;
    std::vector<std::int32_t> full_pages;
    std::vector<std::int32_t> window_pages;
    std::shared_ptr<HostRestore> restore;  // null: a store
  };
  using UseOrder = std::set<std::pair<std::uint64_t, std::int32_t>>;

  Entry& entry(Id id) { return entries_[static_cast<std::size_t>(id)]; }
  const Entry& entry(Id id) const { return entries_[static_cast<std::size_t>(id)]; }
  Record& record(std::int32_t index) { return records_[static_cast<std::size_t>(index)]; }
  const Record& record(std::int32_t index) const { return records_[static_cast<std::size_t>(index)]; }
  std::uint64_t window_owner(Id id, std::int64_t page) const;

  std::vector<Id> store_full(std::span<const std::int32_t> tokens, std::string_view salt,
                             const SequencePages& pages, Transfer& transfer);
  void store_window(Id id, std::int64_t end, const SequencePages& pages, const ReusePoint& point,
                    Transfer& transfer);
  std::vector<Id> complete_prefix(std::span<const std::int32_t> prefix, std::string_view salt,
                                  std::size_t on_device) const;
  void start(Transfer transfer, bool out);
  void end(const PageMover::Done& done);
  std::optional<std::int32_t> new_slot();
  std::optional<std::int32_t> new_record();
  void remove_leaf(Id id);
  void remove_record(std::int32_t index);
  void pin(Id id, int change);
  void pin_record(std::int32_t index, int change);
  void touch(Id id);
  void touch_record(std::int32_t index);
  void list(Id id);  // brings leaves_ up to date
  void list_record(std::int32_t index);

  PageLayout layout_;
  PagePool* full_;
  PagePool* window_;
  PrefixTree* tree_;
  PageMover* mover_;
  Options options_;
  PageTrie trie_;
  std::vector<Entry> entries_;  // by node
  std::vector<Record> records_;
  std::vector<std::int32_t> free_slots_;
  std::vector<std::int32_t> free_records_;
  UseOrder leaves_;       // nodes without children that nothing pins
  UseOrder records_lru_;  // records that nothing pins
  std::uint64_t clock_ = 0;
  std::uint64_t next_batch_ = 1;
  std::unordered_map<std::uint64_t, Transfer> under_way_;
  HostTierStats stats_;
};

}  // namespace mimo
