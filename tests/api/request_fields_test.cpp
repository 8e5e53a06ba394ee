// Each field of the requests: what is taken, what is refused, and how the refusal reads.
#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <vector>

#include "api/api_fixture.h"

namespace mimo {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr ApiRoute kChat = ApiRoute::kChat;
constexpr ApiRoute kCompletion = ApiRoute::kCompletion;
constexpr ApiRoute kMessages = ApiRoute::kMessages;
const std::vector<ApiRoute> kAll = {kChat, kCompletion, kMessages};
const std::vector<ApiRoute> kOpenAi = {kChat, kCompletion};

struct Good {
  std::vector<ApiRoute> routes;
  const char* members;
  std::function<bool(const ApiRequest&)> holds;
};

TEST(RequestFields, GoodValuesArrive) {
  const std::vector<Good> cases = {
      {kAll, R"("temperature":0)", [](const ApiRequest& r) { return r.params.temperature == 0; }},
      {kAll, R"("temperature":2.0)", [](const ApiRequest& r) { return r.params.temperature == 2; }},
      {kAll, R"("temperature":null)", [](const ApiRequest& r) { return r.params.temperature == 1; }},
      {kAll, R"("top_p":0.5)", [](const ApiRequest& r) { return r.params.top_p == 0.5; }},
      {kAll, R"("top_p":null)", [](const ApiRequest& r) { return r.params.top_p == 0.95; }},
      {kAll, R"("top_k":-1)", [](const ApiRequest& r) { return r.params.top_k == -1; }},
      {kAll, R"("top_k":5.0)", [](const ApiRequest& r) { return r.params.top_k == 5; }},
      {kAll, R"("min_p":0.1)", [](const ApiRequest& r) { return r.params.min_p == 0.1; }},
      {kAll, R"("repetition_penalty":1.5)",
       [](const ApiRequest& r) { return r.params.repetition_penalty == 1.5; }},
      {kAll, R"("presence_penalty":-2)", [](const ApiRequest& r) { return r.params.presence_penalty == -2; }},
      {kAll, R"("frequency_penalty":2)", [](const ApiRequest& r) { return r.params.frequency_penalty == 2; }},
      {kAll, R"("seed":7)", [](const ApiRequest& r) { return r.params.seed == 7u; }},
      {kAll, R"("seed":-1)", [](const ApiRequest& r) { return !r.params.seed; }},
      {kAll, R"("seed":-2)", [](const ApiRequest& r) { return r.params.seed == ~std::uint64_t{1}; }},
      {kAll, R"("seed":18446744073709551615)",
       [](const ApiRequest& r) { return r.params.seed == ~std::uint64_t{0}; }},
      {kAll, R"("logit_bias":{"0":-100,"999":3.5})",
       [](const ApiRequest& r) {
         return r.params.logit_bias == std::map<std::int64_t, double>{{0, -100}, {999, 3.5}};
       }},
      {kAll, R"("min_tokens":3)", [](const ApiRequest& r) { return r.params.min_tokens == 3; }},
      {kAll, R"("ignore_eos":true)", [](const ApiRequest& r) { return r.params.ignore_eos; }},
      {kAll, R"("stop_token_ids":[1,999])",
       [](const ApiRequest& r) {
         return r.params.stop_token_ids == std::vector<std::int64_t>{1, 999};
       }},
      {kAll, R"("include_stop_str_in_output":true)",
       [](const ApiRequest& r) { return r.params.include_stop_str_in_output; }},
      {kAll, R"("no_stop_trim":true)",
       [](const ApiRequest& r) { return r.params.include_stop_str_in_output; }},
      {kOpenAi, R"("stop":"x")",
       [](const ApiRequest& r) { return r.params.stop == std::vector<std::string>{"x"}; }},
      {kOpenAi, R"("stop":["x","y"])",
       [](const ApiRequest& r) {
         return r.params.stop == std::vector<std::string>{"x", "y"};
       }},
      {kOpenAi, R"("stop":[])", [](const ApiRequest& r) { return r.params.stop.empty(); }},
      {{kMessages},
       R"("stop_sequences":["x","y"])",
       [](const ApiRequest& r) {
         return r.params.stop == std::vector<std::string>{"x", "y"};
       }},
      {kOpenAi, R"("n":128)", [](const ApiRequest& r) { return r.n == 128; }},
      {kOpenAi, R"("n":2,"best_of":2)", [](const ApiRequest& r) { return r.n == 2; }},
      {kAll, R"("stream":true)", [](const ApiRequest& r) { return r.stream && !r.include_usage; }},
      {kAll, R"("stream":null)", [](const ApiRequest& r) { return !r.stream; }},
      {kOpenAi, R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})",
       [](const ApiRequest& r) { return r.stream && r.include_usage && r.continuous_usage; }},
      {kOpenAi, R"("stream":true,"stream_options":{"include_usage":null})",
       [](const ApiRequest& r) { return !r.include_usage; }},
      {{kChat}, R"("logprobs":true)", [](const ApiRequest& r) { return r.params.logprobs == 0; }},
      {{kChat},
       R"("logprobs":true,"top_logprobs":20)",
       [](const ApiRequest& r) { return r.params.logprobs == 20; }},
      {{kChat},
       R"("logprobs":false,"top_logprobs":0)",
       [](const ApiRequest& r) { return !r.params.logprobs; }},
      {{kCompletion}, R"("logprobs":0)", [](const ApiRequest& r) { return r.params.logprobs == 0; }},
      {{kCompletion}, R"("logprobs":5)", [](const ApiRequest& r) { return r.params.logprobs == 5; }},
      {{kCompletion}, R"("echo":true)", [](const ApiRequest& r) { return r.echo; }},
      {{kMessages}, R"("logprobs":false)", [](const ApiRequest& r) { return !r.params.logprobs; }},
      {kAll, R"("priority":0)", [](const ApiRequest& r) { return r.priority == 0; }},
      {kAll, R"("request_id":"a-1")", [](const ApiRequest& r) { return r.request_id == "a-1"; }},
      {kAll, R"("rid":"a-2")", [](const ApiRequest& r) { return r.request_id == "a-2"; }},
      {kAll, R"("cache_salt":"s")", [](const ApiRequest& r) { return !r.cache_salt.empty(); }},
      {kAll, R"("cache_salt":"")", [](const ApiRequest& r) { return r.cache_salt.empty(); }},
      {kAll, R"("skip_special_tokens":false)", [](const ApiRequest& r) { return !r.skip_special_tokens; }},
      {kOpenAi, R"("return_token_ids":true)", [](const ApiRequest& r) { return r.return_token_ids; }},
      {kOpenAi, R"("return_tokens_as_token_ids":true)",
       [](const ApiRequest& r) { return r.return_tokens_as_token_ids; }},
      {kAll, R"("timings":true)", [](const ApiRequest& r) { return r.timings; }},
      {{kChat}, R"("separate_reasoning":false)", [](const ApiRequest& r) { return !r.separate_reasoning; }},
      {{kChat}, R"("include_reasoning":false)", [](const ApiRequest& r) { return !r.include_reasoning; }},
      {{kChat},
       R"("thinking_token_budget":100)",
       [](const ApiRequest& r) { return r.thinking_budget == 100; }},
      {{kChat}, R"("reasoning_effort":"low")", [](const ApiRequest& r) { return r.thinking_budget == 512; }},
      {{kChat},
       R"("reasoning_effort":"minimal")",
       [](const ApiRequest& r) { return r.thinking_budget == 512; }},
      {{kChat},
       R"("reasoning_effort":"medium")",
       [](const ApiRequest& r) { return r.thinking_budget == 2048; }},
      {{kChat},
       R"("reasoning_effort":"high")",
       [](const ApiRequest& r) { return r.thinking_budget == 8192; }},
      {{kChat}, R"("reasoning_effort":"max")", [](const ApiRequest& r) { return !r.thinking_budget; }},
      {{kChat},
       R"("reasoning_effort":"low","thinking_token_budget":9)",
       [](const ApiRequest& r) { return r.thinking_budget == 9; }},
      {{kChat}, R"("modalities":["text"])", [](const ApiRequest& r) { return r.unknown_fields.empty(); }},
      // Asks for nothing.
      {kAll,
       R"("bad_words":[],"use_beam_search":false,"length_penalty":1.0,"detokenize":true,"prompt_logprobs":null)",
       [](const ApiRequest& r) { return r.unknown_fields.empty(); }},
      {kAll, R"("user":"u","metadata":{"a":"b"},"service_tier":"auto","store":true,"vllm_xargs":{})",
       [](const ApiRequest& r) { return r.unknown_fields.empty(); }},
      {{kCompletion}, R"("suffix":"")", [](const ApiRequest& r) { return r.unknown_fields.empty(); }},
  };
  for (const Good& good : cases) {
    for (const ApiRoute route : good.routes) {
      const ApiRequest request = accepted(route, body_for(route, good.members));
      EXPECT_TRUE(good.holds(request)) << good.members << " on route " << static_cast<int>(route);
    }
  }
}

