// What a request asks of the form of its answer, checked for shape but not compiled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace mimo {

// Form of the content: what follows the think block and is not a tool call.
enum class ContentForm : std::uint8_t {
  kFree,
  kJsonObject,  // any JSON object
  kJsonSchema,  // JSON that `schema` accepts
  kRegex,       // the whole content matches `text`
  kChoice,      // one of `choices`
  kEbnf,        // the rule `root` of the grammar `text`
};

// What is asked of tool calls.
enum class CallForm : std::uint8_t {
  kFree,  // nothing
  // A call of a tool that says "strict": true follows its schema; whether to call is the model's choice.
  kStrict,
  kForced,  // the answer is calls of `tools` and nothing else
};

struct ConstraintSpec {
  ContentForm content = ContentForm::kFree;
  json::value schema;                // kJsonSchema: an object or a boolean
  bool strict = false;               // kJsonSchema: refuse keywords that cannot be enforced
  std::string text;                  // kRegex, kEbnf: not empty
  std::vector<std::string> choices;  // kChoice: not empty

  CallForm calls = CallForm::kFree;
  // The tools that may be called, {"type": "function", "function": {...}} each; kForced by name: that one
  // alone. With a content form and calls that are not forced, the answer is either content of that form or
  // calls.
  json::array tools;
  bool parallel_calls = true;  // false: at most one call

  bool empty() const { return content == ContentForm::kFree && calls == CallForm::kFree; }
};

}  // namespace mimo
