#include "eval/compare.h"

#include <algorithm>
#include <utility>

#include "core/jsonl.h"
#include "eval/statistics.h"

namespace mimo {
namespace {

// Names listed in the table; the JSON has all.
constexpr std::size_t kShown = 10;

Result<std::optional<std::vector<std::int64_t>>> read_ids(const JsonLine& line) {
  const json::value* value = line.object().if_contains("token_ids");
  if (value == nullptr || value->is_null()) return std::nullopt;
  std::vector<std::int64_t> ids;
  bool good = value->is_array();
  if (good) {
    for (const json::value& item : value->get_array()) {
      const std::int64_t* id = item.if_int64();
      good = good && id != nullptr;
      if (good) ids.push_back(*id);
    }
  }
  if (!good)
    return fail(ErrorCode::kCorrupt, "{}: field \"token_ids\": expected a list of integers or null",
                line.where());
  return ids;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

std::string token_name(const std::optional<std::int64_t>& id) {
  return id ? std::to_string(*id) : std::string("end");
}

json::array names_json(const std::vector<std::string>& names) {
  json::array list;
  for (const std::string& name : names) list.emplace_back(name);
  return list;
}

json::value id_json(const std::optional<std::int64_t>& id) {
  return id ? json::value(*id) : json::value(nullptr);
}

}  // namespace

Result<std::map<std::string, ResultLine>> load_results(const std::string& path) {
  std::map<std::string, ResultLine> results;
  const Status read = read_jsonl(path, [&](const JsonLine& line) -> Status {
    const Result<std::string> id = line.text("prompt_id");
    if (!id) return forward_error(id);
    if (!line.object().contains("correct"))
      return fail(ErrorCode::kCorrupt, "{}: field \"correct\": expected true or false, got nothing",
                  line.where());
    const Result<bool> correct = line.boolean("correct", false);
    if (!correct) return forward_error(correct);
    Result<std::optional<std::vector<std::int64_t>>> ids = read_ids(line);
    if (!ids) return forward_error(ids);
    const json::value* error = line.object().if_contains("error");
    ResultLine result{*correct, error != nullptr && !error->is_null(), std::move(*ids)};
    if (!results.emplace(*id, std::move(result)).second)
      return fail(ErrorCode::kCorrupt, "{}: field \"prompt_id\": \"{}\" occurs twice", line.where(), *id);
    return {};
  });
  if (!read) return forward_error(read);
  if (results.empty()) return fail(ErrorCode::kCorrupt, "{}: no results", path);
  return results;
}

Comparison compare_results(const std::map<std::string, ResultLine>& a,
                           const std::map<std::string, ResultLine>& b) {
  Comparison out;
  for (const auto& [id, left] : a) {
    const auto found = b.find(id);
    if (found == b.end()) {
      ++out.only_a;
      continue;
    }
    const ResultLine& right = found->second;
    ++out.both;
    out.correct_a += left.correct ? 1 : 0;
    out.correct_b += right.correct ? 1 : 0;
    if (left.correct && !right.correct) out.right_to_wrong.push_back(id);
    if (!left.correct && right.correct) out.wrong_to_right.push_back(id);
    if (left.failed || right.failed || !left.token_ids || !right.token_ids) continue;
    ++out.with_ids;
    const auto [x, y] = std::mismatch(left.token_ids->begin(), left.token_ids->end(),
                                      right.token_ids->begin(), right.token_ids->end());
    if (x == left.token_ids->end() && y == right.token_ids->end()) {
      ++out.identical_ids;
      continue;
    }
    Comparison::Difference difference;
    difference.prompt_id = id;
    difference.position = static_cast<std::size_t>(x - left.token_ids->begin());
    if (x != left.token_ids->end()) difference.a = *x;
    if (y != right.token_ids->end()) difference.b = *y;
    out.differences.push_back(std::move(difference));
  }
  out.only_b = static_cast<std::int64_t>(b.size()) - out.both;
  out.p = mcnemar_exact(static_cast<std::int64_t>(out.right_to_wrong.size()),
                        static_cast<std::int64_t>(out.wrong_to_right.size()));
  return out;
}

json::object comparison_json(const Comparison& comparison) {
  json::object out;
  out["problems"] = comparison.both;
  out["only_a"] = comparison.only_a;
  out["only_b"] = comparison.only_b;
  out["correct_a"] = comparison.correct_a;
  out["correct_b"] = comparison.correct_b;
  out["right_to_wrong"] = names_json(comparison.right_to_wrong);
  out["wrong_to_right"] = names_json(comparison.wrong_to_right);
  out["p"] = comparison.p;
  out["with_token_ids"] = comparison.with_ids;
  out["identical_token_ids"] = comparison.identical_ids;
  json::array differences;
  for (const Comparison::Difference& difference : comparison.differences) {
    json::object one;
    one["prompt_id"] = difference.prompt_id;
    one["position"] = difference.position;
    one["a"] = id_json(difference.a);
    one["b"] = id_json(difference.b);
    differences.push_back(std::move(one));
  }
  out["differences"] = std::move(differences);
  return out;
}

std::string comparison_table(const Comparison& comparison) {
  std::string out;
  const auto row = [&](std::string_view name, std::string_view value) {
    out += fmt::format("{:<18} {}\n", name, value);
  };
  const auto share = [&](std::int64_t correct) {
    const Interval interval = wilson_interval(correct, comparison.both);
    return fmt::format("{} of {}, 95% interval {:.2f}% to {:.2f}%", correct, comparison.both,
                       100 * interval.low, 100 * interval.high);
  };
  row("problems", fmt::format("{} in both, {} only in A, {} only in B", comparison.both, comparison.only_a,
                              comparison.only_b));
  row("correct in A", share(comparison.correct_a));
  row("correct in B", share(comparison.correct_b));
  row("right -> wrong",
      fmt::format("{}  {}", comparison.right_to_wrong.size(), listed(comparison.right_to_wrong)));
  row("wrong -> right",
      fmt::format("{}  {}", comparison.wrong_to_right.size(), listed(comparison.wrong_to_right)));
  row("McNemar p", fmt::format("{:.4g} (exact, two-sided)", comparison.p));
  row("identical ids",
      fmt::format("{} of {} with token ids in both", comparison.identical_ids, comparison.with_ids));
  for (std::size_t i = 0; i < std::min(comparison.differences.size(), kShown); ++i) {
    const Comparison::Difference& difference = comparison.differences[i];
    row(i == 0 ? "first differences" : "",
        fmt::format("{}: token {}: {} against {}", difference.prompt_id, difference.position,
                    token_name(difference.a), token_name(difference.b)));
  }
  if (comparison.differences.size() > kShown)
    row("", fmt::format("and {} more", comparison.differences.size() - kShown));
  return out;
}

}  // namespace mimo
