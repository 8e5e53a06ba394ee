// The scheduler without a model: a test stands in for it and makes up tokens.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "cache/manual_mover.h"
#include "cache/page_audit.h"
#include "core/philox.h"

namespace mimo {
namespace {

using mimo::testing::FakeKv;

struct Load {
  std::int64_t prompt = 0;
  std::int64_t answer = 0;  // tokens until it ends
  std::int64_t limit = 0;   // of prompt and answer
};

// What the pages would hold: for each slot a number that only one sequence of tokens up to that position has. Rows see
// what a model would see, so a page shared, freed or overwritten at the wrong time shows.
class KvShadow {
 public:
  KvShadow(const PageLayout& layout, PagePool& full, PagePool& window)
      : full_kv(full.capacity(), layout.page_size),
        window_kv(window.capacity(), layout.page_size),
        layout_(layout) {
    for (auto [kv, pool] : {std::pair{&full_kv, &full}, {&window_kv, &window}}) {
      pool->on_free([kv = kv](std::int32_t page) { std::ranges::fill(kv->page(page), FakeKv::kPoison); });
    }
  }

  void write(const SequencePages& pages, std::int64_t position, std::uint64_t value) {
    full_kv.data[slot(pages.full_pages(), position)] = value;
    window_kv.data[slot(pages.window_pages(), position)] = value;
  }
  // Everything that a row at `position` reads is the prefix of its own sequence.
  bool sees(const SequencePages& pages, std::int64_t position, std::span<const std::uint64_t> values) const {
    for (std::int64_t key = 0; key <= position; ++key) {
      const std::uint64_t wanted = values[static_cast<std::size_t>(key)];
      if (full_kv.data[slot(pages.full_pages(), key)] != wanted) return false;
      if (key <= position - layout_.window) continue;
      if (pages.window_pages()[static_cast<std::size_t>(key / layout_.page_size)] < 0) return false;
      if (window_kv.data[slot(pages.window_pages(), key)] != wanted) return false;
    }
    return true;
  }

  FakeKv full_kv;
  FakeKv window_kv;

 private:
  std::size_t slot(std::span<const std::int32_t> table, std::int64_t position) const {
    const std::int64_t page = table[static_cast<std::size_t>(position / layout_.page_size)];
    return static_cast<std::size_t>(page * layout_.page_size + position % layout_.page_size);
  }

  PageLayout layout_;
};

// Scheduler, pools and tree, and what a step needs from outside.
class Simulation {
 public:
  Simulation(SchedulerOptions options, std::int64_t full_tokens, std::int64_t window_tails, bool cache = true,
             std::int64_t host_tokens = 0)
      : options_(options),
        full("full", pages_for(full_tokens, options.layout.page_size)),
        window("window", Scheduler::window_pages(options, options.max_running) +
                             window_tails * pages_for(options.layout.window, options.layout.page_size)),
        shadow(options.layout, full, window),
        tree(options.layout, full, window) {
    if (host_tokens > 0) {
      HostTierSize size;
      size.full_slots = pages_for(host_tokens, options.layout.page_size);
      size.window_records = std::max<std::int64_t>(1, size.full_slots / 8);
      mover.emplace(shadow.full_kv, shadow.window_kv, size.full_slots,
                    size.window_records * window_record_pages(options.layout));
      host.emplace(options.layout, full, window, tree, *mover,
                   HostTier::Options{.size = size, .min_restore_tokens = 32});
    }
    Result<Scheduler> made =
        Scheduler::make(options, full, window, cache ? &tree : nullptr, host ? &*host : nullptr);
    if (!made) throw std::runtime_error(made.error().message);
    scheduler.emplace(std::move(*made));
  }

  Status submit(RequestId id, const Load& load, std::vector<std::int32_t> tokens, int priority = 0) {
    ScheduledRequest request;
    request.id = id;
    request.tokens = std::move(tokens);
    request.prompt = load.prompt;
    request.limit = load.limit;
    request.priority = priority;
    loads[id] = load;
    return scheduler->submit(std::move(request));
  }

