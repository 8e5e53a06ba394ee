// Byte-level byte-pair encoding of one pre-tokenised piece: start from single bytes, then apply the merge of
// lowest rank, leftmost first, until none applies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer_vocab.h"

namespace mimo {

struct BpeMerge {
  TokenId left;
  TokenId right;
  TokenId result;
};

// (left, right) -> rank, rank -> result. Most questions are about pairs that never merge; a bitmap that fits
// in the second-level cache answers nearly all of those (Qwen vocabulary: 0.5 MiB, 4 % false alarms; the
// table has 3 MiB).
class MergeTable {
 public:
  static constexpr std::int32_t kNoRank = std::numeric_limits<std::int32_t>::max();

  // Room for `merges` calls of add.
  explicit MergeTable(std::size_t merges);

  // Gives the pair the next rank (0, 1, ...). False, and nothing added, when the pair has a rank already.
  bool add(const BpeMerge& merge);

  std::int32_t rank(TokenId left, TokenId right) const {
    const std::uint64_t hash = hash_of(left, right);
    const std::uint64_t bit = hash >> filter_shift_;
    if ((filter_[bit >> 6] >> (bit & 63) & 1) == 0) return kNoRank;
    for (std::size_t slot = hash >> slot_shift_;; slot = (slot + 1) & (slots_.size() - 1)) {
      const Slot& s = slots_[slot];
      if (s.left == left && s.right == right) return s.rank;
      if (s.left == kFree) return kNoRank;
    }
  }

  TokenId result(std::int32_t rank) const { return results_[static_cast<std::size_t>(rank)]; }

  // Number of ranks.
  std::size_t size() const { return results_.size(); }

 private:
  static constexpr TokenId kFree = -1;

  struct Slot {
    TokenId left = kFree;
    TokenId right = 0;
    std::int32_t rank = 0;
  };

  // The upper bits are the good ones.
  static std::uint64_t hash_of(TokenId left, TokenId right) {
    const auto pair = static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
                      static_cast<std::uint32_t>(right);
    return (pair ^ pair >> 29) * 0x9E3779B97F4A7C15ull;
  }

  std::vector<Slot> slots_;  // open addressing, power of two
  std::vector<std::uint64_t> filter_;
  std::vector<TokenId> results_;  // by rank
  int slot_shift_;
  int filter_shift_;
};

// Remembers the ids of short pieces. Direct-mapped: bounded, and a new piece simply replaces an old one.
class BpeCache {
 public:
  static constexpr std::size_t kMaxBytes = 30;
  static constexpr std::size_t kMaxIds = 8;

  struct Entry {
    std::uint8_t length = 0;  // 0: free
    std::uint8_t id_count = 0;
    char bytes[kMaxBytes];
    TokenId ids[kMaxIds];
  };
  static_assert(sizeof(Entry) == 64, "one cache line");

  BpeCache() : entries_(kEntries) {}

  // Where the piece is or would be: compare the bytes.
  Entry& slot(std::string_view piece) { return entries_[hash_bytes(piece) & (kEntries - 1)]; }

 private:
  static constexpr std::size_t kEntries = 1u
                                          << 15;  // 2 MiB: covers running text, fits in a second-level cache

  std::vector<Entry> entries_;
};

// Memory that encode() reuses between pieces. One for each thread that encodes at a time.
struct BpeScratch {
  struct Symbol {
    TokenId id;
    std::int32_t
        pair_rank;  // of this symbol and the next; kNoRank at the end or once merged into the left neighbour
    std::size_t previous;
    std::size_t next;
  };
  // Places where the pair of one rank was seen, ascending; those up to `taken` are done with. Some are out of
  // date when taken.
  struct Queue {
    std::vector<std::size_t> places;
    std::size_t taken = 0;
  };

  BpeCache cache;
  std::vector<Symbol> symbols;
  std::vector<std::uint32_t> queue_of_rank;  // index in `queues` + 1; 0: none
  std::vector<Queue> queues;
  std::vector<std::uint32_t> free_queues;
  std::vector<std::int32_t> ranks;  // a heap of the ranks that have a queue, least on top
};

class Bpe {
 public:
  Bpe(const std::array<TokenId, 256>& byte_ids, MergeTable merges)
      : byte_ids_(byte_ids), merges_(std::move(merges)) {}

  // Appends the ids of `piece`. O(n log n) in its length.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const;

 private:
  void merge_short(std::string_view piece, std::vector<TokenId>& out) const;
  void merge_long(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const;

  std::array<TokenId, 256> byte_ids_;
  MergeTable merges_;
};

}  // namespace mimo
