// Finds the longest part of a prompt whose keys and values are still there, and keeps what finished requests
// leave behind for that. Pure bookkeeping over the two pools; one thread.
//
// A prefix of h tokens (whole pages, h < length of the prompt) can be continued if there are full pages for
// [0, h) and window pages for [h - (window - 1), h). Full pages of all that is inserted are kept while there is
// room; window pages cost some nine times more a token and are kept only near reuse points: positions the
// caller names (end of a prompt, of a turn, of a message). So every page of the tree has a full page, and some
// of them a window page.
//
// No locks: a page that a request uses has that request as its user (see PagePool), and only pages without
// users are evicted. A request that uses a page of a prefix uses all full pages before it, since match() and
// insert() see to that; thus the evictable pages are exactly PagePool::cached_pages(), of either pool.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/page_pool.h"
#include "cache/page_trie.h"
#include "cache/sequence_pages.h"
#include "core/result.h"

namespace mimo {

// What somebody keeps beside a reuse point (the tail of a drafter's context). The cache knows its size only.
class CacheAttachment {
 public:
  CacheAttachment() = default;
  CacheAttachment(const CacheAttachment&) = delete;
  CacheAttachment& operator=(const CacheAttachment&) = delete;
  virtual ~CacheAttachment() = default;
  virtual std::size_t bytes() const = 0;
};

// Why window pages are kept, the least valuable first. Pages of a higher rank count as used later than they
// were, by (rank * 1/4 of the window pool) pages cached in between; among equals the least recently used goes
// first.
enum class WindowRank : std::uint8_t {
  kPassing,  // end of a chunk, one of every so many tokens
  kMark,     // begin of a message
  kEnd,      // end of a prompt or of a turn
  kBranch,   // prompts have been seen to part here
};

struct ReusePoint {
  std::int64_t position = 0;  // the last page boundary at or before it can be continued
  WindowRank rank = WindowRank::kPassing;
  // Keeps the window pages of this many more tokens, which makes every page boundary in [position - extra,
  // position] a reuse point. Where the very same prompt may come again it must be a page at least, since its
  // last token is always computed again.
  std::int64_t extra = 0;
  std::shared_ptr<const CacheAttachment> attachment;  // of the boundary itself; null: none
};

// Enough `extra` for the end of a prompt whose last `window` tokens may be changed: those and at most a page
// are then computed again.
constexpr std::int64_t prompt_end_extra(const PageLayout& layout) { return layout.window + layout.page_size; }

struct PrefixMatch {
  // The reusable prefix, as a sequence that has computed it; length() is 0 when nothing is reusable.
  SequencePages pages;
  // Tokens of the prompt that have full pages; at least pages.length(). Where it is more, windows are missing
  // there: other prompts went this way, and a reuse point of rank kBranch here will serve the next one.
  std::int64_t full_tokens = 0;
  std::shared_ptr<const CacheAttachment> attachment;  // of pages.length(), or null
};

struct PrefixProbe {
  std::int64_t tokens = 0;       // reusable
  std::int64_t full_tokens = 0;  // that have full pages
};

struct PrefixCacheStats {
  std::int64_t queries = 0;
  std::int64_t query_tokens = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t inserted_full = 0;  // pages, over all time
  std::int64_t inserted_window = 0;
  std::int64_t evicted_full = 0;
  std::int64_t evicted_window = 0;
  std::int64_t evicted_attachments = 0;
};

class PrefixTree {
 public:
  struct Options {
    std::uint64_t attachment_bytes = ~0ull;  // of all attachments; beyond it the least recently used go
  };

  // The pools must outlive the tree, and have no other one.
  PrefixTree(const PageLayout& layout, PagePool& full, PagePool& window, const Options& options);
  PrefixTree(const PageLayout& layout, PagePool& full, PagePool& window);
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  ~PrefixTree();

  // The longest reusable prefix of a prompt, at most `limit` tokens and never the last token. Its pages are
  // the match's from here on: nothing is evicted below a caller that first matches and then makes room.
  PrefixMatch match(std::span<const std::int32_t> tokens, std::string_view salt,
                    std::int64_t limit = INT64_MAX);
  // The same without taking anything.
  PrefixProbe probe(std::span<const std::int32_t> tokens, std::string_view salt,
                    std::int64_t limit = INT64_MAX) const;

