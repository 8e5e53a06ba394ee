// The request target: from the bytes of the request line to the path that routes are compared with.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"

namespace mimo::http {

struct Target {
  std::string
      path;  // percent-decoded once; valid UTF-8 without control characters; starts with '/', or is "*"
  std::string query;  // as sent
};

// Origin form ("/a%20b?q"), absolute form ("http://host/a") or "*". Dot segments and double slashes stay as they
// are: no route contains any, so such paths match nothing.
Result<Target> parse_target(std::string_view raw);

bool valid_utf8(std::string_view text);

}  // namespace mimo::http
