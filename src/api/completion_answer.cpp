#include "api/completion_answer.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "api/json_writer.h"

namespace mimo {
namespace {

// The text that stands in front of a choice: its prompt, with echo.
std::string_view echoed(const AnswerPlan& plan, std::int64_t choice) {
  const auto prompt = static_cast<std::size_t>(choice / plan.request.n);
  if (!plan.request.echo || prompt >= plan.head.prompt_texts.size()) return {};
  return plan.head.prompt_texts[prompt];
}

void append_prompt_ids(const AnswerPlan& plan, std::int64_t choice, std::string& out) {
  const auto prompt = static_cast<std::size_t>(choice / plan.request.n);
  if (!plan.request.return_token_ids || prompt >= plan.head.prompt_ids.size()) return;
  out += R"(,"prompt_token_ids":)";
  append_ids(out, plan.head.prompt_ids[prompt]);
}

std::string text_of(std::span<const AnswerDelta> deltas) {
  std::string text;
  for (const AnswerDelta& delta : deltas) {
    if (delta.kind == DeltaKind::kContent) text += delta.text;
  }
  return text;
}

std::string take_logprobs(const AnswerPlan& plan, CompletionLogprobs& logprobs) {
  if (!plan.wants_logprobs() || logprobs.empty()) return "null";
  std::string value;
  logprobs.take(value);
  return value;
}

void add_logprobs(const AnswerPlan& plan, std::span<const SampledToken> tokens,
                  CompletionLogprobs& logprobs) {
  if (!plan.wants_logprobs()) return;
  for (const SampledToken& token : tokens) logprobs.add(plan.logprobs, token);
}

}  // namespace

CompletionStream::CompletionStream(AnswerPlan plan)
    : OpenAiStream(std::move(plan), "text_completion"),
      state_(static_cast<std::size_t>(this->plan().choices)) {}

void CompletionStream::event(std::int64_t choice, std::string_view text, const AnswerEnd* end,
                             std::string& out) {
  Choice& state = state_[static_cast<std::size_t>(choice)];
  begin_event(choice, out);
  out += R"("text":)";
  append_json_string(out, text);
  if (!std::exchange(state.opened, true)) append_prompt_ids(plan(), choice, out);
  end_event(choice, take_logprobs(plan(), state.logprobs), end, {}, out);
}

void CompletionStream::open_choice(std::int64_t choice, std::string& out) {
  if (state_[static_cast<std::size_t>(choice)].opened) return;
  const std::string_view prompt = echoed(plan(), choice);
  if (!prompt.empty()) event(choice, prompt, nullptr, out);
}

void CompletionStream::push(std::int64_t choice, const AnswerPart& part, std::string& out) {
  if (!choices().running(choice)) return;
  choices().note(choice, part.usage);
  open_choice(choice, out);
  add_logprobs(plan(), part.tokens, state_[static_cast<std::size_t>(choice)].logprobs);
  hold_ids(choice, part.tokens);
  const std::string text = text_of(part.deltas);
  if (!text.empty()) event(choice, text, nullptr, out);
}

void CompletionStream::finish(std::int64_t choice, const AnswerEnd& end, std::string& out) {
  if (!choices().running(choice)) return;
  open_choice(choice, out);
  event(choice, {}, &end, out);
}

CompletionCollector::CompletionCollector(AnswerPlan plan)
    : plan_(std::move(plan)), choices_(plan_), state_(static_cast<std::size_t>(plan_.choices)) {
  for (std::int64_t i = 0; i < plan_.choices; ++i)
    state_[static_cast<std::size_t>(i)].text = echoed(plan_, i);
}

void CompletionCollector::push(std::int64_t choice, const AnswerPart& part, std::string& /*out*/) {
  if (!choices_.running(choice)) return;
  choices_.note(choice, part.usage);
  Choice& state = state_[static_cast<std::size_t>(choice)];
  add_logprobs(plan_, part.tokens, state.logprobs);
  if (plan_.request.return_token_ids) {
    for (const SampledToken& token : part.tokens) state.ids.push_back(token.id);
  }
  state.text += text_of(part.deltas);
}

void CompletionCollector::append_choice(std::int64_t index, Choice& choice, std::string& out) const {
  fmt::format_to(std::back_inserter(out), R"({{"index":{},"text":)", index);
  append_json_string(out, choice.text);
  append_prompt_ids(plan_, index, out);
  out += R"(,"logprobs":)";
  out += take_logprobs(plan_, choice.logprobs);
  fmt::format_to(std::back_inserter(out), R"(,"finish_reason":"{}","stop_reason":)",
                 finish_reason(plan_.request, choice.end, plan_.head.strict_openai));
  plan_.append_stop_reason(out, choice.end);
  if (plan_.request.return_token_ids) {
    out += R"(,"token_ids":)";
    append_ids(out, choice.ids);
  }
  out += '}';
}

void CompletionCollector::finish(std::int64_t choice, const AnswerEnd& end, std::string& out) {
  if (!choices_.running(choice)) return;
  state_[static_cast<std::size_t>(choice)].end = end;
  if (!choices_.end(choice)) return;
  out += '{';
  out += openai_head(plan_, "text_completion");
  out += R"(,"choices":[)";
  for (std::int64_t i = 0; i < plan_.choices; ++i) {
    if (i > 0) out += ',';
    append_choice(i, state_[static_cast<std::size_t>(i)], out);
  }
  out += R"(],"usage":)";
  append_openai_usage(out, choices_.usage());
  if (plan_.timings) {
    out += R"(,"timings":)";
    append_timings(out, choices_.usage());
  }
  out += '}';
}

void CompletionCollector::fail(const ApiError& error, std::string& out) {
  if (complete()) return;
  out += openai_error_body(error);
  choices_.end_all();
}

}  // namespace mimo
