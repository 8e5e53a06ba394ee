#include "chat/chat_answer.h"

#include <fmt/format.h>

#include <algorithm>

namespace mimo {
namespace {

constexpr double kMaxCalls = 1024;   // of one answer: an index from outside sizes a list
constexpr double kMaxTokens = 1e15;  // what an integer holds; more is nonsense
constexpr double kMillisecondsPerSecond = 1000;

const json::object* object_at(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr ? nullptr : value->if_object();
}

const json::array* array_at(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr ? nullptr : value->if_array();
}

std::string_view text_at(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string_view(value->get_string()) : std::string_view();
}

double number_at(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_number() ? value->to_number<double>() : 0;
}

}  // namespace

Result<ChatPiece> ChatAnswer::take(const json::value& chunk) {
  const json::object* body = chunk.if_object();
  if (body == nullptr) return fail(ErrorCode::kCorrupt, "an event that is no JSON object");
  take_usage(*body);
  ChatPiece piece;
  const json::array* choices = array_at(*body, "choices");
  if (choices == nullptr || choices->empty()) return piece;  // usage alone
  const json::object* choice = choices->front().if_object();
  if (choice == nullptr) return fail(ErrorCode::kCorrupt, "an event whose choices[0] is no object");
  if (const std::string_view finish = text_at(*choice, "finish_reason"); !finish.empty()) finish_ = finish;
  const json::object* delta = object_at(*choice, "delta");
  if (delta == nullptr) return piece;
  piece.reasoning = text_at(*delta, "reasoning_content");
  if (piece.reasoning.empty()) piece.reasoning = text_at(*delta, "reasoning");
  piece.content = text_at(*delta, "content");
  reasoning_ += piece.reasoning;
  content_ += piece.content;
  if (const json::array* parts = array_at(*delta, "tool_calls")) take_calls(*parts);
  if (!empty()) {
    last_ = Clock::now();
    if (first_ == Clock::time_point()) first_ = last_;
  }
  return piece;
}

void ChatAnswer::take_calls(const json::array& parts) {
  for (const json::value& item : parts) {
    const json::object* part = item.if_object();
    if (part == nullptr) continue;
    const double place = number_at(*part, "index");
    if (!(place >= 0 && place < kMaxCalls)) continue;
    const auto index = static_cast<std::size_t>(place);
    if (index >= calls_.size()) calls_.resize(index + 1);
    ChatCall& call = calls_[index];
    if (call.id.empty()) call.id = text_at(*part, "id");
    if (const json::object* function = object_at(*part, "function")) {
      call.name += text_at(*function, "name");
      call.arguments += text_at(*function, "arguments");
    }
  }
}

void ChatAnswer::take_usage(const json::object& chunk) {
  if (const json::object* usage = object_at(chunk, "usage"))
    tokens_ = static_cast<std::int64_t>(std::clamp(number_at(*usage, "completion_tokens"), 0.0, kMaxTokens));
  const json::object* timings = object_at(chunk, "timings");
  if (timings == nullptr) return;
  // The first token comes out of the prompt.
  const double decoded = number_at(*timings, "predicted_n") - 1;
  const double seconds = number_at(*timings, "predicted_ms") / kMillisecondsPerSecond;
  if (decoded > 0 && seconds > 0) rate_ = decoded / seconds;
  const double steps = number_at(*timings, "draft_steps");
  if (steps > 0) accept_length_ = 1 + number_at(*timings, "draft_n_accepted") / steps;
}

json::object ChatAnswer::message() const {
  json::object message{{"role", "assistant"}, {"content", content_}};
  if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
  json::array calls;
  for (const ChatCall& call : calls_) {
    if (call.name.empty() || !parse_json(call.arguments, "arguments")) continue;
    calls.push_back(json::object{{"id", call.id},
                                 {"type", "function"},
                                 {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

std::string ChatAnswer::figures() const {
  if (tokens_ <= 0) return {};
  std::string text = fmt::format("{} token{}", tokens_, tokens_ == 1 ? "" : "s");
  double rate = rate_;
  const double seconds = std::chrono::duration<double>(last_ - first_).count();
  if (rate == 0 && tokens_ > 1 && seconds > 0) rate = static_cast<double>(tokens_ - 1) / seconds;
  if (rate > 0) text += fmt::format(", {:.{}f} tokens/s", rate, rate < 100 ? 1 : 0);
  if (accept_length_ > 0) text += fmt::format(", accept length {:.2f}", accept_length_);
  return text;
}

}  // namespace mimo
