// The client against a scripted server. C95: a server that sends four tokens an event at a fixed pace, with early stops
// and empty final chunks, on all three endpoints.
#include "bench/load_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/load_run.h"
#include "bench/load_summary.h"
#include "bench/stub_server.h"

namespace mimo {
namespace {

using testing::HasSubstr;

constexpr double kFirstMs = 60;
constexpr double kGapMs = 40;
// A loaded machine sleeps longer than it was told.
constexpr double kLate = 0.025;

std::unique_ptr<LoadClient> client_of(const StubServer& server, double request_seconds = 20) {
  auto client = LoadClient::make({.url = server.url(), .request_seconds = request_seconds});
  EXPECT_TRUE(client) << client.error().message;
  return *std::move(client);
}

std::string sse(const std::string& data, const std::string& name = "") {
  return chunk((name.empty() ? "" : "event: " + name + "\n") + "data: " + data + "\n\n");
}

struct Shape {
  int events = 8;
  int tokens = 4;          // an event
  bool running = true;     // events say how many tokens there are so far
  bool end_token = false;  // one more without text
};

std::string usage(int output, bool wanted) {
  if (!wanted) return "";
  return R"(,"usage":{"prompt_tokens":100,"completion_tokens":)" + std::to_string(output) +
         R"(,"prompt_tokens_details":{"cached_tokens":25}})";
}

std::vector<StubPart> openai_stream(const StubRequest& request, const Shape& shape) {
  const bool chat = request.path == "/v1/chat/completions";
  std::vector<StubPart> parts = {{0, stream_head()}};
  // What comes before the first token: a role, or nothing at all.
  if (chat) {
    parts.push_back({0, sse(R"({"choices":[{"delta":{"role":"assistant","content":""}}])" +
                            usage(0, shape.running) + "}")});
  }
  int output = 0;
  for (int i = 0; i < shape.events; ++i) {
    output += shape.tokens;
    const std::string field = i % 2 == 0 ? "content" : "reasoning_content";
    const std::string body = chat ? R"("delta":{")" + field + R"(":"abcd"})" : R"("text":"abcd")";
    parts.push_back(
        {i == 0 ? kFirstMs : kGapMs,
         sse(R"({"choices":[{)" + body + R"(,"finish_reason":null}])" + usage(output, shape.running) + "}")});
  }
  output += shape.end_token ? 1 : 0;
  parts.push_back({0, sse(std::string(R"({"choices":[{)") + (chat ? R"("delta":{})" : R"("text":"")") +
                          R"(,"finish_reason":"stop"}])" + usage(output, shape.running) + "}")});
  parts.push_back({0, sse(R"({"choices":[])" + usage(output, true) + "}")});
  parts.push_back({0, sse("[DONE]") + chunk("")});
  return parts;
}

std::vector<StubPart> messages_stream(const Shape& shape) {
  std::vector<StubPart> parts = {{0, stream_head()}};
  const auto add = [&](double pause, const std::string& type, const std::string& members) {
    parts.push_back({pause, sse(R"({"type":")" + type + "\"" + members + "}", type)});
  };
  add(0, "message_start",
      R"(,"message":{"usage":{"input_tokens":75,"cache_read_input_tokens":25,"output_tokens":0}})");
  add(0, "content_block_start", R"(,"index":0,"content_block":{"type":"text","text":""})");
  for (int i = 0; i < shape.events; ++i) {
    add(i == 0 ? kFirstMs : kGapMs, "content_block_delta",
        R"(,"index":0,"delta":{"type":"text_delta","text":"abcd"})");
    if (i == 0) add(0, "ping", "");
  }
  add(0, "content_block_stop", R"(,"index":0)");
  add(0, "message_delta",
      R"(,"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":)" +
          std::to_string(shape.events * shape.tokens + (shape.end_token ? 1 : 0)) + "}");
  add(0, "message_stop", "");
  parts.push_back({0, chunk("")});
  return parts;
}

std::vector<StubPart> stream(const StubRequest& request, const Shape& shape) {
  return request.path == "/v1/messages" ? messages_stream(shape) : openai_stream(request, shape);
}

LoadResult load(StubServer& server, RequestStyle style, int count = 1, Pace pace = {}, double seconds = 20) {
  std::vector<LoadPrompt> prompts(static_cast<std::size_t>(count));
  for (LoadPrompt& prompt : prompts) {
    prompt.text = "hello";
    prompt.prompt_tokens = 100;
    prompt.output_tokens = 64;
  }
  const auto client = client_of(server, seconds);
  style.model = "stub";
  return run_load(*client, style, prompts, pace);
}

class Endpoints : public testing::TestWithParam<Endpoint> {};

TEST_P(Endpoints, C95SeveralTokensInOneEvent) {
  Shape shape;
  StubServer server([&](const StubRequest& request) { return stream(request, shape); });
  const LoadResult result = load(server, {.endpoint = GetParam()}, 3, {.max_concurrency = 1});
  const LoadSummary s = summarise_load(result.records, {});
  ASSERT_EQ(s.failed, 0) << s.first_error;
  // 8 events of 4 tokens, 40 ms apart, the first after 60 ms.
  EXPECT_EQ(s.n_out, 3 * 32);
  EXPECT_EQ(s.n_in, 300);
  EXPECT_EQ(s.n_cached, 75);
  EXPECT_EQ(s.cut_short, 3);  // 64 were asked for
  EXPECT_GE(s.ttft.median, kFirstMs / 1e3);
  EXPECT_LE(s.ttft.median, kFirstMs / 1e3 + kLate);
  EXPECT_EQ(s.event_gap.n, 3 * 7);
  EXPECT_GE(s.event_gap.median, kGapMs / 1e3 - 0.005);
  EXPECT_LE(s.event_gap.median, kGapMs / 1e3 + kLate);
  // 7 gaps for 31 tokens: 9.03 ms each, not 40.
  EXPECT_NEAR(s.tpot.median, 7 * kGapMs / 31 / 1e3, 7 * kLate / 31);
  if (GetParam() == Endpoint::kMessages) {
    // Nothing there says how many tokens an event has.
    EXPECT_EQ(s.token_gap.n, 0);
    EXPECT_EQ(s.without_token_gap, 3);
  } else {
    EXPECT_EQ(s.token_gap.n, 3 * 28);
    EXPECT_NEAR(s.token_gap.median, kGapMs / 4 / 1e3, kLate / 4);
    EXPECT_GE(s.peak_output_rate, s.output_rate);
  }
  EXPECT_THAT(s.warnings, testing::IsEmpty());
}

TEST_P(Endpoints, C95AnEndTokenWithoutTextCountsAsOutputOnly) {
  Shape shape{.events = 3, .end_token = true};
  StubServer server([&](const StubRequest& request) { return stream(request, shape); });
  const LoadResult result = load(server, {.endpoint = GetParam()});
  const SentRequest& record = result.records.front();
  ASSERT_FALSE(record.failed()) << record.error;
  EXPECT_EQ(record.n_out, 13);
  EXPECT_EQ(record.events.size(), 3U);
  const LoadSummary s = summarise_load(result.records, {});
  EXPECT_THAT(s.warnings, testing::IsEmpty());
}

TEST_P(Endpoints, C95AnAnswerWithoutText) {
  // The end token comes first: no text at all.
  Shape shape{.events = 0, .end_token = true};
  StubServer server([&](const StubRequest& request) { return stream(request, shape); });
  const LoadResult result = load(server, {.endpoint = GetParam()});
  const SentRequest& record = result.records.front();
  ASSERT_FALSE(record.failed()) << record.error;
  EXPECT_EQ(record.n_out, 1);
  EXPECT_TRUE(record.first_is_end);
  EXPECT_TRUE(record.ttft());
  EXPECT_FALSE(record.tpot());
}

INSTANTIATE_TEST_SUITE_P(All, Endpoints,
                         testing::Values(Endpoint::kCompletions, Endpoint::kChat, Endpoint::kMessages));

TEST(LoadClient, WithoutRunningCountsTokensOfEventsAreUnknown) {
  Shape shape{.events = 3, .running = false};
  StubServer server([&](const StubRequest& request) { return stream(request, shape); });
  const LoadSummary s = summarise_load(load(server, {}).records, {});
  ASSERT_EQ(s.failed, 0) << s.first_error;
  EXPECT_EQ(s.n_out, 12);
  EXPECT_EQ(s.without_token_gap, 1);
}

TEST(LoadClient, ToolCallsAreGeneratedText) {
  StubServer server([](const StubRequest&) {
    return std::vector<StubPart>{
        {0, stream_head()},
        {0, sse(R"({"choices":[{"delta":{"role":"assistant","content":null}}]})")},
        {50,
         sse(R"({"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}}]})")},
        {50, sse(R"({"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]})")},
        {0, sse(R"({"choices":[{"delta":{},"finish_reason":"tool_calls"}]})")},
        {0, sse(R"({"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":9}})")},
        {0, sse("[DONE]") + chunk("")}};
  });
  const LoadResult result = load(server, {.endpoint = Endpoint::kChat});
  const SentRequest& record = result.records.front();
  ASSERT_FALSE(record.failed()) << record.error;
  EXPECT_EQ(record.events.size(), 2U);
  EXPECT_EQ(record.text, "f{}");
  EXPECT_EQ(record.finish, "tool_calls");
  EXPECT_GE(record.ttft().value_or(0), 0.05);
}

