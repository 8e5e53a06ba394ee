#include "cache/page_trie.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace mimo {
namespace {

using Key = std::pair<std::string, std::vector<std::int32_t>>;  // salt and prefix

// Against a map of whole prefixes; with few bits of fingerprint (or none) only the tokens tell nodes apart.
TEST(PageTrie, IsAMapOfPrefixesWhateverCollides) {
  for (const std::uint64_t mask : {std::uint64_t{0}, std::uint64_t{3}, ~std::uint64_t{0}}) {
    for (const int page_size : {1, 2, 3, 8}) {
      SCOPED_TRACE(::testing::Message() << "mask " << mask << ", page " << page_size);
      PageTrie trie(page_size, mask);
      std::map<Key, PageTrie::Id> known;
      std::mt19937 random(static_cast<unsigned>(page_size));
      for (int step = 0; step < 3000; ++step) {
        // A random walk down, as far as there are nodes, and one further.
        Key key{random() % 3 == 0 ? "salt" : "", {}};
        PageTrie::Id at = trie.root(key.first);
        std::vector<std::int32_t> page(static_cast<std::size_t>(page_size));
        for (int depth = 0; depth < 6; ++depth) {
          for (auto& token : page) token = static_cast<std::int32_t>(random() % 2);
          key.second.insert(key.second.end(), page.begin(), page.end());
          const PageTrie::Id next = at == PageTrie::kNone ? PageTrie::kNone : trie.child(at, page);
          const auto it = known.find(key);
          ASSERT_EQ(next, it == known.end() ? PageTrie::kNone : it->second);
          if (next == PageTrie::kNone) {
            if (depth == 0) at = trie.add_root(key.first);
            known[key] = trie.add_child(at, page);
            break;
          }
          ASSERT_EQ(trie.depth(next), depth);
          at = next;
          if (trie.children(at) == 0 && random() % 3 == 0) {
            trie.remove(at);
            known.erase(key);
            break;
          }
        }
        ASSERT_EQ(trie.nodes(), std::ssize(known));
      }
      // From the longest on; a root goes with its last node.
      while (!known.empty()) {
        for (auto it = known.begin(); it != known.end();) {
          if (trie.children(it->second) == 0) {
            trie.remove(it->second);
            it = known.erase(it);
          } else {
            ++it;
          }
        }
      }
      EXPECT_EQ(trie.root(""), PageTrie::kNone);
      EXPECT_EQ(trie.root("salt"), PageTrie::kNone);
      EXPECT_EQ(trie.nodes(), 0);
    }
  }
}

TEST(PageTrie, GrowsAndUsesIdsAgain) {
  PageTrie trie(1);
  const PageTrie::Id root = trie.add_root("");
  std::vector<PageTrie::Id> ids;
  for (std::int32_t token = 0; token < 5000; ++token) ids.push_back(trie.add_child(root, {&token, 1}));
  for (std::int32_t token = 0; token < 5000; ++token) {
    ASSERT_EQ(trie.child(root, {&token, 1}), ids[static_cast<std::size_t>(token)]);
  }
  const PageTrie::Id end = trie.id_end();
  for (const PageTrie::Id id : ids) trie.remove(id);
  for (std::int32_t token = 0; token < 5000; ++token) trie.add_child(trie.add_root(""), {&token, 1});
  EXPECT_EQ(trie.id_end(), end);
}

TEST(PageTrie, FingerprintsNameWholePrefixes) {
  PageTrie trie(2);
  const auto add = [&](const std::string& salt, std::vector<std::int32_t> first,
                       std::vector<std::int32_t> second) {
    PageTrie::Id at = trie.child(trie.add_root(salt), first);
    if (at == PageTrie::kNone) at = trie.add_child(trie.add_root(salt), first);
    return trie.fingerprint(trie.add_child(at, second));
  };
  const std::uint64_t a = add("", {1, 2}, {3, 4});
  EXPECT_NE(a, add("", {1, 5}, {3, 4}));
  EXPECT_NE(a, add("", {1, 2}, {4, 3}));
  EXPECT_NE(a, add("s", {1, 2}, {3, 4}));
}

}  // namespace
}  // namespace mimo
