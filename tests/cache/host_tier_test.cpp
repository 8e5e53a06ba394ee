#include "cache/host_tier.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "cache/cache_rig.h"
#include "cache/host_arena.h"
#include "cache/host_rig.h"

namespace mimo {
namespace {

using testing::at;
using testing::CacheRig;
using testing::FakeKv;
using testing::FakeRequest;
using testing::HostRig;
using testing::random_tokens;
using testing::Tokens;

constexpr int kWindow = 128;

Tokens numbered(int count, int first = 0) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct Sized final : CacheAttachment {
  std::size_t bytes() const override { return 8; }
};

PageAccess access(CacheRig& rig) {
  const auto kv = [&rig](PageKind kind) -> FakeKv& {
    return kind == PageKind::kFull ? rig.full_kv : rig.window_kv;
  };
  const auto bytes = static_cast<std::size_t>(rig.layout.page_size) * sizeof(std::uint64_t);
  return {.full_bytes = bytes,
          .window_bytes = bytes,
          .read =
              [kv](PageKind kind, std::int32_t page, std::span<std::byte> out) {
                std::ranges::copy(std::as_bytes(kv(kind).page(page)), out.begin());
              },
          .write =
              [kv](PageKind kind, std::int32_t page, std::span<const std::byte> in) {
                std::ranges::copy(in, std::as_writable_bytes(kv(kind).page(page)).begin());
              }};
}

TEST(HostTier, WhatWasEvictedComesBack) {
  for (const int page_size : {1, 16, 64, 128, 256}) {
    const PageLayout layout{page_size, kWindow};
    HostRig host(layout, 1200 / page_size, {2000 / page_size, 8});
    host.serve(numbered(600));
    EXPECT_EQ(host.find(numbered(700)), 0) << "still on the device";
    host.finish_copies();
    host.evict_all();
    EXPECT_EQ(host.rig.open(numbered(700))->reused, 0);
    const std::int64_t expected = layout.floor(600);
    EXPECT_EQ(host.find(numbered(700)), expected);
    EXPECT_EQ(host.find(numbered(static_cast<int>(expected))), 0) << "its last token is always computed";
    auto request = host.restore(numbered(700));
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(request->length(), expected);
    request.reset();
    // It is on the device again.
    EXPECT_EQ(host.rig.open(numbered(700))->reused, expected);
    EXPECT_EQ(host.tier.stats().restored_tokens, expected);
    host.check();
  }
}

TEST(HostTier, NothingIsFoundBeforeAllOfItIsStored) {
  HostRig host({16, kWindow}, 100, {100, 8});
  host.serve(numbered(320));
  host.evict_all();  // does not evict what is being stored
  EXPECT_EQ(host.rig.full.owned_pages(), 20);
  const PrefixProbe nothing;
  for (int copies = 0; copies < 28; ++copies) {
    EXPECT_EQ(host.tier.find(numbered(330), "", nothing), 0) << copies;
    host.mover.step(1);
    host.tier.poll();
  }
  EXPECT_EQ(host.tier.find(numbered(330), "", nothing), 320);
  EXPECT_EQ(host.rig.full.owned_pages(), 0);
  EXPECT_FALSE(host.tier.wait()) << "nothing is under way";
}

// The full pages are on the device still, only the window has gone: one record is loaded.
TEST(HostTier, AWindowAloneComesBack) {
  HostRig host({16, kWindow}, 60, {100, 8});
  host.serve(numbered(480));
  host.finish_copies();
  ASSERT_TRUE(host.rig.tree.make_room(0, 60));
  EXPECT_EQ(host.rig.tree.probe(numbered(500), "").full_tokens, 480);
  EXPECT_EQ(host.rig.tree.probe(numbered(500), "").tokens, 0);
  const auto restored = host.tier.restore(numbered(500), "", host.find(numbered(500)));
  ASSERT_TRUE(restored);
  EXPECT_EQ((*restored)->tokens(), 480);
  EXPECT_EQ((*restored)->loaded_tokens(), 0);
  host.finish_copies();
  FakeRequest request(numbered(500), "", (*restored)->take());
  host.rig.check(request);
  EXPECT_EQ(host.tier.stats().loaded_full, 0);
  EXPECT_EQ(host.tier.stats().loaded_window, 8);
}

TEST(HostTier, SaltsAndOtherTokensDoNotMatch) {
  HostRig host({16, kWindow}, 100, {200, 8});
  host.serve(numbered(320), {}, "a");
  host.finish_copies();
  host.evict_all();
  EXPECT_EQ(host.find(numbered(330), "a"), 320);
  EXPECT_EQ(host.find(numbered(330), ""), 0);
  EXPECT_EQ(host.find(numbered(330), "b"), 0);
  Tokens other = numbered(330);
  other[319] = 7;
  EXPECT_EQ(host.find(other, "a"), 0);
  EXPECT_EQ(host.find(numbered(330), "a", 319), 0);
}

TEST(HostTier, SmallGainsAreNotWorthIt) {
  HostRig host({16, kWindow}, 100, {200, 8}, 256);
  host.serve(numbered(240));
  host.serve(numbered(480, 1000), {at(240), at(480)});
  host.finish_copies();
  host.evict_all();
  EXPECT_EQ(host.find(numbered(300)), 0);
  EXPECT_EQ(host.find(numbered(500, 1000)), 480);
  host.serve(numbered(240, 1000));
  EXPECT_EQ(host.find(numbered(500, 1000)), 0) << "240 of them are on the device";
}

TEST(HostTier, AttachmentsComeBack) {
  HostRig host({16, kWindow}, 100, {200, 8});
  ReusePoint point = at(320);
  point.attachment = std::make_shared<Sized>();
  host.serve(numbered(320), {point});
  host.finish_copies();
  host.evict_all();
  const auto request = host.restore(numbered(330));
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->attachment, point.attachment);
}

// The second turn copies only what is new.
TEST(HostTier, StoresEveryPageOnce) {
  HostRig host({16, kWindow}, 100, {200, 8});
  host.serve(numbered(320));
  host.serve(numbered(480));
  host.serve(numbered(480));
  host.finish_copies();
  EXPECT_EQ(host.tier.stats().stored_full, 30);
  EXPECT_EQ(host.tier.stats().stored_window, 16);
  EXPECT_EQ(host.tier.full_used(), 30);
  EXPECT_EQ(host.tier.records_used(), 2);
}

// The request is gone and its pages would be free, and another one asks for them, before anything was copied.
TEST(HostTier, AnAbortDoesNotTakePagesFromTheirCopy) {
  HostRig host({16, kWindow}, 30, {200, 8});
  {
    const auto request = host.rig.open(numbered(320));
    ASSERT_TRUE(host.rig.run(*request, 320));
    host.tier.store(numbered(320), "", request->pages, std::vector{at(320)});
  }
  EXPECT_EQ(host.rig.full.free_pages(), 10);
  auto other = host.rig.open(numbered(200, 5000));
  EXPECT_FALSE(host.rig.run(*other, 200)) << "there is room only when the copies have ended";
  EXPECT_TRUE(host.tier.wait());
  ASSERT_TRUE(host.rig.run(*other, 200));
  other.reset();
  EXPECT_NE(host.restore(numbered(330)), nullptr) << "what was copied is what was computed";
}

TEST(HostTier, ADroppedRestoreFreesItsPagesWhenTheCopiesHaveEnded) {
  HostRig host({16, kWindow}, 40, {200, 8});
  host.serve(numbered(320));
  host.finish_copies();
  host.evict_all();
  auto restored = host.tier.restore(numbered(330), "", 320);
  ASSERT_TRUE(restored);
  host.mover.step(5);
  restored->reset();  // the client has gone
  EXPECT_EQ(host.rig.full.free_pages(), 20);
  host.check();
  host.finish_copies();
  EXPECT_EQ(host.rig.full.free_pages(), 40);
  EXPECT_EQ(host.rig.window.free_pages(), 40);
  EXPECT_NE(host.restore(numbered(330)), nullptr);
}

TEST(HostTier, ARestoreWithoutRoomChangesNothing) {
  HostRig host({16, kWindow}, 30, {200, 8});
  host.serve(numbered(320));
  host.finish_copies();
  host.evict_all();
  const auto running = host.rig.open(numbered(300, 5000));
  ASSERT_TRUE(host.rig.run(*running, 300));
  const auto refused = host.tier.restore(numbered(330), "", 320);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kLimit);
  EXPECT_NE(refused.error().message.find("20 full and 8 window"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(host.rig.full.free_pages(), 11);
  EXPECT_EQ(host.tier.copies_under_way(), 0);
  const auto unknown = host.tier.restore(numbered(330, 9000), "", 320);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
}

// C38: a slot that holds something else is noticed when it is read, nothing of it is used, and it is not found
// again until it has been stored anew.
TEST(HostTier, C38ASlotThatIsNotItsOwnersIsRefused) {
  for (const PageKind kind : {PageKind::kFull, PageKind::kWindow}) {
    HostRig host({16, kWindow}, 60, {30, 1});
    host.serve(numbered(320));
    host.finish_copies();
    host.evict_all();
    for (std::size_t slot = 0; slot < 8; ++slot) host.mover.spoil(kind, slot);
    ASSERT_EQ(host.find(numbered(330)), 320);
    EXPECT_EQ(host.restore(numbered(330)), nullptr);
    EXPECT_EQ(host.tier.stats().failed_restores, 1);
    EXPECT_EQ(host.rig.full.free_pages(), 60);
    EXPECT_EQ(host.find(numbered(330)), 0);
    host.check();
    host.serve(numbered(320));
    host.finish_copies();
    host.evict_all();
    EXPECT_NE(host.restore(numbered(330)), nullptr);
  }
}

// C38: the slots of two prompts are mixed up, every one on its own, or pages of one prompt among each other.
TEST(HostTier, C38SlotsOfAnotherPromptAreRefused) {
  for (const PageKind kind : {PageKind::kFull, PageKind::kWindow}) {
    const std::int32_t each = kind == PageKind::kFull ? 20 : 8;
    for (std::int32_t slot = 0; slot < each; ++slot) {
      for (const std::int32_t other : {slot + each, (slot + 1) % each}) {
        HostRig host({16, kWindow}, 60, {40, 2});
        host.serve(numbered(320));
        host.serve(numbered(320, 5000));
        host.finish_copies();
        host.evict_all();
        host.mover.exchange(kind, slot, other);
        ASSERT_EQ(host.find(numbered(330)), 320);
        EXPECT_EQ(host.restore(numbered(330)), nullptr) << "slots " << slot << " and " << other;
      }
    }
  }
}

// C37: 2,000 distinct prompts through 64 pages; every tenth comes again and is right, from wherever it comes.
TEST(HostTier, C37AFullTierEvictsAndGoesOn) {
  HostRig host({16, kWindow}, 40, {64, 4});
  std::mt19937 random(37);
  std::vector<Tokens> prompts;
  std::int64_t from_host = 0;
  for (int i = 0; i < 2000; ++i) {
    const bool again = i > 10 && random() % 10 == 0;
    const Tokens tokens = again ? prompts[prompts.size() - 1 - random() % 6]
                                : random_tokens(random, 100 + static_cast<int>(random() % 200));
    if (again) {
      if (const auto request = host.restore(tokens)) ++from_host;
    } else {
      prompts.push_back(tokens);
    }
    host.mover.step(static_cast<std::int64_t>(random() % 40));
    host.tier.poll();
    if (host.rig.full.available_pages() < 20 || host.rig.window.available_pages() < 20) host.finish_copies();
    host.serve(tokens, {at(std::ssize(tokens) - 1)});
    ASSERT_LE(host.tier.full_used(), 64);
    ASSERT_LE(host.tier.records_used(), 4);
    if (i % 50 == 0) host.check();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(from_host, 30);
  EXPECT_GT(host.tier.stats().evicted_full, 10000);
  EXPECT_GT(host.tier.stats().evicted_records, 1000);
}

// A prompt longer than the tier: what fits is stored, the rest is counted, and the tier goes on.
TEST(HostTier, APromptLargerThanTheTierIsCut) {
  HostRig host({16, kWindow}, 60, {10, 2});
  host.serve(numbered(160, 5000));
  host.finish_copies();
  host.serve(numbered(480), {at(96), at(480)});
  host.finish_copies();
  EXPECT_EQ(host.tier.full_used(), 10);
  EXPECT_EQ(host.tier.stats().not_stored, 20);
  host.evict_all();
  EXPECT_EQ(host.find(numbered(500)), 96);
  host.check();
  host.serve(numbered(160, 5000));
  host.finish_copies();
  host.evict_all();
  EXPECT_EQ(host.find(numbered(161, 5000)), 160);
}

TEST(HostTier, TheLeastRecentlyUsedGoesFirstAndFromItsEnd) {
  HostRig host({16, kWindow}, 60, {30, 10});
  for (const int first : {1000, 2000, 3000}) host.serve(numbered(160, first), {at(80), at(160)});
  host.finish_copies();
  host.evict_all();
  host.restore(numbered(161, 1000));
  host.serve(numbered(64, 4000));
  host.finish_copies();
  host.evict_all();
  EXPECT_EQ(host.find(numbered(161, 1000)), 160);
  EXPECT_EQ(host.find(numbered(161, 2000)), 80) << "four pages of its end have gone";
  EXPECT_EQ(host.find(numbered(161, 3000)), 160);
}

TEST(HostTier, FlushWaitsAndForgets) {
  HostRig host({16, kWindow}, 100, {200, 8});
  host.serve(numbered(320));
  host.serve(numbered(320, 1000));
  host.tier.flush();
  EXPECT_TRUE(host.mover.idle());
  EXPECT_EQ(host.tier.full_used(), 0);
  EXPECT_EQ(host.tier.records_used(), 0);
  host.evict_all();
  EXPECT_EQ(host.find(numbered(330)), 0);
  host.check();
}

TEST(HostTier, SizeIsSplitBetweenPagesAndWindows) {
  const PageLayout layout{64, kWindow};
  const HostTierSize size = host_tier_size(64ull << 30, layout, 369'000, 6'400'000).value();
  EXPECT_EQ(size.full_slots, static_cast<std::int64_t>((48ull << 30) / 369'000));
  EXPECT_EQ(size.window_records, static_cast<std::int64_t>((16ull << 30) / 12'800'000));
  EXPECT_EQ(host_tier_size(1 << 20, layout, 1000, 1)->window_records, 786) << "at most one a page";
  const auto small = host_tier_size(10'000'000, layout, 369'000, 6'400'000);
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(small.error().message.find("expected at least 51200000"), std::string::npos)
      << small.error().message;
}

// C38 with the real thread: 500 prompts with a secret each in a tier much smaller than all of them, up to 16 at
// once, restored in any order; what comes back is compared slot by slot.
TEST(HostArena, C38NoForeignContentComesBack) {
  const PageLayout layout{16, kWindow};
  CacheRig rig(layout, 200, 200);
  const HostTierSize size{300, 24};
  auto arena =
      HostArena::make(access(rig), size.full_slots, size.window_records * window_record_pages(layout));
  ASSERT_TRUE(arena);
  HostTier tier(layout, rig.full, rig.window, rig.tree, **arena, {.size = size, .min_restore_tokens = 1});
  rig.more_users = [&](PageAudit& audit) { tier.add_users(audit); };
  std::mt19937 random(38);
  const Tokens system = random_tokens(random, 48);
  std::vector<Tokens> prompts(500);
  for (Tokens& prompt : prompts) {
    prompt = system;
    const Tokens secret = random_tokens(random, 100 + static_cast<int>(random() % 60));
    prompt.insert(prompt.end(), secret.begin(), secret.end());
  }
  struct Restoring {
    std::size_t prompt;
    std::shared_ptr<HostRestore> restore;
  };
  std::vector<Restoring> restoring;
  std::int64_t restored = 0;
  for (int i = 0; i < 4000; ++i) {
    // New prompts all the time, recent ones again.
    const std::size_t recent = static_cast<std::size_t>(i / 8);
    const std::size_t chosen = recent - std::min<std::size_t>(recent, random() % 24);
    const Tokens& prompt = prompts[chosen];
    const std::string salt = chosen % 7 == 0 ? "tenant" : "";
    const std::int64_t length = tier.find(prompt, salt, rig.tree.probe(prompt, salt));
    if (length > 0 && restoring.size() < 16) {
      if (auto restore = tier.restore(prompt, salt, length))
        restoring.push_back({chosen, std::move(*restore)});
    } else {
      const auto request = rig.open(prompt, salt);
      if (rig.run(*request, std::ssize(prompt) - request->length())) {
        const std::vector points = {at(std::ssize(prompt) - 1)};
        rig.insert(*request, points);
        tier.store(prompt, salt, request->pages, points);
      } else {
        tier.wait();
      }
    }
    tier.poll();
    if (random() % 3 == 0)
      rig.tree.make_room(rig.full.available_pages() / 2, rig.window.available_pages() / 2);
    for (std::size_t r = 0; r < restoring.size();) {
      if (restoring[r].restore->state() == HostRestore::State::kLoading) {
        if (random() % 50 != 0) {
          ++r;
          continue;
        }  // else: abandoned
      } else {
        ASSERT_EQ(restoring[r].restore->state(), HostRestore::State::kReady);
        const std::size_t which = restoring[r].prompt;
        FakeRequest request(prompts[which], which % 7 == 0 ? "tenant" : "", restoring[r].restore->take());
        rig.check(request);
        rig.insert(request, std::vector{at(request.length())});
        ++restored;
      }
      restoring.erase(restoring.begin() + static_cast<std::ptrdiff_t>(r));
    }
    if (HasFatalFailure()) return;
  }
  restoring.clear();
  while (tier.wait()) {
  }
  rig.check_books({});
  ASSERT_TRUE(tier.verify());
  EXPECT_EQ(rig.full.owned_pages(), 0);
  EXPECT_EQ(tier.stats().failed_restores, 0);
  EXPECT_GT(restored, 200);
  EXPECT_GT(tier.stats().evicted_full, 1000);
}

TEST(HostArena, MemoryThatCannotBeHadIsAnError) {
  PageAccess huge;
  huge.full_bytes = std::size_t{1} << 50;
  const auto arena = HostArena::make(huge, 1 << 12, 0);
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().code, ErrorCode::kLimit);
}

}  // namespace
}  // namespace mimo