TEST(LoadClient, TimingsOfLlamaCppStandInForUsage) {
  StubServer server([](const StubRequest&) {
    return std::vector<StubPart>{
        {0, stream_head()},
        {0, sse(R"({"choices":[{"text":"a","finish_reason":null}]})")},
        {0,
         sse(R"({"choices":[{"text":"","finish_reason":"length"}],)"
             R"("timings":{"prompt_n":60,"cache_n":40,"predicted_n":5,"draft_steps":2,"draft_n_accepted":3}})")},
        {0, sse("[DONE]") + chunk("")}};
  });
  const LoadResult result = load(server, {});
  const SentRequest& record = result.records.front();
  ASSERT_FALSE(record.failed()) << record.error;
  EXPECT_EQ(record.n_in, 100);
  EXPECT_EQ(record.n_cached, 40);
  EXPECT_EQ(record.n_out, 5);
  EXPECT_EQ(record.accept_length(), 2.5);
}

TEST(LoadClient, AnswersThatAreNotStreamed) {
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChat, Endpoint::kMessages}) {
    StubServer server([](const StubRequest& request) {
      std::string body = R"({"choices":[{"text":"hi","finish_reason":"length"}])" + usage(7, true) + "}";
      if (request.path == "/v1/chat/completions")
        body = R"({"choices":[{"message":{"content":"hi"},"finish_reason":"length"}])" + usage(7, true) + "}";
      if (request.path == "/v1/messages") {
        body = R"({"content":[{"type":"text","text":"hi"}],"stop_reason":"max_tokens",)"
               R"("usage":{"input_tokens":75,"cache_read_input_tokens":25,"output_tokens":7}})";
      }
      return std::vector<StubPart>{{30, plain_answer(body)}};
    });
    const LoadResult result = load(server, {.endpoint = endpoint, .stream = false});
    const SentRequest& record = result.records.front();
    ASSERT_FALSE(record.failed()) << record.error;
    EXPECT_EQ(record.n_in, 100);
    EXPECT_EQ(record.n_cached, 25);
    EXPECT_EQ(record.n_out, 7);
    EXPECT_EQ(record.text, "hi");
    EXPECT_FALSE(record.ttft());
    EXPECT_GE(record.latency(), 0.03);
  }
}

