#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace mimo {
namespace {

TEST(PagePool, HandsOutEveryPageOnce) {
  PagePool pool("full", 5);
  EXPECT_EQ(pool.capacity(), 5);
  EXPECT_EQ(pool.free_pages(), 5);
  std::set<std::int32_t> pages;
  for (int i = 0; i < 5; ++i) {
    const Result<std::int32_t> page = pool.allocate();
    ASSERT_TRUE(page);
    EXPECT_GE(*page, 0);
    EXPECT_LT(*page, 5);
    pages.insert(*page);
  }
  EXPECT_EQ(pages.size(), 5u);
  EXPECT_EQ(pool.free_pages(), 0);
  const Result<std::int32_t> none = pool.allocate();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kLimit);
  EXPECT_NE(none.error().message.find("full"), std::string::npos);
  pool.release(3);
  EXPECT_EQ(pool.allocate().value(), 3);
}

TEST(PagePool, EmptyPoolHasNothing) {
  PagePool pool("window", 0);
  EXPECT_EQ(pool.capacity(), 0);
  EXPECT_FALSE(pool.allocate());
}

TEST(PagePool, RandomUseBalances) {
  PagePool pool("full", 37);
  std::vector<std::int32_t> held;
  std::mt19937 random(1);
  for (int step = 0; step < 10000; ++step) {
    if (random() % 2 == 0) {
      const Result<std::int32_t> page = pool.allocate();
      ASSERT_EQ(page.has_value(), held.size() < 37);
      if (!page) continue;
      ASSERT_EQ(std::count(held.begin(), held.end(), *page), 0) << "handed out twice";
      held.push_back(*page);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      pool.release(held.back());
      held.pop_back();
    }
    ASSERT_EQ(pool.free_pages() + static_cast<std::int64_t>(held.size()), 37);
  }
}

TEST(PagePool, SharedPagesAreFreedByTheLastUser) {
  PagePool pool("full", 3);
  std::vector<std::int32_t> freed;
  pool.on_free([&](std::int32_t page) { freed.push_back(page); });
  const std::int32_t page = pool.allocate().value();
  pool.share(page);
  pool.share(page);
  EXPECT_EQ(pool.users(page), 3);
  pool.release(page);
  pool.release(page);
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_TRUE(freed.empty());
  pool.release(page);
  EXPECT_EQ(pool.free_pages(), 3);
  EXPECT_EQ(freed, std::vector{page});
  EXPECT_TRUE(pool.verify());
}

TEST(PagePool, HeldPagesAreCachedWithoutUsers) {
  PagePool pool("full", 3);
  std::vector<bool> cached;
  pool.on_cached([&](std::int32_t, bool now) { cached.push_back(now); });
  const std::int32_t page = pool.allocate().value();
  pool.hold(page);
  EXPECT_EQ(pool.owned_pages(), 1);
  EXPECT_EQ(pool.available_pages(), 2);
  pool.release(page);
  EXPECT_EQ(pool.cached_pages(), 1);
  EXPECT_EQ(pool.owned_pages(), 0);
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_EQ(pool.available_pages(), 3);
  pool.share(page);
  pool.share(page);
  EXPECT_EQ(pool.cached_pages(), 0);
  pool.drop(page);  // given up by the cache while it is used
  EXPECT_EQ(pool.owned_pages(), 1);
  pool.release(page);
  pool.release(page);
  EXPECT_EQ(pool.free_pages(), 3);
  EXPECT_EQ(cached, (std::vector{true, false}));
  const std::int32_t other = pool.allocate().value();
  pool.hold(other);
  pool.release(other);
  pool.drop(other);
  EXPECT_EQ(pool.free_pages(), 3);
  EXPECT_EQ(pool.cached_pages(), 0);
  EXPECT_TRUE(pool.verify());
}

TEST(PagePoolDeathTest, FreeingWhatIsNotHeldEndsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  PagePool pool("window", 4);
  const std::int32_t page = pool.allocate().value();
  pool.release(page);
  EXPECT_DEATH(pool.release(page), "window pool: page .* freed twice");
  EXPECT_DEATH(pool.release(-1), "window pool");
  EXPECT_DEATH(pool.release(4), "window pool");
  EXPECT_DEATH(pool.share(page), "window pool: page .* is free and cannot be shared");
  EXPECT_DEATH(pool.hold(page), "window pool: page .* cannot be held");
  EXPECT_DEATH(pool.drop(page), "window pool: page .* is not held");
}

TEST(PagePoolDeathTest, ACachedPageHasNoUserToRelease) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  PagePool pool("full", 4);
  const std::int32_t page = pool.allocate().value();
  pool.hold(page);
  EXPECT_DEATH(pool.hold(page), "cannot be held");
  pool.release(page);
  EXPECT_DEATH(pool.release(page), "full pool: page .* freed twice");
}

}  // namespace
}  // namespace mimo
