// The many spellings of "the answer shall have this form", brought into a ConstraintSpec.
#pragma once

#include "api/api_context.h"
#include "api/api_request.h"
#include "api/object_reader.h"

namespace mimo {

// response_format, structured_outputs, guided_json / guided_regex / guided_choice / guided_grammar,
// json_schema, regex, ebnf: at most one of them.
void read_content_form(ObjectReader& body, const ApiLimits& limits, ConstraintSpec& spec);

// A JSON schema as the form of the content; `path` names it. An object, or its text.
void set_schema(const json::value& schema, bool strict, const std::string& path, const ApiLimits& limits,
                RequestProblem& problem, ConstraintSpec& spec);

// What tool_choice, parallel_tool_calls and tools with "strict": true ask for. After everything else.
void set_call_form(ObjectReader& body, ApiRequest& request);

}  // namespace mimo
