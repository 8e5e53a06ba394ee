// POST /v1/completions
#include <utility>

#include "api/constraint_fields.h"
#include "api/parse_requests.h"
#include "api/request_fields.h"

namespace mimo {
namespace {

void add_text(const json::string& text, const std::string& path, RequestProblem& problem,
              std::vector<CompletionPrompt>& prompts) {
  if (text.empty()) {
    problem.add(path, "got an empty string, expected at least one token");
    return;
  }
  prompts.emplace_back(std::string(as_view(text)));
}

void add_ids(const json::array& ids, const std::string& path, int vocab, RequestProblem& problem,
             std::vector<CompletionPrompt>& prompts) {
  if (ids.empty()) {
    problem.add(path, "got an empty list, expected at least one token");
    return;
  }
  prompts.emplace_back(read_ids(ids, path, vocab, problem));
}

void read_prompts(ObjectReader& body, const ApiContext& context, std::vector<CompletionPrompt>& prompts) {
  const json::value* prompt = body.value("prompt");
  constexpr std::string_view kExpected =
      "a string, a list of strings, a list of token ids or a list of such lists";
  if (prompt == nullptr) {
    if (!body.failed()) body.refuse("prompt", kExpected);
    return;
  }
  if (const json::string* text = prompt->if_string()) {
    return add_text(*text, "prompt", body.problems(), prompts);
  }
  const json::array* list = prompt->if_array();
  if (list == nullptr || list->empty()) return body.refuse("prompt", kExpected);
  if (list->front().is_number()) return add_ids(*list, "prompt", context.vocab, body.problems(), prompts);
  if (list->size() > context.limits.max_choices) {
    body.problem("prompt", fmt::format("got {} prompts, expected at most {}", list->size(),
                                       context.limits.max_choices));
    return;
  }
  for (std::size_t i = 0; i < list->size() && !body.failed(); ++i) {
    const json::value& item = (*list)[i];
    const std::string at = fmt::format("prompt[{}]", i);
    const bool same_kind = item.kind() == list->front().kind();
    if (const json::string* text = item.if_string(); text != nullptr && same_kind) {
      add_text(*text, at, body.problems(), prompts);
    } else if (const json::array* ids = item.if_array(); ids != nullptr && same_kind) {
      add_ids(*ids, at, context.vocab, body.problems(), prompts);
    } else {
      body.problems().add(at, fmt::format("got {}, expected {}", shown_value(item), kExpected));
    }
  }
}

}  // namespace

ApiResult<ApiRequest> parse_completion_request(std::string_view text, const ApiContext& context) {
  const ApiResult<json::object> object = parse_body(text, context.limits);
  if (!object) return tl::unexpected(object.error());
  RequestProblem problem;
  ObjectReader body(*object, "", problem);

  ApiRequest request;
  request.route = ApiRoute::kCompletion;
  request.params = context.default_params;
  request.model = read_model(body, context.models);
  read_prompts(body, context, request.prompts);
  read_sampling(body, context, request.params);
  read_max_tokens(body, request.params);
  read_stop(body, "stop", request.params);
  request.params.logprobs.reset();
  if (const auto count = body.integer("logprobs", 0, kMaxTopLogprobs)) {
    request.params.logprobs = static_cast<int>(*count);
  }
  read_stream(body, request);
  read_n(body, context.limits, request);
  read_request_options(body, request);
  request.echo = body.boolean("echo").value_or(false);
  if (request.echo && request.params.logprobs) {
    body.problem("echo",
                 "got true together with logprobs, but log-probabilities of prompts are not computed");
  }
  read_content_form(body, context.limits, request.constraint);
  return finish_request(body, context, std::move(request));
}

}  // namespace mimo