struct Bad {
  std::vector<ApiRoute> routes;
  const char* members;
  const char* param;
  const char* message;  // part of it
};

TEST(RequestFields, BadValuesAreNamed) {
  const std::vector<Bad> cases = {
      {kAll, R"("temperature":"1")", "temperature", "got \"1\", expected a number"},
      {kAll, R"("temperature":true)", "temperature", "got true"},
      {kAll, R"("temperature":-0.1)", "temperature", "got -0.1"},
      {kAll, R"("temperature":2.1)", "temperature", "expected a number from 0 to 2"},
      {kAll, R"("temperature":[1])", "temperature", "got a list of 1"},
      {kAll, R"("top_p":0)", "top_p", "got 0"},
      {kAll, R"("top_p":1.1)", "top_p", "got 1.1"},
      {kAll, R"("top_k":-2)", "top_k", "got -2"},
      {kAll, R"("top_k":1.5)", "top_k", "expected an integer"},
      {kAll, R"("top_k":"5")", "top_k", "expected an integer"},
      {kAll, R"("min_p":-1)", "min_p", "from 0 to 1"},
      {kAll, R"("min_p":{})", "min_p", "got an object"},
      {kAll, R"("repetition_penalty":0)", "repetition_penalty", "got 0"},
      {kAll, R"("presence_penalty":2.5)", "presence_penalty", "from -2 to 2"},
      {kAll, R"("frequency_penalty":-2.5)", "frequency_penalty", "from -2 to 2"},
      {kAll, R"("seed":"x")", "seed", "expected an integer"},
      {kAll, R"("seed":1.5)", "seed", "got 1.5"},
      {kAll, R"("seed":1e300)", "seed", "got 1e+300"},
      {kAll, R"("min_tokens":-1)", "min_tokens", "got -1"},
      {kAll, R"("min_tokens":5,"max_tokens":4)", "min_tokens", "at most max_tokens"},
      {kAll, R"("ignore_eos":1)", "ignore_eos", "expected true or false"},
      {kAll, R"("stop_token_ids":5)", "stop_token_ids", "expected a list"},
      {kAll, R"("stop_token_ids":[1,1000])", "stop_token_ids[1]", "from 0 to 999"},
      {kAll, R"("include_stop_str_in_output":"no")", "include_stop_str_in_output", "true or false"},
      {kOpenAi, R"("stop":5)", "stop", "expected a string"},
      {kOpenAi, R"("stop":"")", "stop", "1 to 4096"},
      {kOpenAi, R"("stop":["a",""])", "stop[1]", "1 to 4096"},
      {kOpenAi, R"("stop":["a",null])", "stop[1]", "got null"},
      {kOpenAi, R"("stop":["1","2","3","4","5","6","7","8","9","0","a","b","c","d","e","f","g"])", "stop",
       "got 17 strings, expected at most 16"},
      {{kMessages}, R"("stop_sequences":[7])", "stop_sequences[0]", "got 7"},
      {{kMessages}, R"("stop":["a"])", "stop", "use stop_sequences"},
      {kOpenAi, R"("n":0)", "n", "from 1 to 128"},
      {kOpenAi, R"("n":129)", "n", "from 1 to 128"},
      {kOpenAi, R"("n":"2")", "n", "got \"2\""},
      {kOpenAi, R"("n":2,"best_of":3)", "best_of", "the same as n"},
      {{kMessages}, R"("n":2)", "n", "one answer"},
      {kAll, R"("stream":"yes")", "stream", "true or false"},
      {kOpenAi, R"("stream_options":{"include_usage":true})", "stream_options", "only when stream is true"},
      {kOpenAi, R"("stream":true,"stream_options":[])", "stream_options", "expected an object"},
      {kOpenAi, R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage",
       "got 1, expected true or false"},
      {{kChat}, R"("logprobs":5)", "logprobs", "true or false"},
      {{kChat}, R"("top_logprobs":2)", "top_logprobs", "logprobs is not true"},
      {{kChat}, R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "from 0 to 20"},
      {{kChat}, R"("logprobs":true,"top_logprobs":-1)", "top_logprobs", "from 0 to 20"},
      {{kCompletion}, R"("logprobs":true)", "logprobs", "from 0 to 20"},
      {{kCompletion}, R"("logprobs":21)", "logprobs", "from 0 to 20"},
      {{kCompletion}, R"("top_logprobs":2)", "top_logprobs", "here logprobs is the number"},
      {{kCompletion}, R"("echo":true,"logprobs":1)", "echo", "prompts are not computed"},
      {{kMessages}, R"("logprobs":true)", "logprobs", "no place"},
      {{kMessages}, R"("top_logprobs":2)", "top_logprobs", "no place"},
      {kAll, R"("priority":2147483648)", "priority", "from -2147483648"},
      {kAll, R"("priority":-7)", "priority", "without --enable-priority-scheduling"},
      {kAll, R"("request_id":"a b")", "request_id", "printable"},
      {kAll, R"("request_id":7)", "request_id", "expected a string"},
      {kAll, R"("cache_salt":["x"])", "cache_salt", "expected a string"},
      {kAll, R"("skip_special_tokens":0)", "skip_special_tokens", "true or false"},
      {{kChat}, R"("reasoning_effort":"some")", "reasoning_effort", "\"medium\""},
      {{kChat}, R"("reasoning_effort":3)", "reasoning_effort", "expected a string"},
      {{kChat}, R"("thinking_token_budget":-1)", "thinking_token_budget", "got -1"},
      {{kChat, kMessages}, R"("thinking":{"type":"maybe"})", "thinking.type", "got \"maybe\""},
      {{kChat, kMessages}, R"("thinking":{})", "thinking.type", "got nothing"},
      {{kChat, kMessages}, R"("thinking":true)", "thinking", "expected an object"},
      {{kChat, kMessages},
       R"("thinking":{"type":"enabled","budget_tokens":0})",
       "thinking.budget_tokens",
       "at least 1"},
      {{kChat, kMessages}, R"("chat_template_kwargs":[])", "chat_template_kwargs", "expected an object"},
      {{kChat, kMessages},
       R"("chat_template_kwargs":{"enable_thinking":"false"})",
       "chat_template_kwargs.enable_thinking",
       "true or false"},
      {{kChat, kMessages},
       R"("chat_template_kwargs":{"messages":[]})",
       "chat_template_kwargs.messages",
       "set by the request itself"},
      {{kChat}, R"("modalities":["text","audio"])", "modalities", "only \"text\""},
      {{kChat}, R"("separate_reasoning":"x")", "separate_reasoning", "true or false"},
  };
  for (const Bad& bad : cases) {
    for (const ApiRoute route : bad.routes) {
      std::string body = body_for(route, bad.members);
      // The Anthropic body has its own max_tokens.
      if (route == kMessages &&
          std::string_view(bad.members).find("max_tokens\":4") != std::string_view::npos) {
        body = R"({"messages":[{"role":"user","content":"Hi"}],)" + std::string(bad.members) + "}";
      }
      const ApiError error = refused(route, body);
      EXPECT_EQ(error.status, 400) << bad.members;
      EXPECT_EQ(error.param.value_or("none"), bad.param) << bad.members;
      EXPECT_THAT(error.message, StartsWith(std::string(bad.param) + ": ")) << bad.members;
      EXPECT_THAT(error.message, HasSubstr(bad.message)) << bad.members;
    }
  }
}

