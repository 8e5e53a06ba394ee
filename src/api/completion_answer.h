// Answers of /v1/completions.
#pragma once

#include <string>
#include <vector>

#include "api/openai_stream.h"

namespace mimo {

// For each choice: with echo an event with the prompt, then one for each piece of text, and one with
// finish_reason and no text.
class CompletionStream final : public OpenAiStream {
 public:
  explicit CompletionStream(AnswerPlan plan);

  void push(std::int64_t choice, const AnswerPart& part, std::string& out) override;
  void finish(std::int64_t choice, const AnswerEnd& end, std::string& out) override;

 private:
  struct Choice {
    bool opened = false;
    CompletionLogprobs logprobs;
  };

  void open_choice(std::int64_t choice, std::string& out);
  void event(std::int64_t choice, std::string_view text, const AnswerEnd* end, std::string& out);

  std::vector<Choice> state_;
};

class CompletionCollector final : public AnswerWriter {
 public:
  explicit CompletionCollector(AnswerPlan plan);

  void push(std::int64_t choice, const AnswerPart& part, std::string& out) override;
  void finish(std::int64_t choice, const AnswerEnd& end, std::string& out) override;
  void fail(const ApiError& error, std::string& out) override;
  bool complete() const override { return choices_.all_ended(); }

 private:
  struct Choice {
    std::string text;
    CompletionLogprobs logprobs;
    std::vector<std::int32_t> ids;
    AnswerEnd end;
  };

  void append_choice(std::int64_t index, Choice& choice, std::string& out) const;

  AnswerPlan plan_;
  ChoiceTable choices_;
  std::vector<Choice> state_;
};

}  // namespace mimo
