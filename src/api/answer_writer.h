// Answers as JSON. One writer makes the bytes of one HTTP answer, from what the engine and the parser give
// for each of its choices; streams and whole bodies of a dialect are made from the same calls, so they say
// the same.
//
//   writer = make_answer_writer(request, head);
//   for each step of a choice:  writer->push(choice, {deltas, tokens, usage}, out);
//   at its end:                 writer->finish(choice, end, out);      // after the push of its last step
//   at an error:                writer->fail(error, out);
//
// Each call appends what is to be sent now to `out`; a whole body comes with the last finish(). Not to be
// called from two threads at a time. Calls for a choice that has ended, or after complete(), do nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/api_error.h"
#include "api/api_request.h"
#include "api/logprobs.h"
#include "api/usage.h"
#include "engine/engine_client.h"
#include "text/answer_delta.h"

namespace mimo {

// What one step gave for one choice.
struct AnswerPart {
  // Of the parser. Completions: kContent, the text as it comes.
  std::span<const AnswerDelta> deltas = {};
  std::span<const SampledToken> tokens = {};
  const RequestUsage& usage;
};

struct AnswerEnd {
  // none: the answer was ended here, because parallel_tool_calls is false and one call is complete, or
  // because of `aborted`.
  std::optional<Finish> finish = {};
  bool aborted = false;  // by an operator, not by the client
  int calls = 0;         // complete ones: AnswerParser::calls()
};

// OpenAI's finish_reason:
//   max_tokens reached              "length", also inside a call
//   aborted                         "abort"
//   at least one complete call      "tool_calls" (legacy functions: "function_call"; a tool_choice that names
//                                   the tool, with `strict_openai`: "stop")
//   end token, stop token or string "stop"
const char* finish_reason(const ApiRequest& request, const AnswerEnd& end, bool strict_openai);

// Anthropic's stop_reason: "max_tokens", "tool_use", "stop_sequence" (a stop string), "end_turn".
const char* stop_reason(const AnswerEnd& end);

enum class ReasoningField : std::uint8_t { kReasoningContent, kReasoning, kBoth };

// What an answer says besides the text: of the server, and of this request's prompt.
struct AnswerHead {
  std::string id;            // answer_id()
  std::int64_t created = 0;  // seconds since 1970
  std::string system_fingerprint;
  TokenSpeller spell;  // for logprobs
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
  bool strict_openai = false;
  bool timings = false;                   // for every answer, asked for or not
  std::vector<TokenIds> prompt_ids;       // of each prompt; for return_token_ids
  std::vector<std::string> prompt_texts;  // of each prompt; for echo
};

// "chatcmpl-", "cmpl-" or "msg_" and random characters.
std::string answer_id(ApiRoute route);

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // Sends what can be sent before the first token: the role of each choice. Optional; whole bodies have
  // nothing.
  virtual void open(std::string& /*out*/) {}
  virtual void push(std::int64_t choice, const AnswerPart& part, std::string& out) = 0;
  virtual void finish(std::int64_t choice, const AnswerEnd& end, std::string& out) = 0;
  // Ends the answer: an event in a stream, a body otherwise (its HTTP status is error.status).
  virtual void fail(const ApiError& error, std::string& out) = 0;
  // Nothing more will come.
  virtual bool complete() const = 0;
};

// The one for the request's dialect and `stream`. Keeps what it needs of the request.
std::unique_ptr<AnswerWriter> make_answer_writer(const ApiRequest& request, AnswerHead head);

// An error before anything was written, in the dialect of the route.
std::string error_body(ApiRoute route, const ApiError& error);

inline constexpr const char* kEventStreamType = "text/event-stream; charset=utf-8";
// To be sent after a long silence.
inline constexpr const char* kPingComment = ": ping\n\n";

}  // namespace mimo
