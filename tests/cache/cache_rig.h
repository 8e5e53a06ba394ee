// Requests without a model: what a slot of a page holds is a hash of the prefix that ends there, so that every
// wrong, stale or foreign page is seen. Beside the prefix tree runs a naive one: a map of all prefixes, searched
// position by position.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/page_audit.h"
#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "cache/sequence_pages.h"

namespace mimo::testing {

inline std::uint64_t mix_hash(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

using Tokens = std::vector<std::int32_t>;

inline Tokens random_tokens(std::mt19937& random, int count, int vocab = 1000) {
  Tokens tokens(static_cast<std::size_t>(count));
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab));
  return tokens;
}

// Entry i: of tokens [0, i] under a salt.
inline std::vector<std::uint64_t> prefix_hashes(std::span<const std::int32_t> tokens,
                                                const std::string& salt) {
  std::uint64_t hash = 17;
  for (const char c : salt) hash = mix_hash(hash + static_cast<unsigned char>(c) + 1000);
  std::vector<std::uint64_t> hashes;
  hashes.reserve(tokens.size());
  for (const std::int32_t token : tokens) {
    hash = mix_hash(hash + static_cast<std::uint64_t>(token) + 1);
    hashes.push_back(hash | 1);  // never kPoison
  }
  return hashes;
}

// Memory of the layers of one kind.
struct FakeKv {
  static constexpr std::uint64_t kPoison = 0;
  static constexpr std::uint64_t kRejected = 2;  // even: no prefix has this hash

  FakeKv(std::int64_t pages, int slots)
      : page_size(slots), data(static_cast<std::size_t>(pages * slots), kPoison) {}
  std::span<std::uint64_t> page(std::int32_t index) {
    return std::span(data).subspan(static_cast<std::size_t>(index) * static_cast<std::size_t>(page_size),
                                   static_cast<std::size_t>(page_size));
  }
  int page_size;
  std::vector<std::uint64_t> data;
};

struct FakeRequest {
  FakeRequest(Tokens all, std::string name, SequencePages&& owned)
      : tokens(std::move(all)), salt(std::move(name)), pages(std::move(owned)) {
    hashes = prefix_hashes(tokens, salt);
  }

  std::int64_t length() const { return pages.length(); }
  std::span<const std::int32_t> computed() const {
    return std::span(tokens).first(static_cast<std::size_t>(length()));
  }

  Tokens tokens;  // all that will ever be computed
  std::string salt;
  std::vector<std::uint64_t> hashes;
  SequencePages pages;
  std::int64_t reused = 0;
  std::int64_t full_tokens = 0;
  std::shared_ptr<const CacheAttachment> attachment;
};

class CacheRig {
 public:
  CacheRig(const PageLayout& page_layout, std::int64_t full_pages, std::int64_t window_pages,
           const PrefixTree::Options& options = {})
      : layout(page_layout),
        full("full", full_pages),
        window("window", window_pages),
        full_kv(full_pages, page_layout.page_size),
        window_kv(window_pages, page_layout.page_size),
        tree(page_layout, full, window, options) {
    full.on_free([this](std::int32_t page) {
      std::ranges::fill(full_kv.page(page), FakeKv::kPoison);
      forget(known_full_, page, &Known::full);
    });
    window.on_free([this](std::int32_t page) {
      std::ranges::fill(window_kv.page(page), FakeKv::kPoison);
      forget(known_window_, page, &Known::window);
    });
  }
  ~CacheRig() {
    full.on_free({});
    window.on_free({});
  }
  CacheRig(const CacheRig&) = delete;
  CacheRig& operator=(const CacheRig&) = delete;

  // Matches as an admission does, and compares with the naive search and what the pages hold.
  std::unique_ptr<FakeRequest> open(const Tokens& tokens, const std::string& salt = "",
                                    std::int64_t limit = INT64_MAX) {
    const std::vector<std::uint64_t> hashes = prefix_hashes(tokens, salt);
    const PrefixProbe probe = tree.probe(tokens, salt, limit);
    PrefixMatch match = tree.match(tokens, salt, limit);
    EXPECT_EQ(match.pages.length(), naive_match(hashes, limit));
    EXPECT_EQ(match.full_tokens, naive_full(hashes, limit));
    EXPECT_EQ(probe.tokens, match.pages.length());
    EXPECT_EQ(probe.full_tokens, match.full_tokens);
    auto request = std::make_unique<FakeRequest>(tokens, salt, std::move(match.pages));
    request->reused = request->length();
    request->full_tokens = match.full_tokens;
    request->attachment = std::move(match.attachment);
    check(*request);
    return request;
  }

