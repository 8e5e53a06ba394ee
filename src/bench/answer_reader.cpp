#include "bench/answer_reader.h"

#include <algorithm>
#include <optional>

namespace mimo {
namespace {

constexpr std::size_t kShown = 400;

std::optional<std::int64_t> count(const json::object& object, const char* key) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const json::value* value = object.if_contains(key);
  const std::int64_t* number = value == nullptr ? nullptr : value->if_int64();
  if (number == nullptr || *number < 0 || *number > kMost) return std::nullopt;
  return *number;
}

const json::object* member(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr ? nullptr : value->if_object();
}

std::string_view text_of(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  const json::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? std::string_view() : std::string_view(text->data(), text->size());
}

}  // namespace

Status AnswerReader::event(const SseEvent& event, double at) {
  if (done_) return fail(ErrorCode::kCorrupt, "an event after the end of the stream");
  if (event.data == "[DONE]" && endpoint_ != Endpoint::kMessages) {
    done_ = true;
    return {};
  }
  const Result<json::value> value = parse_json(event.data, "event");
  if (!value) return forward_error(value);
  const json::object* object = value->if_object();
  if (object == nullptr) return fail(ErrorCode::kCorrupt, "an event that is no JSON object");
  if (const json::value* error = object->if_contains("error"); error != nullptr && !error->is_null())
    return fail(ErrorCode::kInternal, "{}", json::serialize(*error).substr(0, kShown));
  record_.t_end = at;
  return endpoint_ == Endpoint::kMessages ? message_event(event.name, *object, at)
                                          : openai_event(*object, at);
}

void AnswerReader::read_usage(const json::object& object) {
  const json::object* usage = member(object, "usage");
  const json::object* timings = member(object, "timings");
  if (usage != nullptr && endpoint_ == Endpoint::kMessages) {
    const std::optional<std::int64_t> cached = count(*usage, "cache_read_input_tokens");
    if (const auto input = count(*usage, "input_tokens")) {
      record_.n_in = *input + cached.value_or(0) + count(*usage, "cache_creation_input_tokens").value_or(0);
    }
    if (cached) record_.n_cached = cached;
    if (const auto output = count(*usage, "output_tokens")) {
      record_.n_out = *output;
      has_usage_ = true;
    }
  } else if (usage != nullptr) {
    if (const auto input = count(*usage, "prompt_tokens")) record_.n_in = *input;
    if (const auto output = count(*usage, "completion_tokens")) {
      record_.n_out = *output;
      running_ = *output;
      has_usage_ = true;
    }
    const json::object* details = member(*usage, "prompt_tokens_details");
    const auto cached = details == nullptr ? std::nullopt : count(*details, "cached_tokens");
    if (cached) record_.n_cached = cached;
    if (details != nullptr) record_.n_host = count(*details, "cached_tokens_host").value_or(record_.n_host);
  }
  // Of llama.cpp's server, whose usage may be missing or silent about cached tokens.
  if (timings == nullptr) return;
  const auto cached = count(*timings, "cache_n");
  record_.draft_steps = count(*timings, "draft_steps").value_or(0);
  record_.drafts_accepted = count(*timings, "draft_n_accepted").value_or(0);
  if (cached && !record_.n_cached) record_.n_cached = cached;
  const auto output = count(*timings, "predicted_n");
  if (has_usage_ || !output) return;
  record_.n_in = count(*timings, "prompt_n").value_or(0) + cached.value_or(0);
  record_.n_out = *output;
  has_timings_ = true;
}

bool AnswerReader::add_text(const json::object& object, const char* key) {
  const std::string_view text = text_of(object, key);
  record_.text += text;
  return !text.empty();
}

void AnswerReader::read_calls(const json::array& calls, bool& generated) {
  for (const json::value& call : calls) {
    const json::object* function = call.is_object() ? member(call.get_object(), "function") : nullptr;
    if (function == nullptr) continue;
    generated |= add_text(*function, "name");
    generated |= add_text(*function, "arguments");
  }
}

// `part`: "delta" or "message". True if there was generated text.
bool AnswerReader::read_choice(const json::object& choice, std::string_view part) {
  bool generated = false;
  if (endpoint_ == Endpoint::kCompletions) {
    generated = add_text(choice, "text");
  } else if (const json::object* delta = member(choice, part.data())) {
    if (!add_text(*delta, "reasoning_content"))
      generated |= add_text(*delta, "reasoning");
    else
      generated = true;
    generated |= add_text(*delta, "content");
    const json::value* calls = delta->if_contains("tool_calls");
    if (calls != nullptr && calls->is_array()) read_calls(calls->get_array(), generated);
  }
  if (const json::value* ids = choice.if_contains("token_ids"); ids != nullptr && ids->is_array()) {
    for (const json::value& id : ids->get_array()) {
      if (id.is_int64()) record_.ids.push_back(static_cast<std::int32_t>(id.get_int64()));
    }
    running_ = std::max(running_, std::ssize(record_.ids));
  }
  const std::string_view reason = text_of(choice, "finish_reason");
  if (!reason.empty()) record_.finish = reason;
  return generated;
}

