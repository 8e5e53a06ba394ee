// What all writers of answers share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "api/answer_writer.h"

namespace mimo {

// The parts of a request that its answer depends on, and the head.
struct AnswerPlan {
  ApiRequest request;  // without messages, tools and prompts
  AnswerHead head;
  std::int64_t choices = 1;
  LogprobOptions logprobs;
  bool timings = false;

  AnswerPlan(const ApiRequest& asked, AnswerHead server);

  bool wants_logprobs() const { return request.params.logprobs.has_value(); }
  // "stop_reason" of OpenAI's dialects: null, the stop string or the id of the stop token.
  void append_stop_reason(std::string& out, const AnswerEnd& end) const;
};

// Which choices are under way, and their usage.
class ChoiceTable {
 public:
  explicit ChoiceTable(const AnswerPlan& plan);

  bool running(std::int64_t choice) const;
  void note(std::int64_t choice, const RequestUsage& usage) {
    usage_[static_cast<std::size_t>(choice)] = usage;
  }
  // True if it was the last one.
  bool end(std::int64_t choice);
  void end_all() { left_ = 0; }
  bool all_ended() const { return left_ == 0; }

  UsageTotals usage() const { return sum_usage(usage_, n_); }

 private:
  std::vector<RequestUsage> usage_;
  std::vector<bool> ended_;
  std::int64_t n_;
  std::int64_t left_;
};

// Length of the run of deltas at the front that continue one another (text of one kind and call).
std::size_t same_kind_run(std::span<const AnswerDelta> deltas);

void append_ids(std::string& out, std::span<const std::int32_t> ids);

// "id":..,"object":..,"created":..,"model":..,"system_fingerprint":..
std::string openai_head(const AnswerPlan& plan, std::string_view object);

}  // namespace mimo
