#include "api/chat_answer.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "api/json_writer.h"
#include "api/random_id.h"

namespace mimo {
namespace {

constexpr std::string_view kReasoningNames[] = {"reasoning_content", "reasoning"};

std::span<const std::string_view> reasoning_names(ReasoningField field) {
  const std::span<const std::string_view> names(kReasoningNames);
  switch (field) {
    case ReasoningField::kReasoningContent:
      return names.first(1);
    case ReasoningField::kReasoning:
      return names.last(1);
    case ReasoningField::kBoth:
      break;
  }
  return names;
}

void append_logprobs(std::string& list, const AnswerPlan& plan, std::span<const SampledToken> tokens) {
  if (!plan.wants_logprobs()) return;
  for (const SampledToken& token : tokens) {
    if (!list.empty()) list += ',';
    append_chat_logprob(list, plan.logprobs, token);
  }
}

std::string logprobs_value(std::string_view list) {
  return list.empty() ? "null" : fmt::format(R"({{"content":[{}],"refusal":null}})", list);
}

void append_pieces(std::span<const AnswerDelta> run, std::string& out) {
  out += '"';
  for (const AnswerDelta& delta : run) append_json_escaped(out, delta.text);
  out += '"';
}

}  // namespace

ChatStream::ChatStream(AnswerPlan plan)
    : OpenAiStream(std::move(plan), "chat.completion.chunk"),
      state_(static_cast<std::size_t>(this->plan().choices)) {}

void ChatStream::open(std::string& out) {
  for (std::int64_t choice = 0; choice < plan().choices; ++choice) {
    if (choices().running(choice)) open_choice(choice, out);
  }
}

void ChatStream::open_choice(std::int64_t choice, std::string& out) {
  Choice& state = state_[static_cast<std::size_t>(choice)];
  if (std::exchange(state.opened, true)) return;
  begin_event(choice, out);
  out += R"("delta":{"role":"assistant","content":""})";
  std::string extra;
  if (choice == 0 && plan().request.return_token_ids && !plan().head.prompt_ids.empty()) {
    extra = R"(,"prompt_token_ids":)";
    append_ids(extra, plan().head.prompt_ids.front());
  }
  end_event(choice, "null", nullptr, extra, out);
}

bool ChatStream::append_delta(std::span<const AnswerDelta> run, std::string& out) const {
  const AnswerDelta& first = run.front();
  const bool legacy = plan().request.legacy_functions;
  switch (first.kind) {
    case DeltaKind::kReasoning: {
      if (!plan().request.include_reasoning) return false;
      const char* comma = "";
      for (const std::string_view name : reasoning_names(plan().head.reasoning_field)) {
        fmt::format_to(std::back_inserter(out), "{}\"{}\":", std::exchange(comma, ","), name);
        append_pieces(run, out);
      }
      return true;
    }
    case DeltaKind::kContent:
      out += R"("content":)";
      append_pieces(run, out);
      return true;
    case DeltaKind::kToolStart:
      if (legacy) {
        out += R"("function_call":{"name":)";
        append_json_string(out, first.name);
        out += R"(,"arguments":""})";
        return true;
      }
      fmt::format_to(std::back_inserter(out),
                     R"("tool_calls":[{{"index":{},"id":"{}","type":"function","function":{{"name":)",
                     first.index, tool_call_id());
      append_json_string(out, first.name);
      out += R"(,"arguments":""}}])";
      return true;
    case DeltaKind::kToolArguments:
      if (legacy) {
        out += R"("function_call":{"arguments":)";
        append_pieces(run, out);
        out += '}';
        return true;
      }
      fmt::format_to(std::back_inserter(out), R"("tool_calls":[{{"index":{},"function":{{"arguments":)",
                     first.index);
      append_pieces(run, out);
      out += "}}]";
      return true;
    case DeltaKind::kToolEnd:
    case DeltaKind::kToolBroken:
      break;
  }
  return false;
}

std::string ChatStream::take_logprobs(std::int64_t choice) {
  return logprobs_value(std::exchange(state_[static_cast<std::size_t>(choice)].logprobs, {}));
}

void ChatStream::push(std::int64_t choice, const AnswerPart& part, std::string& out) {
  if (!choices().running(choice)) return;
  choices().note(choice, part.usage);
  open_choice(choice, out);
  append_logprobs(state_[static_cast<std::size_t>(choice)].logprobs, plan(), part.tokens);
  hold_ids(choice, part.tokens);
  for (std::span<const AnswerDelta> rest = part.deltas; !rest.empty();) {
    const std::size_t run = same_kind_run(rest);
    const std::size_t start = out.size();
    begin_event(choice, out);
    out += R"("delta":{)";
    if (append_delta(rest.first(run), out)) {
      out += '}';
      end_event(choice, take_logprobs(choice), nullptr, {}, out);
    } else {
      out.resize(start);
    }
    rest = rest.subspan(run);
  }
}

void ChatStream::finish(std::int64_t choice, const AnswerEnd& end, std::string& out) {
  if (!choices().running(choice)) return;
  open_choice(choice, out);
  begin_event(choice, out);
  out += R"("delta":{})";
  end_event(choice, take_logprobs(choice), &end, {}, out);
}

ChatCollector::ChatCollector(AnswerPlan plan)
    : plan_(std::move(plan)), choices_(plan_), state_(static_cast<std::size_t>(plan_.choices)) {}

void ChatCollector::add(Choice& choice, const AnswerDelta& delta) {
  switch (delta.kind) {
    case DeltaKind::kReasoning:
      choice.reasoning += delta.text;
      return;
    case DeltaKind::kContent:
    case DeltaKind::kToolBroken:
      choice.content += delta.text;
      return;
    case DeltaKind::kToolStart:
      choice.open = {.name = delta.name, .arguments = {}};
      return;
    case DeltaKind::kToolArguments:
      choice.open.arguments += delta.text;
      return;
    case DeltaKind::kToolEnd:
      choice.calls.push_back(std::exchange(choice.open, {}));
      return;
  }
}

void ChatCollector::push(std::int64_t choice, const AnswerPart& part, std::string& /*out*/) {
  if (!choices_.running(choice)) return;
  choices_.note(choice, part.usage);
  Choice& state = state_[static_cast<std::size_t>(choice)];
  append_logprobs(state.logprobs, plan_, part.tokens);
  if (plan_.request.return_token_ids) {
    for (const SampledToken& token : part.tokens) state.ids.push_back(token.id);
  }
  for (const AnswerDelta& delta : part.deltas) add(state, delta);
}

void ChatCollector::append_message(const Choice& choice, std::string& out) const {
  out += R"({"role":"assistant","content":)";
  if (choice.content.empty() && (!choice.calls.empty() || !choice.reasoning.empty())) {
    out += "null";
  } else {
    append_json_string(out, choice.content);
  }
  for (const std::string_view name : reasoning_names(plan_.head.reasoning_field)) {
    fmt::format_to(std::back_inserter(out), R"(,"{}":)", name);
    if (choice.reasoning.empty() || !plan_.request.include_reasoning) {
      out += "null";
    } else {
      append_json_string(out, choice.reasoning);
    }
  }
  if (plan_.request.legacy_functions && !choice.calls.empty()) {
    out += R"(,"function_call":{"name":)";
    append_json_string(out, choice.calls.front().name);
    out += R"(,"arguments":)";
    append_json_string(out, choice.calls.front().arguments);
    out += "}}";
    return;
  }
  if (!choice.calls.empty()) {
    out += R"(,"tool_calls":[)";
    for (const Call& call : choice.calls) {
      if (&call != &choice.calls.front()) out += ',';
      fmt::format_to(std::back_inserter(out), R"({{"id":"{}","type":"function","function":{{"name":)",
                     tool_call_id());
      append_json_string(out, call.name);
      out += R"(,"arguments":)";
      append_json_string(out, call.arguments);
      out += "}}";
    }
    out += ']';
  }
  out += '}';
}

void ChatCollector::append_choice(std::int64_t index, const Choice& choice, std::string& out) const {
  fmt::format_to(std::back_inserter(out), R"({{"index":{},"message":)", index);
  append_message(choice, out);
  out += R"(,"logprobs":)";
  out += logprobs_value(choice.logprobs);
  fmt::format_to(std::back_inserter(out), R"(,"finish_reason":"{}","stop_reason":)",
                 finish_reason(plan_.request, choice.end, plan_.head.strict_openai));
  plan_.append_stop_reason(out, choice.end);
  if (plan_.request.return_token_ids) {
    out += R"(,"token_ids":)";
    append_ids(out, choice.ids);
  }
  out += '}';
}

void ChatCollector::finish(std::int64_t choice, const AnswerEnd& end, std::string& out) {
  if (!choices_.running(choice)) return;
  state_[static_cast<std::size_t>(choice)].end = end;
  if (!choices_.end(choice)) return;
  out += '{';
  out += openai_head(plan_, "chat.completion");
  out += R"(,"choices":[)";
  for (std::int64_t i = 0; i < plan_.choices; ++i) {
    if (i > 0) out += ',';
    append_choice(i, state_[static_cast<std::size_t>(i)], out);
  }
  out += R"(],"usage":)";
  append_openai_usage(out, choices_.usage());
  if (plan_.request.return_token_ids && !plan_.head.prompt_ids.empty()) {
    out += R"(,"prompt_token_ids":)";
    append_ids(out, plan_.head.prompt_ids.front());
  }
  if (plan_.timings) {
    out += R"(,"timings":)";
    append_timings(out, choices_.usage());
  }
  out += '}';
}

void ChatCollector::fail(const ApiError& error, std::string& out) {
  if (complete()) return;
  out += openai_error_body(error);
  choices_.end_all();
}

}  // namespace mimo
