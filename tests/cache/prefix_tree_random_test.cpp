// Long random histories of requests on pools that are too small for them. What is compared, step by step, is in
// CacheRig: every hit with a search by position over a plain map, every slot that a row would read with what
// was computed for it, every count with a recount.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "cache/cache_rig.h"

namespace mimo {
namespace {

using testing::CacheRig;
using testing::FakeRequest;
using testing::random_tokens;
using testing::Tokens;

struct Tail final : CacheAttachment {
  explicit Tail(std::uint64_t prefix) : hash(prefix) {}
  std::size_t bytes() const override { return 10; }
  std::uint64_t hash;  // of the prefix it belongs to
};

class Traffic {
 public:
  Traffic(const PageLayout& layout, std::int64_t full_tokens, std::int64_t window_tokens, unsigned seed)
      : rig_(layout, pages_for(full_tokens, layout.page_size), pages_for(window_tokens, layout.page_size),
             {.attachment_bytes = 200}),
        random_(seed) {}

  void run(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFatalFailure(); ++step) {
      SCOPED_TRACE(::testing::Message() << "step " << step);
      const unsigned action = below(100);
      if (requests_.empty() || (requests_.size() < 7 && action < 25)) {
        start();
      } else if (action < 90) {
        advance(below(static_cast<unsigned>(requests_.size())));
      } else if (action < 95) {
        drop(below(static_cast<unsigned>(requests_.size())));  // aborted, in whatever state
      } else if (action < 99) {
        rig_.tree.make_room(below(static_cast<unsigned>(rig_.full.capacity() + 1)),
                            below(static_cast<unsigned>(rig_.window.capacity() + 1)));
      } else if (below(10) == 0) {
        rig_.tree.flush();
      }
      rig_.check_books(requests_);
      if (::testing::Test::HasFatalFailure()) return;
    }
    requests_.clear();
    rig_.check_books(requests_);
    EXPECT_EQ(rig_.full.owned_pages(), 0);
    EXPECT_EQ(rig_.window.owned_pages(), 0);
    EXPECT_TRUE(rig_.tree.make_room(rig_.full.capacity(), rig_.window.capacity())) << "all can be evicted";
    EXPECT_EQ(rig_.tree.pages(), 0);
  }

  std::int64_t hits() const { return hits_; }
  std::int64_t finished() const { return finished_; }
  std::int64_t retracted() const { return retracted_; }

 private:
  unsigned below(unsigned end) { return static_cast<unsigned>(random_()) % end; }

  void start() {
    Tokens tokens;
    if (!histories_.empty() && below(4) != 0) {
      // A further turn, a repeated prompt, or one whose end was edited.
      tokens = histories_[below(static_cast<unsigned>(histories_.size()))];
      if (below(2) == 0) tokens.resize(tokens.size() - below(static_cast<unsigned>(tokens.size())));
    }
    const Tokens more = random_tokens(random_, 1 + static_cast<int>(below(300)));
    if (below(5) != 0 || tokens.empty()) tokens.insert(tokens.end(), more.begin(), more.end());
    const std::int64_t most = rig_.full.capacity() * rig_.layout.page_size / 2;
    if (std::ssize(tokens) > most) tokens.resize(static_cast<std::size_t>(most));
    const std::string salt = below(8) == 0 ? "tenant" : "";
    const std::int64_t limit = below(8) == 0 ? below(300) : INT64_MAX;
    requests_.push_back(rig_.open(tokens, salt, limit));
    FakeRequest& request = *requests_.back();
    if (request.reused > 0) ++hits_;
    if (request.attachment) {
      EXPECT_EQ(static_cast<const Tail&>(*request.attachment).hash,
                request.hashes[static_cast<std::size_t>(request.reused - 1)]);
    }
    if (below(2) == 0) request.pages.keep_behind(prompt_end_extra(rig_.layout));
  }

  ReusePoint point(const FakeRequest& request, std::int64_t position) {
    ReusePoint p{.position = position,
                 .rank = static_cast<WindowRank>(below(4)),
                 .extra = below(3) == 0 ? below(300) : 0,
                 .attachment = {}};
    const std::int64_t boundary = rig_.layout.floor(position);
    if (below(2) == 0 && boundary > 0) {
      p.attachment = std::make_shared<Tail>(request.hashes[static_cast<std::size_t>(boundary - 1)]);
    }
    return p;
  }

  std::vector<ReusePoint> points(const FakeRequest& request) {
    std::vector<ReusePoint> all;
    for (unsigned i = below(3); i > 0; --i) {
      all.push_back(point(request, below(static_cast<unsigned>(request.length() + 1))));
    }
    if (below(2) == 0) all.push_back(point(request, request.length()));
    if (request.full_tokens > request.reused && request.full_tokens <= request.length()) {
      all.push_back(
          {.position = request.full_tokens, .rank = WindowRank::kBranch, .extra = 0, .attachment = {}});
    }
    return all;
  }

