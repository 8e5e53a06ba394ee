#include "cache/sequence_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace mimo {
namespace {

struct Pools {
  explicit Pools(std::int64_t pages) : full("full", pages), window("window", pages) {}
  PagePool full;
  PagePool window;
};

// What must hold after any commit: every position has a full page; the keys that the next query sees (window
// - 1 before it; C44: a full window counting itself) have live window pages; pages wholly before them are
// gone.
void expect_consistent(const SequencePages& pages, const PageLayout& layout) {
  const std::int64_t length = pages.length();
  const std::int64_t count = (length + layout.page_size - 1) / layout.page_size;
  ASSERT_GE(static_cast<std::int64_t>(pages.full_pages().size()), count);
  for (std::int64_t p = 0; p < count; ++p) ASSERT_GE(pages.full_pages()[static_cast<std::size_t>(p)], 0);
  const std::int64_t first = std::max<std::int64_t>(0, length - layout.window + 1);
  for (std::int64_t p = 0; p < count; ++p) {
    const std::int32_t page = pages.window_pages()[static_cast<std::size_t>(p)];
    if ((p + 1) * layout.page_size <= first) {
      ASSERT_EQ(page, -1) << "page " << p << " of size " << layout.page_size << " at length " << length;
    } else {
      ASSERT_GE(page, 0) << "page " << p << " of size " << layout.page_size << " at length " << length;
    }
  }
}

TEST(SequencePages, KeepsAFullWindowForEveryPageSize) {
  for (int page_size = 1; page_size <= 256; ++page_size) {
    const PageLayout layout{page_size, 128};
    Pools pools(2000);
    {
      // Prefill to about the window, then token by token across two pages, then larger steps.
      SequencePages pages(layout, pools.full, pools.window);
      ASSERT_TRUE(pages.extend(120));
      pages.commit(120);
      expect_consistent(pages, layout);
      for (int i = 0; i < 8 + 2 * page_size; ++i) {
        ASSERT_TRUE(pages.extend(1));
        pages.commit(1);
        expect_consistent(pages, layout);
      }
      for (const int step : {7, 64, 129, 300}) {
        ASSERT_TRUE(pages.extend(step));
        // The step's first query still sees the window before it.
        for (std::int64_t p = std::max<std::int64_t>(0, pages.length() - 127); p < pages.length() + step;
             ++p) {
          ASSERT_GE(pages.window_pages()[static_cast<std::size_t>(p / page_size)], 0);
        }
        pages.commit(step);
        expect_consistent(pages, layout);
      }
    }
    EXPECT_EQ(pools.full.free_pages(), 2000) << "page size " << page_size;
    EXPECT_EQ(pools.window.free_pages(), 2000) << "page size " << page_size;
  }
}

TEST(SequencePages, RandomStepsOfManySequences) {
  std::mt19937 random(1);
  for (const int page_size : {1, 7, 16, 64, 128, 200}) {
    for (const int window : {1, 2, 128, 131}) {
      const PageLayout layout{page_size, window};
      Pools pools(3000 / page_size + 20);
      std::vector<std::unique_ptr<SequencePages>> sequences;
      for (int step = 0; step < 300; ++step) {
        if (sequences.size() < 4 || random() % 16 == 0) {
          sequences.push_back(std::make_unique<SequencePages>(layout, pools.full, pools.window));
        }
        if (random() % 12 == 0)
          sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(random() % sequences.size()));
        if (sequences.empty()) continue;
        SequencePages& pages = *sequences[random() % sequences.size()];
        const auto tokens = static_cast<std::int64_t>(random() % 90);
        const std::int64_t full = pages.full_pages_needed(tokens);
        const std::int64_t free_before = pools.full.free_pages();
        const std::int64_t window_before = pools.window.free_pages();
        if (const Status room = pages.extend(tokens); !room) {
          // Nothing changed.
          EXPECT_EQ(room.error().code, ErrorCode::kLimit);
          EXPECT_EQ(pools.full.free_pages(), free_before);
          EXPECT_EQ(pools.window.free_pages(), window_before);
          continue;
        }
        EXPECT_EQ(pools.full.free_pages(), free_before - full);
        pages.commit(tokens);
        expect_consistent(pages, layout);
        // No page belongs to two sequences.
        std::set<std::int32_t> seen;
        for (const auto& sequence : sequences) {
          for (const std::int32_t page : sequence->window_pages()) {
            if (page < 0) continue;
            ASSERT_TRUE(seen.insert(page).second) << "window page " << page;
          }
        }
      }
      sequences.clear();
      EXPECT_EQ(pools.full.free_pages(), pools.full.capacity());
      EXPECT_EQ(pools.window.free_pages(), pools.window.capacity());
    }
  }
}

