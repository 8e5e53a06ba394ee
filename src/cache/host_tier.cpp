#include "cache/host_tier.h"

#include <algorithm>

#include "core/check.h"

namespace mimo {

Result<HostTierSize> host_tier_size(std::uint64_t bytes, const PageLayout& layout,
                                    std::size_t full_page_bytes, std::size_t window_page_bytes,
                                    std::size_t attachment_bytes) {
  MIMO_CHECK(full_page_bytes > 0, "a page of no bytes");
  const std::uint64_t record =
      static_cast<std::uint64_t>(window_record_pages(layout)) * window_page_bytes + attachment_bytes;
  const std::uint64_t for_full = bytes / 4 * 3;
  const std::uint64_t for_windows = bytes - for_full;
  if (for_full < full_page_bytes || for_windows < record) {
    return fail(
        ErrorCode::kInvalidArgument,
        "host KV tier of {} bytes: expected at least {}, for one page of {} bytes in three quarters of "
        "it and one window of {} in the rest",
        bytes, std::max<std::uint64_t>((full_page_bytes * 4 + 2) / 3 + 4, record * 4), full_page_bytes,
        record);
  }
  HostTierSize size;
  size.full_slots = static_cast<std::int64_t>(for_full / full_page_bytes);
  // Every record belongs to a page.
  size.window_records = size.full_slots;
  if (record > 0)
    size.window_records =
        std::min<std::int64_t>(size.full_slots, static_cast<std::int64_t>(for_windows / record));
  return size;
}

SequencePages HostRestore::take() {
  MIMO_CHECK(state_ == State::kReady && pages_, "a restore is taken that is not ready");
  SequencePages pages = std::move(*pages_);
  pages_.reset();
  return pages;
}

HostTier::HostTier(const PageLayout& layout, PagePool& full, PagePool& window, PrefixTree& tree,
                   PageMover& mover, const Options& options)
    : layout_(layout),
      full_(&full),
      window_(&window),
      tree_(&tree),
      mover_(&mover),
      options_(options),
      trie_(layout.page_size),
      records_(static_cast<std::size_t>(options.size.window_records)) {
  for (std::int64_t i = options.size.full_slots - 1; i >= 0; --i) {
    free_slots_.push_back(static_cast<std::int32_t>(i));
  }
  for (std::int64_t i = options.size.window_records - 1; i >= 0; --i) {
    free_records_.push_back(static_cast<std::int32_t>(i));
  }
}

HostTier::~HostTier() {
  while (wait()) {
  }
}

std::uint64_t HostTier::window_owner(Id id, std::int64_t page) const {
  return trie_.fingerprint(id) + 1 + static_cast<std::uint64_t>(page);
}

void HostTier::store(std::span<const std::int32_t> tokens, std::string_view salt, const SequencePages& pages,
                     std::span<const ReusePoint> points) {
  MIMO_CHECK(std::ssize(tokens) <= pages.length(), "{} tokens of a sequence that has computed {}",
             tokens.size(), pages.length());
  Transfer transfer;
  const std::vector<Id> nodes = store_full(tokens, salt, pages, transfer);
  for (const ReusePoint& point : points) {
    const std::int64_t end = point.position / layout_.page_size;
    if (end > 0 && end <= std::ssize(nodes)) {
      store_window(nodes[static_cast<std::size_t>(end - 1)], end, pages, point, transfer);
    }
  }
  if (!nodes.empty()) pin(nodes.back(), -1);
  if (transfer.copies.empty()) return;
  for (const std::int32_t page : transfer.full_pages) full_->share(page);
  for (const std::int32_t page : transfer.window_pages) window_->share(page);
  start(std::move(transfer), true);
}

// The nodes of the prefix, as far as there are slots; the last one is pinned once more. Whoever uses a page of a
// prefix uses all before it (see PrefixTree), so the transfer does, too.
std::vector<HostTier::Id> HostTier::store_full(std::span<const std::int32_t> tokens, std::string_view salt,
                                               const SequencePages& pages, Transfer& transfer) {
  const auto page = static_cast<std::size_t>(layout_.page_size);
  const std::size_t count = tokens.size() / page;
  std::vector<Id> nodes;
  nodes.reserve(count);
  std::size_t used = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::span<const std::int32_t> key = tokens.subspan(i * page, page);
    const Id above = nodes.empty() ? trie_.root(salt) : nodes.back();
    Id id = above == PageTrie::kNone ? PageTrie::kNone : trie_.child(above, key);
    if (id == PageTrie::kNone) {
      const std::optional<std::int32_t> slot = new_slot();
      if (!slot) {
        stats_.not_stored += static_cast<std::int64_t>(count - i);
        break;
      }
      // The root may have gone with its last page, to make room.
      id = trie_.add_child(nodes.empty() ? trie_.add_root(salt) : above, key);
      if (std::ssize(entries_) < trie_.id_end()) entries_.resize(static_cast<std::size_t>(trie_.id_end()));
      entry(id) = {};
      entry(id).slot = *slot;
    }
    pin(id, +1);
    if (!nodes.empty()) pin(nodes.back(), -1);
    nodes.push_back(id);
    touch(id);
    Entry& e = entry(id);
    if (e.state != State::kBroken || e.pins > 1) continue;
    e.state = State::kStoring;
    pin(id, +1);
    transfer.nodes.push_back(id);
    transfer.copies.push_back({PageKind::kFull, pages.full_pages()[i], e.slot, trie_.fingerprint(id)});
    used = i + 1;
  }
  const std::span<const std::int32_t> prefix = pages.full_pages().first(used);
  transfer.full_pages.assign(prefix.begin(), prefix.end());
  return nodes;
}

