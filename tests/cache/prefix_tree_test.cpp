#include "cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "cache/cache_rig.h"

namespace mimo {
namespace {

using testing::CacheRig;
using testing::FakeRequest;
using testing::random_tokens;
using testing::Tokens;

constexpr int kPageSizes[] = {1, 16, 64, 128, 256};
constexpr int kWindow = 128;

Tokens numbered(int count, int first = 0) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

ReusePoint at(std::int64_t position, WindowRank rank = WindowRank::kEnd, std::int64_t extra = 0) {
  return {.position = position, .rank = rank, .extra = extra, .attachment = {}};
}

struct Sized final : CacheAttachment {
  explicit Sized(std::size_t size) : size_(size) {}
  std::size_t bytes() const override { return size_; }
  std::size_t size_;
};

// One request from beginning to end: a prefill in one step, inserted at the given points.
void serve(CacheRig& rig, const Tokens& tokens, std::vector<ReusePoint> points,
           const std::string& salt = "") {
  const auto request = rig.open(tokens, salt);
  ASSERT_TRUE(rig.run(*request, std::ssize(tokens) - request->length()));
  rig.insert(*request, points);
}

TEST(PrefixTree, EmptyTreeMatchesNothing) {
  CacheRig rig({16, kWindow}, 10, 10);
  EXPECT_EQ(rig.open(numbered(100))->reused, 0);
  EXPECT_EQ(rig.open({})->reused, 0);
  EXPECT_EQ(rig.open({1})->reused, 0);
}

TEST(PrefixTree, NeverTheLastToken) {
  for (const int page_size : kPageSizes) {
    CacheRig rig({page_size, kWindow}, 600, 600);
    for (const int length : {1, page_size, page_size + 1, 2 * page_size}) {
      serve(rig, numbered(length), {at(length, WindowRank::kEnd, 1000)});
      EXPECT_EQ(rig.open(numbered(length))->reused, (length - 1) / page_size * page_size)
          << length << " tokens, pages of " << page_size;
      EXPECT_EQ(rig.open(numbered(length + 1))->reused, length / page_size * page_size);
    }
  }
}

TEST(PrefixTree, LimitCapsTheMatch) {
  CacheRig rig({16, kWindow}, 40, 40);
  serve(rig, numbered(300), {at(300, WindowRank::kEnd, 300)});
  EXPECT_EQ(rig.open(numbered(300), "", 100)->reused, 96);
  EXPECT_EQ(rig.open(numbered(300), "", 0)->reused, 0);
  EXPECT_EQ(rig.open(numbered(300), "", -5)->reused, 0);
}

TEST(PrefixTree, SaltsDoNotSee) {
  CacheRig rig({16, kWindow}, 40, 40);
  serve(rig, numbered(100), {at(100)}, "a");
  EXPECT_EQ(rig.open(numbered(200), "")->reused, 0);
  EXPECT_EQ(rig.open(numbered(200), "b")->reused, 0);
  EXPECT_EQ(rig.open(numbered(200), "a")->reused, 96);
  serve(rig, numbered(100), {at(100)}, "b");
  EXPECT_EQ(rig.tree.pages(), 12);
}

TEST(PrefixTree, WithoutAWindowOnlyTheFullPagesAreThere) {
  CacheRig rig({16, kWindow}, 40, 40);
  serve(rig, numbered(320), {at(160)});
  auto request = rig.open(numbered(400));
  EXPECT_EQ(request->reused, 160);
  EXPECT_EQ(request->full_tokens, 320);
  request.reset();
  // The next one that comes by heals the point.
  request = rig.open(numbered(400));
  ASSERT_TRUE(rig.run(*request, 240));
  rig.insert(*request, std::vector{at(320, WindowRank::kBranch)});
  request.reset();
  EXPECT_EQ(rig.open(numbered(400))->reused, 320);
}

// A request that computed what another one had inserted meanwhile ends with the tree's pages.
TEST(PrefixTree, DuplicatesAreRepointedAndFreed) {
  CacheRig rig({16, kWindow}, 40, 40);
  const auto first = rig.open(numbered(320));
  const auto second = rig.open(numbered(320));
  ASSERT_TRUE(rig.run(*first, 320));
  ASSERT_TRUE(rig.run(*second, 320));
  EXPECT_EQ(rig.full.free_pages(), 0);
  rig.insert(*first, std::vector{at(320)});
  rig.insert(*second, {});
  EXPECT_EQ(rig.full.free_pages(), 20);
  EXPECT_TRUE(std::ranges::equal(first->pages.full_pages(), second->pages.full_pages()));
  // Window pages where the tree has them: the last 8 of either.
  for (std::size_t p = 0; p < 20; ++p) {
    EXPECT_EQ(first->pages.window_pages()[p] == second->pages.window_pages()[p], p >= 12) << p;
  }
  EXPECT_EQ(rig.window.free_pages(), 8);
}

// Prompts that part in the middle of a page share the pages before it.
TEST(PrefixTree, BranchesShareWholePages) {
  CacheRig rig({16, kWindow}, 60, 60);
  const Tokens common = numbered(200);
  serve(rig, common + numbered(100, 1000), {at(200, WindowRank::kMark), at(300)});
  serve(rig, common + numbered(100, 2000), {at(200, WindowRank::kMark), at(300)});
  EXPECT_EQ(rig.tree.pages(), 12 + 6 + 6);
  EXPECT_EQ(rig.open(common + numbered(200, 1000))->reused, 288);
  EXPECT_EQ(rig.open(common + numbered(200, 2000))->reused, 288);
  EXPECT_EQ(rig.open(common + numbered(200, 3000))->reused, 192);
}

TEST(PrefixTree, ParentsOfACutAnswerAreKept) {
  CacheRig rig({16, kWindow}, 40, 40);
  const auto request = rig.open(numbered(100));
  ASSERT_TRUE(rig.run(*request, 90, 7));
  rig.insert(*request, std::vector{at(70), at(90)}, 70);  // 20 of the tokens came behind a stop
  EXPECT_EQ(rig.tree.pages(), 4);
  EXPECT_EQ(rig.open(numbered(100))->reused, 64);
}

TEST(PrefixTree, PagesInUseAreNotEvicted) {
  CacheRig rig({16, kWindow}, 20, 20);
  serve(rig, numbered(160), {at(160)});
  serve(rig, numbered(160, 5000), {at(160)});
  EXPECT_EQ(rig.full.cached_pages(), 20);
  const auto request = rig.open(numbered(161));
  EXPECT_EQ(request->reused, 160);
  EXPECT_EQ(rig.full.available_pages(), 10);
  EXPECT_FALSE(rig.tree.make_room(11, 0));
  EXPECT_EQ(rig.full.cached_pages(), 10) << "a refusal evicts nothing";
  EXPECT_TRUE(rig.tree.make_room(10, 0));
  EXPECT_EQ(rig.open(numbered(161, 5000))->full_tokens, 0);
  EXPECT_EQ(rig.open(numbered(161))->reused, 160);
  rig.check(*request);
}

TEST(PrefixTree, FullPagesGoFromTheEndOfTheLeastRecentlyUsed) {
  CacheRig rig({16, kWindow}, 30, 30);
  for (const int first : {1000, 2000, 3000})
    serve(rig, numbered(160, first), {at(160, WindowRank::kEnd, 160)});
  rig.open(numbered(161, 1000));  // used again
  ASSERT_TRUE(rig.tree.make_room(4, 0));
  EXPECT_EQ(rig.tree.probe(numbered(161, 2000), "").full_tokens, 96);
  ASSERT_TRUE(rig.tree.make_room(15, 0));
  EXPECT_EQ(rig.tree.probe(numbered(161, 2000), "").full_tokens, 0);
  EXPECT_EQ(rig.tree.probe(numbered(161, 3000), "").full_tokens, 80);
  EXPECT_EQ(rig.tree.probe(numbered(161, 1000), "").full_tokens, 160);
}

// A short prompt that shares the begin of a long one keeps only that begin young.
TEST(PrefixTree, ABranchIsEvictedBeforeWhatItSharesWithOthers) {
  CacheRig rig({16, kWindow}, 40, 40);
  serve(rig, numbered(320), {at(320, WindowRank::kEnd, 320)});
  serve(rig, numbered(160) + numbered(160, 1000), {at(320, WindowRank::kEnd, 320)});
  rig.open(numbered(165));
  ASSERT_TRUE(rig.tree.make_room(30, 0));
  EXPECT_EQ(rig.open(numbered(165))->reused, 160);
}

TEST(PrefixTree, WindowPagesGoWithoutTheFullPages) {
  CacheRig rig({16, kWindow}, 40, 20);
  serve(rig, numbered(160), {at(160)});
  serve(rig, numbered(160, 1000), {at(160)});
  EXPECT_EQ(rig.window.cached_pages(), 16);
  ASSERT_TRUE(rig.tree.make_room(0, 12));
  EXPECT_EQ(rig.full.cached_pages(), 20);
  EXPECT_EQ(rig.tree.probe(numbered(161), "").tokens, 0);
  EXPECT_EQ(rig.tree.probe(numbered(161), "").full_tokens, 160);
  EXPECT_EQ(rig.tree.probe(numbered(161, 1000), "").tokens, 160);
}

// The far end of a wide reuse point goes first: what is left still serves the near end.
TEST(PrefixTree, AWideReusePointShrinks) {
  CacheRig rig({16, kWindow}, 40, 40);
  const auto end = [&] { return rig.tree.probe(numbered(330), "").tokens; };
  serve(rig, numbered(320), {at(320, WindowRank::kEnd, 96)});
  const std::int64_t kept = rig.window.cached_pages();
  EXPECT_EQ(kept, 14);
  EXPECT_EQ(rig.tree.probe(numbered(240), "").tokens, 224);
  ASSERT_TRUE(rig.tree.make_room(0, 40 - kept + 1));
  EXPECT_EQ(rig.tree.probe(numbered(240), "").tokens, 0);
  ASSERT_TRUE(rig.tree.make_room(0, 40 - 8));
  EXPECT_EQ(end(), 320);
  ASSERT_TRUE(rig.tree.make_room(0, 40 - 7));
  EXPECT_EQ(end(), 0);
}

// Marks go before ends of the same age, ends before branches; age wins in the long run.
TEST(PrefixTree, RanksOrderWindowsOfSimilarAge) {
  CacheRig rig({16, 16}, 200, 40);
  const auto points = [&](int first, WindowRank rank) { serve(rig, numbered(16, first), {at(16, rank)}); };
  points(4000, WindowRank::kBranch);
  points(1000, WindowRank::kEnd);
  points(2000, WindowRank::kMark);
  points(3000, WindowRank::kPassing);
  const auto valid = [&](int first) { return rig.tree.probe(numbered(20, first), "").tokens == 16; };
  const auto evict_one = [&] { ASSERT_TRUE(rig.tree.make_room(0, rig.window.free_pages() + 1)); };
  evict_one();
  EXPECT_FALSE(valid(3000));
  evict_one();
  EXPECT_FALSE(valid(2000));
  evict_one();
  EXPECT_FALSE(valid(1000));
  EXPECT_TRUE(valid(4000));
  // After a turnover of three quarters of the pool nothing distinguishes them any more.
  for (int i = 0; i < 31; ++i) points(10000 + 100 * i, WindowRank::kPassing);
  ASSERT_TRUE(rig.tree.make_room(0, 36));
  EXPECT_FALSE(valid(4000));
}

// What was the end of a chunk first becomes the end of a prompt.
TEST(PrefixTree, AHigherRankIsTakenOver) {
  CacheRig rig({16, 16}, 200, 40);
  const auto valid = [&](int first) { return rig.tree.probe(numbered(20, first), "").tokens == 16; };
  auto request = rig.open(numbered(16, 1000));
  ASSERT_TRUE(rig.run(*request, 16));
  rig.insert(*request, std::vector{at(16, WindowRank::kPassing)});
  rig.insert(*request, std::vector{at(16, WindowRank::kEnd)});
  rig.insert(*request, std::vector{at(16, WindowRank::kPassing)});
  request.reset();
  serve(rig, numbered(16, 2000), {at(16, WindowRank::kPassing)});
  ASSERT_TRUE(rig.tree.make_room(0, 39));
  EXPECT_TRUE(valid(1000));
  EXPECT_FALSE(valid(2000));
}

// Asking the same prompt again proves that requests part at its end.
TEST(PrefixTree, APointWherePromptsPartedRanksHighest) {
  CacheRig rig({16, 16}, 200, 40);
  serve(rig, numbered(64), {at(32, WindowRank::kPassing), at(64)});
  serve(rig, numbered(16, 5000), {at(16, WindowRank::kEnd)});
  ASSERT_EQ(rig.open(numbered(32) + numbered(10, 900))->reused, 32);
  ASSERT_TRUE(rig.tree.make_room(0, rig.window.free_pages() + 2));
  EXPECT_EQ(rig.open(numbered(32) + numbered(10, 900))->reused, 32);
}

TEST(PrefixTree, AttachmentsComeBackAtTheirPosition) {
  CacheRig rig({16, kWindow}, 40, 40);
  const auto tail = std::make_shared<Sized>(100);
  ReusePoint point = at(167, WindowRank::kEnd, 64);
  point.attachment = tail;
  serve(rig, numbered(200), {point});
  EXPECT_EQ(rig.tree.attachment_bytes(), 100u);
  EXPECT_EQ(rig.open(numbered(180))->attachment, tail);
  EXPECT_EQ(rig.open(numbered(150))->attachment, nullptr);
  // It goes with the window at its position.
  ASSERT_TRUE(rig.tree.make_room(0, 40));
  EXPECT_EQ(rig.tree.attachment_bytes(), 0u);
  EXPECT_EQ(tail.use_count(), 2) << "this test and its point";
}

TEST(PrefixTree, AttachmentsStayWithinTheirLimit) {
  CacheRig rig({16, kWindow}, 100, 100, {.attachment_bytes = 250});
  for (const int first : {1000, 2000, 3000}) {
    ReusePoint point = at(64);
    point.attachment = std::make_shared<Sized>(100);
    serve(rig, numbered(64, first), {point});
    if (first == 2000) {
      EXPECT_NE(rig.open(numbered(65, 1000))->attachment, nullptr);  // used again
    }
  }
  EXPECT_EQ(rig.tree.attachment_bytes(), 200u);
  EXPECT_NE(rig.open(numbered(65, 1000))->attachment, nullptr);
  EXPECT_EQ(rig.open(numbered(65, 2000))->attachment, nullptr);
  EXPECT_EQ(rig.open(numbered(65, 2000))->reused, 64);
  ReusePoint point = at(64);
  point.attachment = std::make_shared<Sized>(1000);
  serve(rig, numbered(64, 4000), {point});
  EXPECT_EQ(rig.tree.attachment_bytes(), 0u) << "larger than the limit: nothing is kept";
}

TEST(PrefixTree, FlushLeavesWhatIsUsed) {
  CacheRig rig({16, kWindow}, 40, 40);
  serve(rig, numbered(160), {at(160)});
  serve(rig, numbered(160, 1000), {at(160)});
  auto request = rig.open(numbered(170));
  ASSERT_TRUE(rig.run(*request, 5));
  rig.tree.flush();
  EXPECT_EQ(rig.tree.pages(), 10);
  EXPECT_EQ(rig.full.cached_pages(), 0);
  EXPECT_EQ(rig.full.owned_pages(), 11);
  rig.check(*request);
  EXPECT_EQ(rig.tree.probe(numbered(170), "").tokens, 160);
  request.reset();
  rig.tree.flush();
  EXPECT_EQ(rig.tree.pages(), 0);
  EXPECT_EQ(rig.full.free_pages(), 40);
  EXPECT_EQ(rig.window.free_pages(), 40);
}

TEST(PrefixTree, StatisticsCountWhatHappened) {
  CacheRig rig({16, kWindow}, 20, 20);
  serve(rig, numbered(160), {at(160)});
  serve(rig, numbered(160, 1000), {at(160)});
  rig.tree.count_query(160, 0);
  rig.tree.count_query(161, 160);
  ASSERT_TRUE(rig.tree.make_room(10, 20));
  const PrefixCacheStats& stats = rig.tree.stats();
  EXPECT_EQ(stats.queries, 2);
  EXPECT_EQ(stats.query_tokens, 321);
  EXPECT_EQ(stats.hit_tokens, 160);
  EXPECT_EQ(stats.inserted_full, 20);
  EXPECT_EQ(stats.inserted_window, 16);
  EXPECT_EQ(stats.evicted_full, 10);
  EXPECT_EQ(stats.evicted_window, 16);
}

// C43: the same prompt again, the next turn, and a prompt whose end was edited compute at most window + page
// more than what is new, for every page size and however the prompt falls into chunks.
TEST(PrefixTree, C43RepeatExtendAndEditRecomputeAtMostAWindowAndAPage) {
  std::mt19937 random(3);
  for (const int page_size : kPageSizes) {
    for (const int length : {8192, 8192 + 3, 8192 + 255, 8000}) {
      const std::int64_t pages = 3 * 8700 / page_size;
      CacheRig rig({page_size, kWindow}, pages, 4000 / page_size + 20);
      const Tokens prompt = random_tokens(random, length);
      auto first = rig.prefill(prompt, 512, {});
      // The answer: 300 tokens in blocks, then the end of the turn.
      first->tokens = first->tokens + random_tokens(random, 400);
      first->hashes = testing::prefix_hashes(first->tokens, "");
      while (first->length() < length + 300) {
        ASSERT_TRUE(rig.run(*first, 3, 4));
        first->pages.trim();
      }
      rig.insert(*first, std::vector{at(first->length())});
      const std::int64_t turn = first->length();
      const Tokens history(first->computed().begin(), first->computed().end());
      first.reset();

      const std::int64_t slack = kWindow + page_size;
      const auto again = rig.prefill(prompt, 512, {});
      EXPECT_GE(again->reused, length - slack) << "page " << page_size << ", length " << length;
      const auto next = rig.prefill(history + random_tokens(random, 200), 512, {});
      EXPECT_GE(next->reused, turn - slack) << "page " << page_size << ", length " << length;
      Tokens edited = prompt;
      for (int i = length - 50; i < length; ++i) edited[static_cast<std::size_t>(i)] += 2000;
      const auto changed = rig.prefill(edited, 512, {});
      EXPECT_GE(changed->reused, length - 50 - slack) << "page " << page_size << ", length " << length;
    }
  }
}

// The last user message of a long conversation is edited: its begin was a mark in the middle of a chunk.
TEST(PrefixTree, C43AMarkInTheMiddleOfAChunkIsAReusePoint) {
  std::mt19937 random(5);
  for (const int page_size : kPageSizes) {
    CacheRig rig({page_size, kWindow}, 40000 / page_size, 8000 / page_size);
    const Tokens history = random_tokens(random, 5000);
    rig.prefill(history + random_tokens(random, 3000), 2048, std::vector{at(5000, WindowRank::kMark)});
    const auto edited = rig.open(history + random_tokens(random, 3000));
    EXPECT_EQ(edited->reused, 5000 / page_size * page_size);
  }
}

// C44: a full window before every reusable point, whatever the page size; CacheRig compares with a search by
// position, and reads the content of every visible slot.
TEST(PrefixTree, C44AFullWindowPrecedesEveryReusePoint) {
  std::mt19937 random(7);
  for (const int page_size : kPageSizes) {
    for (int length = kWindow - 1; length <= kWindow + 2 * page_size; length += std::max(1, page_size / 16)) {
      for (const std::int64_t chunk : {std::int64_t{1000}, std::int64_t{page_size}, std::int64_t{96}}) {
        CacheRig rig({page_size, kWindow}, 2400 / page_size + 4, 2400 / page_size + 4);
        const Tokens prompt = random_tokens(random, length);
        rig.prefill(prompt, chunk, {});
        std::vector<std::unique_ptr<FakeRequest>> requests;
        requests.push_back(rig.prefill(prompt, chunk, {}));
        ASSERT_EQ(requests.back()->reused, (length - 1) / page_size * page_size)
            << "page " << page_size << ", length " << length << ", chunk " << chunk;
        requests.push_back(rig.prefill(prompt + random_tokens(random, 200), chunk, {}));
        ASSERT_EQ(requests.back()->reused, length / page_size * page_size);
        rig.check_books(requests);
      }
    }
  }
}

TEST(PrefixTreeDeathTest, OurOwnMistakesEndTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  PagePool full("full", 8);
  PagePool window("window", 8);
  PrefixTree tree({16, kWindow}, full, window);
  SequencePages pages({16, kWindow}, full, window);
  ASSERT_TRUE(pages.extend(32));
  pages.advance(20);
  // A token that is reserved but not computed is no key.
  EXPECT_DEATH(tree.insert(numbered(21), "", pages, {}), "21 tokens of a sequence that has computed 20");
  tree.insert(numbered(16), "", pages, {});
  // One page in two nodes.
  EXPECT_DEATH(tree.insert(numbered(16, 100), "", pages, {}), "cannot be held");
}

}  // namespace
}  // namespace mimo
