// What an answer parser takes and gives: control tokens in, pieces of the answer out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mimo {

// The control tokens that give an answer its structure. Only the tokens do: ordinary text that spells one is text.
enum class AnswerMarker : std::uint8_t { kNone, kThinkOpen, kThinkClose, kToolOpen, kToolClose };

// The marker of this spelling ("<think>", "</think>", "<tool_call>", "</tool_call>"), else kNone.
AnswerMarker answer_marker(std::string_view spelling);

enum class DeltaKind : std::uint8_t {
  kReasoning,      // text
  kContent,        // text
  kToolStart,      // name: a call begins
  kToolArguments,  // text: a piece of the JSON text of its arguments
  kToolEnd,        // the call is complete: its pieces together are one JSON object
  // The call that began will not be completed: it was cut off, or is malformed. `text` is the call as it was
  // written. A stream sends nothing for it (what went out stays, recognisably incomplete); elsewhere the text is
  // content and there is no call. This is the only way in which a stream and a whole message differ.
  kToolBroken,
};

struct AnswerDelta {
  DeltaKind kind = DeltaKind::kContent;
  int index = 0;     // of the tool call, from 0; broken ones count
  std::string text;  // valid UTF-8, never empty where the kind has text
  std::string name;

  bool operator==(const AnswerDelta&) const = default;
};

// Adds deltas to a list; text that continues the last delta added here lengthens it.
class DeltaSink {
 public:
  explicit DeltaSink(std::vector<AnswerDelta>& out) : out_(out), first_(out.size()) {}

  // Empty texts are left out.
  void text(DeltaKind kind, std::string_view text, int index = 0);
  void tool_start(int index, std::string_view name);
  void tool_end(int index);
  void add(AnswerDelta&& delta);

 private:
  std::vector<AnswerDelta>& out_;
  std::size_t first_;
};

}  // namespace mimo
