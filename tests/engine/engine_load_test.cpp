// The engine behind its thread, asked and aborted from many threads at once, with pools far too small: nobody's tokens
// change, everybody gets exactly one end, and every page comes back.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>

#include "checkpoint/weight_source.h"
#include "engine/engine_core.h"
#include "engine/generator_fixture.h"
#include "engine/serving_engine.h"
#include "model/dflash.h"
#include "model/mtp.h"
#include "support/checkpoint_writer.h"
#include "support/tiny_drafter.h"

namespace mimo::testing {
namespace {

// So few that random drafts are accepted now and then.
constexpr int kVocab = 16;
constexpr int kWindow = 32;
constexpr std::int64_t kLongest = 160;

// Of each client.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kRequests = 30;
#else
constexpr int kRequests = 120;
#endif

enum class Drafts { kNone, kMtp, kDFlash };

// A random model with a short window, its MTP heads, and a DFlash drafter for it.
struct LoadModel {
  LoadModel() {
    ModelConfig config = value_or_throw(load_config(std::string(MIMO_SOURCE_DIR) + "/models/tiny"));
    config.vocab = kVocab;
    config.window.window = kWindow;
    config.mtp_heads = 3;
    config.eos_token_ids = {0};
    ops = value_or_throw(make_cpu_ops({.threads = 1, .pin = false}));
    source = value_or_throw(open_random(config, 11));
    target = std::make_unique<TargetModel>(value_or_throw(TargetModel::load(*source, *ops, {})));
    DrafterShape shape;
    shape.hidden = config.hidden;
    shape.target_layers = config.layers;
    shape.taps = {0, 1, config.layers - 1};
    shape.vocab = kVocab;
    shape.mask_token_id = kVocab - 1;
    shape.layers = 1;
    TinyDrafter(shape).write(directory.path());
  }
  std::unique_ptr<Drafter> drafter(Drafts kind, int requests) const {
    if (kind == Drafts::kMtp) {
      return value_or_throw(MtpDrafter::load(
          *source, *target, *ops, {.heads = 3, .max_requests = requests, .page_size = 16, .poison = true}));
    }
    if (kind == Drafts::kDFlash) {
      return value_or_throw(
          DFlashDrafter::load(directory.path(), *target, *ops,
                              {.max_requests = requests, .max_tokens = kLongest, .poison = true}));
    }
    return nullptr;
  }
  TempDir directory;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<WeightSource> source;
  std::unique_ptr<TargetModel> target;
};

LoadModel& model() {
  static LoadModel loaded;
  return loaded;
}

struct LoadOptions {
  Drafts drafts = Drafts::kNone;
  int page_size = 16;
  KvDType kv = KvDType::kBF16;
  int rows = 48;
  int max_running = 6;
  std::int64_t tokens = 2 * kLongest;
  std::int64_t window_tails = 2;
  bool mixed = true;
  bool longest_prefix_first = false;
  bool prefix_cache = true;
  std::uint64_t host_bytes = 0;  // of the host tier
};

void PrintTo(const LoadOptions& options, std::ostream* out) { *out << "page size " << options.page_size; }

std::unique_ptr<EngineCore> make_core(const LoadOptions& options, Drafter* drafter) {
  EngineOptions engine;
  engine.scheduler.layout = {options.page_size, kWindow};
  engine.scheduler.rows = options.rows;
  engine.scheduler.max_running = options.max_running;
  engine.scheduler.max_queued = 1 << 20;
  engine.scheduler.block = 1 + (drafter == nullptr ? 0 : drafter->max_drafts());
  engine.scheduler.mixed = options.mixed;
  engine.scheduler.longest_prefix_first = options.longest_prefix_first;
  engine.scheduler.conservativeness = 0.05;
  engine.kv_dtype = options.kv;
  engine.full_pages = pages_for(options.tokens, options.page_size);
  engine.window_pages = Scheduler::window_pages(engine.scheduler, options.max_running) +
                        options.window_tails * pages_for(kWindow, options.page_size);
  engine.prefix_cache = options.prefix_cache;
  engine.host_kv_bytes = options.host_bytes;
  engine.host_kv_min_tokens = 16;
  engine.drafter = drafter;
  engine.poison = true;
  engine.log = [](std::string_view) {};
  return value_or_throw(EngineCore::make(*model().target, *model().ops, engine));
}

// Takes what one request gets, on the engine's thread; another thread waits for it.
class Collector final : public AnswerSink {
 public:
  void on_step(AnswerStep&& step) override {
    const std::scoped_lock lock(mutex_);
    for (const SampledToken& token : step.tokens) ids_.push_back(token.id);
    if (ends_ > 0) ++steps_too_many_;
    if (step.last()) {
      ++ends_;
      error_ = step.error;
    }
    changed_.notify_all();
  }
  // Until so many tokens are there, or the end.
  void wait_for(std::size_t tokens) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ids_.size() >= tokens || ends_ > 0; });
  }
  void wait() { wait_for(SIZE_MAX); }
  // After the end.
  const std::vector<std::int32_t>& ids() const { return ids_; }
  const std::optional<Error>& error() const { return error_; }
  int ends() const {
    const std::scoped_lock lock(mutex_);
    return ends_;
  }
  int steps_too_many() const {
    const std::scoped_lock lock(mutex_);
    return steps_too_many_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int32_t> ids_;
  std::optional<Error> error_;
  int ends_ = 0;
  int steps_too_many_ = 0;
};

