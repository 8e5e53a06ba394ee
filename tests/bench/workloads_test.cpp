// Whole benchmarks against a scripted server that knows how long its answers take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "bench/fanout.h"
#include "bench/prefill_matrix.h"
#include "bench/sbs.h"
#include "bench/serve_bench.h"
#include "bench/stub_server.h"
#include "core/json.h"

namespace mimo {
namespace {

using testing::HasSubstr;

// A server with a prefix cache that never forgets: a prompt's longest known beginning is cached.
class FakeServer {
 public:
  struct Options {
    double start_ms = 0;
    double token_ms = 0;
    bool caches = true;
    int fail_at = -1;  // of all answers, by number
  };

  FakeServer() : FakeServer(Options{}) {}
  explicit FakeServer(const Options& options)
      : options_(options), server_([this](const StubRequest& request) { return answer(request); }) {}

  StubServer& stub() { return server_; }
  int flushes() const { return flushes_; }

  LoadTarget target() {
    auto opened = open_target({.url = "http://127.0.0.1:" + server_.url().port + "/v1",
                               .tokenizer_file = MIMO_SOURCE_DIR "/models/nano/tokenizer.json"});
    EXPECT_TRUE(opened) << opened.error().message;
    return *std::move(opened);
  }

 private:
  std::vector<StubPart> answer(const StubRequest& request) {
    const std::lock_guard lock(mutex_);
    if (request.path == "/v1/models")
      return {{0, plain_answer(R"({"data":[{"id":"fake","max_model_len":4096}]})")}};
    if (request.path == "/metrics") {
      return {{0, plain_answer("mimo:num_preemptions_total{m=\"x\"} " + std::to_string(answers_) +
                               "\nmimo:kv_total_tokens{m=\"x\"} 3000\n")}};
    }
    if (request.path == "/flush_cache") {
      ++flushes_;
      known_.clear();
      return {{0, plain_answer("{}")}};
    }
    if (request.method == "GET") return {{0, plain_answer("{}", "404 Not Found")}};
    return complete(request);
  }

  std::vector<StubPart> complete(const StubRequest& request) {
    const Result<json::value> parsed = parse_json(request.body, "body");
    const json::object& body = parsed->get_object();
    std::vector<std::int64_t> ids;
    if (const json::array* list = body.at("prompt").if_array()) {
      for (const json::value& id : *list) ids.push_back(id.get_int64());
    }
    std::size_t cached = 0;
    if (options_.caches) {
      for (const auto& known : known_) {
        const auto differs = std::mismatch(ids.begin(), ids.end(), known.begin(), known.end());
        cached = std::max(cached, static_cast<std::size_t>(differs.first - ids.begin()));
      }
      cached = std::min(cached, ids.size() - 1);
    }
    known_.push_back(ids);
    const std::int64_t output = body.at("max_tokens").get_int64();
    if (answers_++ == options_.fail_at)
      return {{0, plain_answer("{\"error\": \"broken\"}", "500 Internal Server Error")}};
    json::array said;
    for (std::int64_t i = 0; i < output; ++i) {
      said.emplace_back(i % 50 + 10);
      known_.back().push_back(i % 50 + 10);
    }
    const std::string usage = R"("usage":{"prompt_tokens":)" + std::to_string(ids.size()) +
                              R"(,"completion_tokens":)" + std::to_string(output) +
                              R"(,"prompt_tokens_details":{"cached_tokens":)" + std::to_string(cached) + "}}";
    const std::string choice =
        R"("choices":[{"text":"x","finish_reason":"length","token_ids":)" + json::serialize(said) + "}],";
    const double pause = options_.start_ms + options_.token_ms * static_cast<double>(output);
    if (!body.at("stream").get_bool()) return {{pause, plain_answer("{" + choice + usage + "}")}};
    return {{0, stream_head()},
            {pause, chunk("data: {" + choice + usage + "}\n\n")},
            {0, chunk("data: [DONE]\n\n") + chunk("")}};
  }

