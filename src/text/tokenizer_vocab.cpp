#include "text/tokenizer_vocab.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace mimo {
namespace {

constexpr std::size_t kMinIndex = 1024;

}  // namespace

std::uint64_t hash_bytes(std::string_view bytes) {
  // Multiply and fold, eight bytes at a time; the odd constants are the golden ratio and sqrt(3).
  constexpr std::uint64_t kMul = 0x9E3779B97F4A7C15ull;
  std::uint64_t hash = 0xBB67AE8584CAA73Bull ^ bytes.size();
  const char* data = bytes.data();
  std::size_t left = bytes.size();
  const auto mix = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * kMul;
    hash ^= hash >> 32;
  };
  for (; left >= 8; data += 8, left -= 8) {
    std::uint64_t word;
    std::memcpy(&word, data, 8);
    mix(word);
  }
  std::uint64_t tail = 0;
  for (std::size_t i = 0; i < left; ++i) {
    tail |= static_cast<std::uint64_t>(static_cast<unsigned char>(data[i])) << (8 * i);
  }
  mix(tail);
  return hash;
}

void TokenVocab::reserve(std::size_t ids, std::size_t bytes) {
  entries_.reserve(ids);
  arena_.reserve(bytes);
  if (index_.empty()) index_.assign(std::max(kMinIndex, std::bit_ceil(ids * 2)), -1);
}

std::size_t TokenVocab::slot_of(std::string_view wanted) const {
  std::size_t slot = hash_bytes(wanted) & (index_.size() - 1);
  while (index_[slot] >= 0 && bytes(index_[slot]) != wanted) slot = (slot + 1) & (index_.size() - 1);
  return slot;
}

void TokenVocab::grow_index() {
  const std::vector<TokenId> old = std::move(index_);
  index_.assign(std::max(kMinIndex, old.size() * 2), -1);
  for (const TokenId id : old) {
    if (id >= 0) index_[slot_of(bytes(id))] = id;
  }
}

bool TokenVocab::add(TokenId id, std::string_view token) {
  if (used_ * 2 >= index_.size()) grow_index();
  const auto position = static_cast<std::size_t>(id);
  if (position < entries_.size() && entries_[position].length != 0) return false;
  const std::size_t slot = slot_of(token);
  if (index_[slot] >= 0) return false;
  if (position >= entries_.size()) entries_.resize(position + 1);
  entries_[position] = {arena_.size(), static_cast<std::uint32_t>(token.size())};
  arena_.append(token);
  index_[slot] = id;
  ++used_;
  return true;
}

std::optional<TokenId> TokenVocab::find(std::string_view token) const {
  if (index_.empty() || token.empty()) return std::nullopt;
  const TokenId id = index_[slot_of(token)];
  if (id < 0) return std::nullopt;
  return id;
}

}  // namespace mimo
