// What is asked, what came back, and the verdict: the values that pass between readers, runners and reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/json.h"
#include "core/result.h"
#include "engine/speculation_stats.h"
#include "text/assistant_answer.h"

namespace mimo {

// A number, plain as answer_extraction.h has it.
struct ExpectedNumber {
  enum class Rule : std::uint8_t {
    kExact,        // extracted by the order of rules, equal as a number
    kEvalscope,    // the same, equal within 1e-4, percent or share
    kLastInteger,  // the last integer of the text, equal as digits
  };
  std::string value;
  Rule rule = Rule::kExact;
};

// The content must contain this text.
struct ExpectedText {
  std::string text;
};

// These calls in this order; none: an answer in text.
struct ExpectedCalls {
  std::vector<ToolCall> calls;
};

using Expected = std::variant<ExpectedNumber, ExpectedText, ExpectedCalls>;

struct Problem {
  std::string id;               // unique in its set
  std::uint64_t index;          // in the whole set: seeds follow it, so that a subset gives the same answers
  json::array messages = {};    // a conversation, or else:
  std::string completion = {};  // a text to continue
  json::array tools = {};
  std::optional<bool> enable_thinking = {};  // none: the checkpoint's default
  std::vector<std::string> stop = {};
  std::int64_t prompt_tokens = 0;  // that the prompt must have; 0: any
  std::string group = {};          // results are also reported for each group; empty: none
  Expected expected = ExpectedText{};
};

struct Answer {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;
  std::vector<std::string> problems;                   // calls that could not be read
  std::optional<std::vector<std::int32_t>> token_ids;  // none: the server does not say
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  bool truncated = false;                       // ended by its length
  std::optional<SpeculationStats> speculation;  // none: off, or the server does not say
  double seconds = 0;                           // from the first row of the prompt to the end
  std::optional<Error> error;                   // no answer: nothing above counts
};

struct Grade {
  bool correct = false;
  bool correct_strict = false;  // without leniency; equals `correct` where there is none
  bool valid = false;           // there was something of the expected kind to grade
  std::string extracted;        // what was graded, for the reader of the results
};

// Never called for an answer with an error.
Grade grade(const Problem& problem, const Answer& answer);

// Equal as typed JSON: 5 and 5.0 are one number, "5" is another type, the order of keys does not matter.
bool json_equal(const json::value& a, const json::value& b);

// A conversation of one user message.
json::array user_message(std::string_view content);

// [{"name": .., "arguments": ..}, ..], as the result files and the problem files write calls.
json::array calls_json(const std::vector<ToolCall>& calls);

}  // namespace mimo
