// Tool calls in the family's XML form, in text that arrives in pieces:
//
//   calls    = { ws "<tool_call>" ws function ws "</tool_call>" }
//   function = "<function=" NAME ">" ws { "<parameter=" KEY ">" VALUE "</parameter>" ws } "</function>"
//
// <tool_call> and </tool_call> are control tokens, the rest is ordinary text. A VALUE is taken to the byte and
// ends at a </parameter> that markup follows (another parameter, the end of the function or of the call), so it
// may hold the text "</parameter>". What models leave out is implied: a value also ends before "</function>" ws
// "</tool_call>", before "</tool_call>", and before a line that begins with <parameter=KEY> of a declared
// property not given yet; </function> may be missing.
//
// What stands outside of calls is content, in order, without stretches of white space next to calls. Calls that
// name a tool that is not declared are content too. A call is malformed if its markup is, or if it gives a
// parameter twice; it is content as far as it had not begun (DeltaKind::kToolBroken), and reading goes on behind
// what was understood of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/json.h"
#include "text/answer_delta.h"
#include "text/argument_writer.h"
#include "text/tool_schema.h"
#include "text/value_scanner.h"

namespace mimo {

struct ToolCallParserOptions {
  const json::array* tools = nullptr;  // outlives the parser; null or empty: nothing is a call
  bool forward_unknown = false;        // calls of tools that are not declared are calls
  bool unwrap_values = false;          // ArgumentWriter
  bool stop_after_first = false;       // of the complete calls; what follows is ignored
};

class ToolCallParser {
 public:
  explicit ToolCallParser(const ToolCallParserOptions& options);

  // Valid UTF-8 in both; `spelling` of a control token.
  void text(std::string_view text, DeltaSink& out);
  void marker(AnswerMarker marker, std::string_view spelling, DeltaSink& out);
  // The end of the text. cut: by a limit or an abort, so an unfinished call is no problem of the model's.
  void finish(bool cut, DeltaSink& out);

  int calls() const { return calls_; }  // complete ones
  bool done() const { return options_.stop_after_first && calls_ > 0; }
  // One sentence for each call that is malformed or not declared; the first hundred.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  enum class State : std::uint8_t {
    kOutside,
    kOpened,         // behind <tool_call>: expects <function=
    kFunctionName,   // behind <function=
    kBody,           // expects <parameter= or </function>
    kKey,            // behind <parameter=
    kValue,          // behind <parameter=KEY>
    kFunctionEnded,  // expects </tool_call>
  };
  // What becomes of the call being read.
  enum class Fate : std::uint8_t {
    kOpen,     // its function is not known yet
    kLive,     // it has begun, pieces of arguments go out
    kRefused,  // it had begun, then turned out malformed; read on only to find its end
    kContent,  // not declared; read on only to find its end
  };

  bool off() const { return options_.tools == nullptr || options_.tools->empty(); }

  void read_tag(std::string_view& text, DeltaSink& out);
  void read_name(std::string_view& text, DeltaSink& out);
  void read_value(std::string_view& text, DeltaSink& out);
  void begin_function(std::string_view name, DeltaSink& out);
  void begin_value(std::string_view key, DeltaSink& out);
  void pass_value(DeltaSink& out);
  void end_value(DeltaSink& out);

  void open(std::string_view spelling);
  void complete(std::string_view spelling, DeltaSink& out);
  void malformed(std::string_view what, std::size_t bytes_back, DeltaSink& out);
  void note(std::string problem);
  void abandon(DeltaSink& out);

  // Text that belongs to the call.
  void record(std::string_view text, DeltaSink& out);
  void take(std::string_view& text, std::size_t bytes, DeltaSink& out);
  // Text outside of calls.
  void content(std::string_view text, DeltaSink& out);
  void send_arguments(DeltaSink& out);

  ToolCallParserOptions options_;
  State state_ = State::kOutside;
  int calls_ = 0;
  int begun_ = 0;  // calls that have an index
  std::vector<std::string> problems_;
  std::size_t offset_ = 0;  // bytes taken so far, for problems

  // White space since the last call; dropped when a call follows or went before.
  std::string blank_;
  bool only_blank_ = true;  // since the last call

  // The call being read.
  Fate fate_ = Fate::kOpen;
  std::string written_;  // as it was written; not kept for kContent
  std::string tag_;      // part of a tag, or of a name
  ToolSchema schema_;
  std::unordered_set<std::string> given_;
  ValueScanner scanner_;
  ArgumentWriter writer_;
  std::string value_;      // scratch: decided bytes of the value
  std::string arguments_;  // scratch: JSON text to send
};

}  // namespace mimo
