#include "engine/stop_rules.h"

#include <gtest/gtest.h>

#include <random>

namespace mimo {
namespace {

constexpr int kEosIds[] = {151643, 151645};

// What the client sees when `text` arrives in the given pieces, one token each, and then generation ends.
struct Outcome {
  std::string shown;
  std::optional<Finish> finish;
};

Outcome run(const SamplingParams& params, const std::vector<std::string>& pieces) {
  StopRules rules(params, kEosIds);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    StopRules::Step step = rules.push(7, piece);
    outcome.shown += step.text;
    if (step.finish) break;
  }
  StopRules::Step last = rules.finish();
  outcome.shown += last.text;
  outcome.finish = last.finish;
  return outcome;
}

// Cuts text after byte i where bit i of `cuts` is set.
std::vector<std::string> cut(const std::string& text, unsigned cuts) {
  std::vector<std::string> pieces(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    pieces.back() += text[i];
    if ((cuts >> i & 1) != 0 && i + 1 < text.size()) pieces.emplace_back();
  }
  return pieces;
}

std::vector<std::string> chunks(const std::string& text, std::size_t bytes) {
  std::vector<std::string> pieces;
  for (std::size_t i = 0; i < text.size(); i += bytes) pieces.push_back(text.substr(i, bytes));
  return pieces;
}

SamplingParams stops(std::vector<std::string> texts) {
  SamplingParams params;
  params.stop = std::move(texts);
  return params;
}

TEST(StopRules, FoxCases) {
  const std::string text = "The quick brown fox";
  const struct {
    std::vector<std::string> stop;
    std::string shown;
    int index;
  } cases[] = {
      {{"own fox", "zzz"}, "The quick br", 0}, {{"n f"}, "The quick brow", 0},
      {{"x"}, "The quick brown fo", 0},        {{"zzz", "fox"}, "The quick brown ", 1},
      {{"The quick brown fox"}, "", 0},        {{"T"}, "", 0},
      {{"foxy", "brown foxes"}, text, -1},
  };
  for (const auto& c : cases) {
    for (std::size_t bytes = 1; bytes <= 5; ++bytes) {
      const Outcome outcome = run(stops(c.stop), chunks(text, bytes));
      EXPECT_EQ(outcome.shown, c.shown) << bytes;
      ASSERT_EQ(outcome.finish.has_value(), c.index >= 0);
      if (outcome.finish) {
        EXPECT_EQ(outcome.finish->reason, FinishReason::kStopString);
        EXPECT_EQ(outcome.finish->stop_index, c.index);
      }
    }
  }
}

TEST(StopRules, EveryCuttingGivesTheSame) {
  const struct {
    std::string text;
    std::vector<std::string> stop;
    std::string shown;
    int index;
  } cases[] = {
      {"xaaab!", {"aab", "ab"}, "xa", 0},               // both end at the same byte: the longer
      {"xaaab!", {"ab", "aab"}, "xa", 1},               // in whatever order
      {"zabcdz", {"abcd", "bc"}, "za", 1},              // the first to be complete
      {"aabaabaac", {"aabaac"}, "aab", 0},              // restart inside a partial match
      {"abababc", {"ababc"}, "ab", 0},                  //
      {"<tool_<to", {"<tool_call>"}, "<tool_<to", -1},  // an open beginning is shown at the end
      {"hi \xF0\x9F\x98\x81.",
       {"\xF0\x9F\x98\x80"},
       "hi \xF0\x9F\x98\x81.",
       -1},  // shares three bytes of an emoji
      {"a\xF0\x9F\x98\x80"
       "b",
       {"\xF0\x9F\x98\x80"},
       "a",
       0},
      {"\xF0\x9F\x91\xA8\xE2\x80\x8Dx", {"\xE2\x80\x8Dx"}, "\xF0\x9F\x91\xA8", 0},  // begins at the joiner
  };
  for (const auto& c : cases) {
    for (unsigned cuts = 0; cuts < 1u << (c.text.size() - 1); ++cuts) {
      const Outcome outcome = run(stops(c.stop), cut(c.text, cuts));
      ASSERT_EQ(outcome.shown, c.shown) << c.text << " cut " << cuts;
      ASSERT_EQ(outcome.finish ? outcome.finish->stop_index : -1, c.index) << c.text << " cut " << cuts;
    }
  }
}

// Random small texts over two letters, where overlaps are common, against a search over the whole text.
TEST(StopRules, AgreesWithSearchOnRandomTexts) {
  std::mt19937 random(1);
  const auto word = [&](std::size_t length) {
    std::string text;
    while (text.size() < length) text += "ab"[random() % 2];
    return text;
  };
  int stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string text = word(1 + random() % 12);
    std::vector<std::string> stop;
    for (std::size_t i = 0; i < 1 + random() % 3; ++i) stop.push_back(word(1 + random() % 6));

    std::string expected = text;
    std::string winner;
    for (std::size_t end = 1; end <= text.size() && winner.empty(); ++end) {
      for (const std::string& s : stop) {
        if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0 && s.size() > winner.size())
          winner = s;
      }
      if (!winner.empty()) expected = text.substr(0, end - winner.size());
    }

