#include "text/assistant_answer.h"

#include <utility>

#include "core/check.h"
#include "text/answer_parser.h"

namespace mimo {
namespace {

// The marker whose spelling begins at `pos`; its length is left in `length`.
AnswerMarker marker_at(std::string_view text, std::size_t pos, std::size_t& length) {
  const std::size_t end = text.substr(pos, 16).find('>');  // longer than every spelling
  if (end == std::string_view::npos) return AnswerMarker::kNone;
  length = end + 1;
  return answer_marker(text.substr(pos, length));
}

}  // namespace

void AnswerAssembler::add(const AnswerDelta& delta) {
  switch (delta.kind) {
    case DeltaKind::kReasoning:
      answer_.reasoning += delta.text;
      return;
    case DeltaKind::kContent:
    case DeltaKind::kToolBroken:
      answer_.content += delta.text;
      return;
    case DeltaKind::kToolStart:
      open_ = {.name = delta.name, .arguments = {}, .arguments_text = {}};
      return;
    case DeltaKind::kToolArguments:
      open_.arguments_text += delta.text;
      return;
    case DeltaKind::kToolEnd:
      break;
  }
  Result<json::value> arguments = parse_json(open_.arguments_text, "arguments");
  MIMO_CHECK(arguments && arguments->is_object(), "{}", open_.arguments_text);
  open_.arguments = std::move(arguments->get_object());
  answer_.calls.push_back(std::move(open_));
}

AssistantAnswer AnswerAssembler::take() { return std::exchange(answer_, {}); }

AssistantAnswer parse_answer(std::string_view answer, ThinkBlock block, const json::array& tools) {
  AnswerParser parser({.think_block = block, .tools = &tools});
  std::vector<AnswerDelta> deltas;
  std::size_t begin = 0;  // of text not pushed yet
  for (std::size_t pos = answer.find('<'); pos != std::string_view::npos; pos = answer.find('<', pos + 1)) {
    std::size_t length = 0;
    const AnswerMarker marker = marker_at(answer, pos, length);
    if (marker == AnswerMarker::kNone) continue;
    parser.push(answer.substr(begin, pos - begin), AnswerMarker::kNone, deltas);
    parser.push(answer.substr(pos, length), marker, deltas);
    begin = pos + length;
  }
  parser.push(answer.substr(begin), AnswerMarker::kNone, deltas);
  parser.finish(false, deltas);
  AnswerAssembler assembler;
  for (const AnswerDelta& delta : deltas) assembler.add(delta);
  AssistantAnswer out = assembler.take();
  out.problems = parser.problems();
  return out;
}

}  // namespace mimo
