#include "cache/prefix_tree.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/check.h"

namespace mimo {

PrefixTree::PrefixTree(const PageLayout& layout, PagePool& full, PagePool& window, const Options& options)
    : layout_(layout),
      full_(&full),
      window_(&window),
      options_(options),
      trie_(layout.page_size),
      full_owner_(static_cast<std::size_t>(full.capacity()), PageTrie::kNone),
      window_owner_(static_cast<std::size_t>(window.capacity()), PageTrie::kNone) {
  full.on_cached([this](std::int32_t page, bool cached) { full_cached(page, cached); });
  window.on_cached([this](std::int32_t page, bool cached) { window_cached(page, cached); });
}

PrefixTree::PrefixTree(const PageLayout& layout, PagePool& full, PagePool& window)
    : PrefixTree(layout, full, window, Options()) {}

PrefixTree::~PrefixTree() {
  full_->on_cached({});
  window_->on_cached({});
  for (Id id = 0; id < trie_.id_end(); ++id) {
    if (!trie_.alive(id) || trie_.is_root(id)) continue;
    full_->drop(entry(id).full);
    if (entry(id).window >= 0) window_->drop(entry(id).window);
  }
}

PrefixTree::Walk PrefixTree::walk(std::span<const std::int32_t> tokens, std::string_view salt,
                                  std::int64_t limit) const {
  Walk found;
  Id at = trie_.root(salt);
  if (at == PageTrie::kNone) return found;
  const auto page = static_cast<std::size_t>(layout_.page_size);
  const std::int64_t end =
      std::clamp<std::int64_t>(std::ssize(tokens) - 1, 0, std::max<std::int64_t>(0, limit));
  const auto most = static_cast<std::size_t>(end) / page;
  std::size_t windows_from = 0;  // pages [windows_from, here] have window pages
  for (std::size_t i = 0; i < most; ++i) {
    at = trie_.child(at, tokens.subspan(i * page, page));
    if (at == PageTrie::kNone) break;
    found.nodes.push_back(at);
    if (entry(at).window < 0) windows_from = i + 1;
    const auto boundary = static_cast<std::int64_t>((i + 1) * page);
    if (windows_from <= static_cast<std::size_t>(layout_.first_window_page(boundary))) found.reusable = i + 1;
  }
  return found;
}

PrefixMatch PrefixTree::match(std::span<const std::int32_t> tokens, std::string_view salt,
                              std::int64_t limit) {
  const Walk found = walk(tokens, salt, limit);
  const auto length = static_cast<std::int64_t>(found.reusable) * layout_.page_size;
  PrefixPages pages;
  pages.full.reserve(found.reusable);
  pages.window.assign(found.reusable, -1);
  for (std::size_t i = 0; i < found.reusable; ++i) {
    pages.full.push_back(entry(found.nodes[i]).full);
    full_->share(pages.full.back());
  }
  std::shared_ptr<const CacheAttachment> attachment;
  if (found.reusable > 0) {
    const Id last = found.nodes[found.reusable - 1];
    const bool parted = trie_.children(last) > 0;  // somebody went on from here, and now somebody else does
    for (auto i = static_cast<std::size_t>(layout_.first_window_page(length)); i < found.reusable; ++i) {
      Entry& e = entry(found.nodes[i]);
      pages.window[i] = e.window;
      window_->share(e.window);
      if (parted) e.rank = WindowRank::kBranch;
    }
    attachment = entry(last).attachment;
    if (attachment) set_attachment(last, attachment);
  }
  return {.pages = SequencePages(layout_, *full_, *window_, std::move(pages)),
          .full_tokens = std::ssize(found.nodes) * layout_.page_size,
          .attachment = std::move(attachment)};
}

PrefixProbe PrefixTree::probe(std::span<const std::int32_t> tokens, std::string_view salt,
                              std::int64_t limit) const {
  const Walk found = walk(tokens, salt, limit);
  return {.tokens = static_cast<std::int64_t>(found.reusable) * layout_.page_size,
          .full_tokens = std::ssize(found.nodes) * layout_.page_size};
}

std::vector<std::int32_t> PrefixTree::share_full(std::span<const std::int32_t> prefix,
                                                 std::string_view salt) {
  const auto page = static_cast<std::size_t>(layout_.page_size);
  std::vector<std::int32_t> pages;
  Id at = trie_.root(salt);
  for (std::size_t i = 0; at != PageTrie::kNone && (i + 1) * page <= prefix.size(); ++i) {
    at = trie_.child(at, prefix.subspan(i * page, page));
    if (at == PageTrie::kNone) break;
    pages.push_back(entry(at).full);
    full_->share(pages.back());
  }
  return pages;
}

void PrefixTree::insert(std::span<const std::int32_t> tokens, std::string_view salt, SequencePages& pages,
                        std::span<const ReusePoint> points) {
  MIMO_CHECK(std::ssize(tokens) <= pages.length(), "{} tokens of a sequence that has computed {}",
             tokens.size(), pages.length());
  const auto page = static_cast<std::size_t>(layout_.page_size);
  const std::size_t count = tokens.size() / page;
  if (count == 0) return;

  std::vector<std::optional<WindowRank>> wanted(count);  // of window pages
  const auto pages_before = [&](const ReusePoint& point) {
    return point.position <= std::ssize(tokens) ? static_cast<std::size_t>(point.position) / page : 0;
  };
  for (const ReusePoint& point : points) {
    const std::size_t end = pages_before(point);
    const auto boundary = static_cast<std::int64_t>(end * page);
    const std::int64_t oldest = boundary - std::max<std::int64_t>(0, point.extra);
    for (auto i = static_cast<std::size_t>(layout_.first_window_page(oldest)); i < end; ++i) {
      wanted[i] = std::max(wanted[i].value_or(point.rank), point.rank);
    }
  }

  std::vector<Id> nodes;
  nodes.reserve(count);
  Id at = trie_.add_root(salt);
  for (std::size_t i = 0; i < count; ++i) {
    const std::span<const std::int32_t> key = tokens.subspan(i * page, page);
    const std::int32_t own = pages.full_pages()[i];
    if (const Id known = trie_.child(at, key); known != PageTrie::kNone) {
      at = known;
      if (entry(at).full != own) pages.replace_full(i, entry(at).full);
    } else {
      at = add_node(at, key, own);
    }
    nodes.push_back(at);
    take_window(at, i, wanted[i], pages);
  }
  for (const ReusePoint& point : points) {
    const std::size_t end = pages_before(point);
    if (!point.attachment || end == 0 || entry(nodes[end - 1]).window < 0) continue;
    set_attachment(nodes[end - 1], point.attachment);
  }
}

PrefixTree::Id PrefixTree::add_node(Id parent, std::span<const std::int32_t> page, std::int32_t full) {
  const Id id = trie_.add_child(parent, page);
  if (std::ssize(entries_) < trie_.id_end()) entries_.resize(static_cast<std::size_t>(trie_.id_end()));
  full_->hold(full);
  entry(id) = {};
  entry(id).full = full;
  full_owner_[static_cast<std::size_t>(full)] = id;
  ++stats_.inserted_full;
  return id;
}

// Brings the window page of a node and that of the sequence together.
void PrefixTree::take_window(Id id, std::size_t index, std::optional<WindowRank> wanted,
                             SequencePages& pages) {
  const std::int32_t own = pages.window_pages()[index];
  if (own < 0) return;
  Entry& e = entry(id);
  if (e.window < 0) {
    if (!wanted) return;
    window_->hold(own);
    e.window = own;
    e.rank = *wanted;
    window_owner_[static_cast<std::size_t>(own)] = id;
    ++window_count_;
    ++stats_.inserted_window;
    return;
  }
  if (own != e.window) pages.replace_window(index, e.window);
  // The page has a user here, so it is not in the order of eviction that depends on the rank.
  if (wanted) e.rank = std::max(e.rank, *wanted);
}

void PrefixTree::attach(std::span<const std::int32_t> prefix, std::string_view salt,
                        std::shared_ptr<const CacheAttachment> attachment) {
  const Id id = trie_.find(prefix, salt);
  if (id == PageTrie::kNone || entry(id).window < 0) return;
  const CacheAttachment* known = entry(id).attachment.get();
  if (known == nullptr || known->bytes() <= attachment->bytes()) set_attachment(id, std::move(attachment));
}

void PrefixTree::set_attachment(Id id, std::shared_ptr<const CacheAttachment> attachment) {
  detach(id);
  attachment_bytes_ += attachment->bytes();
  entry(id).attachment = std::move(attachment);
  entry(id).attachment_use = ++attachment_clock_;
  attachments_.emplace(entry(id).attachment_use, id);
  while (attachment_bytes_ > options_.attachment_bytes) {
    detach(attachments_.begin()->second);
    ++stats_.evicted_attachments;
  }
}

void PrefixTree::detach(Id id) {
  Entry& e = entry(id);
  if (!e.attachment) return;
  attachments_.erase({e.attachment_use, id});
  attachment_bytes_ -= e.attachment->bytes();
  e.attachment.reset();
}

bool PrefixTree::make_room(std::int64_t full_pages, std::int64_t window_pages) {
  if (full_->available_pages() < full_pages || window_->available_pages() < window_pages) return false;
  while (full_->free_pages() < full_pages) {
    MIMO_CHECK(!leaves_.empty(), "{} cached full pages, none of a leaf", full_->cached_pages());
    remove_leaf(leaves_.begin()->second);
  }
  while (window_->free_pages() < window_pages) {
    MIMO_CHECK(!windows_.empty(), "{} cached window pages, none known", window_->cached_pages());
    drop_window(windows_.begin()->second);
  }
  return true;
}

// Without the window page at its end a position is no reuse point, and nothing is left to attach to.
void PrefixTree::drop_window(Id id) {
  Entry& e = entry(id);
  if (window_->users(e.window) == 0) windows_.erase({e.window_use, id});
  window_owner_[static_cast<std::size_t>(e.window)] = PageTrie::kNone;
  window_->drop(std::exchange(e.window, -1));
  --window_count_;
  ++stats_.evicted_window;
  detach(id);
}

void PrefixTree::remove_leaf(Id id) {
  if (entry(id).window >= 0) drop_window(id);
  detach(id);
  leaves_.erase({entry(id).full_use, id});
  full_owner_[static_cast<std::size_t>(entry(id).full)] = PageTrie::kNone;
  full_->drop(entry(id).full);
  ++stats_.evicted_full;
  const Id above = trie_.parent(id);
  const bool last_below_root = trie_.is_root(above);
  trie_.remove(id);
  if (last_below_root || trie_.children(above) > 0 || full_->users(entry(above).full) > 0) return;
  leaves_.emplace(entry(above).full_use, above);
}

void PrefixTree::flush() {
  while (!leaves_.empty()) remove_leaf(leaves_.begin()->second);
  while (!windows_.empty()) drop_window(windows_.begin()->second);
}

void PrefixTree::full_cached(std::int32_t page, bool cached) {
  const Id id = full_owner_[static_cast<std::size_t>(page)];
  Entry& e = entry(id);
  if (trie_.children(id) == 0 && !cached) leaves_.erase({e.full_use, id});
  if (!cached) return;
  e.full_use = ++full_clock_;
  if (trie_.children(id) == 0) leaves_.emplace(e.full_use, id);
}

void PrefixTree::window_cached(std::int32_t page, bool cached) {
  const Id id = window_owner_[static_cast<std::size_t>(page)];
  Entry& e = entry(id);
  if (!cached) {
    windows_.erase({e.window_use, id});
    return;
  }
  e.window_use = ++window_clock_ + bonus(e.rank);
  windows_.emplace(e.window_use, id);
}

std::uint64_t PrefixTree::bonus(WindowRank rank) const {
  return static_cast<std::uint64_t>(rank) * static_cast<std::uint64_t>(window_->capacity()) / 4;
}

void PrefixTree::count_query(std::int64_t prompt_tokens, std::int64_t cached_tokens) {
  ++stats_.queries;
  stats_.query_tokens += prompt_tokens;
  stats_.hit_tokens += cached_tokens;
}

Status PrefixTree::verify() const {
  if (const Status ok = full_->verify(); !ok) return ok;
  if (const Status ok = window_->verify(); !ok) return ok;
  std::int64_t nodes = 0;
  std::int64_t windows = 0;
  std::uint64_t attachment_bytes = 0;
  UseOrder leaves;
  UseOrder cached_windows;
  UseOrder attachments;
  for (Id id = 0; id < trie_.id_end(); ++id) {
    if (!trie_.alive(id) || trie_.is_root(id)) continue;
    ++nodes;
    const Entry& e = entry(id);
    if (!full_->held(e.full) || full_owner_[static_cast<std::size_t>(e.full)] != id) {
      return fail(ErrorCode::kInternal, "node {}: full page {} is held: {}, by node {}", id, e.full,
                  full_->held(e.full), full_owner_[static_cast<std::size_t>(e.full)]);
    }
    const Id above = trie_.parent(id);
    if (!trie_.is_root(above) && full_->users(entry(above).full) < full_->users(e.full)) {
      return fail(ErrorCode::kInternal, "node {}: full page {} has {} users, the one before it only {}", id,
                  e.full, full_->users(e.full), full_->users(entry(above).full));
    }
    if (trie_.children(id) == 0 && full_->users(e.full) == 0) leaves.emplace(e.full_use, id);
    if (e.attachment) {
      attachment_bytes += e.attachment->bytes();
      attachments.emplace(e.attachment_use, id);
    }
    if (e.window < 0) {
      if (e.attachment) return fail(ErrorCode::kInternal, "node {}: attachment without a window page", id);
      continue;
    }
    ++windows;
    if (!window_->held(e.window) || window_owner_[static_cast<std::size_t>(e.window)] != id) {
      return fail(ErrorCode::kInternal, "node {}: window page {} is held: {}, by node {}", id, e.window,
                  window_->held(e.window), window_owner_[static_cast<std::size_t>(e.window)]);
    }
    if (window_->users(e.window) == 0) cached_windows.emplace(e.window_use, id);
  }
  if (nodes != trie_.nodes() || windows != window_count_ || attachment_bytes != attachment_bytes_ ||
      leaves != leaves_ || cached_windows != windows_ || attachments != attachments_) {
    return fail(ErrorCode::kInternal,
                "prefix tree: counted {} pages, {} window pages, {} attached bytes, {} free leaves, {} free "
                "windows; expected {}, {}, {}, {}, {}",
                nodes, windows, attachment_bytes, leaves.size(), cached_windows.size(), trie_.nodes(),
                window_count_, attachment_bytes_, leaves_.size(), windows_.size());
  }
  const auto held = [](const PagePool& pool) {
    std::int64_t count = 0;
    for (std::int32_t page = 0; page < pool.capacity(); ++page) count += pool.held(page) ? 1 : 0;
    return count;
  };
  if (held(*full_) != nodes || held(*window_) != windows) {
    return fail(ErrorCode::kInternal, "prefix tree: {} full and {} window pages, but {} and {} are held",
                nodes, windows, held(*full_), held(*window_));
  }
  return {};
}

}  // namespace mimo
