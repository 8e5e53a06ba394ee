// Writing the head of an answer.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/exchange.h"

namespace mimo::http {

// What every answer starts with, whatever it will be.
inline constexpr std::string_view kVersion = "HTTP/1.1 ";

enum class Framing {
  kLength,    // Content-Length
  kChunked,   // Transfer-Encoding: chunked
  kToTheEnd,  // until the connection closes
  kNothing,   // statuses that have no body
};

struct ResponseHead {
  int status = 200;
  std::string_view content_type;
  Framing framing = Framing::kLength;
  std::size_t length = 0;       // kLength only
  std::string_view connection;  // "close", "keep-alive" or empty
};

// Headers that framing or the connection decide (Content-Length, Transfer-Encoding, Connection, Content-Type, Date)
// are left out of `headers`; control characters in values become spaces.
void append_head(std::string& out, const ResponseHead& head, const HttpHeaders& headers,
                 const HttpHeaders& more_headers);

std::string_view reason_phrase(int status);

// Statuses that have no body by definition.
bool never_has_body(int status);

}  // namespace mimo::http
