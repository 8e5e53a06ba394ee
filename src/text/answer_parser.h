// An answer that arrives in pieces, taken apart into reasoning, content and tool calls. A stream sends the deltas
// as they come; a whole message is put together from the same deltas (assistant_answer.h), so both say the same.
//
// Reasoning. Where the prompt left the block open or to the model, the answer may begin with <think> after white
// space; the reasoning ends at the next </think>, or with the answer. One line break after <think>, one before
// </think>, and one or two after it belong to the tags. Elsewhere the two markers are content.
//
// Tool calls are read in the content (tool_call_parser.h). In reasoning a call is a quotation, with one
// exception: if the answer ends by itself while the block is open, and all calls in it are complete and declared,
// the model forgot to close the block, and they are calls. So the text from the first <tool_call> in reasoning on
// is held back until </think>, a call that is none, or the end decides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/answer_delta.h"
#include "text/assistant_answer.h"
#include "text/tool_call_parser.h"
#include "text/unicode_utf8.h"

namespace mimo {

struct AnswerParserOptions {
  ThinkBlock think_block = ThinkBlock::kModelDecides;
  const json::array* tools = nullptr;  // outlives the parser; null or empty: nothing is a call
  bool separate_reasoning = true;      // false: reasoning is content, with its tags, to the byte
  bool parallel_tool_calls = true;     // false: the answer ends after its first complete call
  bool forward_unknown_tools = false;  // calls of tools that are not declared are calls (not in reasoning)
  bool unwrap_values = false;          // ArgumentWriter
};

// Never fails, whatever the text; takes O(n) time. What comes out does not depend on how the text is cut, except
// for the cuts of what comes out.
class AnswerParser {
 public:
  using Marker = AnswerMarker;

  explicit AnswerParser(const AnswerParserOptions& options);

  // The next part of the answer. marker: `text` is the spelling of that control token. Bytes that are not UTF-8
  // become U+FFFD (unicode_utf8.h). Deltas are added to `out`.
  void push(std::string_view text, Marker marker, std::vector<AnswerDelta>& out);

  // The end of the answer, once. cut: it ended by a limit or an abort, not by the model.
  void finish(bool cut, std::vector<AnswerDelta>& out);

  // Without parallel calls: one call is complete, and what follows would be ignored.
  bool done() const { return !options_.parallel_tool_calls && calls() > 0; }
  // Complete calls so far.
  int calls() const { return content_.calls() + calls_in_reasoning_; }
  // ToolCallParser::problems(), of the content.
  const std::vector<std::string>& problems() const { return content_.problems(); }

 private:
  enum class State : std::uint8_t { kStart, kReasoning, kContent, kFinished };

  // Calls in reasoning that may be more than quotations.
  struct Quotation {
    ToolCallParser parser;
    std::vector<AnswerDelta> deltas;
    std::string written;  // all text since the first call
  };

  void take_text(std::string_view text, DeltaSink& out);
  void take_marker(Marker marker, std::string_view spelling, DeltaSink& out);
  void leave_start(DeltaSink& out);
  void end_reasoning(std::string_view spelling, DeltaSink& out);

  void content(std::string_view text, DeltaSink& out);
  // Text, or a marker that is no </think>, in reasoning.
  void reasoning(std::string_view text, Marker marker, DeltaSink& out);
  void reasoning_text(std::string_view text, DeltaSink& out);
  void release_quotation(DeltaSink& out);
  bool deliver_quotation(DeltaSink& out);

  AnswerParserOptions options_;
  State state_ = State::kStart;
  Utf8Stream utf8_;
  std::string start_;             // white space before anything else
  bool at_think_ = true;          // directly behind <think>
  bool holds_break_ = false;      // a line break in reasoning that may stand before </think>
  int breaks_to_drop_ = 0;        // at the start of content, behind </think>
  bool only_quotations_ = false;  // calls in this block have been decided
  int calls_in_reasoning_ = 0;
  std::optional<Quotation> quotation_;
  ToolCallParser content_;
};

}  // namespace mimo
