// Random traffic over a tiny device and a tiny host, with copies that lag any time behind whoever asked for them.
// Beside what CacheRig compares: every slot of every prefix that comes back, and, where the host has room for
// all, that everything that was stored is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/host_rig.h"

namespace mimo {
namespace {

using testing::at;
using testing::FakeRequest;
using testing::HostRig;
using testing::random_tokens;
using testing::Tokens;

constexpr int kWindow = 128;

class HostTraffic {
 public:
  HostTraffic(int page_size, bool ample, unsigned seed)
      : layout_{page_size, kWindow},
        ample_(ample),
        device_(std::max(1200, 8 * page_size) / page_size),
        host_(layout_, device_, ample ? HostTierSize{100000 / page_size, 1500} : HostTierSize{device_, 5}),
        random_(seed) {
    host_.rig.more_users = [this](PageAudit& audit) {
      host_.tier.add_users(audit);
      for (const Restoring& r : restoring_) {
        if (r.restore->state() == HostRestore::State::kReady) audit.add(*r.restore->pages());
      }
    };
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE(::testing::Message() << "step " << step);
      if (below(3) != 0) host_.mover.step(number(30 * std::max<std::size_t>(1, 64 / page())));
      if (below(2) == 0) host_.tier.poll();
      take_restored();
      act();
      host_.check(running_);
      if (::testing::Test::HasFatalFailure()) return;
    }
    running_.clear();
    restoring_.clear();
    host_.finish_copies();
    host_.check();
    EXPECT_EQ(host_.rig.full.owned_pages(), 0);
    EXPECT_EQ(host_.rig.window.owned_pages(), 0);
  }

  std::int64_t restored() const { return restored_; }
  std::int64_t failed() const { return failed_; }

 private:
  struct Restoring {
    Tokens tokens;
    std::string salt;
    std::shared_ptr<HostRestore> restore;
  };