    // Also after every piece: exactly the longest end that could begin a stop string is held back.
    StopRules rules(stops(stop), kEosIds);
    std::string shown;
    std::string pushed;
    bool finished = false;
    for (const std::string& piece : cut(text, static_cast<unsigned>(random()))) {
      const StopRules::Step step = rules.push(7, piece);
      shown += step.text;
      pushed += piece;
      finished = step.finish.has_value();
      if (finished) break;
      std::size_t open = 0;
      for (const std::string& s : stop) {
        for (std::size_t n = 1; n < s.size() && n <= pushed.size(); ++n) {
          if (pushed.compare(pushed.size() - n, n, s, 0, n) == 0) open = std::max(open, n);
        }
      }
      ASSERT_EQ(shown, pushed.substr(0, pushed.size() - open)) << text;
    }
    shown += rules.finish().text;
    ASSERT_EQ(shown, expected) << text;
    ASSERT_EQ(finished, !winner.empty());
    stopped += finished ? 1 : 0;
  }
  EXPECT_GT(stopped, 5000);
  EXPECT_LT(stopped, 19000);
}

TEST(StopRules, NothingIsHeldWithoutReason) {
  StopRules rules(stops({"END"}), kEosIds);
  EXPECT_EQ(rules.push(1, "one E").text, "one ");
  EXPECT_EQ(rules.push(1, "N").text, "");
  EXPECT_EQ(rules.push(1, "X").text, "ENX");
  EXPECT_EQ(rules.push(1, "two").text, "two");
  EXPECT_EQ(rules.push(1, "").text, "");
  EXPECT_EQ(rules.push(1, "EEN").text, "E");
  EXPECT_EQ(rules.finish().text, "EN");

  StopRules plain({}, kEosIds);
  EXPECT_EQ(plain.push(1, "anything").text, "anything");
}

TEST(StopRules, IncludesTheStopStringIfAsked) {
  SamplingParams params = stops({"own", "brown"});
  params.include_stop_str_in_output = true;
  for (std::size_t bytes = 1; bytes <= 5; ++bytes) {
    const Outcome outcome = run(params, chunks("The quick brown fox", bytes));
    EXPECT_EQ(outcome.shown, "The quick brown");
    EXPECT_EQ(outcome.finish->stop_index, 1);
  }
}

TEST(StopRules, TokensThatStop) {
  SamplingParams params = stops({"zz"});
  params.stop_token_ids = {5, 3};
  {
    StopRules rules(params, kEosIds);
    EXPECT_EQ(rules.push(1, "az").text, "a");
    const StopRules::Step step = rules.push(151645, "<|im_end|>");
    ASSERT_TRUE(step.finish);
    EXPECT_EQ(step.finish->reason, FinishReason::kEos);
    EXPECT_EQ(step.finish->token_id, 151645);
    EXPECT_EQ(step.text, "");
    EXPECT_EQ(rules.push(1, "more").text, "");  // what a verified run had after the end
    EXPECT_EQ(rules.tokens(), 2);
    const StopRules::Step last = rules.finish("\xEF\xBF\xBD");
    EXPECT_EQ(last.text, "z\xEF\xBF\xBD");
    EXPECT_EQ(last.finish->reason, FinishReason::kEos);
  }
  for (const int id : {5, 3}) {
    StopRules rules(params, kEosIds);
    const StopRules::Step step = rules.push(id, "zz");
    ASSERT_TRUE(step.finish);
    EXPECT_EQ(step.finish->reason, FinishReason::kStopToken);
    EXPECT_EQ(step.finish->token_id, id);
    EXPECT_EQ(rules.finish().text, "");
  }
  params.include_stop_str_in_output = true;
  StopRules rules(params, kEosIds);
  rules.push(1, "z");
  EXPECT_EQ(rules.push(5, "!").text, "z!");
  EXPECT_EQ(rules.finish().text, "");
}

