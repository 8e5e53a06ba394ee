// Server-sent events in OpenAI's form: the frame that chat and text completions share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/answer_plan.h"

namespace mimo {

// Writes events
//   data: {"id":..., "choices":[{"index":I, BODY ,"logprobs":..., "finish_reason":...}], "usage":...}
// and, when all choices have ended, the one with usage and "[DONE]".
class OpenAiStream : public AnswerWriter {
 public:
  OpenAiStream(AnswerPlan plan, std::string_view object);

  void fail(const ApiError& error, std::string& out) override;
  bool complete() const override { return choices_.all_ended(); }

 protected:
  const AnswerPlan& plan() const { return plan_; }
  ChoiceTable& choices() { return choices_; }

  // Tokens whose log-probabilities and ids go out with the next event of their choice.
  void hold_ids(std::int64_t choice, std::span<const SampledToken> tokens);

  // One event in three calls: begin, the caller's members of the choice ("delta":{...}), end. `logprobs` is a
  // JSON value. `finish` null: the choice goes on; otherwise it has ended, and with the last one the stream.
  // `extra`: members of the event, each with a comma in front.
  void begin_event(std::int64_t choice, std::string& out) const;
  void end_event(std::int64_t choice, std::string_view logprobs, const AnswerEnd* finish,
                 std::string_view extra, std::string& out);

 private:
  void append_usage(std::string& out) const;
  void append_timings_member(std::string& out) const;

  AnswerPlan plan_;
  ChoiceTable choices_;
  std::string head_;                            // of every event, up to the choice
  std::vector<std::vector<std::int32_t>> ids_;  // by choice; empty unless asked for
};

}  // namespace mimo
