// Answers of /v1/chat/completions.
#pragma once

#include <string>
#include <vector>

#include "api/openai_stream.h"

namespace mimo {

// For each choice: an event with the role; one for each piece of reasoning, content or call; one with
// finish_reason and an empty delta. Log-probabilities go with the first event after their tokens.
class ChatStream final : public OpenAiStream {
 public:
  explicit ChatStream(AnswerPlan plan);

  void open(std::string& out) override;
  void push(std::int64_t choice, const AnswerPart& part, std::string& out) override;
  void finish(std::int64_t choice, const AnswerEnd& end, std::string& out) override;

 private:
  struct Choice {
    bool opened = false;
    std::string logprobs;  // elements that wait for an event
  };

  void open_choice(std::int64_t choice, std::string& out);
  // Appends the members of "delta" for a run of deltas; false: there is nothing to send.
  bool append_delta(std::span<const AnswerDelta> run, std::string& out) const;
  std::string take_logprobs(std::int64_t choice);

  std::vector<Choice> state_;
};

class ChatCollector final : public AnswerWriter {
 public:
  explicit ChatCollector(AnswerPlan plan);

  void push(std::int64_t choice, const AnswerPart& part, std::string& out) override;
  void finish(std::int64_t choice, const AnswerEnd& end, std::string& out) override;
  void fail(const ApiError& error, std::string& out) override;
  bool complete() const override { return choices_.all_ended(); }

 private:
  struct Call {
    std::string name;
    std::string arguments;
  };
  struct Choice {
    std::string reasoning;
    std::string content;
    std::vector<Call> calls;  // complete ones
    Call open;
    std::string logprobs;
    std::vector<std::int32_t> ids;
    AnswerEnd end;
  };

  static void add(Choice& choice, const AnswerDelta& delta);
  void append_message(const Choice& choice, std::string& out) const;
  void append_choice(std::int64_t index, const Choice& choice, std::string& out) const;

  AnswerPlan plan_;
  ChoiceTable choices_;
  std::vector<Choice> state_;
};

}  // namespace mimo
