#include "chat/local_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include "core/check.h"

extern char** environ;

namespace mimo {
namespace {

constexpr int kPollMs = 30;
constexpr std::chrono::seconds kEndTime{5};  // between the polite and the other signal
constexpr std::size_t kKeptLog = 64u << 10;  // bytes: the last lines have the error
constexpr std::string_view kReady = " ready: ";

std::string random_key() {
  std::array<unsigned char, 32> bytes{};
  MIMO_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "no randomness");
  std::string key;
  for (const unsigned char byte : bytes) key += fmt::format("{:02x}", byte);
  return key;
}

// The last line, without the program's name in front.
std::string last_line(std::string_view log) {
  while (log.ends_with('\n')) log.remove_suffix(1);
  std::string_view line = log.substr(log.rfind('\n') + 1);  // npos + 1 is 0
  if (line.starts_with("mimo: ")) line.remove_prefix(6);
  return std::string(line);
}

// The URL of the ready line, if that is complete.
std::string ready_url(std::string_view log) {
  const std::size_t at = log.find(kReady);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = log.substr(at + kReady.size());
  if (rest.find('\n') == std::string_view::npos) return {};
  return std::string(rest.substr(0, rest.find_first_of(" \n")));
}

}  // namespace

// What the server says. It is read to the end, so that a full pipe never stops the server.
struct LocalServer::Log {
  int descriptor = -1;
  std::string text;
  std::jthread reader;

  ~Log() {
    if (reader.joinable()) reader.join();
    if (descriptor >= 0) close(descriptor);
  }

  // False: the end.
  bool read_more() {
    char bytes[4096];
    ssize_t count = 0;
    do {
      count = read(descriptor, bytes, sizeof bytes);
    } while (count < 0 && errno == EINTR);
    if (count <= 0) return false;
    text.append(bytes, static_cast<std::size_t>(count));
    if (text.size() > kKeptLog) text.erase(0, text.size() - kKeptLog / 2);
    return true;
  }
};

LocalServer::LocalServer() : api_key_(random_key()), log_(std::make_unique<Log>()) {}

Result<std::unique_ptr<LocalServer>> LocalServer::start(const std::string& directory,
                                                        const std::function<bool()>& stop) {
  std::unique_ptr<LocalServer> server(new LocalServer());
  if (const Status spawned = server->spawn(directory); !spawned) return forward_error(spawned);
  if (const Status ready = server->wait_until_ready(stop); !ready) return forward_error(ready);
  server->log_->reader = std::jthread([log = server->log_.get()] {
    while (log->read_more()) {
    }
  });
  return server;
}

Status LocalServer::spawn(const std::string& directory) {
  std::vector<std::string> words = {"mimo", "serve"};
  if (!directory.empty()) words.push_back(directory);
  words.insert(words.end(), {"--host", "127.0.0.1", "--port", "0", "--disable-log-requests"});
  // A command line is seen by all users, an environment is not.
  std::vector<std::string> variables = {"MIMO_API_KEY=" + api_key_};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("MIMO_API_KEY=")) variables.emplace_back(*entry);
  }
  const auto pointers = [](std::vector<std::string>& list) {
    std::vector<char*> all;
    for (std::string& text : list) all.push_back(text.data());
    all.push_back(nullptr);
    return all;
  };
  const std::vector<char*> arguments = pointers(words);
  const std::vector<char*> environment = pointers(variables);
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return fail(ErrorCode::kInternal, "no pipe for the server's log");
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) {
    // Out of the terminal's reach, and gone when we are.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    std::signal(SIGINT, SIG_DFL);
    dup2(nothing, STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execve("/proc/self/exe", arguments.data(), environment.data());
    _exit(127);
  }
  close(ends[1]);
  if (nothing >= 0) close(nothing);
  log_->descriptor = ends[0];
  if (process_ < 0) return fail(ErrorCode::kInternal, "the server's process cannot be started");
  return {};
}

Status LocalServer::wait_until_ready(const std::function<bool()>& stop) {
  for (;;) {
    if (stop()) return fail(ErrorCode::kCancelled, "stopped");
    pollfd log{log_->descriptor, POLLIN, 0};
    if (poll(&log, 1, kPollMs) <= 0) continue;
    if (!log_->read_more()) return fail(ErrorCode::kUnavailable, "{}", last_line(log_->text));
    url_ = ready_url(log_->text);
    if (!url_.empty()) return {};
  }
}

LocalServer::~LocalServer() {
  if (process_ <= 0) return;
  kill(process_, SIGTERM);
  const auto end = std::chrono::steady_clock::now() + kEndTime;
  while (waitpid(process_, nullptr, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
  }
}

}  // namespace mimo