  std::size_t page() const { return static_cast<std::size_t>(layout_.page_size); }
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_()) % end; }
  std::int64_t number(std::size_t end) { return static_cast<std::int64_t>(below(end)); }
  void drop_running() { running_.erase(running_.begin() + number(running_.size())); }

  void act() {
    const std::size_t action = below(100);
    const std::size_t active = running_.size() + restoring_.size();
    if (active == 0 || (active < 6 && action < 30)) {
      start();
    } else if (action < 85) {
      if (!running_.empty()) advance(below(running_.size()));
    } else if (action < 90) {
      if (!running_.empty()) drop_running();
    } else if (action < 98) {
      host_.rig.tree.make_room(number(static_cast<std::size_t>(device_ + 1)),
                               number(static_cast<std::size_t>(device_ + 1)));
    } else if (!ample_ && action == 98) {
      // All windows, and some page.
      const auto slots = static_cast<std::size_t>(5 * window_record_pages(layout_));
      for (std::size_t slot = 0; slot < slots; ++slot) host_.mover.spoil(PageKind::kWindow, slot);
      host_.mover.spoil(PageKind::kFull, below(static_cast<std::size_t>(device_)));
    } else if (!ample_ && below(10) == 0) {
      host_.tier.flush();
    }
  }

  void take_restored() {
    std::erase_if(restoring_, [this](Restoring& r) {
      if (r.restore->state() == HostRestore::State::kLoading) return below(40) == 0;  // given up
      if (r.restore->state() == HostRestore::State::kFailed) ++failed_;
      if (r.restore->state() == HostRestore::State::kReady && below(20) != 0) {
        auto request = std::make_unique<FakeRequest>(r.tokens, r.salt, r.restore->take());
        host_.rig.check(*request);
        host_.rig.insert(*request, std::vector{at(request->length())});
        running_.push_back(std::move(request));
        ++restored_;
      }
      return true;
    });
  }

  void start() {
    Tokens tokens;
    if (!histories_.empty() && below(5) != 0) tokens = histories_[below(histories_.size())];
    const Tokens more = random_tokens(random_, 1 + static_cast<int>(below(300)));
    tokens.insert(tokens.end(), more.begin(), more.end());
    const std::size_t most = static_cast<std::size_t>(device_) * page() / 2;
    if (tokens.size() > most) tokens.resize(most);
    const std::string salt = below(8) == 0 ? "tenant" : "";
    auto request = host_.rig.open(tokens, salt);
    const PrefixProbe probe{request->reused, request->full_tokens};
    if (ample_ && below(2) == 0) {
      host_.finish_copies();  // what is under way is not decided
      ASSERT_EQ(host_.tier.find(tokens, salt, probe), expected(*request));
    }
    const std::int64_t found = host_.tier.find(tokens, salt, probe);
    if (found > 0) {
      auto restore = host_.tier.restore(tokens, salt, found);
      if (restore) {
        restoring_.push_back({tokens, salt, std::move(*restore)});
        return;
      }
      ASSERT_EQ(restore.error().code, ErrorCode::kLimit);
    }
    running_.push_back(std::move(request));
  }

  // By position, over all that was ever stored.
  std::int64_t expected(const FakeRequest& request) const {
    std::int64_t best = 0;
    for (std::size_t h = page(); h < request.tokens.size(); h += page()) {
      const std::uint64_t hash = request.hashes[h - 1];
      if (!stored_pages_.contains(hash)) break;
      if (stored_windows_.contains(hash)) best = static_cast<std::int64_t>(h);
    }
    return best > request.reused ? best : 0;
  }

  void advance(std::size_t index) {
    FakeRequest& request = *running_[index];
    const std::int64_t left = std::ssize(request.tokens) - request.length();
    if (!host_.rig.run(request, std::min(left, 1 + number(250)), number(8))) {
      if (!host_.tier.wait()) drop_running();
      return;
    }
    std::vector<ReusePoint> points;
    for (std::size_t i = below(3); i > 0; --i) {
      points.push_back(at(number(static_cast<std::size_t>(request.length() + 1))));
    }
    points.push_back(at(request.length() - number(2)));
    host_.rig.insert(request, points);
    if (below(4) != 0) store(request, points);
    request.pages.trim();
    if (request.length() < std::ssize(request.tokens)) return;
    histories_.push_back(request.tokens);
    if (histories_.size() > 10) histories_.erase(histories_.begin());
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void store(FakeRequest& request, const std::vector<ReusePoint>& points) {
    for (std::size_t end = page(); end <= request.computed().size(); end += page()) {
      stored_pages_.insert(request.hashes[end - 1]);
    }
    for (const ReusePoint& point : points) {
      const std::int64_t h = layout_.floor(point.position);
      bool alive = h > 0;
      for (std::int64_t p = std::max<std::int64_t>(0, h - (kWindow - 1)); p < h && alive; ++p) {
        alive = request.pages.window_pages()[static_cast<std::size_t>(p) / page()] >= 0;
      }
      if (alive) stored_windows_.insert(request.hashes[static_cast<std::size_t>(h - 1)]);
    }
    host_.tier.store(request.computed(), request.salt, request.pages, points);
  }

  PageLayout layout_;
  bool ample_;
  std::int64_t device_;
  HostRig host_;
  std::mt19937 random_;
  std::set<std::uint64_t> stored_pages_;  // hashes of prefixes
  std::set<std::uint64_t> stored_windows_;
  std::vector<Tokens> histories_;
  std::vector<std::unique_ptr<FakeRequest>> running_;
  std::vector<Restoring> restoring_;
  std::int64_t restored_ = 0;
  std::int64_t failed_ = 0;
};

class RandomHostTraffic : public ::testing::TestWithParam<int> {};

TEST_P(RandomHostTraffic, CopiesAtAnyTime) {
  std::int64_t restored = 0;
  std::int64_t failed = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(::testing::Message() << "page " << GetParam() << ", seed " << seed);
    HostTraffic traffic(GetParam(), seed % 2 == 0, seed);
    traffic.run(1000);
    restored += traffic.restored();
    failed += traffic.failed();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(restored, 100);
  EXPECT_GT(failed, 0);
}

INSTANTIATE_TEST_SUITE_P(PageSizes, RandomHostTraffic, ::testing::Values(1, 16, 64, 128, 256),
                         [](const auto& page) { return "page" + std::to_string(page.param); });

}  // namespace
}  // namespace mimo
