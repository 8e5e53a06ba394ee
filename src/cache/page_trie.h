// Token prefixes in whole pages: a node is one page of tokens behind those of its parent, below a root for each
// salt. Holds the keys only; what belongs to a node lives with the user, in a table indexed by the node's id.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mimo {

class PageTrie {
 public:
  // Small numbers, used again after remove().
  using Id = std::int32_t;
  static constexpr Id kNone = -1;

  // `fingerprint_mask` of few bits: tests make everything collide.
  explicit PageTrie(int page_size, std::uint64_t fingerprint_mask = ~std::uint64_t{0});

  // The root of a salt, or kNone.
  Id root(std::string_view salt) const;
  Id add_root(std::string_view salt);  // existing or new

  // The child of `parent` with these tokens [page_size], or kNone. Tokens are compared, not only hashed.
  Id child(Id parent, std::span<const std::int32_t> page) const;
  // The node at the end of a prefix of whole pages, or kNone.
  Id find(std::span<const std::int32_t> prefix, std::string_view salt) const;
  Id add_child(Id parent, std::span<const std::int32_t> page);  // there is none yet

  // A node without children. A root goes with its last child.
  void remove(Id id);

  Id parent(Id id) const { return node(id).parent; }
  bool is_root(Id id) const { return node(id).parent == kNone; }
  std::int32_t children(Id id) const { return node(id).children; }
  // Pages before this one in its prefix. 0 of roots and of their children.
  std::int32_t depth(Id id) const { return node(id).depth; }
  // Says the same about two prefixes (with salts) only if they are the same, but for chance. The seed is this
  // trie's own.
  std::uint64_t fingerprint(Id id) const { return node(id).fingerprint; }

  std::int64_t nodes() const { return nodes_; }                 // without roots
  Id id_end() const { return static_cast<Id>(table_.size()); }  // ids are below it
  bool alive(Id id) const { return node(id).children >= 0; }

 private:
  struct Node {
    Id parent = kNone;
    std::int32_t children = 0;  // -1: the id is not in use
    std::int32_t depth = 0;
    Id next = kNone;  // in its bucket; of unused ids: the next unused one
    std::uint64_t fingerprint = 0;
  };

  const Node& node(Id id) const { return table_[static_cast<std::size_t>(id)]; }
  Node& node(Id id) { return table_[static_cast<std::size_t>(id)]; }
  std::span<std::int32_t> tokens(Id id);
  std::span<const std::int32_t> tokens(Id id) const;
  std::size_t bucket(std::uint64_t fingerprint) const { return fingerprint & (buckets_.size() - 1); }
  std::uint64_t fingerprint_of(Id parent, std::span<const std::int32_t> page) const;
  Id new_id();
  void grow();

  std::size_t page_size_;
  std::uint64_t mask_;
  std::uint64_t seed_;
  std::vector<Node> table_;
  std::vector<std::int32_t> tokens_;  // [table_.size(), page_size]
  std::vector<Id> buckets_;           // of children, by fingerprint; a power of two
  std::unordered_map<std::string, Id> roots_;
  std::unordered_map<Id, std::string> salts_;  // of the roots
  Id unused_ = kNone;
  std::int64_t nodes_ = 0;
};

}  // namespace mimo
