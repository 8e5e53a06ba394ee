// Reads OpenAI answers, whole or streamed, into one form, and complains about everything a strict client
// would.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace mimo {

struct SeenCall {
  std::string name;
  std::string arguments;
  bool operator==(const SeenCall&) const = default;
};

struct SeenChoice {
  std::string reasoning;
  std::string content;  // of text completions too
  std::vector<SeenCall> calls;
  std::vector<std::string> call_ids;
  std::string finish_reason;
  std::string stop_reason;         // JSON text
  json::array logprobs;            // chat
  std::vector<json::array> lists;  // completions: tokens, token_logprobs, top_logprobs, text_offset
  json::array token_ids;
};

struct SeenAnswer {
  std::map<std::int64_t, SeenChoice> choices;
  std::string usage;    // JSON text
  std::string timings;  // JSON text
  std::string error;    // JSON text
  json::array prompt_token_ids;
  int events = 0;  // with a choice
};

inline std::string text_or_empty(const json::value* value) {
  return value == nullptr || value->is_null() ? "" : std::string(value->as_string());
}

inline void expect_same(const SeenAnswer& a, const SeenAnswer& b) {
  ASSERT_EQ(a.choices.size(), b.choices.size());
  for (const auto& [index, choice] : a.choices) {
    ASSERT_TRUE(b.choices.contains(index));
    const SeenChoice& other = b.choices.at(index);
    EXPECT_EQ(choice.reasoning, other.reasoning);
    EXPECT_EQ(choice.content, other.content);
    EXPECT_EQ(choice.calls, other.calls);
    EXPECT_EQ(choice.finish_reason, other.finish_reason);
    EXPECT_EQ(choice.stop_reason, other.stop_reason);
    EXPECT_EQ(choice.logprobs, other.logprobs);
    EXPECT_EQ(choice.lists, other.lists);
    EXPECT_EQ(choice.token_ids, other.token_ids);
  }
  EXPECT_EQ(a.prompt_token_ids, b.prompt_token_ids);
}

// The JSON texts of "data: ..." events; every line must be one.
inline std::vector<std::string> split_events(std::string_view stream) {
  std::vector<std::string> events;
  while (!stream.empty()) {
    const std::size_t end = stream.find("\n\n");
    EXPECT_NE(end, std::string_view::npos) << "no end of event: " << stream;
    if (end == std::string_view::npos) break;
    const std::string_view event = stream.substr(0, end);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    EXPECT_EQ(event.find('\n'), std::string_view::npos) << event;
    events.emplace_back(event.substr(6));
    stream.remove_prefix(end + 2);
  }
  return events;
}

class StreamChecker {
 public:
  struct Options {
    bool chat = true;
    bool include_usage = false;
    bool continuous_usage = false;
    std::string reasoning_field = "reasoning_content";
    bool echo = false;
  };

  explicit StreamChecker(Options options) : options_(std::move(options)) {}

  // `choices`: how many there must be.
  SeenAnswer read(std::string_view stream, std::size_t choices) {
    const std::vector<std::string> events = split_events(stream);
    EXPECT_FALSE(events.empty());
    EXPECT_EQ(events.empty() ? "" : events.back(), "[DONE]");
    for (std::size_t i = 0; i + 1 < events.size(); ++i) {
      const Result<json::value> event = parse_json(events[i], "event");
      EXPECT_TRUE(event) << events[i];
      if (event) read_event(event->as_object());
    }
    if (answer_.error.empty()) {
      EXPECT_EQ(answer_.choices.size(), choices);
      EXPECT_EQ(finished_.size(), choices);
      EXPECT_EQ(usage_seen_, options_.include_usage);
    }
    return answer_;
  }