  Options options_;
  std::mutex mutex_;
  std::vector<std::vector<std::int64_t>> known_;
  int answers_ = 0;
  int flushes_ = 0;
  StubServer server_;  // last: its threads use the rest
};

TEST(OpenTarget, WhatTheServerSaysOfItself) {
  FakeServer fake;
  const LoadTarget target = fake.target();
  EXPECT_EQ(target.model, "fake");
  EXPECT_EQ(target.max_model_len, 4096);
  EXPECT_EQ(target.pool_tokens, 3000);
  EXPECT_FALSE(open_target({.url = "https://x"}));
  EXPECT_FALSE(open_target({.url = "http://127.0.0.1:1"}));
}

ServeBenchOptions serve_options() {
  ServeBenchOptions options;
  options.dataset.dataset = Dataset::kRandomIds;
  options.dataset.count = 6;
  options.dataset.input_tokens = 40;
  options.dataset.output_tokens = 5;
  options.pace.max_concurrency = 2;
  options.rounds = 2;
  return options;
}

TEST(ServeBench, C94RunsDoNotFindTheirPromptsCachedUnlessAskedTo) {
  FakeServer fake;
  LoadTarget target = fake.target();
  ServeBenchOptions options = serve_options();
  for (const std::uint64_t run : {1, 2}) {
    options.dataset.run = run;
    const auto rounds = run_serve_bench(target, options);
    ASSERT_TRUE(rounds) << rounds.error().message;
    ASSERT_EQ(rounds->size(), 2U);
    for (const BenchRound& round : *rounds) {
      EXPECT_TRUE(round.ok()) << round.summary.first_error;
      EXPECT_EQ(round.summary.n_in, 240);
      EXPECT_EQ(round.summary.n_out, 30);
      EXPECT_LT(round.summary.cached_share(), 0.01);
      EXPECT_DOUBLE_EQ(round.work.retractions.value_or(-1), 6);  // the fake counts its answers
    }
  }
  // The same run again is served from the cache: that is what is avoided.
  const auto again = run_serve_bench(target, options);
  EXPECT_GT(again->front().summary.cached_share(), 0.9);
  options.flush = true;
  const auto flushed = run_serve_bench(target, options);
  EXPECT_LT(flushed->front().summary.cached_share(), 0.05);
  EXPECT_EQ(fake.flushes(), 2);
  options.flush = false;
  options.warm = true;
  options.dataset.run = 77;
  const auto warm = run_serve_bench(target, options);
  EXPECT_GT(warm->front().summary.cached_share(), 0.9);
  EXPECT_THAT(round_text(warm->front()), HasSubstr("97.50% cached"));
}

TEST(ServeBench, AFailureFailsTheRound) {
  FakeServer fake({.fail_at = 4});
  LoadTarget target = fake.target();
  const auto rounds = run_serve_bench(target, serve_options());
  ASSERT_TRUE(rounds);
  EXPECT_FALSE(rounds->front().ok());
  EXPECT_TRUE(rounds->back().ok());
  EXPECT_EQ(round_json(rounds->front()).at("status"), "FAILED");
  EXPECT_THAT(rounds->front().summary.first_error, HasSubstr("status 500"));
  FakeServer at_once({.fail_at = 0});
  LoadTarget other = at_once.target();
  EXPECT_THAT(run_serve_bench(other, serve_options()).error().message, HasSubstr("warm-up"));
}

TEST(ServeBench, ABusyClientFailsTheRound) {
  BenchRound round;
  round.load.cost = {.cpu_seconds = 0.5, .wall_seconds = 1, .events = 10};
  EXPECT_TRUE(round.ok());
  round.load.cost.cpu_seconds = 0.9;
  EXPECT_FALSE(round.ok());
  EXPECT_THAT(round_text(round), HasSubstr("FAILED: the client was the bottleneck"));
}

TEST(Agents, TurnsGoOnFromTheirAnswers) {
  FakeServer fake;
  LoadTarget target = fake.target();
  AgentsOptions options{.agents = 3,
                        .turns = 3,
                        .shared_tokens = 20,
                        .first_tokens = 60,
                        .growth_tokens = 15,
                        .output_tokens = 4,
                        .run = 5};
  RequestStyle style;
  style.model = "fake";
  const auto fan = run_fanout(target, style, options, {});
  ASSERT_TRUE(fan) << fan.error().message;
  EXPECT_EQ(fan->summary.failed, 0) << fan->summary.first_error;
  EXPECT_EQ(fan->summary.requests, 9);
  EXPECT_EQ(fan->summary.n_in, 3 * (60 + 75 + 90));
  EXPECT_EQ(fan->ideal, 20 + 3 * 40 + 3 * 2 * 15);
  // The fake caches to the token, answers too: each later turn prefills 11 new tokens.
  EXPECT_EQ(fan->prefilled(), 20 + 3 * 40 + 3 * 2 * 11);
  const json::object out = fanout_json(*fan);
  EXPECT_EQ(out.at("cached_device_tokens"), 3 * (60 + 75 + 90) - 206);
  EXPECT_THAT(fanout_text(*fan), HasSubstr("prefilled 206 tokens, ideal 230"));
  std::map<std::string, double> ends;
  for (const SentRequest& record : fan->load.records) {
    EXPECT_EQ(record.wanted_in, record.n_in);
    ends[record.id] = record.t_end;
    if (!record.id.ends_with(".0")) {
      const std::string before =
          record.id.substr(0, 2) + std::string(1, static_cast<char>(record.id.back() - 1));
      EXPECT_GE(record.t0, ends.at(before));
    }
  }
}

TEST(Agents, AFailedTurnEndsItsAgent) {
  FakeServer fake({.fail_at = 1});
  LoadTarget target = fake.target();
  const LoadResult result = run_agents(target, {},
                                       {.agents = 1,
                                        .turns = 4,
                                        .shared_tokens = 5,
                                        .first_tokens = 10,
                                        .growth_tokens = 5,
                                        .output_tokens = 2});
  EXPECT_FALSE(result.records[0].failed());
  for (std::size_t turn = 1; turn < 4; ++turn) EXPECT_TRUE(result.records[turn].failed());
  EXPECT_THAT(result.records[3].error, HasSubstr("not sent"));
}

TEST(Sbs, TheDifferenceCancelsWhatIsNotDecode) {
  // 50 ms whatever the length, and 2 ms a token: 500 tokens a second and stream.
  FakeServer fake({.start_ms = 50, .token_ms = 2});
  LoadTarget target = fake.target();
  const auto source = make_prompt_source(target, {}, {.run = 3});
  ASSERT_TRUE(source);
  int rows = 0;
  const auto measured = run_sbs(
      target, {}, {.contexts = {300}, .streams = {1, 2}, .short_answer = 5, .long_answer = 55, .repeats = 3},
      *source, [&](const SbsRow&) { ++rows; });
  EXPECT_EQ(rows, 2);
  for (const SbsRow& row : measured) {
    ASSERT_EQ(row.error, "");
    EXPECT_TRUE(row.cache_checked);
    EXPECT_EQ(row.context, 300);
    EXPECT_NEAR(row.decode, 500 * row.streams, 60 * row.streams);
    EXPECT_LE(row.decode_low, row.decode_high);
    EXPECT_GE(row.ttft, 0.05);
    EXPECT_LE(row.prefill_uncached, row.prefill_nominal);
    EXPECT_LE(row.prefill_nominal, 300.0 * row.streams / 0.05);
  }
}

TEST(Sbs, AColdPrefixIsNoResult) {
  FakeServer fake({.caches = false});
  LoadTarget target = fake.target();
  const auto source = make_prompt_source(target, {}, {});
  const auto rows =
      run_sbs(target, {}, {.contexts = {1000}, .streams = {1}, .repeats = 1}, *source, [](const SbsRow&) {});
  EXPECT_THAT(rows.front().error, HasSubstr("not warm"));
  EXPECT_EQ(sbs_json(rows.front()).at("status"), "FAILED");
  EXPECT_FALSE(sbs_json(rows.front()).contains("decode"));
}

TEST(PrefillMatrix, CellsThatDoNotFitAreLeftOutAndFailuresAreNotAveraged) {
  FakeServer fake({.start_ms = 5, .fail_at = 12});
  LoadTarget target = fake.target();
  const auto source = make_prompt_source(target, {}, {.run = 9});
  PrefillOptions options{.lengths = {100, 1000, 5000},
                         .concurrencies = {1, 4},
                         .prompts = 0,
                         .pool_tokens = target.pool_tokens,
                         .context = target.max_model_len};
  const auto cells = run_prefill_matrix(target, {}, options, *source, [](const PrefillCell&) {});
  ASSERT_EQ(cells.size(), 6U);
  EXPECT_EQ(cells[0].summary.requests, 8);
  EXPECT_EQ(cells[0].summary.failed, 0) << cells[0].summary.first_error;
  EXPECT_EQ(cells[0].summary.n_in, 800);
  EXPECT_GT(cells[0].rate, 0);
  EXPECT_LT(cells[0].rate, 100 / 0.005);
  EXPECT_EQ(cells[1].summary.requests, 16);
  EXPECT_EQ(cells[1].summary.failed, 1);
  EXPECT_THAT(prefill_line(cells[1], 1), HasSubstr("FAILED"));
  EXPECT_FALSE(prefill_json(cells[1], 1).contains("prefill"));
  EXPECT_EQ(cells[2].skipped, "");
  EXPECT_EQ(cells[3].skipped, "pool");
  EXPECT_EQ(cells[4].skipped, "context");
}

TEST(PromptSource, PiecesOfAText) {
  FakeServer fake;
  LoadTarget target = fake.target();
  const std::string file = MIMO_SOURCE_DIR "/models/nano/eval/haystack.txt";
  const auto source = make_prompt_source(target, {}, {.text_file = file, .run = 1});
  ASSERT_TRUE(source) << source.error().message;
  std::set<std::vector<std::int32_t>> all;
  for (int i = 0; i < 10; ++i) {
    const auto prompt = (*source)(200, i);
    ASSERT_TRUE(prompt);
    EXPECT_EQ(prompt->ids.size(), 200U);
    all.insert(prompt->ids);
    EXPECT_EQ((*source)(200, i)->ids, prompt->ids);
  }
  EXPECT_EQ(all.size(), 10U);
  EXPECT_THAT((*source)(10'000'000, 0).error().message, HasSubstr("a prompt needs 10000000"));
  EXPECT_FALSE(make_prompt_source(target, {}, {.endpoint = Endpoint::kChat, .text_file = file}));
}

}  // namespace
}  // namespace mimo