// C24, C101: what is known and cannot be done is refused by name, on each route.
TEST(RequestFields, C101UnsupportedFieldsAreRefusedByName) {
  struct Field {
    std::vector<ApiRoute> routes;
    const char* name;
    const char* value;
  };
  const std::vector<Field> fields = {
      {kAll, "prompt_logprobs", "0"},
      {kAll, "prompt_logprobs", "5"},
      {kAll, "allowed_token_ids", "[1]"},
      {kAll, "bad_words", R"(["x"])"},
      {kAll, "logits_processors", R"(["x"])"},
      {kAll, "use_beam_search", "true"},
      {kAll, "length_penalty", "0.5"},
      {kAll, "truncate_prompt_tokens", "5"},
      {kAll, "detokenize", "false"},
      {kAll, "lora_path", "\"x\""},
      {kAll, "routed_dp_rank", "1"},
      {kAll, "kv_transfer_params", R"({"a":1})"},
      {kAll, "typical_p", "0.9"},
      {kAll, "mirostat", "2"},
      {kAll, "dry_multiplier", "0.8"},
      {kAll, "repeat_penalty", "1.1"},
      {kAll, "n_predict", "5"},
      {kAll, "structural_tag", R"({"a":1})"},
      {{kChat, kCompletion}, "grammar", "\"root ::= x\""},
      {{kChat}, "chat_template", "\"x\""},
      {{kChat}, "echo", "true"},
      {{kChat}, "audio", R"({"voice":"x"})"},
      {{kChat}, "web_search_options", "{}"},
      {{kChat}, "documents", "[{}]"},
      {{kCompletion}, "suffix", "\"x\""},
      {{kCompletion}, "tools", "[{}]"},
      {{kMessages}, "response_format", R"({"type":"json_object"})"},
      {{kMessages}, "mcp_servers", "[{}]"},
      {{kMessages}, "stream_options", "{}"},
      {{kMessages}, "return_token_ids", "true"},
  };
  for (const Field& field : fields) {
    for (const ApiRoute route : field.routes) {
      const ApiError error =
          refused(route, body_for(route, fmt::format("\"{}\":{}", field.name, field.value)));
      EXPECT_EQ(error.param.value_or("none"), field.name);
      EXPECT_THAT(error.message, HasSubstr("not supported")) << field.name;
    }
  }
}

