#include "chat/chat_history.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

namespace mimo {
namespace {

constexpr std::string_view kSettings[] = {
    "temperature",       "top_p",      "top_k",      "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "max_tokens", "min_tokens", "seed"};

}  // namespace

std::span<const std::string_view> ChatHistory::settings() { return kSettings; }

Status ChatHistory::set(std::string_view name, std::string_view value) {
  const auto* known = std::find(std::begin(kSettings), std::end(kSettings), name);
  if (known == std::end(kSettings)) {
    return fail(ErrorCode::kInvalidArgument, "unknown setting \"{}\"; there are {}", name,
                fmt::join(kSettings, ", "));
  }
  json::value number;
  if (!value.empty()) {
    Result<json::value> parsed = parse_json(value, name, {.max_depth = 1});
    if (!parsed || !parsed->is_number())
      return fail(ErrorCode::kInvalidArgument, "{}: \"{}\" is not a number", name, value);
    number = std::move(*parsed);
  }
  std::erase_if(set_, [&](const auto& entry) { return entry.first == name; });
  if (!value.empty()) set_.emplace_back(*known, std::move(number));
  return {};
}

std::string ChatHistory::get(std::string_view name) const {
  for (const auto& [known, value] : set_) {
    if (known == name) return json::serialize(value);
  }
  return {};
}

void ChatHistory::ask(std::string_view text) {
  messages_.push_back(json::object{{"role", "user"}, {"content", text}});
}

void ChatHistory::take_back() { messages_.pop_back(); }

json::array ChatHistory::with_system() const {
  json::array all;
  if (!system.empty()) all.push_back(json::object{{"role", "system"}, {"content", system}});
  all.insert(all.end(), messages_.begin(), messages_.end());
  return all;
}

json::object ChatHistory::request(std::string_view model) const {
  json::object body;
  if (!model.empty()) body["model"] = model;
  body["messages"] = with_system();
  for (const auto& [name, value] : set_) body[name] = value;
  if (thinking) body["chat_template_kwargs"] = json::object{{"enable_thinking", *thinking}};
  body["stream"] = true;
  body["stream_options"] = json::object{{"include_usage", true}};
  body["timings"] = true;
  return body;
}

json::object ChatHistory::saved() const {
  json::object file{{"messages", with_system()}};
  if (thinking) file["chat_template_kwargs"] = json::object{{"enable_thinking", *thinking}};
  return file;
}

}  // namespace mimo
