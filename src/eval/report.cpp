#include "eval/report.h"

#include <algorithm>
#include <utility>

namespace mimo {
namespace {

json::value expected_json(const Expected& expected) {
  if (const auto* number = std::get_if<ExpectedNumber>(&expected)) return json::string(number->value);
  if (const auto* calls = std::get_if<ExpectedCalls>(&expected)) return calls_json(calls->calls);
  return json::string(std::get<ExpectedText>(expected).text);
}

bool ran(const std::optional<SpeculationStats>& stats) { return stats && stats->verify_steps > 0; }

}  // namespace

double EvalSummary::accuracy(bool strict) const {
  return problems > 0 ? static_cast<double>(strict ? correct_strict : correct) / static_cast<double>(problems)
                      : 0;
}

double EvalSummary::tokens_per_second() const {
  return wall_seconds > 0 ? static_cast<double>(generated_tokens) / wall_seconds : 0;
}

EvalSummary summarise(const std::vector<Problem>& problems, const std::vector<ItemResult>& results,
                      double wall_seconds) {
  EvalSummary summary;
  summary.problems = static_cast<std::int64_t>(results.size());
  summary.wall_seconds = wall_seconds;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Answer& answer = results[i].answer;
    const Grade& one = results[i].grade;
    if (!problems[i].group.empty()) {
      auto group = std::find_if(summary.groups.begin(), summary.groups.end(),
                                [&](const EvalSummary::Group& g) { return g.name == problems[i].group; });
      if (group == summary.groups.end()) group = summary.groups.insert(group, {problems[i].group, 0, 0});
      ++group->problems;
      group->correct += one.correct ? 1 : 0;
    }
    if (answer.error) {
      ++summary.failed;
      continue;
    }
    summary.correct += one.correct ? 1 : 0;
    summary.correct_strict += one.correct_strict ? 1 : 0;
    summary.truncated += answer.truncated ? 1 : 0;
    summary.invalid += one.valid ? 0 : 1;
    summary.prompt_tokens += answer.prompt_tokens;
    summary.generated_tokens += answer.completion_tokens;
    if (answer.speculation) {
      if (!summary.speculation) summary.speculation.emplace();
      summary.speculation->add(*answer.speculation);
    }
  }
  return summary;
}

json::object item_json(const Problem& problem, const ItemResult& result, bool strict) {
  const Answer& answer = result.answer;
  json::object item;
  item["prompt_id"] = problem.id;
  item["correct"] = strict ? result.grade.correct_strict : result.grade.correct;
  item["correct_strict"] = result.grade.correct_strict;
  item["valid"] = result.grade.valid;
  item["expected"] = expected_json(problem.expected);
  item["extracted"] = result.grade.extracted;
  item["truncated"] = answer.truncated;
  item["error"] = answer.error ? json::value(json::string(answer.error->message)) : json::value(nullptr);
  item["reasoning_content"] = answer.reasoning;
  item["content"] = answer.content;
  if (!problem.tools.empty()) {
    item["tool_calls"] = calls_json(answer.calls);
    json::array problems;
    for (const std::string& one : answer.problems) problems.emplace_back(one);
    item["tool_call_problems"] = std::move(problems);
  }
  item["prompt_tokens"] = answer.prompt_tokens;
  item["completion_tokens"] = answer.completion_tokens;
  item["seconds"] = answer.seconds;
  item["accept_length"] =
      ran(answer.speculation) ? json::value(answer.speculation->accept_length()) : json::value(nullptr);
  if (answer.token_ids) {
    json::array ids;
    for (const std::int32_t id : *answer.token_ids) ids.push_back(id);
    item["token_ids"] = std::move(ids);
  } else {
    item["token_ids"] = nullptr;
  }
  return item;
}

json::object summary_json(const EvalSummary& summary, bool strict) {
  json::object out;
  const Interval interval =
      wilson_interval(strict ? summary.correct_strict : summary.correct, summary.problems);
  out["accuracy"] = summary.accuracy(strict);
  out["accuracy_low"] = interval.low;
  out["accuracy_high"] = interval.high;
  out["accuracy_strict"] = summary.accuracy(true);
  out["problems"] = summary.problems;
  out["correct"] = strict ? summary.correct_strict : summary.correct;
  out["failed"] = summary.failed;
  out["truncated"] = summary.truncated;
  out["invalid"] = summary.invalid;
  out["accept_length"] =
      ran(summary.speculation) ? json::value(summary.speculation->accept_length()) : json::value(nullptr);
  out["tokens_per_second"] = summary.tokens_per_second();
  out["prompt_tokens"] = summary.prompt_tokens;
  out["generated_tokens"] = summary.generated_tokens;
  out["wall_seconds"] = summary.wall_seconds;
  if (!summary.groups.empty()) {
    json::array groups;
    for (const EvalSummary::Group& group : summary.groups) {
      json::object one;
      one["group"] = group.name;
      one["problems"] = group.problems;
      one["correct"] = group.correct;
      groups.push_back(std::move(one));
    }
    out["groups"] = std::move(groups);
  }
  return out;
}

std::string summary_table(std::string_view title, const EvalSummary& summary, bool strict) {
  const std::int64_t correct = strict ? summary.correct_strict : summary.correct;
  const Interval interval = wilson_interval(correct, summary.problems);
  std::string out = fmt::format("{}\n", title);
  const auto row = [&](std::string_view name, std::string_view value) {
    out += fmt::format("  {:<18} {}\n", name, value);
  };
  row("accuracy",
      fmt::format("{:.2f}% ({} of {}), 95% interval {:.2f}% to {:.2f}%", 100 * summary.accuracy(strict),
                  correct, summary.problems, 100 * interval.low, 100 * interval.high));
  if (summary.correct != summary.correct_strict) {
    row(strict ? "lenient" : "strict", fmt::format("{:.2f}%", 100 * summary.accuracy(!strict)));
  }
  for (const EvalSummary::Group& group : summary.groups)
    row(group.name, fmt::format("{} of {}", group.correct, group.problems));
  row("failed", fmt::format("{}", summary.failed));
  row("truncated", fmt::format("{}", summary.truncated));
  row("invalid", fmt::format("{}", summary.invalid));
  if (ran(summary.speculation)) {
    const SpeculationStats& stats = *summary.speculation;
    row("accept length",
        fmt::format("{:.3f} (the bonus token included; {} of {} drafts in {} steps)", stats.accept_length(),
                    stats.accepted, stats.proposed, stats.verify_steps));
    std::string shares;
    for (std::size_t n = 0; n < stats.accepted_histogram.size(); ++n) {
      shares += fmt::format(
          "{}{}: {:.1f}%", n == 0 ? "" : "  ", n,
          100.0 * static_cast<double>(stats.accepted_histogram[n]) / static_cast<double>(stats.verify_steps));
    }
    row("accepted drafts", shares);
  }
  row("prompt tokens", fmt::format("{}", summary.prompt_tokens));
  row("generated tokens", fmt::format("{} in {:.2f} s, {:.1f} tokens/s", summary.generated_tokens,
                                      summary.wall_seconds, summary.tokens_per_second()));
  return out;
}

}  // namespace mimo
