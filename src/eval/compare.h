// Two result files of the same problems, compared problem by problem: the only way to see small differences.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/result.h"

namespace mimo {

struct ResultLine {
  bool correct = false;
  bool failed = false;
  std::optional<std::vector<std::int64_t>> token_ids;
};

// Lines of a results file (report.h, item_json) by prompt_id.
Result<std::map<std::string, ResultLine>> load_results(const std::string& path);

struct Comparison {
  std::int64_t both = 0;  // problems in both files
  std::int64_t only_a = 0;
  std::int64_t only_b = 0;
  std::int64_t correct_a = 0;  // of those in both
  std::int64_t correct_b = 0;
  std::vector<std::string> right_to_wrong;
  std::vector<std::string> wrong_to_right;
  double p = 1;               // exact McNemar test, two-sided
  std::int64_t with_ids = 0;  // both have token ids
  std::int64_t identical_ids = 0;
  struct Difference {
    std::string prompt_id;
    std::size_t position = 0;       // of the first token that differs, or the shorter one's length
    std::optional<std::int64_t> a;  // none: that answer had ended
    std::optional<std::int64_t> b;
  };
  std::vector<Difference> differences;  // by prompt_id
};

Comparison compare_results(const std::map<std::string, ResultLine>& a,
                           const std::map<std::string, ResultLine>& b);

json::object comparison_json(const Comparison& comparison);
std::string comparison_table(const Comparison& comparison);

}  // namespace mimo
