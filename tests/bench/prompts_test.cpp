// Prompts: their lengths, what is drawn anew and what is not, and what files may hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "bench/datasets.h"
#include "bench/endpoint.h"
#include "bench/prompt_maker.h"

namespace mimo {
namespace {

using testing::HasSubstr;

const Tokenizer& tokenizer() {
  static const Result<Tokenizer> loaded = Tokenizer::load(MIMO_SOURCE_DIR "/models/nano/tokenizer.json");
  EXPECT_TRUE(loaded) << loaded.error().message;
  return *loaded;
}

const PromptMaker& maker() {
  static const Result<PromptMaker> made = PromptMaker::make(tokenizer());
  EXPECT_TRUE(made) << made.error().message;
  return *made;
}

class TempFile {
 public:
  explicit TempFile(const std::string& text)
      : path_(testing::TempDir() + "bench_prompts_" +
              std::to_string(::testing::UnitTest::GetInstance()->random_seed()) + "_" +
              std::to_string(count_++)) {
    std::ofstream(path_) << text;
  }
  ~TempFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  static inline int count_ = 0;
  std::string path_;
};

TEST(PromptMaker, TextsHaveExactlySoManyTokens) {
  std::mt19937_64 random(1);
  for (const std::int64_t count : {1, 2, 3, 17, 128, 1000, 5000})
    EXPECT_EQ(std::ssize(tokenizer().encode(maker().text(random, count), {})), count);
}

TEST(PromptMaker, IdsAreOrdinary) {
  std::mt19937_64 random(1);
  const std::vector<std::int32_t> ids = maker().ids(random, 20000);
  EXPECT_EQ(ids.size(), 20000U);
  for (const std::int32_t id : ids) EXPECT_FALSE(tokenizer().is_added(id));
  // Nearly all of the vocabulary is drawn.
  EXPECT_GT(std::set(ids.begin(), ids.end()).size(), tokenizer().vocab_size() * 9 / 10);
}

TEST(Datasets, LengthsAreExactOrInTheirRange) {
  DatasetOptions options{
      .dataset = Dataset::kRandomIds, .count = 300, .input_tokens = 200, .output_tokens = 50};
  const auto exact = make_prompts(options, &maker(), 1);
  ASSERT_TRUE(exact) << exact.error().message;
  for (const LoadPrompt& prompt : *exact) {
    EXPECT_EQ(prompt.ids.size(), 200U);
    EXPECT_EQ(prompt.prompt_tokens, 200);
    EXPECT_EQ(prompt.output_tokens, 50);
  }
  options.range_ratio = 0.5;
  const auto ranged = make_prompts(options, &maker(), 1);
  std::int64_t least = 1000;
  std::int64_t most = 0;
  for (const LoadPrompt& prompt : *ranged) {
    EXPECT_EQ(std::ssize(prompt.ids), prompt.prompt_tokens);
    EXPECT_GE(prompt.output_tokens, 25);
    EXPECT_LE(prompt.output_tokens, 75);
    least = std::min(least, prompt.prompt_tokens);
    most = std::max(most, prompt.prompt_tokens);
  }
  // 300 draws from 201 lengths.
  EXPECT_GE(least, 100);
  EXPECT_LE(least, 110);
  EXPECT_LE(most, 300);
  EXPECT_GE(most, 290);
}

TEST(Datasets, C94AnotherRunHasOtherTextOfTheSameShape) {
  for (const Dataset kind : {Dataset::kRandom, Dataset::kRandomIds, Dataset::kSharedPrefix}) {
    DatasetOptions options{.dataset = kind,
                           .count = 20,
                           .input_tokens = 64,
                           .range_ratio = 0.3,
                           .groups = 2,
                           .prompts_per_group = 3,
                           .system_tokens = 64,
                           .question_tokens = 16};
    const auto body = [&](std::uint64_t run, std::uint64_t part) {
      options.run = run;
      std::vector<std::string> bodies;
      const auto prompts = make_prompts(options, &maker(), part);
      EXPECT_TRUE(prompts) << prompts.error().message;
      for (const LoadPrompt& prompt : *prompts) bodies.push_back(request_body({}, prompt));
      return bodies;
    };
    const auto one = body(1, 1);
    EXPECT_EQ(one, body(1, 1));
    for (const auto& other : {body(2, 1), body(1, 2)}) {
      ASSERT_EQ(other.size(), one.size());
      // Not even the beginnings agree, beyond what each random text begins with.
      std::set<std::string> beginnings;
      for (const auto& list : {one, other})
        for (const std::string& text : list) beginnings.insert(text.substr(text.find("\"prompt\""), 60));
      EXPECT_EQ(beginnings.size(), kind == Dataset::kSharedPrefix ? 4U : 2 * one.size());
    }
    options.run = 1;
    const auto first = *make_prompts(options, &maker(), 1);
    options.run = 2;
    const auto second = *make_prompts(options, &maker(), 7);
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].prompt_tokens, second[i].prompt_tokens);
  }
}

TEST(Datasets, ChatPromptsLeaveRoomForTheTemplate) {
  DatasetOptions options{.count = 3, .input_tokens = 100, .endpoint = Endpoint::kChat, .overhead = 30};
  const auto prompts = make_prompts(options, &maker(), 1);
  for (const LoadPrompt& prompt : *prompts) {
    EXPECT_EQ(prompt.prompt_tokens, 100);
    EXPECT_EQ(tokenizer().encode(prompt.text, {}).size(), 70U);
  }
  options.input_tokens = 30;
  EXPECT_THAT(make_prompts(options, &maker(), 1).error().message, HasSubstr("template alone has 30"));
  options.dataset = Dataset::kRandomIds;
  EXPECT_FALSE(make_prompts(options, &maker(), 1));
}

