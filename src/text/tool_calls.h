// Tool calls in the family's XML form, in the text of a finished answer:
//
//   calls    = { ws "<tool_call>" ws function ws "</tool_call>" }
//   function = "<function=" NAME ">" ws { "<parameter=" KEY ">" VALUE "</parameter>" ws } "</function>"
//
// A VALUE is taken to the byte and ends at a </parameter> that markup follows (another parameter, the end of
// the function or of the call), so it may hold the text "</parameter>". What models leave out is implied: a
// value also ends before "</function>" ws "</tool_call>", before "</tool_call>", and before a line that begins
// with <parameter=KEY> of a declared property not given yet; </function> may be missing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace mimo {

struct ToolCall {
  std::string name;
  json::object arguments;  // in the order written, typed by the declared schema (typed_value.h)
};

struct ToolCallText {
  // What stands outside of calls, in order, without stretches of white space next to calls. Calls that are
  // malformed, cut off, or name a tool that is not declared stay in it as they were written.
  std::string content;
  std::vector<ToolCall> calls;
  std::vector<std::string> problems;  // one sentence for each such call
};

// `tools` as the API has them: {"type": "function", "function": {"name", "parameters"}} each; entries of
// another form declare nothing. Takes O(n) time and never fails, whatever the text.
ToolCallText parse_tool_calls(std::string_view text, const json::array& tools);

// The schema object of a declared tool's parameters; `declared` false: no tool of that name. A tool without
// parameters has a null schema.
struct ToolSchema {
  bool declared = false;
  const json::value* parameters = nullptr;

  // Of one property; null when it is not declared.
  const json::value* property(std::string_view key) const;
};
ToolSchema find_tool(const json::array& tools, std::string_view name);

}  // namespace mimo
