#include "eval/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/compare.h"
#include "eval/temp_file.h"

namespace mimo {
namespace {

using test::TempFile;
using ::testing::HasSubstr;

ItemResult item(bool correct, std::int64_t tokens) {
  ItemResult result;
  result.grade = {correct, correct, true, "1"};
  result.answer.prompt_tokens = 10;
  result.answer.completion_tokens = tokens;
  result.answer.token_ids = std::vector<std::int32_t>{1, 2};
  return result;
}

struct Case {
  std::vector<Problem> problems;
  std::vector<ItemResult> results;
};

Case four_items() {
  Case out;
  out.results = {item(true, 5), item(false, 7), item(true, 3), item(false, 0)};
  out.results[1].answer.truncated = true;
  out.results[1].grade.valid = false;
  out.results[3].answer = {};
  out.results[3].answer.error = Error{ErrorCode::kInternal, "gone"};
  SpeculationStats stats;
  stats.record(7, 7, 8);
  stats.record(7, 2, 3);
  out.results[0].answer.speculation = stats;
  SpeculationStats more;
  more.record(7, 0, 1);
  out.results[2].answer.speculation = more;
  for (std::size_t i = 0; i < out.results.size(); ++i) {
    Problem problem;
    problem.id = "p" + std::to_string(i);
    problem.index = i;
    problem.group = i < 2 ? "first" : "second";
    out.problems.push_back(std::move(problem));
  }
  return out;
}

TEST(Report, PoolsCountersAndCountsFailuresAsWrong) {
  const Case c = four_items();
  const EvalSummary summary = summarise(c.problems, c.results, 2.0);
  EXPECT_DOUBLE_EQ(summary.accuracy(false), 0.5);
  EXPECT_EQ(summary.failed, 1);
  EXPECT_EQ(summary.truncated, 1);
  EXPECT_EQ(summary.invalid, 1);
  EXPECT_EQ(summary.prompt_tokens, 30);
  EXPECT_DOUBLE_EQ(summary.tokens_per_second(), 7.5);
  ASSERT_TRUE(summary.speculation);
  EXPECT_DOUBLE_EQ(summary.speculation->accept_length(), 4.0);  // 1 + 9 / 3, not the mean of 5.5 and 1
  ASSERT_EQ(summary.groups.size(), 2u);
  EXPECT_EQ(summary.groups[0].correct, 1);
  EXPECT_EQ(summary.groups[1].problems, 2);

  const json::object out = summary_json(summary, false);
  EXPECT_DOUBLE_EQ(out.at("accuracy").as_double(), 0.5);
  EXPECT_DOUBLE_EQ(out.at("accept_length").as_double(), 4.0);
  const std::string table = summary_table("title", summary, false);
  EXPECT_THAT(table, HasSubstr("50.00% (2 of 4)"));
  EXPECT_THAT(table, HasSubstr("4.000"));
  EXPECT_THAT(table, HasSubstr("0: 33.3%  1: 0.0%  2: 33.3%"));
}

TEST(Report, AcceptLengthIsNullWithoutSpeculation) {
  Case c = four_items();
  for (ItemResult& result : c.results) result.answer.speculation.reset();
  const json::object out = summary_json(summarise(c.problems, c.results, 1), false);
  EXPECT_TRUE(out.at("accept_length").is_null());
  const EvalSummary none = summarise({}, {}, 0);
  EXPECT_EQ(none.accuracy(true), 0);
  EXPECT_EQ(none.tokens_per_second(), 0);
}

TEST(Report, StrictnessChoosesWhatCounts) {
  Case c = four_items();
  c.results[0].grade.correct_strict = false;
  const EvalSummary summary = summarise(c.problems, c.results, 1);
  EXPECT_DOUBLE_EQ(summary_json(summary, false).at("accuracy").as_double(), 0.5);
  EXPECT_DOUBLE_EQ(summary_json(summary, true).at("accuracy").as_double(), 0.25);
  EXPECT_DOUBLE_EQ(summary_json(summary, false).at("accuracy_strict").as_double(), 0.25);
  EXPECT_THAT(summary_table("t", summary, false), HasSubstr("strict"));
  EXPECT_THAT(summary_table("t", summary, true), HasSubstr("lenient"));
  EXPECT_EQ(item_json(c.problems[0], c.results[0], false).at("correct"), true);
  EXPECT_EQ(item_json(c.problems[0], c.results[0], true).at("correct"), false);
}

TEST(Report, ItemsSayWhatIsKnown) {
  const Case c = four_items();
  const json::object good = item_json(c.problems[0], c.results[0], false);
  EXPECT_EQ(good.at("prompt_id"), "p0");
  EXPECT_EQ(good.at("correct"), true);
  EXPECT_EQ(json::serialize(good.at("token_ids")), "[1,2]");
  EXPECT_TRUE(good.at("error").is_null());
  const json::object failed = item_json(c.problems[3], c.results[3], false);
  EXPECT_EQ(failed.at("error"), "gone");
  EXPECT_TRUE(failed.at("token_ids").is_null());
}

std::map<std::string, ResultLine> results(const std::string& lines) {
  const TempFile file(lines);
  const auto loaded = load_results(file.path());
  EXPECT_TRUE(loaded) << loaded.error().message;
  return *loaded;
}

TEST(Compare, PairsByIdWhateverTheOrder) {
  const auto a = results(R"({"prompt_id":"1","correct":true,"token_ids":[1,2,3]}
{"prompt_id":"2","correct":true,"token_ids":[1,2]}
{"prompt_id":"3","correct":false,"token_ids":[5]}
{"prompt_id":"4","correct":false,"token_ids":null}
{"prompt_id":"5","correct":true,"token_ids":[],"error":"gone"}
{"prompt_id":"6","correct":true})");
  const auto b = results(R"({"prompt_id":"5","correct":true,"token_ids":[]}
{"prompt_id":"4","correct":true,"token_ids":[1]}
{"prompt_id":"3","correct":false,"token_ids":[5]}
{"prompt_id":"2","correct":false,"token_ids":[1,2,9]}
{"prompt_id":"1","correct":true,"token_ids":[1,4,3],"error":null}
{"prompt_id":"7","correct":true})");
  const Comparison out = compare_results(a, b);
  EXPECT_EQ(out.both, 5);
  EXPECT_EQ(out.only_a, 1);
  EXPECT_EQ(out.only_b, 1);
  EXPECT_EQ(out.right_to_wrong, std::vector<std::string>{"2"});
  EXPECT_EQ(out.wrong_to_right, std::vector<std::string>{"4"});
  EXPECT_EQ(out.p, 1);
  EXPECT_EQ(out.with_ids, 3);
  EXPECT_EQ(out.identical_ids, 1);
  ASSERT_EQ(out.differences.size(), 2u);
  EXPECT_EQ(out.differences[0].prompt_id, "1");
  EXPECT_EQ(out.differences[0].position, 1u);
  EXPECT_EQ(out.differences[0].a, 2);
  EXPECT_EQ(out.differences[0].b, 4);
  EXPECT_EQ(out.differences[1].position, 2u);
  EXPECT_EQ(out.differences[1].a, std::nullopt);
  EXPECT_EQ(out.differences[1].b, 9);
  EXPECT_THAT(comparison_table(out), HasSubstr("2: token 2: end against 9"));
  EXPECT_EQ(comparison_json(out).at("identical_token_ids"), 1);
}

TEST(Compare, RefusesBadJsonlWriters) {
  for (const auto& [text, named] :
       {std::pair{"{\"correct\":true}", "\"prompt_id\""}, std::pair{"{\"prompt_id\":\"1\"}", "\"correct\""},
        std::pair{"{\"prompt_id\":\"1\",\"correct\":1}", "\"correct\""},
        std::pair{"{\"prompt_id\":\"1\",\"correct\":true,\"token_ids\":[1.5]}", "\"token_ids\""},
        std::pair{"{\"prompt_id\":\"1\",\"correct\":true,\"token_ids\":\"x\"}", "\"token_ids\""}}) {
    const TempFile file(std::string("\n") + text);
    const auto loaded = load_results(file.path());
    ASSERT_FALSE(loaded) << text;
    EXPECT_THAT(loaded.error().message, HasSubstr(file.path() + ":2: "));
    EXPECT_THAT(loaded.error().message, HasSubstr(named));
  }
  const TempFile twice("{\"prompt_id\":\"1\",\"correct\":true}\n{\"prompt_id\":\"1\",\"correct\":true}");
  EXPECT_FALSE(load_results(twice.path()));
  const TempFile empty("");
  EXPECT_FALSE(load_results(empty.path()));
}

}  // namespace
}  // namespace mimo
