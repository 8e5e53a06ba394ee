// An answer put together from the chunks of an OpenAI chat stream, with what is known about its speed.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/result.h"

namespace mimo {

struct ChatCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text
};

// What one chunk adds.
struct ChatPiece {
  std::string reasoning;
  std::string content;
};

class ChatAnswer {
 public:
  // kCorrupt where a chunk is none. Fields nobody here knows are ignored, as servers add many.
  Result<ChatPiece> take(const json::value& chunk);

  const std::string& content() const { return content_; }
  const std::vector<ChatCall>& calls() const { return calls_; }
  bool cut() const { return finish_ == "length"; }
  bool empty() const { return reasoning_.empty() && content_.empty() && calls_.empty(); }

  // As the API takes it back. Calls whose arguments are no JSON, because the answer was stopped, are left out.
  json::object message() const;

  // "107 tokens, 412 tokens/s, accept length 7.70", as far as the server says; may be empty.
  std::string figures() const;

 private:
  using Clock = std::chrono::steady_clock;

  void take_calls(const json::array& parts);
  void take_usage(const json::object& chunk);

  std::string reasoning_;
  std::string content_;
  std::vector<ChatCall> calls_;
  std::string finish_;
  std::int64_t tokens_ = 0;
  double rate_ = 0;           // tokens a second, by the server; 0: it does not say
  double accept_length_ = 0;  // 0: no drafts
  Clock::time_point first_;   // of the text
  Clock::time_point last_;
};

}  // namespace mimo