  // One step; drafts are accepted at random.
  void step(std::mt19937& random) {
    if (mover) mover->step(static_cast<std::int64_t>(random() % 12));
    scheduler->prepare();
    const auto decoding = static_cast<int>(scheduler->decoding().size());
    std::vector<int> drafts;
    for (const ScheduledRequest* request : scheduler->decoding()) {
      const std::int64_t left = request->limit - static_cast<std::int64_t>(request->tokens.size());
      const int most = std::min(options_.block - 1, options_.rows / decoding - 1);
      drafts.push_back(static_cast<int>(
          std::min<std::int64_t>(left - 1, most == 0 ? 0 : static_cast<int>(random() % (most + 1u)))));
    }
    const StepPlan plan = scheduler->lay_out(drafts);
    ++steps;
    admitted.insert(admitted.end(), plan.admitted.begin(), plan.admitted.end());
    ASSERT_LE(plan.rows, options_.rows);
    int rows = 0;
    for (const PlanPart& part : plan.parts) {
      ASSERT_EQ(part.row_begin, rows);
      ASSERT_GT(part.rows, 0);
      rows += part.rows;
      ScheduledRequest* request = scheduler->find(part.id);
      ASSERT_NE(request, nullptr);
      ASSERT_EQ(part.position, request->computed());
      ASSERT_GE(std::ssize(request->pages->full_pages()) * options_.layout.page_size,
                part.position + part.rows);
    }
    ASSERT_EQ(rows, plan.rows);
    ASSERT_TRUE(scheduler->idle() || !plan.parts.empty()) << "a step that does nothing";
    // As the model: the keys and values of all rows are written, then the rows read.
    std::map<RequestId, std::vector<std::uint64_t>> values;
    for (const PlanPart& part : plan.parts) {
      const ScheduledRequest& request = *scheduler->find(part.id);
      std::vector<std::int32_t> known = request.tokens;
      while (std::ssize(known) < part.position + part.rows) {  // drafts that are right
        known.push_back(answer_token(part.id, std::ssize(known)));
      }
      const std::vector<std::uint64_t>& own = values[part.id] =
          mimo::testing::prefix_hashes(known, request.salt);
      for (std::int64_t at = part.position; at < part.position + part.rows; ++at) {
        shadow.write(*request.pages, at, own[static_cast<std::size_t>(at)]);
      }
    }
    for (const PlanPart& part : plan.parts) {
      for (const std::int64_t at : {part.position, part.position + part.rows - 1}) {
        ASSERT_TRUE(shadow.sees(*scheduler->find(part.id)->pages, at, values[part.id]))
            << "request " << part.id << " reads at " << at << " what is not its own";
      }
    }
    for (const PlanPart& part : plan.parts) {
      const Load& load = loads[part.id];
      const ScheduledRequest& request = *scheduler->find(part.id);
      if (part.prefill && !part.last) {
        scheduler->advance(part.id, part.rows, {});
        continue;
      }
      const int most = part.prefill ? 1 : 1 + static_cast<int>(random() % static_cast<unsigned>(part.rows));
      const auto left = static_cast<int>(load.prompt + load.answer - std::ssize(request.tokens));
      const int count = std::min(most, left);
      std::vector<std::int32_t> emitted;
      for (int i = 0; i < count; ++i)
        emitted.push_back(answer_token(part.id, std::ssize(request.tokens) + i));
      if (!part.prefill) {
        // Drafts that were rejected have left something else there.
        for (std::int64_t at = part.position + count; at < part.position + part.rows; ++at) {
          shadow.write(*request.pages, at, FakeKv::kRejected);
        }
      }
      scheduler->advance(part.id, part.prefill ? part.rows : count, emitted);
      if (count == left) {
        ended.push_back(part.id);
        // Whatever happened on the way, the answer is the one it has alone.
        ASSERT_EQ(std::ssize(request.tokens), load.prompt + load.answer);
        for (std::int64_t at = load.prompt; at < std::ssize(request.tokens); ++at) {
          ASSERT_EQ(request.tokens[static_cast<std::size_t>(at)], answer_token(part.id, at));
        }
        scheduler->remove(part.id);
      }
    }
    PageAudit audit(full, window);
    for (const auto& [id, load] : loads) {
      const ScheduledRequest* request = scheduler->find(id);
      if (request != nullptr && request->pages) audit.add(*request->pages);
      if (request != nullptr && request->restore && request->restore->state() == HostRestore::State::kReady) {
        audit.add(*request->restore->pages());
      }
    }
    if (host) {
      host->add_users(audit);
      const Status ok = host->verify();
      ASSERT_TRUE(ok) << ok.error().message;
    }
    const Status pages = audit.check();
    ASSERT_TRUE(pages) << pages.error().message;
  }

  void expect_balance() {
    while (host && host->wait()) {
    }
    EXPECT_EQ(full.owned_pages(), 0);
    EXPECT_EQ(window.owned_pages(), 0);
    const Status ok = tree.verify();
    EXPECT_TRUE(ok) << (ok ? "" : ok.error().message);
  }