TEST(RequestFields, C101UnknownFieldsAreListed) {
  for (const ApiRoute route : kAll) {
    const ApiRequest request = accepted(route, body_for(route, R"("foo":{"bar":[1]},"top_k":3,"baz":null)"));
    EXPECT_EQ(request.unknown_fields, (std::vector<std::string>{"foo", "baz"}));
  }
  // The list is for a line in the log.
  std::string many = "\"k0\":0";
  for (int i = 1; i < 1000; ++i) many += fmt::format(",\"k{}\":0", i);
  EXPECT_LE(chat(many).unknown_fields.size(), 32u);
}

TEST(RequestFields, C101ModelNames) {
  for (const ApiRoute route : kAll) {
    for (const char* name : {R"("mimo")", R"("xiaomi/mimo-nano")", R"("")", "null"}) {
      EXPECT_EQ(accepted(route, body_for(route, fmt::format(R"("model":{})", name))).model, "mimo");
    }
    const ApiError error = refused(route, body_for(route, R"("model":"gpt-9")"));
    EXPECT_EQ(error.status, 404);
    EXPECT_EQ(error.code, "model_not_found");
    EXPECT_EQ(error.param.value_or(""), "model");
    EXPECT_THAT(error.message, HasSubstr("gpt-9"));
    EXPECT_EQ(refused(route, body_for(route, R"("model":5)")).status, 400);

    ApiContext any = test_context();
    any.models.accept_any = true;
    EXPECT_EQ(accepted(route, body_for(route, R"("model":"gpt-9")"), any).model, "mimo");
  }
}

