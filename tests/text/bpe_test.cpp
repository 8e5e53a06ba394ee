#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

namespace mimo {
namespace {

// Bytes are their own ids; merges over a few letters, made at random.
struct Model {
  std::array<TokenId, 256> byte_ids;
  std::vector<BpeMerge> merges;
};

Model random_model(std::mt19937& random, int letters, std::size_t merges) {
  Model model;
  for (int i = 0; i < 256; ++i) model.byte_ids[static_cast<std::size_t>(i)] = i;
  std::vector<std::string> tokens(256);
  std::vector<TokenId> usable;
  std::map<std::string, TokenId> by_text;
  for (int i = 0; i < 256; ++i) tokens[static_cast<std::size_t>(i)] = std::string(1, static_cast<char>(i));
  for (int i = 0; i < letters; ++i) usable.push_back('a' + i);
  std::map<std::pair<TokenId, TokenId>, bool> seen;
  while (model.merges.size() < merges) {
    const TokenId left = usable[random() % usable.size()];
    const TokenId right = usable[random() % usable.size()];
    if (std::exchange(seen[{left, right}], true)) continue;
    const std::string text = tokens[static_cast<std::size_t>(left)] + tokens[static_cast<std::size_t>(right)];
    const auto [found, added] = by_text.emplace(text, static_cast<TokenId>(tokens.size()));
    if (added) {
      tokens.push_back(text);
      usable.push_back(found->second);
    }
    model.merges.push_back({left, right, found->second});
  }
  return model;
}

// The definition: again and again the leftmost pair of lowest rank.
std::vector<TokenId> slow_encode(const Model& model, std::string_view piece) {
  std::vector<TokenId> ids;
  for (const char c : piece) ids.push_back(model.byte_ids[static_cast<unsigned char>(c)]);
  for (;;) {
    std::size_t best_rank = model.merges.size();
    std::size_t best = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        if (model.merges[rank].left == ids[i] && model.merges[rank].right == ids[i + 1]) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == model.merges.size()) return ids;
    ids[best] = model.merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, EqualsTheDefinition) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const int letters = 1 + static_cast<int>(random() % 4);
    const Model model = random_model(random, letters, letters == 1 ? 4 : 5 + random() % 60);
    MergeTable table(model.merges.size());
    for (const BpeMerge& merge : model.merges) ASSERT_TRUE(table.add(merge));
    const Bpe bpe(model.byte_ids, std::move(table));
    BpeScratch scratch;
    for (int i = 0; i < 60; ++i) {
      std::string piece;
      for (unsigned n = 1 + random() % 150; n > 0; --n) {
        piece += static_cast<char>('a' + random() % static_cast<unsigned>(letters));
      }
      const std::vector<TokenId> wanted = slow_encode(model, piece);
      for (int again = 0; again < 2; ++again) {  // the second time from the cache where it fits
        std::vector<TokenId> ids;
        bpe.encode(piece, scratch, ids);
        ASSERT_EQ(ids, wanted) << piece;
      }
    }
  }
}

TEST(MergeTable, RefusesASecondRankForAPair) {
  MergeTable table(2);
  EXPECT_TRUE(table.add({1, 2, 3}));
  EXPECT_FALSE(table.add({1, 2, 4}));
  EXPECT_TRUE(table.add({2, 1, 5}));
  EXPECT_EQ(table.rank(1, 2), 0);
  EXPECT_EQ(table.rank(2, 1), 1);
  EXPECT_EQ(table.result(0), 3);
  EXPECT_EQ(table.result(1), 5);
  EXPECT_EQ(table.rank(2, 2), MergeTable::kNoRank);
  EXPECT_EQ(table.size(), 2u);
}

TEST(TokenVocab, FindsWhatWasAdded) {
  TokenVocab vocab;
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(vocab.add(i * 2, "token" + std::to_string(i)));
  EXPECT_FALSE(vocab.add(0, "other"));
  EXPECT_FALSE(vocab.add(1, "token7"));
  EXPECT_EQ(vocab.find("token4999"), 9998);
  EXPECT_EQ(vocab.find("token5000"), std::nullopt);
  EXPECT_EQ(vocab.find(""), std::nullopt);
  EXPECT_EQ(vocab.bytes(14), "token7");
  EXPECT_EQ(vocab.bytes(15), "");
  EXPECT_EQ(vocab.bytes(-1), "");
  EXPECT_EQ(vocab.bytes(1 << 30), "");
  EXPECT_EQ(vocab.size(), 9999u);
}

}  // namespace
}  // namespace mimo
