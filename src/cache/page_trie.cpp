#include "cache/page_trie.h"

#include <algorithm>
#include <random>

#include "core/check.h"

namespace mimo {
namespace {

// Finalizer of splitmix64.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

constexpr std::size_t kFirstBuckets = 64;

}  // namespace

// Prompts come from outside; with a seed nobody knows, nobody can make them collide.
PageTrie::PageTrie(int page_size, std::uint64_t fingerprint_mask)
    : page_size_(static_cast<std::size_t>(page_size)), mask_(fingerprint_mask) {
  MIMO_CHECK(page_size > 0, "page size {}", page_size);
  std::random_device entropy;
  seed_ = (static_cast<std::uint64_t>(entropy()) << 32) | entropy();
  buckets_.assign(kFirstBuckets, kNone);
}

std::span<std::int32_t> PageTrie::tokens(Id id) {
  return {tokens_.data() + static_cast<std::size_t>(id) * page_size_, page_size_};
}

std::span<const std::int32_t> PageTrie::tokens(Id id) const {
  return {tokens_.data() + static_cast<std::size_t>(id) * page_size_, page_size_};
}

std::uint64_t PageTrie::fingerprint_of(Id parent, std::span<const std::int32_t> page) const {
  std::uint64_t hash = node(parent).fingerprint;
  std::size_t i = 0;
  for (; i + 1 < page.size(); i += 2) {
    hash = mix(hash + ((static_cast<std::uint64_t>(static_cast<std::uint32_t>(page[i])) << 32) |
                       static_cast<std::uint32_t>(page[i + 1])));
  }
  if (i < page.size()) hash = mix(hash + static_cast<std::uint32_t>(page[i]));
  return mix(hash + seed_) & mask_;
}

PageTrie::Id PageTrie::root(std::string_view salt) const {
  const auto it = roots_.find(std::string(salt));
  return it == roots_.end() ? kNone : it->second;
}

PageTrie::Id PageTrie::add_root(std::string_view salt) {
  if (const Id known = root(salt); known != kNone) return known;
  const Id id = new_id();
  // Of its name alone, so that it is the same when the root comes back.
  std::uint64_t hash = mix(seed_ + salt.size());
  for (const char c : salt) hash = mix(hash + static_cast<unsigned char>(c));
  node(id).fingerprint = hash & mask_;
  roots_.emplace(salt, id);
  salts_.emplace(id, salt);
  return id;
}

PageTrie::Id PageTrie::child(Id parent, std::span<const std::int32_t> page) const {
  const std::uint64_t hash = fingerprint_of(parent, page);
  for (Id id = buckets_[bucket(hash)]; id != kNone; id = node(id).next) {
    if (node(id).fingerprint == hash && node(id).parent == parent && std::ranges::equal(tokens(id), page)) {
      return id;
    }
  }
  return kNone;
}

PageTrie::Id PageTrie::find(std::span<const std::int32_t> prefix, std::string_view salt) const {
  Id at = root(salt);
  for (; at != kNone && prefix.size() >= page_size_; prefix = prefix.subspan(page_size_)) {
    at = child(at, prefix.first(page_size_));
  }
  return at != kNone && !is_root(at) ? at : kNone;
}

PageTrie::Id PageTrie::add_child(Id parent, std::span<const std::int32_t> page) {
  MIMO_CHECK(page.size() == page_size_, "{} tokens in a page of {}", page.size(), page_size_);
  const Id id = new_id();
  Node& added = node(id);
  added.parent = parent;
  added.depth = is_root(parent) ? 0 : node(parent).depth + 1;
  added.fingerprint = fingerprint_of(parent, page);
  std::ranges::copy(page, tokens(id).begin());
  ++node(parent).children;
  if (++nodes_ > std::ssize(buckets_)) grow();
  Id& first = buckets_[bucket(added.fingerprint)];
  added.next = first;
  first = id;
  return id;
}

void PageTrie::remove(Id id) {
  MIMO_CHECK(alive(id) && !is_root(id) && children(id) == 0, "node {} with {} children", id, children(id));
  Id* link = &buckets_[bucket(node(id).fingerprint)];
  while (*link != id) link = &node(*link).next;
  *link = node(id).next;
  --nodes_;
  const auto unuse = [this](Id unused) {
    node(unused) = {.children = -1, .next = unused_};
    unused_ = unused;
  };
  const Id above = parent(id);
  unuse(id);
  if (--node(above).children > 0 || !is_root(above)) return;
  const auto salt = salts_.find(above);
  roots_.erase(salt->second);
  salts_.erase(salt);
  unuse(above);
}

PageTrie::Id PageTrie::new_id() {
  if (unused_ == kNone) {
    table_.emplace_back();
    tokens_.resize(table_.size() * page_size_);
    return id_end() - 1;
  }
  const Id id = unused_;
  unused_ = node(id).next;
  node(id) = {};
  return id;
}

void PageTrie::grow() {
  // Every node is listed again; the one being added is not in a bucket yet, and its caller puts it there.
  std::vector<Id> listed;
  listed.reserve(static_cast<std::size_t>(nodes_));
  for (const Id first : buckets_) {
    for (Id id = first; id != kNone; id = node(id).next) listed.push_back(id);
  }
  buckets_.assign(buckets_.size() * 2, kNone);
  for (const Id id : listed) {
    Id& first = buckets_[bucket(node(id).fingerprint)];
    node(id).next = first;
    first = id;
  }
}

}  // namespace mimo
