#include "api/openai_stream.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace mimo {
namespace {

constexpr const char* kDone = "data: [DONE]\n\n";

}  // namespace

OpenAiStream::OpenAiStream(AnswerPlan plan, std::string_view object)
    : plan_(std::move(plan)),
      choices_(plan_),
      head_("data: {" + openai_head(plan_, object) + R"(,"choices":[)"),
      ids_(static_cast<std::size_t>(plan_.choices)) {}

void OpenAiStream::hold_ids(std::int64_t choice, std::span<const SampledToken> tokens) {
  if (!plan_.request.return_token_ids) return;
  for (const SampledToken& token : tokens) ids_[static_cast<std::size_t>(choice)].push_back(token.id);
}

void OpenAiStream::begin_event(std::int64_t choice, std::string& out) const {
  out += head_;
  fmt::format_to(std::back_inserter(out), R"({{"index":{},)", choice);
}

void OpenAiStream::end_event(std::int64_t choice, std::string_view logprobs, const AnswerEnd* finish,
                             std::string_view extra, std::string& out) {
  out += R"(,"logprobs":)";
  out += logprobs;
  if (finish == nullptr) {
    out += R"(,"finish_reason":null)";
  } else {
    fmt::format_to(std::back_inserter(out), R"(,"finish_reason":"{}","stop_reason":)",
                   finish_reason(plan_.request, *finish, plan_.head.strict_openai));
    plan_.append_stop_reason(out, *finish);
  }
  if (plan_.request.return_token_ids) {
    out += R"(,"token_ids":)";
    append_ids(out, ids_[static_cast<std::size_t>(choice)]);
    ids_[static_cast<std::size_t>(choice)].clear();
  }
  out += "}]";
  out += extra;
  append_usage(out);
  const bool last = finish != nullptr && choices_.end(choice);
  if (last && !plan_.request.include_usage) append_timings_member(out);
  out += "}\n\n";
  if (!last) return;
  if (plan_.request.include_usage) {
    out += head_;
    out += R"(],"usage":)";
    append_openai_usage(out, choices_.usage());
    append_timings_member(out);
    out += "}\n\n";
  }
  out += kDone;
}

void OpenAiStream::append_usage(std::string& out) const {
  if (plan_.request.continuous_usage) {
    out += R"(,"usage":)";
    append_openai_usage(out, choices_.usage());
  } else if (plan_.request.include_usage) {
    out += R"(,"usage":null)";
  }
}

void OpenAiStream::append_timings_member(std::string& out) const {
  if (!plan_.timings) return;
  out += R"(,"timings":)";
  append_timings(out, choices_.usage());
}

void OpenAiStream::fail(const ApiError& error, std::string& out) {
  if (complete()) return;
  out += "data: ";
  out += openai_error_body(error);
  out += "\n\n";
  out += kDone;
  choices_.end_all();
}

}  // namespace mimo
