// OpenAI messages, tools and tool_choice: checked, and brought from their older and newer spellings to one.
#pragma once

#include "api/api_context.h"
#include "api/api_request.h"
#include "api/object_reader.h"

namespace mimo {

// `messages`; also continue_final_message and add_generation_prompt.
void read_messages(ObjectReader& body, const ApiLimits& limits, Conversation& conversation);

// `tools`, or the older `functions`.
void read_tools(ObjectReader& body, const ApiLimits& limits, ApiRequest& request);

// `tool_choice`, or the older `function_call`; parallel_tool_calls. After read_tools.
void read_tool_choice(ObjectReader& body, ApiRequest& request);

// A list of tools in OpenAI's form, checked; `path` names it. Used for those of messages as well.
void check_tool_list(const json::array& tools, const std::string& path, const ApiLimits& limits,
                     RequestProblem& problem);

// A name that can stand in <function=NAME>. Adds a problem otherwise.
void check_tool_name(std::string_view name, const std::string& path, RequestProblem& problem);

}  // namespace mimo
