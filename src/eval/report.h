// Results of an evaluation: one JSON line a problem, the summary, and the table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "eval/problem.h"
#include "eval/statistics.h"

namespace mimo {

struct ItemResult {
  Answer answer;
  Grade grade;  // default for an answer with an error
};

// Shares are of all problems: one without an answer counts as wrong.
struct EvalSummary {
  std::int64_t problems = 0;
  std::int64_t correct = 0;
  std::int64_t correct_strict = 0;
  std::int64_t failed = 0;     // no answer
  std::int64_t truncated = 0;  // ended by their length
  std::int64_t invalid = 0;    // answered, but nothing of the expected kind
  std::int64_t prompt_tokens = 0;
  std::int64_t generated_tokens = 0;
  double wall_seconds = 0;
  std::optional<SpeculationStats> speculation;  // pooled; none: no answer had any
  struct Group {
    std::string name;
    std::int64_t problems = 0;
    std::int64_t correct = 0;
  };
  std::vector<Group> groups;  // in the order of the problems

  double accuracy(bool strict) const;
  double tokens_per_second() const;  // generated tokens / wall time
};

// `problems` and `results` side by side.
EvalSummary summarise(const std::vector<Problem>& problems, const std::vector<ItemResult>& results,
                      double wall_seconds);

// The line of a results file: prompt_id, correct, token_ids (null when unknown), content, counts, error.
// `strict`: whether "correct" is without leniency.
json::object item_json(const Problem& problem, const ItemResult& result, bool strict);

// The object that ends the output with --json. `strict`: whether "accuracy" is without leniency.
json::object summary_json(const EvalSummary& summary, bool strict);

// For people, several lines.
std::string summary_table(std::string_view title, const EvalSummary& summary, bool strict);

}  // namespace mimo