struct Case {
  EngineRequest request;
  std::vector<std::int32_t> cold;
};

// Prompts that share beginnings, some of which go on behind the answer of another one.
std::vector<Case> make_cases(KvDType kv) {
  std::vector<Case> cases;
  const auto add = [&](std::vector<std::int32_t> prompt, unsigned number) {
    EngineRequest request;
    request.params.max_tokens = 4 + static_cast<std::int64_t>(number * 7 % 40);
    prompt.resize(std::min(prompt.size(), static_cast<std::size_t>(kLongest - *request.params.max_tokens)));
    request.prompt = std::move(prompt);
    request.params.temperature = number % 3 == 0 ? 1 : 0;
    request.params.seed = number;
    request.params.ignore_eos = number % 4 != 1;
    request.choice = number % 2;
    const std::unique_ptr<EngineCore> alone =
        make_core({.kv = kv, .max_running = 1, .tokens = 1024, .prefix_cache = false}, nullptr);
    auto sink = std::make_shared<Collector>();
    const Status taken = alone->submit(1, request, sink);
    if (!taken) throw std::runtime_error(taken.error().message);
    while (!alone->idle()) alone->step();
    cases.push_back({std::move(request), sink->ids()});
  };
  for (unsigned i = 0; i < 48; ++i) {
    std::vector<std::int32_t> prompt =
        random_prompt(std::vector<std::size_t>{0, 33, 64, 90}[i % 4], 40 + i % 4, kVocab);
    const std::vector<std::int32_t> own = random_prompt(1 + i * 5 % 37, 100 + i, kVocab);
    prompt.insert(prompt.end(), own.begin(), own.end());
    add(prompt, i);
    if (i % 3 != 1) continue;
    std::vector<std::int32_t> next = cases.back().request.prompt;
    next.insert(next.end(), cases.back().cold.begin(), cases.back().cold.end());
    next.insert(next.end(), own.begin(), own.end());
    add(next, i + 1);
  }
  return cases;
}

struct Tally {
  std::atomic<int> answers{0}, aborted{0}, different{0}, wrong_ends{0};
  std::atomic<std::int64_t> tokens{0};
};

