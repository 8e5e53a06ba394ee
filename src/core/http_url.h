// Addresses of servers that a client is given on the command line.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"

namespace mimo {

struct HttpUrl {
  std::string host;  // without the brackets of an IPv6 address
  std::string port = "80";
  std::string path;  // without a final '/'; "" or "/prefix"

  std::string authority() const;  // for the Host header and messages
};

// http://HOST[:PORT][/PATH]. kUnsupported for https, kInvalidArgument for anything else.
Result<HttpUrl> parse_http_url(std::string_view text);

}  // namespace mimo