  // Computes `rows` more tokens, with rejected drafts behind them; the sequence is advanced but not trimmed.
  // False: no room, and nothing has changed.
  bool run(FakeRequest& request, std::int64_t rows, std::int64_t drafts = 0) {
    const std::int64_t begin = request.length();
    const std::int64_t full_need = request.pages.full_pages_needed(rows + drafts);
    const std::int64_t window_need = request.pages.window_pages_needed(rows + drafts);
    const std::int64_t free_before = full.free_pages();
    const bool possible = full.available_pages() >= full_need && window.available_pages() >= window_need;
    EXPECT_EQ(tree.make_room(full_need, window_need), possible);
    // As many as needed and no more.
    EXPECT_EQ(full.free_pages(), possible ? std::max(free_before, full_need) : free_before);
    if (!possible) return false;
    EXPECT_TRUE(request.pages.extend(rows + drafts));
    for (std::int64_t p = begin; p < begin + rows + drafts; ++p) {
      const std::uint64_t value =
          p < begin + rows ? request.hashes[static_cast<std::size_t>(p)] : FakeKv::kRejected;
      write(full, full_kv, request.pages.full_pages(), p, value);
      write(window, window_kv, request.pages.window_pages(), p, value);
    }
    request.pages.advance(rows);
    return true;
  }

  void insert(FakeRequest& request, std::span<const ReusePoint> points, std::int64_t tokens = -1) {
    if (tokens < 0) tokens = request.length();
    const std::vector<std::int32_t> full_before(request.pages.full_pages().begin(),
                                                request.pages.full_pages().end());
    const std::vector<std::int32_t> window_before(request.pages.window_pages().begin(),
                                                  request.pages.window_pages().end());
    learn(request, full_before, window_before, points, tokens);
    tree.insert(std::span(request.tokens).first(static_cast<std::size_t>(tokens)), request.salt,
                request.pages, points);
    check(request);
  }

  // Computes all there is in chunks, as the engine does: reuse points `marks` where the prompt has them, one at
  // the end. The first token that was not computed before is request.reused.
  std::unique_ptr<FakeRequest> prefill(const Tokens& tokens, std::int64_t chunk,
                                       std::span<const ReusePoint> marks, const std::string& salt = "") {
    std::unique_ptr<FakeRequest> request = open(tokens, salt);
    request->pages.keep_behind(prompt_end_extra(layout));
    const std::int64_t end = std::ssize(tokens);
    while (request->length() < end) {
      if (!run(*request, std::min(chunk, end - request->length()))) {
        ADD_FAILURE() << "no room";
        return request;
      }
      std::vector<ReusePoint> points(marks.begin(), marks.end());
      if (request->length() == end) points.push_back(prompt_end(end));
      insert(*request, points);
      request->pages.trim();
      check(*request);
    }
    request->pages.keep_behind(turn_end_keep(layout));
    return request;
  }

  ReusePoint prompt_end(std::int64_t position) const {
    return {
        .position = position, .rank = WindowRank::kEnd, .extra = prompt_end_extra(layout), .attachment = {}};
  }

  // Everything the next row of the request reads is what it has to be.
  void check(const FakeRequest& request) {
    const std::int64_t length = request.length();
    for (std::int64_t p = 0; p < length; ++p) {
      ASSERT_EQ(read(full_kv, request.pages.full_pages(), p), request.hashes[static_cast<std::size_t>(p)])
          << "full layer, position " << p << " of " << length;
    }
    for (std::int64_t p = std::max<std::int64_t>(0, length - (layout.window - 1)); p < length; ++p) {
      ASSERT_EQ(read(window_kv, request.pages.window_pages(), p), request.hashes[static_cast<std::size_t>(p)])
          << "window layer, position " << p << " of " << length;
    }
  }

  // All counts of all parts, from all sides.
  void check_books(std::span<const std::unique_ptr<FakeRequest>> requests) {
    const Status tree_ok = tree.verify();
    ASSERT_TRUE(tree_ok) << tree_ok.error().message;
    PageAudit audit(full, window);
    for (const auto& request : requests) audit.add(request->pages);
    if (more_users) more_users(audit);
    const Status users_ok = audit.check();
    ASSERT_TRUE(users_ok) << users_ok.error().message;
    ASSERT_EQ(tree.pages(), std::ssize(known_));
    ASSERT_EQ(full.free_pages() + full.cached_pages() + full.owned_pages(), full.capacity());
  }

