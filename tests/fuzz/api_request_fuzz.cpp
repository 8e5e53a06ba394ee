// Any text as the body of every kind of request: a request or a 4xx error that can be written as JSON. A
// request that was taken is then answered, with the body as the answer's text, and the answer must be JSON
// too.
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "api/answer_writer.h"
#include "api/parse_requests.h"
#include "text/unicode_utf8.h"

namespace {

using namespace mimo;

void require(bool holds) {
  if (!holds) std::abort();
}

bool is_json(std::string_view text) { return parse_json(text, "output").has_value(); }

void check_error(const ApiError& error) {
  require(error.status >= 400 && error.status < 500);
  require(!error.message.empty() && error.message.size() < 1100 && utf8_valid(error.message));
  require(!error.type.empty());
  require(is_json(openai_error_body(error)) && is_json(anthropic_error_body(error)));
}

// Each line that carries data is JSON or "[DONE]".
void check_stream(std::string_view stream) {
  while (!stream.empty()) {
    const std::size_t end = stream.find('\n');
    require(end != std::string_view::npos);
    std::string_view line = stream.substr(0, end);
    stream.remove_prefix(end + 1);
    if (line.empty() || line.starts_with("event: ")) continue;
    require(line.starts_with("data: "));
    line.remove_prefix(6);
    require(line == "[DONE]" || is_json(line));
  }
}

void check_answer(const ApiRequest& request, std::string_view text) {
  constexpr std::int64_t kMaxChoices = 8;
  const std::int64_t choices =
      request.n * static_cast<std::int64_t>(std::max<std::size_t>(1, request.prompts.size()));
  if (choices > kMaxChoices) return;
  AnswerHead head;
  head.id = answer_id(request.route);
  head.spell = [text](std::int32_t) { return TokenSpelling{.bytes = text.substr(0, 8)}; };
  head.prompt_ids = {{1, 2}};
  head.prompt_texts = {std::string(text)};
  const std::unique_ptr<AnswerWriter> writer = make_answer_writer(request, std::move(head));
  const std::string piece(text.substr(0, 64));
  std::vector<AnswerDelta> deltas = {{.kind = DeltaKind::kReasoning, .text = piece, .name = {}},
                                     {.kind = DeltaKind::kContent, .text = piece, .name = {}}};
  if (request.route != ApiRoute::kCompletion) {
    deltas.push_back({.kind = DeltaKind::kToolStart, .text = {}, .name = piece});
    deltas.push_back({.kind = DeltaKind::kToolArguments, .text = "{}", .name = {}});
    deltas.push_back({.kind = DeltaKind::kToolEnd, .text = {}, .name = {}});
  }
  const std::vector<SampledToken> tokens = {{.id = 1, .logprob = -1, .top = {{2, -2}}}};
  const RequestUsage usage;
  std::string out;
  for (std::int64_t i = 0; i < choices; ++i) {
    writer->push(i, {.deltas = deltas, .tokens = tokens, .usage = usage}, out);
    AnswerEnd end{.calls = 1};
    if (!request.params.stop.empty())
      end.finish = Finish{.reason = FinishReason::kStopString, .stop_index = 0};
    writer->finish(i, end, out);
  }
  require(writer->complete());
  if (request.stream) {
    check_stream(out);
  } else {
    require(is_json(out));
  }
}

void check_conversation(const Conversation& conversation) {
  require(!conversation.messages.empty());
  for (const json::value& message : conversation.messages) {
    require(message.as_object().at("role").is_string());
    require(message.as_object().contains("content"));
  }
  declared_tools(conversation);
}

template <class T, class Check>
void check(const ApiResult<T>& result, Check accepted) {
  if (result) {
    accepted(*result);
  } else {
    check_error(result.error());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static const ApiContext context = [] {
    ApiContext made;
    made.models.names = {"m"};
    made.vocab = 1000;
    made.effort_budgets = {.low = 1, .medium = 2, .high = 3};
    return made;
  }();
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto answer = [&](const ApiRequest& request) {
    require(request.route == ApiRoute::kCompletion ? !request.prompts.empty()
                                                   : !request.chat.messages.empty());
    if (request.route != ApiRoute::kCompletion) check_conversation(request.chat);
    require(validate(request.params, context.vocab).has_value());
    check_answer(request, body);
  };
  check(parse_chat_request(body, context), answer);
  check(parse_completion_request(body, context), answer);
  check(parse_messages_request(body, context), answer);
  check(parse_tokenize_request(body, context), [](const TokenizeRequest& request) {
    if (!request.text) check_conversation(request.chat);
  });
  check(parse_detokenize_request(body, context), [](const DetokenizeRequest&) {});
  check(parse_count_tokens_request(body, context),
        [](const CountTokensRequest& request) { check_conversation(request.chat); });
  return 0;
}
