// What a request declares of the tools that an answer may call.
#pragma once

#include <string_view>

#include "core/json.h"

namespace mimo {

// The schema object of a declared tool's parameters; `declared` false: no tool of that name. A tool without
// parameters has a null schema.
struct ToolSchema {
  bool declared = false;
  const json::value* parameters = nullptr;

  // Of one property; null when it is not declared.
  const json::value* property(std::string_view key) const;
};

// `tools` as the API has them: {"type": "function", "function": {"name", "parameters"}} each; entries of
// another form declare nothing.
ToolSchema find_tool(const json::array& tools, std::string_view name);

}  // namespace mimo