  void advance(std::size_t index) {
    FakeRequest& request = *requests_[index];
    const std::int64_t left = std::ssize(request.tokens) - request.length();
    const bool decoding = below(2) == 0;
    const std::int64_t rows = std::min<std::int64_t>(left, 1 + below(decoding ? 4 : 250));
    const std::int64_t drafts = decoding ? below(8) : 0;
    if (!rig_.run(request, rows, drafts)) {
      // Retract somebody, with or without leaving what was computed to the cache.
      const std::size_t victim = below(static_cast<unsigned>(requests_.size()));
      if (below(2) == 0) rig_.insert(*requests_[victim], points(*requests_[victim]));
      ++retracted_;
      drop(victim);
      return;
    }
    if (!decoding || below(4) == 0) rig_.insert(request, points(request));
    request.pages.trim();
    rig_.check(request);
    if (request.length() < std::ssize(request.tokens)) return;
    const std::int64_t cut =
        below(4) == 0 ? below(static_cast<unsigned>(std::min<std::int64_t>(request.length(), 9))) : 0;
    rig_.insert(request, points(request), request.length() - cut);
    histories_.push_back(request.tokens);
    if (histories_.size() > 12) histories_.erase(histories_.begin() + below(12));
    ++finished_;
    drop(index);
  }

  void drop(std::size_t index) { requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(index)); }

  CacheRig rig_;
  std::mt19937 random_;
  std::vector<Tokens> histories_;
  std::vector<std::unique_ptr<FakeRequest>> requests_;
  std::int64_t hits_ = 0;
  std::int64_t finished_ = 0;
  std::int64_t retracted_ = 0;
};

class RandomTraffic : public ::testing::TestWithParam<int> {};

// C36, C45 in their part of bookkeeping; trap 19.
TEST_P(RandomTraffic, TinyPools) {
  const int page_size = GetParam();
  std::int64_t hits = 0;
  std::int64_t finished = 0;
  std::int64_t retracted = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(::testing::Message() << "page " << page_size << ", seed " << seed);
    const std::int64_t full = std::max<std::int64_t>(1400, 8 * page_size);
    const std::int64_t window = std::max<std::int64_t>(seed % 2 == 0 ? 900 : 1400, 7 * page_size);
    Traffic traffic({page_size, 128}, full, window, seed);
    traffic.run(1200);
    hits += traffic.hits();
    finished += traffic.finished();
    retracted += traffic.retracted();
    if (HasFatalFailure()) return;
  }
  // The traffic is of the kind that this test is about.
  EXPECT_GT(hits, 50);
  EXPECT_GT(finished, 300);
  EXPECT_GT(retracted, 20);
}

TEST_P(RandomTraffic, OtherWindows) {
  for (const int window : {1, 2, 17, 300}) {
    SCOPED_TRACE(::testing::Message() << "page " << GetParam() << ", window " << window);
    Traffic traffic({GetParam(), window}, std::max(2000, 12 * GetParam()), std::max(2000, 8 * GetParam()),
                    static_cast<unsigned>(window));
    traffic.run(600);
    if (HasFatalFailure()) return;
  }
}

// C45: many short requests, strict accounting all along.
TEST(PrefixTreeChurn, C45FiftyThousandShortRequestsLeakNothing) {
  CacheRig rig({16, 128}, 200, 120);
  std::mt19937 random(45);
  const Tokens system = random_tokens(random, 150);
  std::vector<std::unique_ptr<FakeRequest>> requests;
  for (int i = 0; i < 50000; ++i) {
    Tokens tokens = system;
    tokens.resize(random() % 150);
    const Tokens more = random_tokens(random, 1 + static_cast<int>(random() % 60), 3);
    tokens.insert(tokens.end(), more.begin(), more.end());
    requests.push_back(rig.open(tokens));
    FakeRequest& request = *requests.back();
    ASSERT_TRUE(rig.run(request, std::ssize(tokens) - request.length()));
    if (random() % 8 != 0) rig.insert(request, std::vector{rig.prompt_end(std::ssize(tokens))});
    request.pages.trim();
    if (requests.size() == 3) requests.erase(requests.begin() + static_cast<std::ptrdiff_t>(random() % 3));
    if (i % 1000 == 0) rig.check_books(requests);
    if (::testing::Test::HasFatalFailure()) return;
  }
  requests.clear();
  rig.check_books(requests);
  EXPECT_EQ(rig.full.owned_pages(), 0);
  EXPECT_GT(rig.tree.stats().evicted_full, 10000);
}

INSTANTIATE_TEST_SUITE_P(PageSizes, RandomTraffic, ::testing::Values(1, 16, 64, 128, 256),
                         [](const auto& page) { return "page" + std::to_string(page.param); });

}  // namespace
}  // namespace mimo
