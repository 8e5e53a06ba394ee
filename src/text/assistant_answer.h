// The parts of a finished answer: reasoning, content, tool calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/tool_calls.h"

namespace mimo {

// How the rendered prompt left the think block. Always learned from the rendering (ChatPrompt), never
// configured: a parser that believes otherwise puts whole answers into the wrong field.
enum class ThinkBlock {
  kModelDecides,  // the model may open one itself
  kOpen,          // the prompt opened one: the answer begins inside
  kClosed,        // thinking is off
};

struct ReasoningSplit {
  std::string_view reasoning;
  std::string_view content;
  bool cut = false;  // the block was not closed: all of the answer is reasoning
};

// The answer begins with "<think>" (after white space) and the reasoning ends at the first "</think>"; in a
// kClosed answer there is none. One line break after <think>, one before </think>, and one or two after it
// belong to the tags.
ReasoningSplit split_reasoning(std::string_view answer, ThinkBlock block);

struct AssistantAnswer {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;
  std::vector<std::string> problems;  // of tool calls; see ToolCallText
};

// Without tools nothing is a call. In a think block that was never closed, calls count if all of them are
// complete and declared (the model forgot to close the block); otherwise they are quotations.
AssistantAnswer parse_answer(std::string_view answer, ThinkBlock block, const json::array& tools);

}  // namespace mimo