TEST(SequencePages, FailureNamesBothPoolsAndTakesNothing) {
  PagePool full("full", 4);
  PagePool window("window", 2);
  SequencePages pages({16, 128}, full, window);
  const Status room = pages.extend(48);
  ASSERT_FALSE(room);
  EXPECT_EQ(room.error().code, ErrorCode::kLimit);
  EXPECT_NE(room.error().message.find("3 full and 3 window"), std::string::npos) << room.error().message;
  EXPECT_EQ(full.free_pages(), 4);
  EXPECT_EQ(window.free_pages(), 2);
  ASSERT_TRUE(pages.extend(32));
  EXPECT_EQ(full.free_pages(), 2);
}

TEST(SequencePages, PartialCommitKeepsTheRoom) {
  Pools pools(10);
  SequencePages pages({16, 128}, pools.full, pools.window);
  ASSERT_TRUE(pages.extend(20));
  pages.commit(5);
  EXPECT_EQ(pages.length(), 5);
  EXPECT_EQ(pages.full_pages_needed(27), 0);
  EXPECT_EQ(pages.full_pages_needed(28), 1);
  EXPECT_EQ(pages.window_pages_needed(28), 1);
}

// Blocks of drafts: room for all rows of a block, and any part of it committed. Eviction follows what is
// committed, rejected rows keep their pages for the next block, and nothing is copied or moved.
TEST(SequencePages, BlocksAreRolledBackByNotCommittingThem) {
  std::mt19937 random(4);
  for (const int page_size : {1, 7, 16, 64, 128, 200, 256}) {
    const PageLayout layout{page_size, 128};
    Pools pools(3000);
    {
      SequencePages pages(layout, pools.full, pools.window);
      ASSERT_TRUE(pages.extend(100));
      pages.commit(100);
      for (int step = 0; step < 400; ++step) {
        const auto rows = static_cast<std::int64_t>(1 + random() % 8);
        const std::int64_t length = pages.length();
        const std::vector<std::int32_t> full(pages.full_pages().begin(), pages.full_pages().end());
        const std::vector<std::int32_t> window(pages.window_pages().begin(), pages.window_pages().end());
        ASSERT_TRUE(pages.extend(rows));
        // Every row of the block has its own slot and the window before it, in the pages it had before.
        for (std::int64_t p = std::max<std::int64_t>(0, length - 127); p < length + rows; ++p) {
          ASSERT_GE(pages.window_pages()[static_cast<std::size_t>(p / page_size)], 0);
          ASSERT_GE(pages.full_pages()[static_cast<std::size_t>(p / page_size)], 0);
        }
        ASSERT_TRUE(std::equal(full.begin(), full.end(), pages.full_pages().begin()));
        ASSERT_TRUE(std::equal(window.begin(), window.end(), pages.window_pages().begin()));
        // At most one block and its page beyond what is committed, whatever was rejected before.
        ASSERT_LE(std::ssize(pages.full_pages()), pages_for(length + 8, page_size));
        const auto committed = 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(rows));
        pages.commit(committed);
        ASSERT_EQ(pages.length(), length + committed);
        expect_consistent(pages, layout);
      }
    }
    EXPECT_EQ(pools.full.free_pages(), 3000) << "page size " << page_size;
    EXPECT_EQ(pools.window.free_pages(), 3000) << "page size " << page_size;
  }
}

// Spec dflash 11.5: at 1,000 committed tokens, pages of 64 and a window of 128, everything below 832 is free.
TEST(SequencePages, EvictionFrontierOfTheWorkedExample) {
  Pools pools(100);
  SequencePages pages({64, 128}, pools.full, pools.window);
  ASSERT_TRUE(pages.extend(1000));
  pages.commit(1000);
  ASSERT_TRUE(pages.extend(8));
  EXPECT_EQ(pages.window_pages()[832 / 64 - 1], -1);
  EXPECT_GE(pages.window_pages()[832 / 64], 0);
}

TEST(SequencePages, KeepBehindSparesPages) {
  for (const int page_size : {1, 16, 64, 128, 256}) {
    Pools pools(2000);
    SequencePages pages({page_size, 128}, pools.full, pools.window);
    const auto first_kept = [&] {
      std::size_t p = 0;
      while (pages.window_pages()[p] < 0) ++p;
      return static_cast<std::int64_t>(p) * page_size;
    };
    pages.keep_behind(300);
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(pages.extend(70));
      pages.commit(70);
      const std::int64_t wanted = std::max<std::int64_t>(0, pages.length() - 127 - 300);
      ASSERT_LE(first_kept(), wanted);
      ASSERT_GT(first_kept() + page_size, wanted) << "more is kept than was asked for";
    }
    pages.keep_behind(0);
    EXPECT_LE(first_kept(), pages.length() - 427) << "pages go with the next trim";
    pages.trim();
    EXPECT_GT(first_kept() + page_size, pages.length() - 127);
  }
}

