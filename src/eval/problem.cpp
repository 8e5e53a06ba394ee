#include "eval/problem.h"

#include <algorithm>

#include "eval/answer_extraction.h"
#include "text/tool_schema.h"

namespace mimo {
namespace {

// int64, uint64 and double compared without rounding large integers to double.
bool numbers_equal(const json::value& a, const json::value& b) {
  if (a.is_double() && b.is_double()) return a.get_double() == b.get_double();
  if (a.is_double() || b.is_double()) {
    const double real = a.is_double() ? a.get_double() : b.get_double();
    const json::value& whole = a.is_double() ? b : a;
    // Beyond 2^63 a double and an integer of the same digits cannot be told from neighbours.
    constexpr double kLimit = 9223372036854775808.0;
    if (real != real || real < -kLimit || real >= kLimit) return false;
    const auto truncated = static_cast<std::int64_t>(real);
    return static_cast<double>(truncated) == real && json::value(truncated) == whole;
  }
  return a == b;  // Boost compares int64 with uint64 by value
}

bool calls_equal(const std::vector<ToolCall>& a, const std::vector<ToolCall>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const ToolCall& x, const ToolCall& y) {
    return x.name == y.name && json_equal(x.arguments, y.arguments);
  });
}

Grade grade_number(const ExpectedNumber& expected, const std::string& content) {
  const bool last = expected.rule == ExpectedNumber::Rule::kLastInteger;
  const std::optional<std::string> got = last ? last_integer(content) : extract_answer(content);
  Grade result;
  if (!got) return result;
  result.valid = true;
  result.extracted = *got;
  const NumberMatch match = compare_numbers(*got, expected.value);
  result.correct_strict = expected.rule == ExpectedNumber::Rule::kEvalscope ? match.close : match.exact;
  result.correct = expected.rule == ExpectedNumber::Rule::kEvalscope ? match.lenient : match.exact;
  return result;
}

Grade grade_calls(const ExpectedCalls& expected, const json::array& tools, const Answer& answer) {
  Grade result;
  result.extracted = answer.calls.empty() ? answer.content : json::serialize(calls_json(answer.calls));
  const bool declared = std::all_of(answer.calls.begin(), answer.calls.end(), [&](const ToolCall& call) {
    return find_tool(tools, call.name).declared;
  });
  const bool anything =
      !answer.calls.empty() || answer.content.find_first_not_of(" \t\r\n") != std::string::npos;
  result.valid = declared && answer.problems.empty() && anything;
  result.correct = result.valid && calls_equal(answer.calls, expected.calls);
  result.correct_strict = result.correct;
  return result;
}

}  // namespace

json::array user_message(std::string_view content) {
  json::object message;
  message["role"] = "user";
  message["content"] = content;
  json::array messages;
  messages.push_back(std::move(message));
  return messages;
}

json::array calls_json(const std::vector<ToolCall>& calls) {
  json::array list;
  for (const ToolCall& call : calls) {
    json::object one;
    one["name"] = call.name;
    one["arguments"] = call.arguments;
    list.push_back(std::move(one));
  }
  return list;
}

bool json_equal(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return numbers_equal(a, b);
  if (a.is_array() && b.is_array()) {
    const json::array& x = a.get_array();
    const json::array& y = b.get_array();
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), json_equal);
  }
  if (a.is_object() && b.is_object()) {
    const json::object& x = a.get_object();
    const json::object& y = b.get_object();
    return x.size() == y.size() && std::all_of(x.begin(), x.end(), [&](const auto& field) {
             const json::value* other = y.if_contains(field.key());
             return other != nullptr && json_equal(field.value(), *other);
           });
  }
  return a == b;
}

Grade grade(const Problem& problem, const Answer& answer) {
  if (const auto* number = std::get_if<ExpectedNumber>(&problem.expected))
    return grade_number(*number, answer.content);
  if (const auto* calls = std::get_if<ExpectedCalls>(&problem.expected))
    return grade_calls(*calls, problem.tools, answer);
  const std::string& text = std::get<ExpectedText>(problem.expected).text;
  Grade result;
  result.valid = answer.content.find_first_not_of(" \t\r\n") != std::string::npos;
  result.extracted = answer.content;
  result.correct = answer.content.find(text) != std::string::npos;
  result.correct_strict = result.correct;
  return result;
}

}  // namespace mimo
