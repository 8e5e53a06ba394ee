// The loop of `mimo chat`: lines in, answers out.
#pragma once

#include <string>
#include <string_view>

#include "chat/chat_history.h"
#include "chat/chat_server.h"
#include "chat/terminal.h"

namespace mimo {

class ChatSession {
 public:
  // All must outlive the session. `model`: named in requests; may be empty.
  ChatSession(const ChatServer& server, std::string model, ChatHistory& history, const Interrupts& interrupts,
              Terminal& terminal);

  // Until the end of stdin, /exit, or Ctrl-C while nothing is answered. The exit status: 1 if stdin was no terminal
  // and something failed.
  int run();

 private:
  // False: leave.
  bool command(std::string_view line);
  void ask(std::string_view text);
  void show(const ChatPiece& piece);
  void failed(const Error& error);

  const ChatServer& server_;
  std::string model_;
  ChatHistory& history_;
  const Interrupts& interrupts_;
  Terminal& terminal_;
  bool thought_ = false;  // the last text of this answer was reasoning
  bool any_failed_ = false;
};

}  // namespace mimo
