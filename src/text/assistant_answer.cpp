#include "text/assistant_answer.h"

#include <utility>

namespace mimo {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

}  // namespace

ReasoningSplit split_reasoning(std::string_view answer, ThinkBlock block) {
  std::string_view rest = answer;
  if (block == ThinkBlock::kClosed) return {{}, answer, false};
  const std::size_t begin = rest.find_first_not_of(" \t\r\n");
  if (begin != std::string_view::npos && rest.substr(begin).starts_with(kOpen)) {
    rest.remove_prefix(begin + kOpen.size());
  } else if (block == ThinkBlock::kModelDecides) {
    return {{}, answer, false};
  }
  ReasoningSplit split;
  const std::size_t end = rest.find(kClose);
  split.cut = end == std::string_view::npos;
  split.reasoning = rest.substr(0, end);
  if (split.reasoning.starts_with('\n')) split.reasoning.remove_prefix(1);
  if (split.cut) return split;
  if (split.reasoning.ends_with('\n')) split.reasoning.remove_suffix(1);
  split.content = rest.substr(end + kClose.size());
  for (int i = 0; i < 2 && split.content.starts_with('\n'); ++i) split.content.remove_prefix(1);
  return split;
}

AssistantAnswer parse_answer(std::string_view answer, ThinkBlock block, const json::array& tools) {
  const ReasoningSplit split = split_reasoning(answer, block);
  AssistantAnswer out;
  out.reasoning = split.reasoning;
  out.content = split.content;
  if (tools.empty()) return out;
  ToolCallText parsed = parse_tool_calls(split.cut ? split.reasoning : split.content, tools);
  if (split.cut) {
    if (parsed.calls.empty() || !parsed.problems.empty()) return out;
    out.reasoning = std::move(parsed.content);
  } else {
    out.content = std::move(parsed.content);
    out.problems = std::move(parsed.problems);
  }
  out.calls = std::move(parsed.calls);
  return out;
}

}  // namespace mimo
