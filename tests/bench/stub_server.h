// A server on a free port whose answers a test scripts, byte by byte and pause by pause.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/http_url.h"

namespace mimo {

// Part of an answer, sent after a pause.
struct StubPart {
  double pause_ms = 0;
  std::string bytes;
};

struct StubRequest {
  std::string method;
  std::string path;
  std::string body;
};

class StubServer {
 public:
  using Script = std::function<std::vector<StubPart>(const StubRequest&)>;

  // An answer whose connection is closed behind it ends with a part that has these bytes.
  static constexpr const char* kClose = "CLOSE";

  explicit StubServer(Script script) : script_(std::move(script)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_, 128);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    accepting_ = std::thread([this] { accept(); });
  }

  ~StubServer() {
    ::shutdown(listener_, SHUT_RDWR);
    ::close(listener_);
    accepting_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    for (const int socket : sockets_) ::close(socket);
  }

  HttpUrl url() const { return {.host = "127.0.0.1", .port = std::to_string(port_), .path = ""}; }
  int connections() const { return connections_; }
  int most_at_once() const { return most_; }
  std::vector<StubRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void accept() {
    for (;;) {
      const int socket = ::accept(listener_, nullptr, nullptr);
      if (socket < 0) return;
      const int on = 1;
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      ++connections_;
      const std::lock_guard lock(mutex_);
      sockets_.push_back(socket);
      threads_.emplace_back([this, socket] { serve(socket); });
    }
  }

  // False: the client is gone.
  static bool read_more(int socket, std::string& input) {
    char buffer[16384];
    const ssize_t got = ::recv(socket, buffer, sizeof buffer, 0);
    if (got <= 0) return false;
    input.append(buffer, static_cast<std::size_t>(got));
    return true;
  }

  void serve(int socket) {
    std::string input;
    for (;;) {
      std::size_t head = 0;
      while ((head = input.find("\r\n\r\n")) == std::string::npos) {
        if (!read_more(socket, input)) return;
      }
      StubRequest request;
      const std::string line = input.substr(0, input.find("\r\n"));
      request.method = line.substr(0, line.find(' '));
      request.path = line.substr(request.method.size() + 1, line.rfind(' ') - request.method.size() - 1);
      std::size_t length = 0;
      const std::size_t field = input.find("Content-Length: ");
      if (field < head) length = std::stoul(input.substr(field + 16));
      while (input.size() < head + 4 + length) {
        if (!read_more(socket, input)) return;
      }
      request.body = input.substr(head + 4, length);
      input.erase(0, head + 4 + length);
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
        most_ = std::max(most_.load(), ++at_once_);
      }
      bool close = false;
      for (const StubPart& part : script_(request)) {
        if (part.pause_ms > 0)
          std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(part.pause_ms));
        close = part.bytes == kClose;
        if (!close) ::send(socket, part.bytes.data(), part.bytes.size(), MSG_NOSIGNAL);
      }
      {
        const std::lock_guard lock(mutex_);
        --at_once_;
      }
      if (close) {
        ::shutdown(socket, SHUT_RDWR);
        return;
      }
    }
  }

  Script script_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int> connections_{0};
  std::atomic<int> most_{0};
  int at_once_ = 0;
  std::mutex mutex_;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
  std::vector<StubRequest> requests_;
  std::thread accepting_;
};

inline std::string chunk(const std::string& bytes) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return size + bytes + "\r\n";
}

inline std::string stream_head() {
  return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: "
         "chunked\r\n\r\n";
}

inline std::string plain_answer(const std::string& body, const std::string& status = "200 OK") {
  return "HTTP/1.1 " + status +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

}  // namespace mimo