TEST(LoadClient, WhateverIsNotAWholeAnswerFails) {
  const std::string usage_event =
      sse(R"({"choices":[{"text":"a","finish_reason":"stop"}])" + usage(1, true) + "}");
  const std::vector<std::pair<std::vector<StubPart>, std::string>> cases = {
      {{{0, plain_answer(R"({"error":{"message":"no such model"}})", "404 Not Found")}}, "status 404"},
      {{{0, plain_answer("{}")}}, "Content-Type application/json"},
      {{{0, stream_head()}, {0, usage_event}, {0, chunk("")}}, "without [DONE]"},
      {{{0, stream_head()}, {0, usage_event}, {0, StubServer::kClose}}, "broke off"},
      {{{0, StubServer::kClose}}, "no answer"},
      {{{0, stream_head()},
        {0, sse(R"({"error":{"message":"out of pages"}})")},
        {0, sse("[DONE]") + chunk("")}},
       "out of pages"},
      {{{0, stream_head()}, {0, sse(R"({"choices":[{"text":"a")")}, {0, chunk("")}}, "event"},
      {{{0, stream_head()}, {0, chunk("Internal Server Error\n")}, {0, chunk("")}}, "event stream"},
      {{{0, stream_head()}, {0, usage_event}, {0, sse("[DONE]")}, {0, usage_event}, {0, chunk("")}},
       "after the end"},
      {{{0, stream_head()},
        {0, sse(R"({"choices":[{"text":"a"}])" + usage(1, true) + "}")},
        {0, sse("[DONE]") + chunk("")}},
       "finish_reason"},
      {{{0, stream_head()},
        {0, sse(R"({"choices":[{"text":"a","finish_reason":"stop"}]})")},
        {0, sse("[DONE]") + chunk("")}},
       "usage"},
  };
  for (const auto& [parts, expected] : cases) {
    StubServer server([&parts = parts](const StubRequest&) { return parts; });
    const LoadResult result = load(server, {});
    EXPECT_THAT(result.records.front().error, HasSubstr(expected));
    EXPECT_EQ(summarise_load(result.records, {}).failed, 1);
  }
}

