#include "eval/url_runner.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "text/assistant_answer.h"
#include "text/unicode_utf8.h"

namespace mimo {
namespace {

// Of an error body in a message: enough to read, not enough to flood the terminal.
constexpr std::size_t kShownBody = 400;

std::string excerpt(const std::string& body) {
  std::string shown;
  for (const char c : body.substr(0, kShownBody)) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    shown += control ? ' ' : c;
  }
  if (!utf8_valid(shown)) {
    // Cut inside a character, or binary.
    for (char& c : shown) c = static_cast<unsigned char>(c) < 0x80 ? c : '?';
  }
  if (body.size() > kShownBody) shown += fmt::format(" ... ({} bytes)", body.size());
  return shown.empty() ? "empty body" : shown;
}

// 0 where the server does not say, or says what no answer can have: counts are added up.
std::int64_t count_field(const json::object& usage, const char* key) {
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
  const json::value* value = usage.if_contains(key);
  const std::int64_t* count = value == nullptr ? nullptr : value->if_int64();
  return count == nullptr || *count < 0 || *count > kMaxTokens ? 0 : *count;
}

std::string text_field(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

// tool_calls of a message. What cannot be read is a problem of the answer, not a failure: models write it.
void read_calls(const json::array& list, Answer& answer) {
  for (const json::value& item : list) {
    const json::object* call = item.if_object();
    const json::value* function = call == nullptr ? nullptr : call->if_contains("function");
    if (function == nullptr || !function->is_object()) {
      answer.problems.emplace_back("a tool call without a function");
      continue;
    }
    const std::string name = text_field(function->get_object(), "name");
    const json::value* arguments = function->get_object().if_contains("arguments");
    json::object parsed;
    if (arguments != nullptr && arguments->is_object()) {
      parsed = arguments->get_object();
    } else if (arguments != nullptr && arguments->is_string()) {
      const Result<json::value> value = parse_json(arguments->get_string(), "arguments");
      if (!value || !value->is_object()) {
        answer.problems.push_back(fmt::format("call of \"{}\": arguments are not a JSON object", name));
        continue;
      }
      parsed = value->get_object();
    } else {
      answer.problems.push_back(fmt::format("call of \"{}\": no arguments", name));
      continue;
    }
    answer.calls.push_back({name, std::move(parsed)});
  }
}

void read_token_ids(const json::object& choice, Answer& answer) {
  const json::value* list = choice.if_contains("token_ids");
  if (list == nullptr || !list->is_array()) return;
  std::vector<std::int32_t> ids;
  for (const json::value& item : list->get_array()) {
    const std::int64_t* id = item.if_int64();
    if (id == nullptr || *id < 0 || *id > 0x7FFFFFFF) return;
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  answer.token_ids = std::move(ids);
}

class UrlRunner final : public Runner {
 public:
  UrlRunner(HttpUrl url, UrlRunnerOptions options) : url_(std::move(url)), options_(std::move(options)) {
    if (!options_.api_key.empty()) headers_["Authorization"] = "Bearer " + options_.api_key;
  }

  // Reaches the server once, and learns the model's name when none was given.
  Status begin() {
    HttpClient client(url_, options_.http);
    const Result<HttpReply> response = client.get("/models", headers_);
    if (!response) return forward_error(response);
    if (!options_.model.empty()) return {};
    if (response->status == 200) {
      const Result<json::value> body = parse_json(response->body, "models");
      json::error_code error;
      const json::value* id = body ? body->find_pointer("/data/0/id", error) : nullptr;
      if (id != nullptr && id->is_string()) options_.model = std::string(id->get_string());
    }
    if (options_.model.empty()) options_.model = "default";
    return {};
  }

  Status run(std::span<const Problem> problems, const RunSettings& settings,
             const OnAnswer& on_answer) override {
    std::atomic<std::size_t> next{0};
    std::mutex answering;
    const auto work = [&] {
      HttpClient client(url_, options_.http);
      for (std::size_t i = next++; i < problems.size(); i = next++) {
        Answer answer = ask(client, problems[i], settings);
        const std::lock_guard lock(answering);
        on_answer(i, std::move(answer));
      }
    };
    const std::size_t count = std::clamp<std::size_t>(static_cast<std::size_t>(settings.concurrency), 1,
                                                      std::max<std::size_t>(problems.size(), 1));
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < count; ++i) threads.emplace_back(work);
    return {};
  }

 private:
  Answer ask(HttpClient& client, const Problem& problem, const RunSettings& settings) const {
    const auto start = std::chrono::steady_clock::now();
    const char* path = problem.completion.empty() ? "/chat/completions" : "/completions";
    const Result<HttpReply> response =
        client.post(path, headers_, json::serialize(chat_request(problem, settings, options_.model)));
    Result<Answer> answer = response ? read(*response, problem) : forward_error(response);
    if (!answer) {
      Answer failed;
      failed.error = answer.error();
      return failed;
    }
    answer->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(*answer);
  }

  Result<Answer> read(const HttpReply& response, const Problem& problem) const {
    if (response.status != 200) {
      return fail(ErrorCode::kInternal, "{}: status {}: {}", url_.authority(), response.status,
                  excerpt(response.body));
    }
    return read_chat_answer(response.body, problem, url_.authority());
  }

  HttpUrl url_;
  UrlRunnerOptions options_;
  HttpClient::Headers headers_;
};

}  // namespace

json::object chat_request(const Problem& problem, const RunSettings& settings, const std::string& model) {
  json::object body;
  body["model"] = model;
  body["max_tokens"] = settings.max_tokens;
  body["temperature"] = settings.temperature;
  body["top_p"] = settings.top_p;
  body["seed"] = static_cast<std::int64_t>(problem_seed(settings, problem));
  body["stream"] = false;
  body["return_token_ids"] = true;
  if (!problem.stop.empty()) {
    json::array stop;
    for (const std::string& text : problem.stop) stop.emplace_back(text);
    body["stop"] = std::move(stop);
  }
  if (!problem.completion.empty()) {
    body["prompt"] = problem.completion;
    return body;
  }
  body["messages"] = problem.messages;
  if (!problem.tools.empty()) body["tools"] = problem.tools;
  const std::optional<bool> thinking =
      settings.enable_thinking ? settings.enable_thinking : problem.enable_thinking;
  if (thinking) body["chat_template_kwargs"] = json::object{{"enable_thinking", *thinking}};
  return body;
}

Result<Answer> read_chat_answer(std::string_view body, const Problem& problem, std::string_view what) {
  const Result<json::value> parsed = parse_json(body, what);
  if (!parsed) {
    return fail(parsed.error().code, "{}: {}", parsed.error().message, excerpt(std::string(body)));
  }
  json::error_code error;
  const json::value* first = parsed->find_pointer("/choices/0", error);
  const json::object* choice = first == nullptr ? nullptr : first->if_object();
  const auto wrong = [&](std::string_view field) {
    return fail(ErrorCode::kCorrupt, "{}: the answer has no {}: {}", what, field, excerpt(std::string(body)));
  };
  if (choice == nullptr) return wrong("choices[0]");
  Answer answer;
  if (!problem.completion.empty()) {
    const json::value* text = choice->if_contains("text");
    if (text == nullptr || !text->is_string()) return wrong("choices[0].text");
    answer.content = std::string(text->get_string());
  } else {
    const json::value* value = choice->if_contains("message");
    const json::object* message = value == nullptr ? nullptr : value->if_object();
    if (message == nullptr) return wrong("choices[0].message");
    answer.content = text_field(*message, "content");
    answer.reasoning = text_field(*message, "reasoning_content");
    if (answer.reasoning.empty()) answer.reasoning = text_field(*message, "reasoning");
    if (answer.reasoning.empty()) {
      // A server without a reasoning parser leaves the tags in the content.
      AssistantAnswer parts = parse_answer(answer.content, ThinkBlock::kModelDecides, {});
      answer.reasoning = std::move(parts.reasoning);
      answer.content = std::move(parts.content);
    }
    const json::value* calls = message->if_contains("tool_calls");
    if (calls != nullptr && calls->is_array()) read_calls(calls->get_array(), answer);
  }
  answer.truncated = text_field(*choice, "finish_reason") == "length";
  read_token_ids(*choice, answer);
  const json::value* usage = parsed->get_object().if_contains("usage");
  if (usage != nullptr && usage->is_object()) {
    answer.prompt_tokens = count_field(usage->get_object(), "prompt_tokens");
    answer.completion_tokens = count_field(usage->get_object(), "completion_tokens");
  }
  if (problem.prompt_tokens > 0 && answer.prompt_tokens > 0 &&
      answer.prompt_tokens != problem.prompt_tokens) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: the server counts {} prompt tokens, expected {}: the tokenizer that built the prompt is "
                "not the server's (--tokenizer DIR)",
                what, answer.prompt_tokens, problem.prompt_tokens);
  }
  return answer;
}

Result<std::unique_ptr<Runner>> make_url_runner(const std::string& url, const UrlRunnerOptions& options) {
  Result<HttpUrl> parsed = parse_http_url(url);
  if (!parsed) return forward_error(parsed);
  if (!parsed->path.ends_with("/v1")) parsed->path += "/v1";
  if (options.api_key.find_first_of("\r\n") != std::string::npos)
    return fail(ErrorCode::kInvalidArgument, "the API key holds a line break");
  auto runner = std::make_unique<UrlRunner>(std::move(*parsed), options);
  if (const Status begun = runner->begin(); !begun) return forward_error(begun);
  return runner;
}

}  // namespace mimo
