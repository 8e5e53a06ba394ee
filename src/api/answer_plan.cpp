#include "api/answer_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "api/chat_answer.h"
#include "api/completion_answer.h"
#include "api/json_writer.h"
#include "api/message_answer.h"
#include "api/random_id.h"

namespace mimo {
namespace {

// Answers do not need the conversation, which may be large and lives as long as the longest answer otherwise.
ApiRequest without_prompt(const ApiRequest& request) {
  ApiRequest light;
  light.route = request.route;
  light.model = request.model;
  light.tool_choice = request.tool_choice;
  light.legacy_functions = request.legacy_functions;
  light.params = request.params;
  light.n = request.n;
  light.include_reasoning = request.include_reasoning;
  light.stream = request.stream;
  light.include_usage = request.include_usage;
  light.continuous_usage = request.continuous_usage;
  light.echo = request.echo;
  light.return_token_ids = request.return_token_ids;
  return light;
}

}  // namespace

AnswerPlan::AnswerPlan(const ApiRequest& asked, AnswerHead server)
    : request(without_prompt(asked)),
      head(std::move(server)),
      choices(asked.n * static_cast<std::int64_t>(std::max<std::size_t>(1, asked.prompts.size()))),
      logprobs{.spell = head.spell, .tokens_as_ids = asked.return_tokens_as_token_ids},
      timings(asked.timings || head.timings) {}

void AnswerPlan::append_stop_reason(std::string& out, const AnswerEnd& end) const {
  if (end.finish && end.finish->reason == FinishReason::kStopToken) {
    out += std::to_string(end.finish->token_id);
    return;
  }
  const std::vector<std::string>& stops = request.params.stop;
  if (end.finish && end.finish->reason == FinishReason::kStopString && end.finish->stop_index >= 0 &&
      static_cast<std::size_t>(end.finish->stop_index) < stops.size()) {
    append_json_string(out, stops[static_cast<std::size_t>(end.finish->stop_index)]);
    return;
  }
  out += "null";
}

ChoiceTable::ChoiceTable(const AnswerPlan& plan)
    : usage_(static_cast<std::size_t>(plan.choices)),
      ended_(static_cast<std::size_t>(plan.choices)),
      n_(plan.request.n),
      left_(plan.choices) {}

bool ChoiceTable::running(std::int64_t choice) const {
  return left_ > 0 && choice >= 0 && choice < static_cast<std::int64_t>(ended_.size()) &&
         !ended_[static_cast<std::size_t>(choice)];
}

bool ChoiceTable::end(std::int64_t choice) {
  ended_[static_cast<std::size_t>(choice)] = true;
  return --left_ == 0;
}

std::size_t same_kind_run(std::span<const AnswerDelta> deltas) {
  const AnswerDelta& first = deltas.front();
  const bool joins = first.kind == DeltaKind::kReasoning || first.kind == DeltaKind::kContent ||
                     first.kind == DeltaKind::kToolArguments;
  std::size_t length = 1;
  while (joins && length < deltas.size() && deltas[length].kind == first.kind &&
         deltas[length].index == first.index) {
    ++length;
  }
  return length;
}

void append_ids(std::string& out, std::span<const std::int32_t> ids) {
  out += '[';
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    fmt::format_to(std::back_inserter(out), "{}", ids[i]);
  }
  out += ']';
}

std::string openai_head(const AnswerPlan& plan, std::string_view object) {
  std::string out = R"("id":)";
  append_json_string(out, plan.head.id);
  fmt::format_to(std::back_inserter(out), R"(,"object":"{}","created":{},"model":)", object,
                 plan.head.created);
  append_json_string(out, plan.request.model);
  out += R"(,"system_fingerprint":)";
  append_json_string(out, plan.head.system_fingerprint);
  return out;
}

const char* finish_reason(const ApiRequest& request, const AnswerEnd& end, bool strict_openai) {
  if (end.aborted) return "abort";
  if (end.finish && end.finish->reason == FinishReason::kLength) return "length";
  if (end.calls > 0) {
    if (strict_openai && request.tool_choice == ToolChoice::kNamed) return "stop";
    return request.legacy_functions ? "function_call" : "tool_calls";
  }
  return "stop";
}

const char* stop_reason(const AnswerEnd& end) {
  if (end.finish && end.finish->reason == FinishReason::kLength) return "max_tokens";
  if (end.calls > 0) return "tool_use";
  if (end.finish && end.finish->reason == FinishReason::kStopString) return "stop_sequence";
  return "end_turn";
}

std::string answer_id(ApiRoute route) {
  constexpr std::size_t kCharacters = 24;
  switch (route) {
    case ApiRoute::kChat:
      return random_id("chatcmpl-", kCharacters);
    case ApiRoute::kCompletion:
      return random_id("cmpl-", kCharacters);
    case ApiRoute::kMessages:
      break;
  }
  return random_id("msg_", kCharacters);
}

std::string error_body(ApiRoute route, const ApiError& error) {
  return route == ApiRoute::kMessages ? anthropic_error_body(error) : openai_error_body(error);
}

std::unique_ptr<AnswerWriter> make_answer_writer(const ApiRequest& request, AnswerHead head) {
  AnswerPlan plan(request, std::move(head));
  switch (request.route) {
    case ApiRoute::kChat:
      if (request.stream) return std::make_unique<ChatStream>(std::move(plan));
      return std::make_unique<ChatCollector>(std::move(plan));
    case ApiRoute::kCompletion:
      if (request.stream) return std::make_unique<CompletionStream>(std::move(plan));
      return std::make_unique<CompletionCollector>(std::move(plan));
    case ApiRoute::kMessages:
      break;
  }
  if (request.stream) return std::make_unique<MessageStream>(std::move(plan));
  return std::make_unique<MessageCollector>(std::move(plan));
}

}  // namespace mimo