TEST(Datasets, GroupsShareTheirBeginning) {
  DatasetOptions options{.dataset = Dataset::kSharedPrefix,
                         .groups = 3,
                         .prompts_per_group = 4,
                         .system_tokens = 50,
                         .question_tokens = 7};
  const auto prompts = make_prompts(options, &maker(), 1);
  std::map<std::vector<std::int32_t>, int> groups;
  for (const LoadPrompt& prompt : *prompts) {
    ASSERT_EQ(prompt.ids.size(), 57U);
    ++groups[{prompt.ids.begin(), prompt.ids.begin() + 50}];
  }
  EXPECT_EQ(groups.size(), 3U);
  for (const auto& [ids, count] : groups) EXPECT_EQ(count, 4);
}

TEST(Datasets, Files) {
  const TempFile file(
      "{\"prompt\": \"one\"}\n\n{\"token_ids\": [1, 2, 3], \"output_tokens\": 9}\n{\"prompt\": \"three\"}\n");
  DatasetOptions options{.dataset = Dataset::kFile, .path = file.path()};
  const auto prompts = make_prompts(options, nullptr, 0);
  ASSERT_TRUE(prompts) << prompts.error().message;
  ASSERT_EQ(prompts->size(), 3U);
  EXPECT_EQ((*prompts)[0].text, "one");
  EXPECT_EQ((*prompts)[0].output_tokens, 128);
  EXPECT_EQ((*prompts)[1].ids, (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_EQ((*prompts)[1].output_tokens, 9);
  options.output_tokens = 5;
  options.count = 2;
  const auto fewer = make_prompts(options, nullptr, 0);
  ASSERT_EQ(fewer->size(), 2U);
  EXPECT_EQ((*fewer)[1].output_tokens, 5);
  options.count = 4;
  EXPECT_THAT(make_prompts(options, nullptr, 0).error().message,
              HasSubstr("has 3 usable prompts, 4 were asked for"));

  for (const char* wrong : {"{\"prompt\": 3}", "{}", "{\"token_ids\": [-1]}", "{\"token_ids\": [\"a\"]}",
                            "{\"messages\": []}", "[]", "{\"prompt\": \"x\", \"output_tokens\": 0}"}) {
    const TempFile bad(wrong);
    options = {.dataset = Dataset::kFile, .path = bad.path()};
    const auto refused = make_prompts(options, nullptr, 0);
    ASSERT_FALSE(refused) << wrong;
    EXPECT_THAT(refused.error().message, HasSubstr(bad.path())) << wrong;
  }
  const TempFile messages("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}");
  options = {.dataset = Dataset::kFile, .path = messages.path(), .endpoint = Endpoint::kChat};
  EXPECT_EQ(make_prompts(options, nullptr, 0)->front().messages.size(), 1U);
}

TEST(Datasets, ShareGpt) {
  const auto turn = [](const std::string& text) { return "{\"from\": \"x\", \"value\": \"" + text + "\"}"; };
  std::string words;
  for (int i = 0; i < 1100; ++i) words += " the";
  const std::string four = "the cat sat on the mat";
  const TempFile file("[{\"conversations\": [" + turn(four) + "," + turn(four + four) + "]}," +  // taken
                      "{\"conversations\": [" + turn(four) + "]}," +                             // no answer
                      "{\"conversations\": [" + turn("a") + "," + turn(four) + "]}," +           // too short
                      "{\"conversations\": [" + turn(words) + "," + turn(four) + "]}," +         // too long
                      "{\"id\": 3}]");
  DatasetOptions options{.dataset = Dataset::kShareGpt, .path = file.path()};
  const auto prompts = make_prompts(options, &maker(), 0);
  ASSERT_TRUE(prompts) << prompts.error().message;
  ASSERT_EQ(prompts->size(), 1U);
  EXPECT_EQ(prompts->front().text, four);
  EXPECT_EQ(prompts->front().output_tokens, std::ssize(tokenizer().encode(four + four, {})));
  const TempFile empty("[]");
  options.path = empty.path();
  EXPECT_FALSE(make_prompts(options, &maker(), 0));
  const TempFile object("{}");
  options.path = object.path();
  EXPECT_FALSE(make_prompts(options, &maker(), 0));
}

TEST(RequestBody, OfEachEndpoint) {
  LoadPrompt prompt;
  prompt.text = "hi";
  prompt.output_tokens = 7;
  RequestStyle style{.endpoint = Endpoint::kChat, .model = "m", .ignore_eos = true};
  style.extra = {{"top_k", 3}, {"temperature", 0.5}};
  const auto chat = parse_json(request_body(style, prompt), "body");
  EXPECT_EQ(chat->at("messages").as_array().size(), 1U);
  EXPECT_EQ(chat->at("max_tokens"), 7);
  EXPECT_EQ(chat->at("ignore_eos"), true);
  EXPECT_EQ(chat->at("top_k"), 3);
  EXPECT_EQ(chat->at("temperature"), 0.5);
  EXPECT_EQ(chat->at("stream_options").at("include_usage"), true);
  style.endpoint = Endpoint::kMessages;
  EXPECT_FALSE(parse_json(request_body(style, prompt), "body")->as_object().contains("stream_options"));
  style.endpoint = Endpoint::kCompletions;
  style.stream = false;
  prompt.ids = {4, 5};
  const auto completion = parse_json(request_body(style, prompt), "body");
  EXPECT_EQ(completion->at("prompt").as_array().size(), 2U);
  EXPECT_FALSE(completion->as_object().contains("stream_options"));
}

}  // namespace
}  // namespace mimo
