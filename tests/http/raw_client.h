// A client made of plain socket calls, so that tests can do what no HTTP library would.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace mimo {

using std::chrono::milliseconds;

struct RawResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;                       // as its framing says
};

class RawClient {
 public:
  // receive_buffer: SO_RCVBUF, 0: the system's.
  explicit RawClient(std::uint16_t port, int receive_buffer = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  RawClient(RawClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_), input_(std::move(other.input_)) {}
  RawClient& operator=(RawClient&&) = delete;
  ~RawClient() { close(); }

  bool connected() const { return connected_; }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }

  void shutdown_write() { ::shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  // Closes with a reset.
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }

  // Appends what comes next to what was read; false: nothing more (see ended()) or not in time.
  bool read_some(milliseconds limit = milliseconds(5000)) {
    pollfd poll_fd{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&poll_fd, 1, static_cast<int>(limit.count())) <= 0) return false;
    char buffer[65536];
    const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) {
      ended_ = true;
      reset_ = n < 0;
      return false;
    }
    input_.append(buffer, static_cast<std::size_t>(n));
    return true;
  }

  // All until the connection ends; false: it did not.
  bool read_to_end(milliseconds limit = milliseconds(5000)) {
    while (read_some(limit)) continue;
    return ended_;
  }

  bool read_until(std::string_view text, milliseconds limit = milliseconds(5000)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (input_.find(text) == std::string::npos) {
      const auto left = std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
      if (left.count() <= 0 || !read_some(left)) return false;
    }
    return true;
  }

  std::string& input() { return input_; }
  bool ended() const { return ended_; }  // the server has closed
  bool was_reset() const { return reset_; }

  // The next response. `head`: of a HEAD request.
  RawResponse response(bool head = false, milliseconds limit = milliseconds(5000)) {
    RawResponse response;
    if (!read_until("\r\n\r\n", limit)) return response;
    const std::size_t end = input_.find("\r\n\r\n");
    const std::string text = input_.substr(0, end + 2);
    input_.erase(0, end + 4);
    if (!text.starts_with("HTTP/1.1 ")) return response;
    response.status = std::atoi(text.c_str() + 9);
    for (std::size_t at = text.find("\r\n") + 2; at < text.size();) {
      const std::size_t line_end = text.find("\r\n", at);
      const std::string line = text.substr(at, line_end - at);
      std::string name = line.substr(0, line.find(':'));
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      response.headers[name] = line.substr(line.find(':') + 2);
      at = line_end + 2;
    }
    if (head || response.status == 204 || response.status < 200) {
      response.complete = true;
    } else if (response.headers.contains("content-length")) {
      const auto length = static_cast<std::size_t>(std::atoll(response.headers["content-length"].c_str()));
      while (input_.size() < length && read_some(limit)) continue;
      response.complete = input_.size() >= length;
      response.body = input_.substr(0, length);
      input_.erase(0, length);
    } else if (response.headers.contains("transfer-encoding")) {
      while (true) {
        const std::optional<std::string> chunk = next_chunk(limit);
        if (!chunk) break;
        if (chunk->empty()) {
          response.complete = true;
          break;
        }
        response.body += *chunk;
      }
    } else {
      response.complete = read_to_end(limit);
      response.body = std::exchange(input_, {});
    }
    return response;
  }

  // Of a chunked body whose head has been read; empty: the last one; none: the connection ended, or nothing in time.
  std::optional<std::string> next_chunk(milliseconds limit = milliseconds(5000)) {
    if (!read_until("\r\n", limit)) return std::nullopt;
    const std::size_t line = input_.find("\r\n");
    const auto size = static_cast<std::size_t>(std::strtoull(input_.c_str(), nullptr, 16));
    while (input_.size() < line + 2 + size + 2) {
      if (!read_some(limit)) return std::nullopt;
    }
    std::string chunk = input_.substr(line + 2, size);
    EXPECT_EQ(input_.substr(line + 2 + size, 2), "\r\n");
    input_.erase(0, line + 2 + size + 2);
    return chunk;
  }

 private:
  int fd_;
  bool connected_ = false;
  bool ended_ = false;
  bool reset_ = false;
  std::string input_;
};

inline std::string get(std::string_view path, std::string_view more_headers = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n" + std::string(more_headers) + "\r\n";
}

inline std::string post(std::string_view path, std::string_view body, std::string_view more_headers = "") {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: test\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         std::string(more_headers) + "\r\n" + std::string(body);
}

}  // namespace mimo
