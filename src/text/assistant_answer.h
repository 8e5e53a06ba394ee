// The parts of a whole answer: reasoning, content, tool calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/answer_delta.h"

namespace mimo {

// How the rendered prompt left the think block. Always learned from the rendering (ChatPrompt), never
// configured: a parser that believes otherwise puts whole answers into the wrong field.
enum class ThinkBlock : std::uint8_t {
  kModelDecides,  // the model may open one itself
  kOpen,          // the prompt opened one: the answer begins inside
  kClosed,        // thinking is off
};

struct ToolCall {
  std::string name;
  json::object arguments;  // in the order written, typed by the declared schema (typed_value.h)
  // The same as JSON text, to the byte what a stream carries; empty if the call does not come from a parser.
  std::string arguments_text = {};
};

struct AssistantAnswer {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;        // complete ones
  std::vector<std::string> problems;  // of tool calls: AnswerParser::problems()
};

// Puts a message together from the deltas of a stream, in order.
class AnswerAssembler {
 public:
  void add(const AnswerDelta& delta);
  // What the deltas say, without problems.
  AssistantAnswer take();

 private:
  AssistantAnswer answer_;
  ToolCall open_;  // the call that began last
};

// An answer that is there as text, where the words <think>, </think>, <tool_call> and </tool_call> stand for the
// control tokens. Without tools nothing is a call. The rules are AnswerParser's.
AssistantAnswer parse_answer(std::string_view answer, ThinkBlock block, const json::array& tools);

}  // namespace mimo