TEST(SequencePages, TheEvictionIntervalFreesInPortions) {
  for (const int page_size : {1, 16, 64}) {
    Pools pools(2000);
    SequencePages pages({page_size, 128, 100}, pools.full, pools.window);
    std::int64_t kept = 0;
    int portions = 0;
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(pages.extend(7));
      pages.commit(7);
      std::int64_t first = 0;
      while (pages.window_pages()[static_cast<std::size_t>(first)] < 0) ++first;
      ASSERT_LE(first * page_size, std::max<std::int64_t>(0, pages.length() - 127));
      ASSERT_GT(first * page_size, pages.length() - 127 - 100 - page_size)
          << "more is kept than the interval";
      if (first == kept) continue;
      EXPECT_GE((first - kept) * page_size, 100);
      kept = first;
      ++portions;
    }
    EXPECT_GE(portions, 8);
  }
}

TEST(SequencePages, AdvanceKeepsWhatTrimLetsGo) {
  Pools pools(100);
  SequencePages pages({16, 128}, pools.full, pools.window);
  ASSERT_TRUE(pages.extend(1000));
  pages.advance(1000);
  EXPECT_EQ(pages.length(), 1000);
  EXPECT_EQ(pages.window_pages()[0], 0);
  EXPECT_EQ(pools.window.free_pages(), 37);
  pages.trim();
  expect_consistent(pages, {16, 128});
  EXPECT_EQ(pools.window.free_pages(), 100 - 9);
}

TEST(SequencePages, BeginsWithPagesOfOthers) {
  Pools pools(40);
  {
    SequencePages first({16, 32}, pools.full, pools.window);
    ASSERT_TRUE(first.extend(100));
    first.commit(100);
    PrefixPages prefix;
    for (std::size_t p = 0; p < 6; ++p) {
      prefix.full.push_back(first.full_pages()[p]);
      prefix.window.push_back(p < 4 ? -1 : first.window_pages()[p]);
      pools.full.share(prefix.full[p]);
      if (p >= 4) pools.window.share(prefix.window[p]);
    }
    SequencePages second({16, 32}, pools.full, pools.window, std::move(prefix));
    EXPECT_EQ(second.length(), 96);
    EXPECT_EQ(second.full_pages_needed(1), 1);
    ASSERT_TRUE(second.extend(40));
    EXPECT_NE(second.full_pages()[6], first.full_pages()[6]);
    second.commit(40);
    expect_consistent(second, {16, 32});
    EXPECT_EQ(pools.full.free_pages(), 40 - 7 - 3);
  }
  EXPECT_EQ(pools.full.free_pages(), 40);
  EXPECT_EQ(pools.window.free_pages(), 40);
}

TEST(SequencePages, ReplacedPagesAreSharedAndTheOwnOnesFreed) {
  Pools pools(20);
  SequencePages first({16, 32}, pools.full, pools.window);
  SequencePages second({16, 32}, pools.full, pools.window);
  ASSERT_TRUE(first.extend(32));
  ASSERT_TRUE(second.extend(32));
  second.replace_full(1, first.full_pages()[1]);
  second.replace_window(0, first.window_pages()[0]);
  EXPECT_EQ(second.full_pages()[1], first.full_pages()[1]);
  EXPECT_EQ(pools.full.users(first.full_pages()[1]), 2);
  EXPECT_EQ(pools.full.free_pages(), 17);
  EXPECT_EQ(pools.window.free_pages(), 17);
}

TEST(SequencePages, MovedFromSequenceOwnsNothing) {
  Pools pools(20);
  {
    SequencePages first({16, 32}, pools.full, pools.window);
    ASSERT_TRUE(first.extend(200));
    first.commit(200);
    const SequencePages second(std::move(first));
    EXPECT_EQ(second.length(), 200);
  }
  EXPECT_EQ(pools.full.free_pages(), 20);
  EXPECT_EQ(pools.window.free_pages(), 20);
}

TEST(SequencePagesDeathTest, CommitWithoutRoom) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Pools pools(10);
  SequencePages pages({16, 128}, pools.full, pools.window);
  EXPECT_DEATH(pages.commit(1), "without room");
  // The window before the next row is part of a prefix.
  EXPECT_DEATH(SequencePages({16, 128}, pools.full, pools.window, PrefixPages{{0, 1}, {-1, 1}}),
               "prefix of 32 tokens with window pages from 1 on only");
}

}  // namespace
}  // namespace mimo