// C85: max_tokens in all its values.
TEST(RequestFields, C85MaxTokens) {
  using Limit = std::optional<std::int64_t>;
  for (const ApiRoute route : kOpenAi) {
    const auto limit = [&](const char* members) {
      return accepted(route, body_for(route, members)).params.max_tokens;
    };
    EXPECT_EQ(limit(""), Limit());
    EXPECT_EQ(limit(R"("max_tokens":null)"), Limit());
    EXPECT_EQ(limit(R"("max_tokens":1)"), Limit(1));
    EXPECT_EQ(limit(R"("max_tokens":2)"), Limit(2));
    EXPECT_EQ(limit(R"("max_tokens":2147483648)"), Limit(std::int64_t{1} << 31));
    EXPECT_EQ(limit(R"("max_completion_tokens":7)"), Limit(7));
    EXPECT_EQ(limit(R"("max_tokens":3,"max_completion_tokens":7)"), Limit(7));
    EXPECT_EQ(limit(R"("max_tokens":3,"max_completion_tokens":null)"), Limit(3));
    for (const char* value : {"0", "-1", "1.5", "\"5\"", "9223372036854775808", "1e30", "true", "[]", "{}"}) {
      for (const char* name : {"max_tokens", "max_completion_tokens"}) {
        const ApiError error = refused(route, body_for(route, fmt::format("\"{}\":{}", name, value)));
        EXPECT_EQ(error.param.value_or("none"), name) << value;
      }
    }
  }
  for (const char* value : {"null", "0", "-1", "1.5", "\"5\"", "9223372036854775808"}) {
    const std::string body =
        fmt::format(R"({{"messages":[{{"role":"user","content":"Hi"}}],"max_tokens":{}}})", value);
    EXPECT_EQ(refused(kMessages, body).param.value_or("none"), "max_tokens");
  }
  EXPECT_EQ(refused(kMessages, R"({"messages":[{"role":"user","content":"Hi"}]})").param.value_or("none"),
            "max_tokens");
}