TEST(StopRules, IgnoreEosLeavesExplicitStopTokens) {
  SamplingParams params;
  params.ignore_eos = true;
  {
    StopRules rules(params, kEosIds);
    const StopRules::Step step = rules.push(151645, "x");
    EXPECT_FALSE(step.finish);
    EXPECT_EQ(step.text, "x");
  }
  params.stop_token_ids = {151645};
  StopRules rules(params, kEosIds);
  EXPECT_FALSE(rules.push(151643, "x").finish);
  const StopRules::Step step = rules.push(151645, "x");
  ASSERT_TRUE(step.finish);
  EXPECT_EQ(step.finish->reason, FinishReason::kStopToken);
}

TEST(StopRules, MinTokensDelaysEveryStop) {
  SamplingParams params = stops({"ab"});
  params.min_tokens = 3;
  params.stop_token_ids = {5};
  {
    StopRules rules(params, kEosIds);
    EXPECT_EQ(rules.push(151645, "ab").text, "ab");
    EXPECT_FALSE(rules.push(5, "ab").finish);
    EXPECT_FALSE(rules.push(151643, "ab").finish);
    EXPECT_TRUE(rules.push(151643, "ab").finish);
  }
  {
    StopRules rules(params, kEosIds);
    std::string shown;
    for (const char* piece : {"ab", "ab", "xa"}) shown += rules.push(1, piece).text;
    EXPECT_EQ(shown, "ababx");  // the last a could begin a stop string that ends after min_tokens
    const StopRules::Step step = rules.push(1, "b!");
    EXPECT_EQ(step.text, "");
    ASSERT_TRUE(step.finish);
    EXPECT_EQ(step.finish->reason, FinishReason::kStopString);
  }
  // A match that was too early can overlap with one that counts.
  SamplingParams overlap = stops({"aba"});
  overlap.min_tokens = 1;
  StopRules rules(overlap, kEosIds);
  EXPECT_EQ(rules.push(1, "xaba").text, "xab");
  EXPECT_TRUE(rules.push(1, "ba").finish);
  EXPECT_EQ(rules.finish().text, "");
}

TEST(StopRules, LengthAndWhatBeatsIt) {
  SamplingParams params = stops({"ab", "c\xEF\xBF\xBD"});
  params.max_tokens = 2;
  {
    StopRules rules(params, kEosIds);
    EXPECT_FALSE(rules.push(1, "x").finish);
    const StopRules::Step step = rules.push(1, "ya");
    ASSERT_TRUE(step.finish);
    EXPECT_EQ(step.finish->reason, FinishReason::kLength);
    EXPECT_EQ(step.text, "y");
    const StopRules::Step last = rules.finish();
    EXPECT_EQ(last.text, "a");
    EXPECT_EQ(last.finish->reason, FinishReason::kLength);
  }
  {
    StopRules rules(params, kEosIds);
    rules.push(1, "a");
    EXPECT_EQ(rules.push(1, "b").finish->reason, FinishReason::kStopString);
    EXPECT_EQ(rules.finish("tail").text, "");
  }
  {
    StopRules rules(params, kEosIds);
    rules.push(1, "a");
    EXPECT_EQ(rules.push(151645, "").finish->reason, FinishReason::kEos);
  }
  {
    StopRules rules(params, kEosIds);
    rules.push(1, "a");
    EXPECT_EQ(rules.push(1, "c").finish->reason, FinishReason::kLength);
    const StopRules::Step last = rules.finish("\xEF\xBF\xBD");  // complete only with the tail
    EXPECT_EQ(last.text, "");
    EXPECT_EQ(last.finish->reason, FinishReason::kStopString);
    EXPECT_EQ(last.finish->stop_index, 1);
  }
  params.max_tokens = 1;
  EXPECT_EQ(StopRules(params, kEosIds).push(1, "x").finish->reason, FinishReason::kLength);
}

}  // namespace
}  // namespace mimo