  // The token that the model would give request `id` at a position.
  static std::int32_t answer_token(RequestId id, std::int64_t position) {
    return static_cast<std::int32_t>(philox_uniform(id, position) * 1000);
  }

  SchedulerOptions options_;
  PagePool full;
  PagePool window;
  KvShadow shadow;
  PrefixTree tree;
  std::optional<mimo::testing::ManualMover> mover;
  std::optional<HostTier> host;
  std::optional<Scheduler> scheduler;
  std::map<RequestId, Load> loads;
  std::vector<RequestId> admitted;
  std::vector<RequestId> ended;
  int steps = 0;
};

std::vector<std::int32_t> tokens_of(std::mt19937& random, std::int64_t count, unsigned family) {
  std::mt19937 shared(family);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<std::int32_t>((i < count / 2 ? shared() : random()) % 1000));
  }
  return tokens;
}

TEST(Scheduler, RandomLoadsEndAndLeaveNothingBehind) {
  std::int64_t retractions = 0;
  std::int64_t restores = 0;
  for (unsigned seed = 0; seed < 120; ++seed) {
    std::mt19937 random(seed);
    SchedulerOptions options;
    options.layout = {std::vector<int>{1, 16, 64, 128}[seed % 4], 128,
                      std::vector<int>{0, 0, 100}[seed / 4 % 3]};
    options.rows = std::vector<int>{32, 100, 256}[seed % 3];
    options.max_running = 1 + static_cast<int>(random() % 8);
    options.max_queued = 1000;
    options.block = std::vector<int>{1, 4, 8}[random() % 3];
    options.mixed = seed % 5 != 0;
    options.longest_prefix_first = seed % 7 == 0;
    options.conservativeness = seed % 2 == 0 ? 1.0 : 0.05;
    const std::int64_t pool = 600 + static_cast<std::int64_t>(random() % 1500);
    Simulation run(options, pool, static_cast<std::int64_t>(random() % 6), seed % 6 != 1,
                   seed < 60 || seed % 6 == 1 ? 0 : 300 + static_cast<std::int64_t>(random() % 8000));
    const std::int64_t longest = run.scheduler->longest_request();
    RequestId next = 1;
    int aborted = 0;
    for (int step = 0; step < 20000 && (next <= 40 || !run.scheduler->idle()); ++step) {
      if (next <= 40 && random() % 3 == 0) {
        Load load;
        load.prompt = 1 + static_cast<std::int64_t>(random() % 400);
        load.answer = 1 + static_cast<std::int64_t>(random() % 200);
        load.limit = std::min<std::int64_t>(
            longest, load.prompt + load.answer + static_cast<std::int64_t>(random() % 100));
        load.answer = std::min(load.answer, load.limit - load.prompt);
        ASSERT_TRUE(run.submit(next++, load, tokens_of(random, load.prompt, random() % 3)));
      }
      if (random() % 50 == 0 && next > 1) {
        const RequestId victim = 1 + random() % (next - 1);
        if (run.scheduler->find(victim) != nullptr) ++aborted;
        run.scheduler->remove(victim);
      }
      run.step(random);
      if (HasFatalFailure()) FAIL() << "seed " << seed << ", step " << step;
    }
    ASSERT_TRUE(run.scheduler->idle()) << "seed " << seed << ": something never ended";
    EXPECT_EQ(std::ssize(run.ended) + aborted, 40);
    retractions += run.scheduler->retractions();
    run.expect_balance();
    if (run.host) restores += run.host->stats().restores;
  }
  EXPECT_GT(retractions, 0);
  EXPECT_GT(restores, 0);
}

SchedulerOptions small() {
  SchedulerOptions options;
  options.layout = {16, 128};
  options.rows = 64;
  options.max_running = 2;
  options.max_queued = 3;
  return options;
}

TEST(Scheduler, C34LongerThanThePoolIsRefusedAndAFullQueueIsBusy) {
  Simulation run(small(), 512, 4);
  std::mt19937 random(1);
  const Status long_one = run.submit(1, {600, 1, 601}, tokens_of(random, 600, 1));
  ASSERT_FALSE(long_one);
  EXPECT_EQ(long_one.error().code, ErrorCode::kLimit);
  for (RequestId id = 2; id <= 4; ++id) ASSERT_TRUE(run.submit(id, {20, 5, 30}, tokens_of(random, 20, 1)));
  const Status busy = run.submit(5, {20, 5, 30}, tokens_of(random, 20, 1));
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code, ErrorCode::kBusy);
}