void HostTier::store_window(Id id, std::int64_t end, const SequencePages& pages, const ReusePoint& point,
                            Transfer& transfer) {
  if (entry(id).record >= 0) {
    Record& known = record(entry(id).record);
    if (point.attachment) known.attachment = point.attachment;
    touch_record(entry(id).record);
    if (known.state != State::kBroken || known.pins > 0) return;
  }
  const std::int64_t begin = layout_.first_window_page(end * layout_.page_size);
  for (std::int64_t page = begin; page < end; ++page) {
    if (pages.window_pages()[static_cast<std::size_t>(page)] < 0) return;
  }
  if (entry(id).record < 0) {
    const std::optional<std::int32_t> index = new_record();
    if (!index) {
      ++stats_.not_stored;
      return;
    }
    record(*index) = {};
    record(*index).node = id;
    record(*index).attachment = point.attachment;
    entry(id).record = *index;
    touch_record(*index);
  }
  const std::int32_t index = entry(id).record;
  record(index).state = State::kStoring;
  pin_record(index, +1);
  pin(id, +1);
  transfer.records.push_back(index);
  const auto first_slot = static_cast<std::int32_t>(index * window_record_pages(layout_));
  for (std::int64_t page = begin; page < end; ++page) {
    const std::int32_t from = pages.window_pages()[static_cast<std::size_t>(page)];
    transfer.window_pages.push_back(from);
    transfer.copies.push_back({PageKind::kWindow, from, first_slot + static_cast<std::int32_t>(page - begin),
                               window_owner(id, page)});
  }
}

void HostTier::attach(std::span<const std::int32_t> prefix, std::string_view salt,
                      std::shared_ptr<const CacheAttachment> attachment) {
  const Id id = trie_.find(prefix, salt);
  if (id == PageTrie::kNone || entry(id).record < 0) return;
  Record& known = record(entry(id).record);
  if (!known.attachment || known.attachment->bytes() <= attachment->bytes())
    known.attachment = std::move(attachment);
}

std::int64_t HostTier::find(std::span<const std::int32_t> tokens, std::string_view salt,
                            const PrefixProbe& on_device, std::int64_t limit) const {
  Id at = trie_.root(salt);
  if (at == PageTrie::kNone) return 0;
  const auto page = static_cast<std::size_t>(layout_.page_size);
  const std::int64_t end =
      std::clamp<std::int64_t>(std::ssize(tokens) - 1, 0, std::max<std::int64_t>(0, limit));
  const auto most = static_cast<std::size_t>(end) / page;
  std::int64_t best = 0;
  for (std::size_t i = 0; i < most; ++i) {
    at = trie_.child(at, tokens.subspan(i * page, page));
    if (at == PageTrie::kNone) break;
    const auto boundary = static_cast<std::int64_t>((i + 1) * page);
    if (entry(at).state != State::kStored && boundary > on_device.full_tokens) break;
    if (entry(at).record >= 0 && record(entry(at).record).state == State::kStored) best = boundary;
  }
  return best - on_device.tokens >= std::max<std::int64_t>(1, options_.min_restore_tokens) ? best : 0;
}