 private:
  void read_event(const json::object& event) {
    EXPECT_TRUE(answer_.error.empty()) << "an event after the error";
    if (const json::value* error = event.if_contains("error")) {
      EXPECT_TRUE(error->as_object().contains("message"));
      answer_.error = json::serialize(*error);
      return;
    }
    std::string head;
    for (const char* key : {"id", "object", "created", "model", "system_fingerprint"}) {
      EXPECT_TRUE(event.contains(key)) << key;
      head += json::serialize(event.at(key)) + " ";
    }
    if (head_.empty()) head_ = head;
    EXPECT_EQ(head, head_);
    EXPECT_EQ(event.at("object"), options_.chat ? "chat.completion.chunk" : "text_completion");

    const json::array& choices = event.at("choices").as_array();
    if (const json::value* timings = event.if_contains("timings"))
      answer_.timings = json::serialize(*timings);
    if (choices.empty()) {
      EXPECT_TRUE(options_.include_usage) << "an event without a choice";
      EXPECT_FALSE(usage_seen_);
      EXPECT_EQ(finished_.size(), answer_.choices.size()) << "usage before the last choice ended";
      usage_seen_ = true;
      answer_.usage = json::serialize(event.at("usage"));
      return;
    }
    EXPECT_FALSE(usage_seen_) << "a choice after usage";
    ++answer_.events;
    EXPECT_EQ(event.contains("usage"), options_.include_usage || options_.continuous_usage);
    if (const json::value* usage = event.if_contains("usage")) {
      EXPECT_EQ(usage->is_object(), options_.continuous_usage);
      if (usage->is_object()) last_usage_ = json::serialize(*usage);
    }
    if (const json::value* ids = event.if_contains("prompt_token_ids")) {
      EXPECT_TRUE(answer_.prompt_token_ids.empty());
      answer_.prompt_token_ids = ids->as_array();
    }
    ASSERT_EQ(choices.size(), 1u);
    read_choice(choices[0].as_object());
  }

  void read_choice(const json::object& choice) {
    const std::int64_t index = choice.at("index").as_int64();
    const bool first = !answer_.choices.contains(index);
    SeenChoice& seen = answer_.choices[index];
    EXPECT_FALSE(finished_.contains(index)) << "an event after finish_reason";
    const bool last = !choice.at("finish_reason").is_null();
    if (last) {
      finished_[index] = true;
      seen.finish_reason = std::string(choice.at("finish_reason").as_string());
      seen.stop_reason = json::serialize(choice.at("stop_reason"));
    }
    if (options_.chat) {
      read_delta(choice.at("delta").as_object(), first, last, seen);
      if (!choice.at("logprobs").is_null()) {
        const json::array& content = choice.at("logprobs").at("content").as_array();
        EXPECT_FALSE(content.empty());
        for (const json::value& entry : content) seen.logprobs.push_back(entry);
      }
    } else {
      const std::string text = std::string(choice.at("text").as_string());
      EXPECT_EQ(text.empty(), last) << "an empty piece of text";
      seen.content += text;
      read_lists(choice.at("logprobs"), seen);
    }
    if (const json::value* ids = choice.if_contains("token_ids")) {
      for (const json::value& id : ids->as_array()) seen.token_ids.push_back(id);
    }
  }

