#include "chat/chat_session.h"

#include <fmt/format.h>

#include <fstream>
#include <utility>

namespace mimo {
namespace {

constexpr std::string_view kHelp =
    "/clear              forget the conversation\n"
    "/system TEXT        system prompt from now on; without TEXT: none\n"
    "/think on|off       thinking; without: as the server has it\n"
    "/set NAME VALUE     sampling, e.g. /set temperature 0; without VALUE: the server's; without both: shows "
    "all\n"
    "/save FILE          write the conversation, as mimo generate --chat reads it\n"
    "/exit               leave, as Ctrl-D and Ctrl-C do\n"
    "//...               a message that begins with /\n"
    "Ctrl-C stops an answer. A line that ends in \\ goes on with the next one.";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// The first word, and what follows it.
std::pair<std::string_view, std::string_view> split(std::string_view text) {
  const std::size_t end = text.find_first_of(" \t\n");
  if (end == std::string_view::npos) return {text, {}};
  return {text.substr(0, end), trimmed(text.substr(end))};
}

Status save(const ChatHistory& history, std::string_view path) {
  if (path.empty()) return fail(ErrorCode::kInvalidArgument, "/save: which file?");
  std::ofstream file{std::string(path), std::ios::binary};
  file << json::serialize(history.saved()) << '\n';
  file.close();
  if (!file) return fail(ErrorCode::kInternal, "/save: {} cannot be written", path);
  return {};
}

}  // namespace

ChatSession::ChatSession(const ChatServer& server, std::string model, ChatHistory& history,
                         const Interrupts& interrupts, Terminal& terminal)
    : server_(server),
      model_(std::move(model)),
      history_(history),
      interrupts_(interrupts),
      terminal_(terminal) {}

int ChatSession::run() {
  std::string line;
  while (terminal_.read(line) == Terminal::Input::kLine) {
    const std::string_view text = trimmed(line);
    if (text.empty()) continue;
    if (text.starts_with("//")) {
      ask(text.substr(1));
    } else if (text.starts_with('/')) {
      if (!command(text)) break;
    } else {
      ask(text);
    }
  }
  return any_failed_ && !terminal_.interactive() ? 1 : 0;
}

bool ChatSession::command(std::string_view line) {
  const auto [name, argument] = split(line);
  Status done;
  if (name == "/exit" || name == "/quit") return false;
  if (name == "/help") {
    terminal_.write(fmt::format("{}\n", kHelp), false);
  } else if (name == "/clear") {
    history_.clear();
    terminal_.note("The conversation is forgotten.");
  } else if (name == "/system") {
    history_.system = argument;
    terminal_.note(argument.empty() ? "No system prompt." : "The system prompt is set.");
  } else if (name == "/think" && (argument.empty() || argument == "on" || argument == "off")) {
    history_.thinking.reset();
    if (!argument.empty()) history_.thinking = argument == "on";
  } else if (name == "/think") {
    done = fail(ErrorCode::kInvalidArgument, "/think: \"{}\"; expected on, off or nothing", argument);
  } else if (name == "/set" && argument.empty()) {
    for (const std::string_view setting : ChatHistory::settings()) {
      const std::string value = history_.get(setting);
      terminal_.write(fmt::format("{} {}\n", setting, value.empty() ? "(the server's)" : value), false);
    }
  } else if (name == "/set") {
    const auto [setting, value] = split(argument);
    done = history_.set(setting, value);
  } else if (name == "/save") {
    done = save(history_, argument);
    if (done) terminal_.note(fmt::format("Saved to {}.", argument));
  } else {
    done = fail(ErrorCode::kInvalidArgument, "unknown command {}; /help shows those there are", name);
  }
  if (!done) failed(done.error());
  return true;
}

void ChatSession::ask(std::string_view text) {
  history_.ask(text);
  ChatAnswer answer;
  thought_ = false;
  const Status done = server_.stream(
      history_.request(model_), [this] { return interrupts_.take(); },
      [&](const json::value& chunk) -> Status {
        const Result<ChatPiece> piece = answer.take(chunk);
        if (!piece) return forward_error(piece);
        show(*piece);
        return {};
      });
  for (const ChatCall& call : answer.calls())
    terminal_.write(fmt::format("[calls {} {}]\n", call.name, call.arguments), false);
  if (answer.empty()) {
    history_.take_back();
  } else {
    history_.answer(answer);
    terminal_.write("\n", false);
  }
  if (!done && done.error().code != ErrorCode::kCancelled) return failed(done.error());
  std::string note = answer.figures();
  const auto add = [&](std::string_view more) { note += (note.empty() ? "" : ", ") + std::string(more); };
  if (!done) add("stopped");
  if (answer.cut()) add("cut by the token limit");
  if (!note.empty()) terminal_.note(fmt::format("[{}]\n", note));
}

// Reasoning is for people only: what reads our output gets the answer.
void ChatSession::show(const ChatPiece& piece) {
  if (!piece.reasoning.empty() && terminal_.interactive()) {
    terminal_.write(piece.reasoning, true);
    thought_ = true;
  }
  if (piece.content.empty()) return;
  if (thought_) terminal_.write("\n\n", false);
  thought_ = false;
  terminal_.write(piece.content, false);
}

void ChatSession::failed(const Error& error) {
  any_failed_ = true;
  terminal_.error(error.message);
}

}  // namespace mimo
