// Server-sent events out of the bytes of a body, however the network cut them. Strict: what is no event stream is an
// error, not an empty answer.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/result.h"

namespace mimo {

struct SseEvent {
  std::string_view name;  // of an "event:" line; empty: none
  std::string_view data;  // lines joined by '\n'
};

class SseReader {
 public:
  // Calls `event` for each event that `bytes` complete, until it fails. kCorrupt: not an event stream; kLimit: an
  // event of more than 64 MiB.
  Status feed(std::string_view bytes, const std::function<Status(const SseEvent&)>& event);

  // kCorrupt if the body ended inside an event.
  Status finish() const;

 private:
  Status line(std::string_view text, const std::function<Status(const SseEvent&)>& event);

  std::string partial_;  // of a line
  std::string name_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace mimo