TEST(RequestFields, C85PromptAndAnswerMustFit) {
  ApiRequest request;
  EXPECT_TRUE(check_context(request, 99, 100));
  request.params.max_tokens = 1;
  EXPECT_TRUE(check_context(request, 99, 100));
  request.params.max_tokens = 2;
  for (const std::int64_t limit :
       {std::int64_t{2}, std::int64_t{1} << 31, std::numeric_limits<std::int64_t>::max()}) {
    request.params.max_tokens = limit;
    const ApiResult<void> result = check_context(request, 99, 100);
    ASSERT_FALSE(result);
    check_error(result.error());
    EXPECT_EQ(result.error().code, "context_length_exceeded");
    EXPECT_THAT(result.error().message, HasSubstr("maximum context length is 100 tokens"));
    EXPECT_THAT(result.error().message, HasSubstr("99 in the prompt"));
    EXPECT_THAT(result.error().message, HasSubstr(fmt::format("{} for the answer", limit)));
  }
  request.params.max_tokens.reset();
  for (const std::int64_t prompt : {100, 101, 5000}) {
    const ApiResult<void> result = check_context(request, prompt, 100);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, "context_length_exceeded");
    EXPECT_THAT(result.error().message, HasSubstr("maximum context length is 100 tokens"));
  }
}

// C82: token ids of clients.
TEST(RequestFields, C82LogitBias) {
  for (const ApiRoute route : kAll) {
    for (const char* bias : {R"({"-1":1})", R"({"999999":1})", R"({"1000":1})", R"({"x":1})", R"({"":1})",
                             R"({"1 ":1})", R"({"+1":1})", R"({"99999999999999999999":1})", R"({"1":1e9})",
                             R"({"1":"1"})", R"({"1":null})", R"({"1":100.5})", R"([1])", "5"}) {
      const ApiError error = refused(route, body_for(route, fmt::format("\"logit_bias\":{}", bias)));
      EXPECT_THAT(error.param.value_or("none"), StartsWith("logit_bias")) << bias;
    }
    EXPECT_EQ(refused(route, body_for(route, R"("logit_bias":{"1":NaN})")).status, 400);
  }
}

TEST(RequestFields, SaltsOfDifferentFieldsDiffer) {
  const std::string one = chat(R"("cache_salt":"a")").cache_salt;
  EXPECT_NE(one, chat(R"("extra_key":"a")").cache_salt);
  EXPECT_NE(one, chat(R"("cache_salt":"b")").cache_salt);
  EXPECT_EQ(one, chat(R"("cache_salt":"a")").cache_salt);
  EXPECT_NE(chat(R"("cache_salt":"a","extra_key":"b")").cache_salt, one);
}

TEST(RequestFields, ThinkingIsSwitchedByTheFirstThatIsGiven) {
  using Switch = std::optional<bool>;
  const auto thinking = [](const char* members, std::optional<bool> server = {}) {
    ApiContext context = test_context();
    context.enable_thinking = server;
    return accepted(kChat, chat_body(members), context).chat.enable_thinking;
  };
  EXPECT_EQ(thinking(""), Switch());
  EXPECT_EQ(thinking("", false), Switch(false));
  EXPECT_EQ(thinking(R"("reasoning_effort":"none")", true), Switch(false));
  EXPECT_EQ(thinking(R"("reasoning_effort":"high")"), Switch());
  EXPECT_EQ(thinking(R"("reasoning_effort":"none","thinking":{"type":"enabled"})"), Switch(true));
  EXPECT_EQ(thinking(R"("thinking":{"type":"disabled"})", true), Switch(false));
  EXPECT_EQ(thinking(R"("thinking":{"type":"enabled"},"enable_thinking":false)"), Switch(false));
  EXPECT_EQ(thinking(R"("thinking":{"type":"disabled"},"chat_template_kwargs":{"enable_thinking":true})"),
            Switch(true));
  EXPECT_EQ(thinking(R"("chat_template_kwargs":{"enable_thinking":null})", false), Switch(false));
  const ApiRequest request =
      chat(R"("chat_template_kwargs":{"enable_thinking":null,"keep_all_reasoning":false})");
  EXPECT_EQ(json::serialize(request.chat.template_kwargs), R"({"keep_all_reasoning":false})");
}

}  // namespace
}  // namespace mimo