TEST(Scheduler, PoolsForNoRequestAreRefusedWithAdvice) {
  PagePool full("full", 4);
  PagePool window("window", 4);
  const Result<Scheduler> made = Scheduler::make(small(), full, window, nullptr);
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("--chunked-prefill-size"), std::string::npos) << made.error().message;
}

TEST(Scheduler, UrgentRequestsGoFirstAndPreemptByMoreThanTheThreshold) {
  SchedulerOptions options = small();
  options.priorities = true;
  options.preemption_threshold = 10;
  options.max_queued = 10;
  Simulation run(options, 4096, 4);
  std::mt19937 random(1);
  for (RequestId id = 1; id <= 2; ++id)
    ASSERT_TRUE(run.submit(id, {20, 50, 80}, tokens_of(random, 20, 1), 0));
  run.step(random);
  ASSERT_TRUE(run.submit(3, {20, 5, 30}, tokens_of(random, 20, 1), 10));
  run.step(random);
  EXPECT_EQ(run.scheduler->retractions(), 0) << "10 is not more than the threshold";
  ASSERT_TRUE(run.submit(4, {20, 5, 30}, tokens_of(random, 20, 1), 11));
  run.step(random);
  EXPECT_EQ(run.scheduler->retractions(), 1);
  EXPECT_EQ(run.admitted.back(), 4u);
  while (!run.scheduler->idle()) run.step(random);
  EXPECT_EQ(run.ended.front(), 4u);
  run.expect_balance();
}

TEST(Scheduler, AShortPromptPassesALongOneButNotForEver) {
  SchedulerOptions options = small();
  options.max_running = 8;
  options.max_queued = 100;
  Simulation run(options, 8192, 4, false);
  std::mt19937 random(1);
  ASSERT_TRUE(run.submit(1, {1000, 1, 1001}, tokens_of(random, 1000, 1)));
  run.step(random);
  ASSERT_TRUE(run.submit(2, {1000, 1, 1001}, tokens_of(random, 1000, 2)));
  for (RequestId id = 3; id < 60; ++id) ASSERT_TRUE(run.submit(id, {20, 1, 21}, tokens_of(random, 20, 3)));
  while (!run.scheduler->idle()) run.step(random);
  const auto place = [&](RequestId id) {
    return std::find(run.ended.begin(), run.ended.end(), id) - run.ended.begin();
  };
  EXPECT_LT(place(3), place(2));
  EXPECT_LT(place(2), 57) << "the long prompt came last of all";
}

// Requests come for ever, and as many as can run: prompts that are cached, which any policy likes, and one that is not.
TEST(Scheduler, NobodyIsPassedForEverWhileOthersKeepComing) {
  for (const bool longest_prefix_first : {false, true}) {
    for (const std::int64_t cold : {20, 300, 1000}) {
      SchedulerOptions options = small();
      options.max_running = 4;
      options.max_queued = 100;
      options.longest_prefix_first = longest_prefix_first;
      Simulation run(options, 4096, 16);
      std::mt19937 random(1);
      const std::vector<std::int32_t> warm = tokens_of(random, 120, 1);
      RequestId next = 1;
      const auto ask_warm = [&] { ASSERT_TRUE(run.submit(next++, {120, 6, 130}, warm)); };
      for (int i = 0; i < 12; ++i) ask_warm();
      for (int i = 0; i < 30; ++i) run.step(random);
      const RequestId waiting = next++;
      ASSERT_TRUE(run.submit(waiting, {cold, 6, cold + 10}, tokens_of(random, cold, 2)));
      const int came = run.steps;
      while (run.scheduler->find(waiting) != nullptr && run.steps < came + 3000) {
        while (run.scheduler->waiting() < 12) ask_warm();
        run.step(random);
        ASSERT_FALSE(HasFatalFailure());
      }
      EXPECT_LT(run.steps - came, 400)
          << "prompt of " << cold << ", longest prefix first: " << longest_prefix_first;
    }
  }
}

TEST(Scheduler, TheSameEventsGiveTheSamePlans) {
  const auto run_once = [] {
    Simulation run(small(), 700, 2);
    std::mt19937 random(9);
    std::vector<RequestId> order;
    RequestId next = 1;
    for (int step = 0; step < 600 && (next <= 12 || !run.scheduler->idle()); ++step) {
      if (next <= 12 && step % 3 == 0 && run.scheduler->waiting() < 3) {
        (void)run.submit(next++, {100, 20, 140}, tokens_of(random, 100, 1));
      }
      run.step(random);
    }
    return run.ended;
  };
  EXPECT_EQ(run_once(), run_once());
}

}  // namespace
}  // namespace mimo