// One client: keeps some requests in flight, gives some up, and looks at what the others got.
void run_client(ServingEngine& engine, const std::vector<Case>& cases, int requests, unsigned seed,
                Tally& tally) {
  std::mt19937 random(seed);
  struct Flight {
    const Case* of = nullptr;
    RequestId id = 0;
    std::shared_ptr<Collector> sink;
    bool given_up = false;
  };
  std::vector<Flight> flights;
  const auto land = [&](Flight& flight) {
    flight.sink->wait();
    if (flight.sink->steps_too_many() > 0) ++tally.wrong_ends;
    const std::vector<std::int32_t>& ids = flight.sink->ids();
    const std::vector<std::int32_t>& cold = flight.of->cold;
    const std::optional<Error>& error = flight.sink->error();
    tally.tokens += std::ssize(ids);
    if (error) {
      ++tally.aborted;
      if (error->code != ErrorCode::kCancelled || !flight.given_up) ++tally.wrong_ends;
    } else {
      ++tally.answers;
    }
    // Of an aborted one the beginning.
    const bool same = ids.size() <= cold.size() && std::equal(ids.begin(), ids.end(), cold.begin()) &&
                      (error || ids.size() == cold.size());
    if (!same) ++tally.different;
  };
  for (int i = 0; i < requests; ++i) {
    Flight flight{&cases[random() % cases.size()], 0, std::make_shared<Collector>()};
    const Result<RequestId> id = engine.submit(flight.of->request, flight.sink);
    if (!id) {
      ++tally.wrong_ends;
      continue;
    }
    flight.id = *id;
    flight.given_up = random() % 4 == 0;
    if (flight.given_up) {
      const unsigned how = random() % 3;
      if (how == 1) std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
      if (how == 2) flight.sink->wait_for(1 + random() % 10);
      engine.abort(flight.id);
      if (random() % 4 == 0) engine.abort(flight.id);
    }
    flights.push_back(std::move(flight));
    while (flights.size() > 1 + random() % 8) {
      const std::size_t which = random() % flights.size();
      land(flights[which]);
      engine.abort(flights[which].id);  // of one that has ended: nothing happens
      flights.erase(flights.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  for (Flight& flight : flights) land(flight);
}

const std::vector<Case>& cases_of(KvDType kv) {
  static const std::vector<Case> bf16 = make_cases(KvDType::kBF16);
  static const std::vector<Case> fp8 = make_cases(KvDType::kFp8);
  return kv == KvDType::kFp8 ? fp8 : bf16;
}

class EngineLoad : public ::testing::TestWithParam<LoadOptions> {};

TEST_P(EngineLoad, ThreadsThatAskAndAbortChangeNoAnswerAndLeaveNothing) {
  constexpr int kClients = 4;
  const std::vector<Case>& cases = cases_of(GetParam().kv);
  const std::unique_ptr<Drafter> drafter = model().drafter(GetParam().drafts, GetParam().max_running);
  std::unique_ptr<EngineCore> core = make_core(GetParam(), drafter.get());
  const EngineCore& inside = *core;
  ServingEngine engine(std::move(core), model().target->config(),
                       {.max_queued = 1 << 20, .log = [](std::string_view) {}});
  Tally tally;
  std::atomic<bool> over{false};
  // Somebody reads the figures all the time.
  std::thread watcher([&] {
    while (!over) {
      const EngineStatus status = engine.status();
      if (!status.alive || status.full.free + status.full.cached > status.full.total) ++tally.wrong_ends;
      (void)engine.times();
      (void)engine.speculation();
      (void)engine.prefix_cache();
      (void)engine.flush_cache();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  std::vector<std::thread> clients;
  for (unsigned i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] { run_client(engine, cases, kRequests, i, tally); });
  }
  for (std::thread& client : clients) client.join();
  over = true;
  watcher.join();
  ASSERT_TRUE(engine.wait_idle(std::chrono::seconds(60)));

  EXPECT_EQ(tally.answers + tally.aborted, kClients * kRequests);
  EXPECT_GT(tally.aborted, 0);
  EXPECT_EQ(tally.different, 0);
  EXPECT_EQ(tally.wrong_ends, 0);
  // The thread sleeps now.
  const EngineStatus status = inside.status();
  EXPECT_EQ(status.running + status.waiting, 0);
  EXPECT_EQ(status.full.free + status.full.cached, status.full.total);
  EXPECT_EQ(status.window.free + status.window.cached, status.window.total);
  EXPECT_GT(status.retractions, 0) << "the pools were not tight";
  if (inside.prefix_tree() != nullptr) {
    const Status tree = inside.prefix_tree()->verify();
    EXPECT_TRUE(tree) << (tree ? "" : tree.error().message);
    EXPECT_GT(engine.prefix_cache().evicted_full, 0);
    EXPECT_GT(engine.prefix_cache().hit_tokens, 0);
  }
  if (inside.host_tier() != nullptr) {
    // Whether the threads have met a prefix that was only on the host is luck; asked in turn, some are.
    for (int round = 0; round < 3 && engine.host_tier().restores == 0; ++round) {
      for (const Case& one : cases) {
        const auto sink = std::make_shared<Collector>();
        ASSERT_TRUE(engine.submit(one.request, sink));
        sink->wait();
        EXPECT_EQ(sink->ids(), one.cold);
      }
    }
    ASSERT_TRUE(engine.wait_idle(std::chrono::seconds(60)));
    const Status host = inside.host_tier()->verify();
    EXPECT_TRUE(host) << (host ? "" : host.error().message);
    EXPECT_GT(engine.host_tier().restores, 0);
    EXPECT_GT(engine.host_tier().evicted_full, 0) << "the host tier was large enough for all";
    EXPECT_EQ(engine.host_tier().failed_restores, 0);
  }
  if (drafter) {
    EXPECT_GT(engine.speculation().accepted, 0);
  }
  ASSERT_TRUE(engine.flush_cache());
  EXPECT_EQ(engine.status().full.free, status.full.total);
  EXPECT_EQ(engine.status().window.free, status.window.total);
}

std::string load_name(const ::testing::TestParamInfo<LoadOptions>& info) {
  const LoadOptions& options = info.param;
  std::string name = options.drafts == Drafts::kMtp      ? "Mtp"
                     : options.drafts == Drafts::kDFlash ? "DFlash"
                                                         : "NoDrafts";
  name += "Page" + std::to_string(options.page_size) + (options.kv == KvDType::kFp8 ? "Fp8" : "Bf16");
  if (!options.mixed) name += "NotMixed";
  if (!options.prefix_cache) name += "NoCache";
  if (options.host_bytes > 0) name += "Host";
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    , EngineLoad,
    ::testing::Values(
        LoadOptions{.drafts = Drafts::kDFlash, .page_size = 16},
        LoadOptions{.drafts = Drafts::kDFlash, .page_size = 1, .kv = KvDType::kFp8},
        LoadOptions{.drafts = Drafts::kMtp, .page_size = 16, .kv = KvDType::kFp8, .mixed = false},
        LoadOptions{.drafts = Drafts::kMtp, .page_size = 1, .longest_prefix_first = true},
        LoadOptions{.drafts = Drafts::kNone, .page_size = 64, .window_tails = 1},
        LoadOptions{.drafts = Drafts::kDFlash, .page_size = 16, .host_bytes = 3 << 20},
        LoadOptions{.drafts = Drafts::kMtp, .page_size = 1, .kv = KvDType::kFp8, .host_bytes = 3 << 20},
        LoadOptions{.drafts = Drafts::kDFlash, .page_size = 16, .prefix_cache = false}),
    load_name);

// The engine goes down while clients ask: each request ends once, whatever state it is in.
TEST(EngineLoadEnd, EveryRequestEndsOnceWhenTheEngineGoesDown) {
  const std::vector<Case>& cases = cases_of(KvDType::kBF16);
  for (unsigned round = 0; round < 10; ++round) {
    const std::unique_ptr<Drafter> drafter = model().drafter(Drafts::kDFlash, 6);
    std::vector<std::shared_ptr<Collector>> taken;
    std::mutex mutex;
    {
      ServingEngine engine(make_core({}, drafter.get()), model().target->config(),
                           {.log = [](std::string_view) {}});
      std::vector<std::thread> clients;
      for (unsigned i = 0; i < 3; ++i) {
        clients.emplace_back([&, i] {
          std::mt19937 random(round * 10 + i);
          for (int asked = 0; asked < 20; ++asked) {
            auto sink = std::make_shared<Collector>();
            const Result<RequestId> id = engine.submit(cases[random() % cases.size()].request, sink);
            if (!id) continue;
            if (random() % 8 == 0) engine.abort(*id);
            const std::scoped_lock lock(mutex);
            taken.push_back(sink);
          }
        });
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(round * 3));
      if (round % 2 == 1) engine.drain();
      if (round % 3 == 2) engine.fail_all({ErrorCode::kUnavailable, "over"});
      for (std::thread& client : clients) client.join();
    }
    for (const std::shared_ptr<Collector>& sink : taken) {
      EXPECT_EQ(sink->ends(), 1);
      EXPECT_EQ(sink->steps_too_many(), 0);
    }
  }
}

}  // namespace
}  // namespace mimo::testing
