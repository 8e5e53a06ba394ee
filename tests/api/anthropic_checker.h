// Reads Anthropic answers, whole or streamed, into one form; checks the order of events.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace mimo {

struct SeenBlock {
  std::string type;
  std::string text;  // thinking, text, or the input as JSON text
  std::string name;
  bool operator==(const SeenBlock&) const = default;
};

struct SeenMessage {
  std::vector<SeenBlock> blocks;
  std::vector<std::string> ids;  // of tool_use blocks
  std::string stop_reason;
  std::string stop_sequence;  // JSON text
  std::string usage;          // JSON text, of the end
  std::string error;          // JSON text
};

class MessageChecker {
 public:
  SeenMessage read(std::string_view stream) {
    while (!stream.empty()) {
      const std::size_t end = stream.find("\n\n");
      EXPECT_NE(end, std::string_view::npos) << stream;
      if (end == std::string_view::npos) break;
      read_event(stream.substr(0, end));
      stream.remove_prefix(end + 2);
    }
    EXPECT_TRUE(stopped_ || !message_.error.empty()) << "no message_stop";
    return message_;
  }

 private:
  void read_event(std::string_view event) {
    EXPECT_FALSE(stopped_) << "an event after message_stop";
    EXPECT_TRUE(message_.error.empty()) << "an event after the error";
    ASSERT_TRUE(event.starts_with("event: ")) << event;
    const std::size_t line = event.find('\n');
    ASSERT_NE(line, std::string_view::npos);
    const std::string_view name = event.substr(7, line - 7);
    const std::string_view data = event.substr(line + 1);
    ASSERT_TRUE(data.starts_with("data: ")) << data;
    EXPECT_EQ(data.find('\n'), std::string_view::npos);
    const Result<json::value> parsed = parse_json(data.substr(6), "event");
    ASSERT_TRUE(parsed) << data;
    const json::object& body = parsed->as_object();
    EXPECT_EQ(std::string(body.at("type").as_string()), name);
    if (name != "error") {
      EXPECT_EQ(started_, name != "message_start") << name;
    }
    if (name == "message_start") return start(body.at("message").as_object());
    if (name == "content_block_start") return block_start(body);
    if (name == "content_block_delta") return block_delta(body);
    if (name == "content_block_stop") return block_stop(body);
    if (name == "message_delta") return message_delta(body);
    if (name == "message_stop") {
      EXPECT_TRUE(ended_) << "no message_delta";
      stopped_ = true;
      return;
    }
    ASSERT_EQ(name, "error");
    message_.error = json::serialize(body.at("error"));
  }

  void start(const json::object& message) {
    EXPECT_FALSE(started_);
    started_ = true;
    EXPECT_EQ(message.at("type"), "message");
    EXPECT_EQ(message.at("role"), "assistant");
    EXPECT_TRUE(message.at("content").as_array().empty());
    EXPECT_TRUE(message.at("stop_reason").is_null());
    EXPECT_EQ(message.at("usage").at("input_tokens"), 6);
    EXPECT_EQ(message.at("usage").at("cache_read_input_tokens"), 4);
  }

  void block_start(const json::object& body) {
    EXPECT_FALSE(open_) << "blocks overlap";
    EXPECT_FALSE(ended_);
    open_ = true;
    signed_ = false;
    EXPECT_EQ(body.at("index").as_int64(), static_cast<std::int64_t>(message_.blocks.size()));
    const json::object& block = body.at("content_block").as_object();
    const std::string type(block.at("type").as_string());
    message_.blocks.push_back({type, "", ""});
    if (type == "tool_use") {
      EXPECT_TRUE(block.at("input").as_object().empty());
      message_.blocks.back().name = std::string(block.at("name").as_string());
      message_.ids.emplace_back(block.at("id").as_string());
    } else {
      EXPECT_EQ(block.at(type), "");
    }
  }

  void block_delta(const json::object& body) {
    ASSERT_TRUE(open_) << "a delta outside of a block";
    EXPECT_EQ(body.at("index").as_int64(), static_cast<std::int64_t>(message_.blocks.size()) - 1);
    SeenBlock& block = message_.blocks.back();
    const json::object& delta = body.at("delta").as_object();
    const std::string type(delta.at("type").as_string());
    if (type == "signature_delta") {
      EXPECT_EQ(block.type, "thinking");
      EXPECT_FALSE(signed_);
      EXPECT_FALSE(delta.at("signature").as_string().empty());
      signed_ = true;
      return;
    }
    EXPECT_FALSE(signed_) << "a delta after the signature";
    const char* member = type == "text_delta"       ? "text"
                         : type == "thinking_delta" ? "thinking"
                                                    : "partial_json";
    EXPECT_EQ(block.type, type == "text_delta" ? "text" : type == "thinking_delta" ? "thinking" : "tool_use");
    EXPECT_FALSE(delta.at(member).as_string().empty());
    block.text += std::string(delta.at(member).as_string());
  }

  void block_stop(const json::object& body) {
    EXPECT_TRUE(open_);
    open_ = false;
    EXPECT_EQ(body.at("index").as_int64(), static_cast<std::int64_t>(message_.blocks.size()) - 1);
    EXPECT_EQ(signed_, message_.blocks.back().type == "thinking");
  }

  void message_delta(const json::object& body) {
    EXPECT_FALSE(open_) << "a block is open";
    EXPECT_FALSE(ended_);
    ended_ = true;
    message_.stop_reason = std::string(body.at("delta").at("stop_reason").as_string());
    message_.stop_sequence = json::serialize(body.at("delta").at("stop_sequence"));
    message_.usage = json::serialize(body.at("usage"));
  }

  SeenMessage message_;
  bool started_ = false;
  bool open_ = false;
  bool signed_ = false;
  bool ended_ = false;
  bool stopped_ = false;
};

inline SeenMessage read_message(std::string_view body) {
  SeenMessage message;
  const Result<json::value> parsed = parse_json(body, "body");
  EXPECT_TRUE(parsed) << body;
  if (!parsed) return message;
  const json::object& root = parsed->as_object();
  EXPECT_EQ(root.at("type"), "message");
  EXPECT_EQ(root.at("role"), "assistant");
  for (const json::value& item : root.at("content").as_array()) {
    const json::object& block = item.as_object();
    const std::string type(block.at("type").as_string());
    SeenBlock seen{type, "", ""};
    if (type == "tool_use") {
      EXPECT_TRUE(block.at("input").is_object());
      seen.text = json::serialize(block.at("input"));
      seen.name = std::string(block.at("name").as_string());
      message.ids.emplace_back(block.at("id").as_string());
    } else {
      seen.text = std::string(block.at(type).as_string());
      EXPECT_EQ(block.contains("signature"), type == "thinking");
    }
    message.blocks.push_back(std::move(seen));
  }
  message.stop_reason = std::string(root.at("stop_reason").as_string());
  message.stop_sequence = json::serialize(root.at("stop_sequence"));
  message.usage = json::serialize(root.at("usage"));
  return message;
}

}  // namespace mimo