TEST(LoadClient, ATimeOutIsAFailure) {
  StubServer server([](const StubRequest&) { return std::vector<StubPart>{{400, plain_answer("{}")}}; });
  const LoadResult result = load(server, {}, 1, {}, 0.1);
  EXPECT_THAT(result.records.front().error, HasSubstr("within 0.1 s"));
}

TEST(LoadClient, AServerThatIsNotThere) {
  HttpUrl url;
  {
    StubServer server([](const StubRequest&) { return std::vector<StubPart>{}; });
    url = server.url();
  }
  auto client = *LoadClient::make({.url = url});
  const LoadResult result = run_load(*client, {}, std::vector<LoadPrompt>(2), {});
  for (const SentRequest& record : result.records) EXPECT_THAT(record.error, HasSubstr("cannot connect"));
  EXPECT_FALSE(client->ask("GET", "/health"));
}

TEST(LoadClient, ConnectionsAreKeptAndReplacedWhenClosed) {
  int answers = 0;
  StubServer server([&](const StubRequest&) {
    std::vector<StubPart> parts = {{0, plain_answer("{\"n\": 1}")}};
    if (++answers == 2) parts.push_back({0, StubServer::kClose});  // without saying so
    return parts;
  });
  const auto client = client_of(server);
  for (int i = 0; i < 4; ++i) {
    const auto answer = client->ask("GET", "/health");
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->status, 200U);
    EXPECT_EQ(answer->body, "{\"n\": 1}");
  }
  EXPECT_EQ(server.connections(), 2);
}

TEST(LoadRun, KeepsToItsConcurrency) {
  Shape shape{.events = 2};
  StubServer server([&](const StubRequest& request) { return stream(request, shape); });
  const LoadResult result = load(server, {}, 12, {.max_concurrency = 4});
  EXPECT_EQ(summarise_load(result.records, {}).failed, 0);
  EXPECT_EQ(server.most_at_once(), 4);
  EXPECT_EQ(server.connections(), 4);
}

TEST(LoadRun, SendsWhenRequestsAreDue) {
  StubServer server([](const StubRequest& request) { return stream(request, {.events = 1}); });
  const LoadResult result = load(server, {}, 20, {.rate = 40});
  const LoadSummary s = summarise_load(result.records, {});
  ASSERT_EQ(s.failed, 0) << s.first_error;
  // 20 requests at 40 a second: the last is due at 0.5 s.
  EXPECT_LE(s.start_delay.median, kLate);
  EXPECT_GE(result.records.back().t0 - result.records.front().t0, 0.3);
  EXPECT_GT(result.cost.events, 0);
  EXPECT_GT(result.cost.wall_seconds, 0.5);
  EXPECT_LT(result.cost.cpu_seconds, result.cost.wall_seconds);
}

}  // namespace
}  // namespace mimo
