// Answers of /v1/messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/answer_plan.h"

namespace mimo {

// Typed events. A block is open from its start to its stop, and never two at a time; reasoning, text and each
// call is a block of its own, in the order of the answer. An answer that an operator aborted ends in an error
// event.
class MessageStream final : public AnswerWriter {
 public:
  explicit MessageStream(AnswerPlan plan);

  void push(std::int64_t choice, const AnswerPart& part, std::string& out) override;
  void finish(std::int64_t choice, const AnswerEnd& end, std::string& out) override;
  void fail(const ApiError& error, std::string& out) override;
  bool complete() const override { return choices_.all_ended(); }

 private:
  enum class Block : std::uint8_t { kNone, kThinking, kText, kToolUse };

  void start_message(std::string& out);
  // Opens a block of this kind unless it is the open one; closes any other.
  void enter(Block block, std::string_view name, std::string& out);
  void close_block(std::string& out);
  // content_block_delta with one string member.
  void block_delta(std::string_view type, std::string_view member, std::span<const AnswerDelta> run,
                   std::string& out) const;

  AnswerPlan plan_;
  ChoiceTable choices_;
  bool started_ = false;
  Block block_ = Block::kNone;
  int index_ = -1;  // of the block that was opened last
};

class MessageCollector final : public AnswerWriter {
 public:
  explicit MessageCollector(AnswerPlan plan);

  void push(std::int64_t choice, const AnswerPart& part, std::string& out) override;
  void finish(std::int64_t choice, const AnswerEnd& end, std::string& out) override;
  void fail(const ApiError& error, std::string& out) override;
  bool complete() const override { return choices_.all_ended(); }

 private:
  struct Block {
    DeltaKind kind;    // kReasoning, kContent or kToolStart
    std::string text;  // JSON text of the input for a call
    std::string name;
  };

  void add(const AnswerDelta& delta);
  void add_text(DeltaKind kind, std::string_view text);

  AnswerPlan plan_;
  ChoiceTable choices_;
  std::vector<Block> blocks_;
};

}  // namespace mimo
