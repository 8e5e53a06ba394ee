// A rig with a host tier whose copies the test controls.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_rig.h"
#include "cache/host_tier.h"
#include "cache/manual_mover.h"

namespace mimo::testing {

inline ReusePoint at(std::int64_t position) {
  return {.position = position, .rank = WindowRank::kEnd, .extra = 0, .attachment = {}};
}

struct HostRig {
  HostRig(const PageLayout& layout, std::int64_t device_pages, const HostTierSize& size,
          std::int64_t min_restore = 1)
      : rig(layout, device_pages, device_pages),
        mover(rig.full_kv, rig.window_kv, size.full_slots, size.window_records * window_record_pages(layout)),
        tier(layout, rig.full, rig.window, rig.tree, mover,
             {.size = size, .min_restore_tokens = min_restore}) {
    rig.more_users = [this](PageAudit& audit) { tier.add_users(audit); };
  }

  // One request from beginning to end, stored at `points` (its end if there are none).
  void serve(const Tokens& tokens, std::vector<ReusePoint> points = {}, const std::string& salt = "") {
    const auto request = rig.open(tokens, salt);
    ASSERT_TRUE(rig.run(*request, std::ssize(tokens) - request->length()));
    if (points.empty()) points.push_back(at(std::ssize(tokens)));
    rig.insert(*request, points);
    tier.store(tokens, salt, request->pages, points);
  }
  void finish_copies() {
    while (tier.wait()) {
    }
  }
  void evict_all() { rig.tree.flush(); }

  std::int64_t find(const Tokens& tokens, const std::string& salt = "", std::int64_t limit = INT64_MAX) {
    return tier.find(tokens, salt, rig.tree.probe(tokens, salt, limit), limit);
  }
  // Brings a prefix back, and checks every slot of it.
  std::unique_ptr<FakeRequest> restore(const Tokens& tokens, const std::string& salt = "") {
    const std::int64_t length = find(tokens, salt);
    if (length == 0) return nullptr;
    auto restored = tier.restore(tokens, salt, length);
    if (!restored) return nullptr;
    while ((*restored)->state() == HostRestore::State::kLoading) EXPECT_TRUE(tier.wait());
    if ((*restored)->state() == HostRestore::State::kFailed) return nullptr;
    auto request = std::make_unique<FakeRequest>(tokens, salt, (*restored)->take());
    request->attachment = (*restored)->attachment();
    EXPECT_EQ(request->length(), length);
    rig.check(*request);
    rig.insert(*request, std::vector{at(length)});
    return request;
  }
  void check(std::span<const std::unique_ptr<FakeRequest>> requests = {}) {
    rig.check_books(requests);
    const Status ok = tier.verify();
    ASSERT_TRUE(ok) << ok.error().message;
  }

  CacheRig rig;
  ManualMover mover;
  HostTier tier;
};

}  // namespace mimo::testing