  // The full pages of a prefix of whole pages, as far as there are, with the caller as a user of each. For the
  // host tier, which knows where to get the rest.
  std::vector<std::int32_t> share_full(std::span<const std::int32_t> prefix, std::string_view salt);

  // Takes in the whole pages of [0, tokens.size()), which `pages` has computed: tokens.size() <=
  // pages.length(), so that drafts and what follows a stop are never keys. Where a page is known already the
  // tree's stays, and `pages` is repointed to it and frees its own: no step may be under way that uses the old
  // table. Window pages are taken in near the points, from what `pages` still has; points beyond are ignored.
  void insert(std::span<const std::int32_t> tokens, std::string_view salt, SequencePages& pages,
              std::span<const ReusePoint> points);

  // Keeps `attachment` beside the end of `prefix` (whole pages), if that is a reuse point and has not a larger one
  // already.
  void attach(std::span<const std::int32_t> prefix, std::string_view salt,
              std::shared_ptr<const CacheAttachment> attachment);

  // Evicts until so many pages of each pool are free, or says no and evicts nothing if users leave too few.
  bool make_room(std::int64_t full_pages, std::int64_t window_pages);

  // Evicts everything that nobody uses: all there is when no request runs. (To forget pages in use would be of
  // no use, and a request would then hold the middle of a prefix whose begin is another page.)
  void flush();

  // For the statistics: a prompt has been admitted with so many tokens not computed again. (match() may be
  // called many times for a prompt that waits.)
  void count_query(std::int64_t prompt_tokens, std::int64_t cached_tokens);

  std::int64_t pages() const { return trie_.nodes(); }
  std::int64_t window_pages() const { return window_count_; }
  std::uint64_t attachment_bytes() const { return attachment_bytes_; }
  const PrefixCacheStats& stats() const { return stats_; }

  // Walks everything and compares it with the counters and with the pools'. For tests and strict checking; the
  // users' side is PageAudit's.
  Status verify() const;

 private:
  using Id = PageTrie::Id;
  // Of a node.
  struct Entry {
    std::int32_t full = -1;
    std::int32_t window = -1;
    WindowRank rank = WindowRank::kPassing;
    std::uint64_t full_use = 0;    // clock when the full page was last used
    std::uint64_t window_use = 0;  // the same for the window page, with the bonus of its rank
    std::uint64_t attachment_use = 0;
    std::shared_ptr<const CacheAttachment> attachment;
  };
  using UseOrder = std::set<std::pair<std::uint64_t, Id>>;  // least recently used first

  // The nodes of a prompt from the first page on, and how many of them can be continued.
  struct Walk {
    std::vector<Id> nodes;
    std::size_t reusable = 0;
  };

  Entry& entry(Id id) { return entries_[static_cast<std::size_t>(id)]; }
  const Entry& entry(Id id) const { return entries_[static_cast<std::size_t>(id)]; }
  Walk walk(std::span<const std::int32_t> tokens, std::string_view salt, std::int64_t limit) const;
  Id add_node(Id parent, std::span<const std::int32_t> page, std::int32_t full);
  void take_window(Id id, std::size_t index, std::optional<WindowRank> wanted, SequencePages& pages);
  void set_attachment(Id id, std::shared_ptr<const CacheAttachment> attachment);
  void detach(Id id);
  void drop_window(Id id);
  void remove_leaf(Id id);
  void full_cached(std::int32_t page, bool cached);
  void window_cached(std::int32_t page, bool cached);
  std::uint64_t bonus(WindowRank rank) const;

  PageLayout layout_;
  PagePool* full_;
  PagePool* window_;
  Options options_;
  PageTrie trie_;
  std::vector<Entry> entries_;    // by node
  std::vector<Id> full_owner_;    // node of a held full page
  std::vector<Id> window_owner_;  // node of a held window page
  UseOrder leaves_;               // nodes without children whose full page has no user
  UseOrder windows_;              // nodes whose window page has no user
  UseOrder attachments_;
  std::uint64_t full_clock_ = 0;
  std::uint64_t window_clock_ = 0;  // window pages that lost their last user, ever
  std::uint64_t attachment_clock_ = 0;
  std::uint64_t attachment_bytes_ = 0;
  std::int64_t window_count_ = 0;
  PrefixCacheStats stats_;
};

}  // namespace mimo
