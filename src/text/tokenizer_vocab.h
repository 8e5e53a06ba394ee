// The ordinary tokens of a vocabulary: id -> bytes and bytes -> id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mimo {

using TokenId = std::int32_t;

class TokenVocab {
 public:
  // `ids` is the number of ids to reserve, `bytes` the sum of all token lengths; both are only hints.
  void reserve(std::size_t ids, std::size_t bytes);

  // False when the id or the bytes are taken already. `id` >= 0, `bytes` not empty.
  bool add(TokenId id, std::string_view bytes);

  std::optional<TokenId> find(std::string_view bytes) const;

  // Empty when there is no such token (ids may have gaps).
  std::string_view bytes(TokenId id) const {
    if (id < 0 || static_cast<std::size_t>(id) >= entries_.size()) return {};
    const Entry& entry = entries_[static_cast<std::size_t>(id)];
    return std::string_view(arena_).substr(entry.offset, entry.length);
  }

  // Highest id + 1.
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::uint64_t offset = 0;
    std::uint32_t length = 0;  // 0: no token
  };

  void grow_index();
  std::size_t slot_of(std::string_view bytes) const;

  std::string arena_;
  std::vector<Entry> entries_;  // by id
  std::vector<TokenId> index_;  // open addressing, power of two, -1 = free
  std::size_t used_ = 0;
};

// 64-bit hash of a short string, for tables that live inside one process.
std::uint64_t hash_bytes(std::string_view bytes);

}  // namespace mimo