  PageLayout layout;
  PagePool full;
  PagePool window;
  FakeKv full_kv;
  FakeKv window_kv;
  PrefixTree tree;
  std::function<void(PageAudit&)> more_users;  // beside the requests

 private:
  // What the naive cache has of the page that ends a prefix.
  struct Known {
    std::int32_t full = -1;
    std::int32_t window = -1;
  };
  using Pages = std::unordered_map<std::int32_t, std::uint64_t>;

  std::uint64_t key(const std::vector<std::uint64_t>& hashes, std::int64_t page) const {
    return hashes[static_cast<std::size_t>((page + 1) * layout.page_size - 1)];
  }

  std::int64_t naive_full(const std::vector<std::uint64_t>& hashes, std::int64_t limit) const {
    const std::int64_t most = std::min<std::int64_t>(limit, std::ssize(hashes) - 1) / layout.page_size;
    std::int64_t pages = 0;
    while (pages < most && known_.contains(key(hashes, pages))) ++pages;
    return pages * layout.page_size;
  }

  std::int64_t naive_match(const std::vector<std::uint64_t>& hashes, std::int64_t limit) const {
    for (std::int64_t h = naive_full(hashes, limit); h > 0; h -= layout.page_size) {
      bool valid = true;
      for (std::int64_t p = std::max<std::int64_t>(0, h - (layout.window - 1)); p < h && valid; ++p) {
        valid = known_.at(key(hashes, p / layout.page_size)).window >= 0;
      }
      if (valid) return h;
    }
    return 0;
  }

  void learn(const FakeRequest& request, const std::vector<std::int32_t>& full_pages,
             const std::vector<std::int32_t>& window_pages, std::span<const ReusePoint> points,
             std::int64_t tokens) {
    for (std::int64_t page = 0; page < tokens / layout.page_size; ++page) {
      const auto at = static_cast<std::size_t>(page);
      const std::uint64_t name = key(request.hashes, page);
      const auto [it, added] = known_.try_emplace(name);
      if (added) {
        it->second.full = full_pages[at];
        known_full_[full_pages[at]] = name;
      }
      if (it->second.window >= 0 || window_pages[at] < 0) continue;
      const bool wanted = std::ranges::any_of(points, [&](const ReusePoint& point) {
        if (point.position > tokens) return false;
        const std::int64_t end = layout.floor(point.position);
        return page * layout.page_size < end &&
               (page + 1) * layout.page_size > end - (layout.window - 1) - point.extra;
      });
      if (!wanted) continue;
      it->second.window = window_pages[at];
      known_window_[window_pages[at]] = name;
    }
  }

  void forget(Pages& pages, std::int32_t page, std::int32_t Known::*member) {
    const auto it = pages.find(page);
    if (it == pages.end()) return;
    const auto known = known_.find(it->second);
    pages.erase(it);
    if (known == known_.end()) return;  // its full page went just before
    if (member == &Known::full) {
      if (known->second.window >= 0) known_window_.erase(known->second.window);
      known_.erase(known);
    } else {
      known->second.window = -1;
    }
  }

  void write(const PagePool& pool, FakeKv& kv, std::span<const std::int32_t> pages, std::int64_t position,
             std::uint64_t value) {
    const std::int32_t page = pages[static_cast<std::size_t>(position / layout.page_size)];
    EXPECT_EQ(pool.users(page), 1) << "a shared page is written";
    EXPECT_FALSE(pool.held(page)) << "a page of the tree is written";
    kv.page(page)[static_cast<std::size_t>(position % layout.page_size)] = value;
  }

  std::uint64_t read(FakeKv& kv, std::span<const std::int32_t> pages, std::int64_t position) const {
    const std::int32_t page = pages[static_cast<std::size_t>(position / layout.page_size)];
    return page < 0 ? FakeKv::kPoison : kv.page(page)[static_cast<std::size_t>(position % layout.page_size)];
  }

  std::unordered_map<std::uint64_t, Known> known_;
  Pages known_full_;  // pages of the naive cache
  Pages known_window_;
};

}  // namespace mimo::testing
