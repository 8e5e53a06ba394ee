#pragma once

#include <string>
#include <string_view>

namespace mimo::http {

// The client's X-Request-Id if it is printable ASCII without spaces, quotes or backslashes and of at most 128
// characters; else a random one ("req-" and 32 hexadecimal digits).
std::string choose_request_id(std::string_view offered);

}  // namespace mimo::http
