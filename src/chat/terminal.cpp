#include "chat/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "core/check.h"

namespace mimo {
namespace {

int interrupt_write_end = -1;

void on_interrupt(int /*number*/) {
  const int saved = errno;
  // A full pipe says the same.
  [[maybe_unused]] const auto written = write(interrupt_write_end, "i", 1);
  errno = saved;
}

}  // namespace

Interrupts::Interrupts() {
  int ends[2] = {-1, -1};
  MIMO_CHECK(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "no pipe");
  read_end_ = ends[0];
  interrupt_write_end = ends[1];
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

bool Interrupts::take() const {
  char bytes[64];
  bool any = false;
  while (::read(read_end_, bytes, sizeof bytes) > 0) any = true;
  return any;
}

Terminal::Terminal(const Interrupts& interrupts)
    : interrupts_(interrupts),
      interactive_(isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1),
      colors_(isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr),
      output_is_terminal_(isatty(STDOUT_FILENO) == 1) {}

Terminal::Input Terminal::read_one(std::string& line) {
  for (;;) {
    if (const std::size_t end = waiting_.find('\n'); end != std::string::npos) {
      line = waiting_.substr(0, end);
      waiting_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return Input::kLine;
    }
    if (ended_) {
      if (waiting_.empty()) return Input::kEnd;
      line = std::move(waiting_);
      waiting_.clear();
      return Input::kLine;
    }
    pollfd both[] = {{STDIN_FILENO, POLLIN, 0}, {interrupts_.descriptor(), POLLIN, 0}};
    if (poll(both, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return Input::kEnd;
    }
    if (both[1].revents != 0 && interrupts_.take()) return Input::kInterrupted;
    if (both[0].revents == 0) continue;
    char bytes[4096];
    const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count > 0) {
      waiting_.append(bytes, static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      ended_ = true;
    }
  }
}

Terminal::Input Terminal::read(std::string& line) {
  line.clear();
  for (const char* prompt = "> ";; prompt = ". ") {
    if (interactive_) {
      fmt::print("{}", prompt);
      std::fflush(stdout);
    }
    std::string part;
    const Input got = read_one(part);
    if (got != Input::kLine) {
      if (interactive_) fmt::print("\n");
      return got == Input::kEnd && !line.empty() ? Input::kLine : got;
    }
    line += part;
    if (!line.ends_with('\\')) return Input::kLine;
    line.back() = '\n';
  }
}

void Terminal::set_dim(bool dim) {
  if (!colors_ || dim == dim_) return;
  dim_ = dim;
  fmt::print("{}", dim ? "\x1b[2m" : "\x1b[0m");
}

void Terminal::write(std::string_view text, bool dim) {
  set_dim(dim);
  fmt::print("{}", output_is_terminal_ ? without_controls(text) : std::string(text));
  set_dim(false);
  std::fflush(stdout);
}

void Terminal::note(std::string_view text) {
  if (!output_is_terminal_) return;
  write(fmt::format("{}\n", text), true);
}

void Terminal::error(std::string_view text) const {
  std::fflush(stdout);
  fmt::print(stderr, "mimo: {}\n", without_controls(text));
}

std::string without_controls(std::string_view text) {
  std::string kept;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) continue;
    // U+0080 to U+009F: the same once more, as two bytes.
    if (c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0) {
      ++i;
      continue;
    }
    kept += text[i];
  }
  return kept;
}

}  // namespace mimo