Result<std::shared_ptr<HostRestore>> HostTier::restore(std::span<const std::int32_t> tokens,
                                                       std::string_view salt, std::int64_t length) {
  const auto page = static_cast<std::size_t>(layout_.page_size);
  const auto count = static_cast<std::size_t>(length) / page;
  const std::span<const std::int32_t> prefix = tokens.first(count * page);
  const auto begin = static_cast<std::size_t>(layout_.first_window_page(std::ssize(prefix)));

  // First take what is on the device: it cannot be evicted for this any more.
  PrefixPages own;
  own.full = tree_->share_full(prefix, salt);
  const std::size_t on_device = own.full.size();
  const std::vector<Id> nodes = complete_prefix(prefix, salt, on_device);
  const bool room = !nodes.empty() && tree_->make_room(static_cast<std::int64_t>(count - on_device),
                                                       static_cast<std::int64_t>(count - begin));
  if (!room) {
    for (const std::int32_t shared : own.full) full_->release(shared);
    if (nodes.empty()) {
      return fail(ErrorCode::kNotFound, "a prefix of {} tokens is not in host memory (any more)", length);
    }
    return fail(ErrorCode::kLimit,
                "KV cache: a prefix of {} tokens in host memory needs {} full and {} window pages; {} and {} "
                "can be had",
                length, count - on_device, count - begin, full_->available_pages(),
                window_->available_pages());
  }

  Transfer transfer;
  const auto load = [&](PageKind kind, std::int32_t to, std::int32_t slot, std::uint64_t owner) {
    transfer.copies.push_back({kind, to, slot, owner});
    return to;
  };
  for (std::size_t i = on_device; i < count; ++i) {
    const Id id = nodes[i];
    own.full.push_back(load(PageKind::kFull, *full_->allocate(), entry(id).slot, trie_.fingerprint(id)));
    transfer.nodes.push_back(id);
    pin(id, +1);
  }
  const Id last = nodes.back();
  const std::int32_t index = entry(last).record;
  const std::int64_t first_slot = index * window_record_pages(layout_);
  own.window.assign(count, -1);
  for (std::size_t i = begin; i < count; ++i) {
    own.window[i] = load(PageKind::kWindow, *window_->allocate(),
                         static_cast<std::int32_t>(first_slot + static_cast<std::int64_t>(i - begin)),
                         window_owner(last, static_cast<std::int64_t>(i)));
  }
  transfer.records.push_back(index);
  pin_record(index, +1);
  pin(last, +1);
  for (const Id id : nodes) touch(id);
  touch_record(index);

  auto restore = std::make_shared<HostRestore>();
  restore->tokens_ = std::ssize(prefix);
  restore->loaded_ = static_cast<std::int64_t>((count - on_device) * page);
  restore->attachment_ = record(index).attachment;
  restore->pages_.emplace(layout_, *full_, *window_, std::move(own));
  transfer.restore = restore;
  start(std::move(transfer), false);
  return restore;
}

// The nodes of a prefix whose pages from `on_device` on, and the window at its end, are complete here; empty if
// there is no such prefix.
std::vector<HostTier::Id> HostTier::complete_prefix(std::span<const std::int32_t> prefix,
                                                    std::string_view salt, std::size_t on_device) const {
  const auto page = static_cast<std::size_t>(layout_.page_size);
  std::vector<Id> nodes;
  Id at = trie_.root(salt);
  if (at == PageTrie::kNone) return {};
  for (std::size_t i = 0; (i + 1) * page <= prefix.size(); ++i) {
    at = trie_.child(at, prefix.subspan(i * page, page));
    if (at == PageTrie::kNone || (i >= on_device && entry(at).state != State::kStored)) return {};
    nodes.push_back(at);
  }
  const bool has_window =
      !nodes.empty() && entry(at).record >= 0 && record(entry(at).record).state == State::kStored;
  return has_window ? nodes : std::vector<Id>();
}

