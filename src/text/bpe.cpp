#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>

namespace mimo {
namespace {

// Up to here searching all pairs for each merge beats keeping them in order.
constexpr std::size_t kShortPiece = 64;
// Memory kept between pieces (together at most about 2 MiB), so that one huge message does not hold its own
// for the life of the process.
constexpr std::size_t kKeptPiece = 4096;
constexpr std::size_t kKeptPlaces = 64;
constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

}  // namespace

MergeTable::MergeTable(std::size_t merges) {
  constexpr std::size_t kMinSlots = 16;
  constexpr std::size_t kFilterBitsPerSlot = 16;
  // At most 3 of 5 slots used.
  slots_.resize(std::bit_ceil(std::max(merges * 5 / 3 + 1, kMinSlots)));
  const std::size_t filter_bits = slots_.size() * kFilterBitsPerSlot;
  filter_.resize(filter_bits / 64);
  slot_shift_ = 64 - std::countr_zero(slots_.size());
  filter_shift_ = 64 - std::countr_zero(filter_bits);
  results_.reserve(merges);
}

bool MergeTable::add(const BpeMerge& merge) {
  const std::uint64_t hash = hash_of(merge.left, merge.right);
  std::size_t slot = hash >> slot_shift_;
  while (slots_[slot].left != kFree) {
    if (slots_[slot].left == merge.left && slots_[slot].right == merge.right) return false;
    slot = (slot + 1) & (slots_.size() - 1);
  }
  slots_[slot] = {merge.left, merge.right, static_cast<std::int32_t>(results_.size())};
  const std::uint64_t bit = hash >> filter_shift_;
  filter_[bit >> 6] |= std::uint64_t{1} << (bit & 63);
  results_.push_back(merge.result);
  return true;
}

void Bpe::encode(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (piece.size() > BpeCache::kMaxBytes) {
    if (piece.size() <= kShortPiece) {
      merge_short(piece, out);
    } else {
      merge_long(piece, scratch, out);
    }
    return;
  }
  BpeCache::Entry& entry = scratch.cache.slot(piece);
  if (entry.length == piece.size() && std::memcmp(entry.bytes, piece.data(), piece.size()) == 0) {
    out.insert(out.end(), entry.ids, entry.ids + entry.id_count);
    return;
  }
  const std::size_t before = out.size();
  merge_short(piece, out);
  const std::size_t count = out.size() - before;
  if (count > BpeCache::kMaxIds) return;
  entry.length = static_cast<std::uint8_t>(piece.size());
  entry.id_count = static_cast<std::uint8_t>(count);
  std::memcpy(entry.bytes, piece.data(), piece.size());
  std::copy(out.end() - static_cast<std::ptrdiff_t>(count), out.end(), entry.ids);
}

void Bpe::merge_short(std::string_view piece, std::vector<TokenId>& out) const {
  TokenId ids[kShortPiece];
  std::int32_t ranks[kShortPiece];  // ranks[i] is that of ids[i] and ids[i + 1]; kNoRank for the last
  std::size_t count = piece.size();
  for (std::size_t i = 0; i < count; ++i) ids[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = merges_.rank(ids[i], ids[i + 1]);
  ranks[count - 1] = MergeTable::kNoRank;
  for (;;) {
    // Two loops, since the compiler turns the first into vector instructions.
    std::int32_t least = MergeTable::kNoRank;
    for (std::size_t i = 0; i < count; ++i) least = std::min(least, ranks[i]);
    if (least == MergeTable::kNoRank) break;
    std::size_t at = 0;
    while (ranks[at] != least) ++at;
    ids[at] = merges_.result(least);
    --count;
    std::memmove(ids + at + 1, ids + at + 2, (count - at - 1) * sizeof *ids);
    std::memmove(ranks + at, ranks + at + 1, (count - at) * sizeof *ranks);
    if (at + 1 < count) ranks[at] = merges_.rank(ids[at], ids[at + 1]);
    if (at > 0) ranks[at - 1] = merges_.rank(ids[at - 1], ids[at]);
  }
  out.insert(out.end(), ids, ids + count);
}

// Places are kept by rank and not in one heap: in a run of equal characters a few ranks have all the places,
// which come in order, so that taking one costs O(1). A heap of (rank, place) took 4 times as long for such
// runs.
void Bpe::merge_long(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols;
  symbols.resize(piece.size());
  scratch.queue_of_rank.resize(merges_.size(), 0);

  const auto note = [&](std::int32_t rank, std::size_t place) {
    std::uint32_t& index = scratch.queue_of_rank[static_cast<std::size_t>(rank)];
    if (index == 0) {
      if (scratch.free_queues.empty()) {
        scratch.queues.emplace_back();
        index = static_cast<std::uint32_t>(scratch.queues.size());
      } else {
        index = scratch.free_queues.back();
        scratch.free_queues.pop_back();
      }
      scratch.ranks.push_back(rank);
      std::push_heap(scratch.ranks.begin(), scratch.ranks.end(), std::greater<>{});
    }
    auto& [places, taken] = scratch.queues[index - 1];
    // Equal pairs come about in the same way, and so from left to right: this appends.
    auto at = places.end();
    if (taken < places.size() && places.back() > place) {
      at = std::upper_bound(places.begin() + static_cast<std::ptrdiff_t>(taken), places.end(), place);
    }
    places.insert(at, place);
  };
  const auto update_pair = [&](std::size_t place) {
    BpeScratch::Symbol& left = symbols[place];
    left.pair_rank = left.next == kNone ? MergeTable::kNoRank : merges_.rank(left.id, symbols[left.next].id);
    if (left.pair_rank != MergeTable::kNoRank) note(left.pair_rank, place);
  };

  for (std::size_t i = 0; i < piece.size(); ++i) {
    symbols[i] = {byte_ids_[static_cast<unsigned char>(piece[i])], MergeTable::kNoRank,
                  i == 0 ? kNone : i - 1, i + 1 == piece.size() ? kNone : i + 1};
  }
  for (std::size_t i = 0; i < piece.size(); ++i) update_pair(i);
  while (!scratch.ranks.empty()) {
    const std::int32_t rank = scratch.ranks.front();
    std::uint32_t& index = scratch.queue_of_rank[static_cast<std::size_t>(rank)];
    auto& [places, taken] = scratch.queues[index - 1];
    if (taken == places.size()) {
      places.clear();
      if (places.capacity() > kKeptPlaces) places = {};
      taken = 0;
      scratch.free_queues.push_back(std::exchange(index, 0));
      std::pop_heap(scratch.ranks.begin(), scratch.ranks.end(), std::greater<>{});
      scratch.ranks.pop_back();
      continue;
    }
    const std::size_t place = places[taken++];
    BpeScratch::Symbol& left = symbols[place];
    if (left.pair_rank != rank) continue;  // a merge since then took one of the two
    BpeScratch::Symbol& right = symbols[left.next];
    left.id = merges_.result(rank);
    left.next = right.next;
    right.pair_rank = MergeTable::kNoRank;
    if (left.next != kNone) symbols[left.next].previous = place;
    update_pair(place);
    if (left.previous != kNone) update_pair(left.previous);
  }
  for (std::size_t i = 0; i != kNone; i = symbols[i].next) out.push_back(symbols[i].id);

  if (piece.size() > kKeptPiece) {
    scratch.symbols = {};
    scratch.queues = {};
    scratch.free_queues = {};
    scratch.ranks = {};
  }
}

}  // namespace mimo
