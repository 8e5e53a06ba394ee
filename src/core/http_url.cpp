#include "core/http_url.h"

namespace mimo {

std::string HttpUrl::authority() const {
  const std::string shown = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == "80" ? shown : shown + ":" + port;
}

Result<HttpUrl> parse_http_url(std::string_view text) {
  const auto wrong = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidArgument, "URL {}: {}; expected http://HOST[:PORT][/PATH]", text, what);
  };
  if (text.starts_with("https://")) {
    return fail(ErrorCode::kUnsupported,
                "URL {}: https is not supported; give an http:// address (of a proxy that speaks TLS)", text);
  }
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) return wrong("not an http:// address");
  std::string_view rest = text.substr(kScheme.size());
  if (rest.find_first_of("?#@ \t\r\n\\") != std::string_view::npos)
    return wrong("queries, fragments, user names and spaces are not allowed");
  HttpUrl url;
  const std::size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    url.path = rest.substr(slash);
    while (url.path.ends_with('/')) url.path.pop_back();
    rest = rest.substr(0, slash);
  }
  std::string_view port;
  bool has_port = false;
  if (rest.starts_with('[')) {
    const std::size_t close = rest.find(']');
    if (close == std::string_view::npos) return wrong("the bracket is not closed");
    url.host = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
    if (!rest.empty() && rest.front() != ':') return wrong("unexpected text after the address");
    has_port = !rest.empty();
    if (has_port) port = rest.substr(1);
  } else {
    const std::size_t colon = rest.find(':');
    url.host = rest.substr(0, colon);
    has_port = colon != std::string_view::npos;
    if (has_port) port = rest.substr(colon + 1);
  }
  if (url.host.empty()) return wrong("no host");
  if (has_port) {
    unsigned number = 0;
    for (const char c : port)
      number = c >= '0' && c <= '9' && number < 100'000 ? number * 10 + (c - '0') : 100'000;
    if (port.empty() || number == 0 || number > 65'535)
      return wrong("the port is not a number from 1 to 65535");
    url.port = std::to_string(number);
  }
  return url;
}

}  // namespace mimo
