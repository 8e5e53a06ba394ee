// What has been said, and how the next answer is to be made.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/chat_answer.h"
#include "core/json.h"
#include "core/result.h"

namespace mimo {

class ChatHistory {
 public:
  // Fields of a request that set() knows, all of them numbers.
  static std::span<const std::string_view> settings();

  // `value` empty: back to the server's own. kInvalidArgument for an unknown name, or no number; whether it is in
  // range is the server's business.
  Status set(std::string_view name, std::string_view value);
  std::string get(std::string_view name) const;  // empty: the server's

  std::string system;            // empty: none
  std::optional<bool> thinking;  // none: as the server has it

  void ask(std::string_view text);
  // Takes back what ask() added: it has no answer.
  void take_back();
  void answer(const ChatAnswer& answer) { messages_.push_back(answer.message()); }
  void clear() { messages_.clear(); }
  bool empty() const { return messages_.empty(); }

  // The body that asks for the next answer as a stream. `model` empty: not named.
  json::object request(std::string_view model) const;
  // As `mimo generate --chat` reads it.
  json::object saved() const;

 private:
  json::array with_system() const;

  json::array messages_;
  std::vector<std::pair<std::string_view, json::value>> set_;  // those that are not the server's
};

}  // namespace mimo