// Text arrived.
void AnswerReader::generated(double at) {
  if (record_.t1 < 0) record_.t1 = at;
  TextEvent event{.at = at};
  if (running_ > counted_) {
    event.tokens = running_ - counted_;
    counted_ = running_;
  }
  record_.events.push_back(event);
}

Status AnswerReader::openai_event(const json::object& object, double at) {
  read_usage(object);
  const json::value* choices = object.if_contains("choices");
  if (choices == nullptr || !choices->is_array()) {
    if (object.contains("usage") || object.contains("timings")) return {};
    return fail(ErrorCode::kCorrupt, "an event without choices");
  }
  bool text = false;
  for (const json::value& choice : choices->get_array()) {
    if (choice.is_object()) text |= read_choice(choice.get_object(), "delta");
  }
  if (text) generated(at);
  if (!record_.finish.empty() && finished_at_ < 0) finished_at_ = at;
  return {};
}

Status AnswerReader::message_event(std::string_view name, const json::object& object, double at) {
  const std::string_view type = text_of(object, "type");
  if (type != name)
    return fail(ErrorCode::kCorrupt, "an event named \"{}\" whose type is \"{}\"", name, type);
  if (type == "message_start") {
    const json::object* message = member(object, "message");
    if (message == nullptr) return fail(ErrorCode::kCorrupt, "message_start without a message");
    read_usage(*message);
    has_usage_ = false;  // of the answer nothing is known yet
  } else if (type == "content_block_start") {
    const json::object* block = member(object, "content_block");
    if (block == nullptr) return fail(ErrorCode::kCorrupt, "content_block_start without a content_block");
    if (add_text(*block, "name") || add_text(*block, "text")) generated(at);
  } else if (type == "content_block_delta") {
    const json::object* delta = member(object, "delta");
    if (delta == nullptr) return fail(ErrorCode::kCorrupt, "content_block_delta without a delta");
    bool text = add_text(*delta, "text");
    text |= add_text(*delta, "thinking");
    text |= add_text(*delta, "partial_json");
    if (text) generated(at);
  } else if (type == "message_delta") {
    read_usage(object);
    const json::object* delta = member(object, "delta");
    if (delta != nullptr) record_.finish = text_of(*delta, "stop_reason");
    finished_at_ = at;
  } else if (type == "message_stop") {
    done_ = true;
  }
  return {};
}

Status AnswerReader::body(std::string_view text, double at) {
  const Result<json::value> value = parse_json(text, "answer");
  if (!value) return forward_error(value);
  const json::object* object = value->if_object();
  if (object == nullptr) return fail(ErrorCode::kCorrupt, "the answer is no JSON object");
  read_usage(*object);
  if (endpoint_ == Endpoint::kMessages) {
    const json::value* content = object->if_contains("content");
    if (content == nullptr || !content->is_array())
      return fail(ErrorCode::kCorrupt, "the answer has no content");
    for (const json::value& block : content->get_array()) {
      if (!block.is_object()) continue;
      add_text(block.get_object(), "thinking");
      add_text(block.get_object(), "text");
      if (const json::object* input = member(block.get_object(), "input"))
        record_.text += json::serialize(*input);
    }
    record_.finish = text_of(*object, "stop_reason");
  } else {
    const json::value* choices = object->if_contains("choices");
    if (choices == nullptr || !choices->is_array())
      return fail(ErrorCode::kCorrupt, "the answer has no choices");
    for (const json::value& choice : choices->get_array()) {
      if (choice.is_object()) read_choice(choice.get_object(), "message");
    }
  }
  record_.t_end = at;
  return check_counts();
}

Status AnswerReader::check_counts() {
  if (record_.finish.empty()) return fail(ErrorCode::kCorrupt, "the answer has no finish_reason");
  if (!has_usage_ && !has_timings_)
    return fail(ErrorCode::kUnsupported,
                "the server says neither usage nor timings: tokens cannot be counted");
  return {};
}

Status AnswerReader::finish() {
  if (!done_) {
    return fail(ErrorCode::kCorrupt, "the stream ended without {}",
                endpoint_ == Endpoint::kMessages ? "message_stop" : "[DONE]");
  }
  if (const Status counts = check_counts(); !counts) return counts;
  if (record_.t1 < 0 && record_.n_out > 0) {
    record_.t1 = finished_at_;
    record_.first_is_end = true;
  }
  return {};
}

}  // namespace mimo