void HostTier::start(Transfer transfer, bool out) {
  const std::uint64_t batch = next_batch_++;
  std::vector<PageMover::Copy> copies = transfer.copies;
  under_way_.emplace(batch, std::move(transfer));
  if (out) {
    mover_->copy_out(batch, std::move(copies));
  } else {
    mover_->copy_in(batch, std::move(copies));
  }
}

void HostTier::end(const PageMover::Done& done) {
  const auto it = under_way_.find(done.batch);
  MIMO_CHECK(it != under_way_.end(), "copies of an unknown batch {} have ended", done.batch);
  const Transfer transfer = std::move(it->second);
  under_way_.erase(it);
  const bool out = transfer.restore == nullptr;
  for (const PageMover::Copy& copy : transfer.copies) {
    const bool full = copy.kind == PageKind::kFull;
    ++(out ? (full ? stats_.stored_full : stats_.stored_window)
           : (full ? stats_.loaded_full : stats_.loaded_window));
  }
  // Of a failed batch nothing is trusted again before it has been stored anew.
  for (const Id id : transfer.nodes) {
    if (out || !done.ok) entry(id).state = done.ok ? State::kStored : State::kBroken;
    pin(id, -1);
  }
  for (const std::int32_t index : transfer.records) {
    if (out || !done.ok) record(index).state = done.ok ? State::kStored : State::kBroken;
    pin(record(index).node, -1);
    pin_record(index, -1);
  }
  for (const std::int32_t page : transfer.full_pages) full_->release(page);
  for (const std::int32_t page : transfer.window_pages) window_->release(page);
  if (out) return;
  HostRestore& restore = *transfer.restore;
  if (done.ok) {
    restore.state_ = HostRestore::State::kReady;
    ++stats_.restores;
    stats_.restored_tokens += restore.loaded_;
  } else {
    restore.state_ = HostRestore::State::kFailed;
    restore.pages_.reset();
    ++stats_.failed_restores;
  }
}

bool HostTier::poll() {
  if (under_way_.empty()) return false;
  const std::vector<PageMover::Done> ended = mover_->poll();
  for (const PageMover::Done& done : ended) end(done);
  return !ended.empty();
}

bool HostTier::wait() {
  if (under_way_.empty()) return false;
  for (const PageMover::Done& done : mover_->wait()) end(done);
  return true;
}

void HostTier::flush() {
  while (wait()) {
  }
  while (!leaves_.empty()) remove_leaf(leaves_.begin()->second);
}