  static void read_lists(const json::value& logprobs, SeenChoice& seen) {
    if (logprobs.is_null()) return;
    seen.lists.resize(4);
    std::size_t i = 0;
    for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      for (const json::value& item : logprobs.at(key).as_array()) seen.lists[i].push_back(item);
      ++i;
    }
  }

  void read_delta(const json::object& delta, bool first, bool last, SeenChoice& seen) {
    if (first) {
      EXPECT_EQ(json::serialize(delta), R"({"role":"assistant","content":""})");
      EXPECT_FALSE(last);
      return;
    }
    if (last) {
      EXPECT_TRUE(delta.empty()) << json::serialize(delta);
      return;
    }
    ASSERT_EQ(delta.size(), 1u) << json::serialize(delta);
    const std::string key(delta.begin()->key());
    const json::value& value = delta.begin()->value();
    if (key == "content") {
      EXPECT_FALSE(value.as_string().empty());
      seen.content += std::string(value.as_string());
    } else if (key == options_.reasoning_field) {
      EXPECT_FALSE(value.as_string().empty());
      seen.reasoning += std::string(value.as_string());
    } else if (key == "tool_calls") {
      for (const json::value& call : value.as_array()) read_call(call.as_object(), seen);
    } else if (key == "function_call") {
      read_function(value.as_object(), seen.calls.empty(), seen);
    } else {
      ADD_FAILURE() << "unknown delta " << json::serialize(delta);
    }
  }

  static void read_call(const json::object& call, SeenChoice& seen) {
    const auto index = static_cast<std::size_t>(call.at("index").as_int64());
    ASSERT_LE(index, seen.calls.size());
    const bool begins = index == seen.calls.size();
    EXPECT_TRUE(begins || index + 1 == seen.calls.size()) << "a piece of an earlier call";
    EXPECT_EQ(call.contains("id"), begins);
    EXPECT_EQ(call.contains("type"), begins);
    if (begins) {
      EXPECT_EQ(call.at("type"), "function");
      const std::string id(call.at("id").as_string());
      EXPECT_TRUE(id.starts_with("call_"));
      EXPECT_EQ(id.size(), 29u);
      for (const std::string& other : seen.call_ids) EXPECT_NE(id, other);
      seen.call_ids.push_back(id);
    }
    read_function(call.at("function").as_object(), begins, seen);
  }

  static void read_function(const json::object& function, bool begins, SeenChoice& seen) {
    EXPECT_EQ(function.contains("name"), begins);
    if (begins) seen.calls.push_back({std::string(function.at("name").as_string()), ""});
    const std::string piece(function.at("arguments").as_string());
    EXPECT_EQ(piece.empty(), begins) << "arguments " << piece;
    seen.calls.back().arguments += piece;
  }

  Options options_;
  SeenAnswer answer_;
  std::map<std::int64_t, bool> finished_;
  std::string head_;
  std::string last_usage_;
  bool usage_seen_ = false;
};

inline SeenAnswer read_body(std::string_view body, bool is_chat = true,
                            std::string_view reasoning_field = "reasoning_content") {
  SeenAnswer answer;
  const Result<json::value> parsed = parse_json(body, "body");
  EXPECT_TRUE(parsed) << body;
  if (!parsed) return answer;
  const json::object& root = parsed->as_object();
  EXPECT_EQ(root.at("object"), is_chat ? "chat.completion" : "text_completion");
  answer.usage = json::serialize(root.at("usage"));
  if (const json::value* timings = root.if_contains("timings")) answer.timings = json::serialize(*timings);
  if (const json::value* ids = root.if_contains("prompt_token_ids"))
    answer.prompt_token_ids = ids->as_array();
  for (const json::value& item : root.at("choices").as_array()) {
    const json::object& choice = item.as_object();
    SeenChoice& seen = answer.choices[choice.at("index").as_int64()];
    seen.finish_reason = std::string(choice.at("finish_reason").as_string());
    seen.stop_reason = json::serialize(choice.at("stop_reason"));
    const json::value& logprobs = choice.at("logprobs");
    if (is_chat) {
      const json::object& message = choice.at("message").as_object();
      EXPECT_EQ(message.at("role"), "assistant");
      seen.content = text_or_empty(&message.at("content"));
      seen.reasoning = text_or_empty(message.if_contains(reasoning_field));
      if (const json::value* calls = message.if_contains("tool_calls")) {
        EXPECT_FALSE(calls->as_array().empty());
        for (const json::value& call : calls->as_array()) {
          EXPECT_EQ(call.at("type"), "function");
          seen.calls.push_back({std::string(call.at("function").at("name").as_string()),
                                std::string(call.at("function").at("arguments").as_string())});
          seen.call_ids.emplace_back(call.at("id").as_string());
        }
      }
      if (const json::value* call = message.if_contains("function_call")) {
        seen.calls.push_back(
            {std::string(call->at("name").as_string()), std::string(call->at("arguments").as_string())});
      }
      if (!logprobs.is_null()) seen.logprobs = logprobs.at("content").as_array();
    } else {
      seen.content = text_or_empty(&choice.at("text"));
      if (!logprobs.is_null()) {
        for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
          seen.lists.push_back(logprobs.at(key).as_array());
        }
      }
    }
    if (const json::value* ids = choice.if_contains("token_ids")) seen.token_ids = ids->as_array();
  }
  return answer;
}

}  // namespace mimo