std::optional<std::int32_t> HostTier::new_slot() {
  if (free_slots_.empty()) {
    if (leaves_.empty()) return std::nullopt;
    remove_leaf(leaves_.begin()->second);
    ++stats_.evicted_full;
  }
  const std::int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

std::optional<std::int32_t> HostTier::new_record() {
  if (free_records_.empty()) {
    if (records_lru_.empty()) return std::nullopt;
    remove_record(records_lru_.begin()->second);
    ++stats_.evicted_records;
  }
  const std::int32_t index = free_records_.back();
  free_records_.pop_back();
  return index;
}

void HostTier::remove_leaf(Id id) {
  Entry& e = entry(id);
  MIMO_CHECK(e.pins == 0 && e.listed, "a page in use is removed from host memory");
  if (e.record >= 0) remove_record(e.record);
  leaves_.erase({e.use, id});
  free_slots_.push_back(e.slot);
  e = {};
  const Id above = trie_.parent(id);
  const bool below_root = trie_.is_root(above);
  trie_.remove(id);
  if (!below_root) list(above);
}

void HostTier::remove_record(std::int32_t index) {
  Record& r = record(index);
  MIMO_CHECK(r.pins == 0 && r.listed, "a window in use is removed from host memory");
  records_lru_.erase({r.use, index});
  entry(r.node).record = -1;
  r = {};
  free_records_.push_back(index);
}

void HostTier::pin(Id id, int change) {
  entry(id).pins += change;
  MIMO_CHECK(entry(id).pins >= 0, "node {} is pinned {} times", id, entry(id).pins);
  list(id);
}

void HostTier::pin_record(std::int32_t index, int change) {
  record(index).pins += change;
  MIMO_CHECK(record(index).pins >= 0, "record {} is pinned {} times", index, record(index).pins);
  list_record(index);
}

void HostTier::touch(Id id) {
  Entry& e = entry(id);
  if (e.listed) leaves_.erase({e.use, id});
  e.listed = false;
  e.use = ++clock_;
  list(id);
}

void HostTier::touch_record(std::int32_t index) {
  Record& r = record(index);
  if (r.listed) records_lru_.erase({r.use, index});
  r.listed = false;
  r.use = ++clock_;
  list_record(index);
}

void HostTier::list(Id id) {
  Entry& e = entry(id);
  const bool wanted = e.pins == 0 && trie_.children(id) == 0;
  if (wanted == e.listed) return;
  e.listed = wanted;
  if (wanted) {
    leaves_.emplace(e.use, id);
  } else {
    leaves_.erase({e.use, id});
  }
}

void HostTier::list_record(std::int32_t index) {
  Record& r = record(index);
  const bool wanted = r.pins == 0;
  if (wanted == r.listed) return;
  r.listed = wanted;
  if (wanted) {
    records_lru_.emplace(r.use, index);
  } else {
    records_lru_.erase({r.use, index});
  }
}

void HostTier::add_users(PageAudit& audit) const {
  for (const auto& [batch, transfer] : under_way_) {
    for (const std::int32_t page : transfer.full_pages) audit.add_full(page);
    for (const std::int32_t page : transfer.window_pages) audit.add_window(page);
    if (transfer.restore) audit.add(*transfer.restore->pages_);
  }
}

Status HostTier::verify() const {
  std::vector<std::int32_t> slots(static_cast<std::size_t>(options_.size.full_slots));
  std::vector<std::int32_t> records(records_.size());
  std::vector<std::int32_t> pins(entries_.size());
  std::vector<std::int32_t> record_pins(records_.size());
  for (const std::int32_t slot : free_slots_) ++slots[static_cast<std::size_t>(slot)];
  for (const std::int32_t index : free_records_) ++records[static_cast<std::size_t>(index)];
  for (const auto& [batch, transfer] : under_way_) {
    for (const Id id : transfer.nodes) ++pins[static_cast<std::size_t>(id)];
    for (const std::int32_t index : transfer.records) {
      ++record_pins[static_cast<std::size_t>(index)];
      ++pins[static_cast<std::size_t>(record(index).node)];
    }
  }
  UseOrder leaves;
  UseOrder idle_records;
  for (Id id = 0; id < trie_.id_end(); ++id) {
    if (!trie_.alive(id) || trie_.is_root(id)) continue;
    const Entry& e = entry(id);
    ++slots[static_cast<std::size_t>(e.slot)];
    if (e.pins != pins[static_cast<std::size_t>(id)]) {
      return fail(ErrorCode::kInternal, "host tier: page {} has {} pins, {} are known", id, e.pins,
                  pins[static_cast<std::size_t>(id)]);
    }
    if (e.pins == 0 && e.state == State::kStoring) {
      return fail(ErrorCode::kInternal, "host tier: page {} is being stored by nobody", id);
    }
    if (e.pins == 0 && trie_.children(id) == 0) leaves.emplace(e.use, id);
    if (e.record < 0) continue;
    ++records[static_cast<std::size_t>(e.record)];
    const Record& r = record(e.record);
    if (r.node != id || r.pins != record_pins[static_cast<std::size_t>(e.record)]) {
      return fail(ErrorCode::kInternal, "host tier: window {} of page {} is that of {}, pins {} of {}",
                  e.record, id, r.node, r.pins, record_pins[static_cast<std::size_t>(e.record)]);
    }
    if (r.pins == 0) idle_records.emplace(r.use, e.record);
  }
  const auto once = [](std::int32_t count) { return count == 1; };
  if (!std::ranges::all_of(slots, once) || !std::ranges::all_of(records, once) || leaves != leaves_ ||
      idle_records != records_lru_) {
    return fail(
        ErrorCode::kInternal,
        "host tier: a slot is free and used or lost, or {} pages and {} windows that can go are counted "
        "as {} and {}",
        leaves.size(), idle_records.size(), leaves_.size(), records_lru_.size());
  }
  return {};
}

}  // namespace mimo
