#include "server/http/response_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>

#include "server/http/ascii.h"

namespace mimo::http {
namespace {

bool ours(std::string_view name) {
  constexpr std::string_view kOurs[] = {"content-length", "transfer-encoding", "connection", "content-type",
                                        "date"};
  return std::any_of(std::begin(kOurs), std::end(kOurs),
                     [&](std::string_view own) { return equal_ignoring_case(name, own); });
}

bool is_token(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return c > 0x20 && c < 0x7f && std::string_view("()<>@,;:\\\"/[]?={}").find(c) == std::string_view::npos;
  });
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  std::transform(value.begin(), value.end(), std::back_inserter(out),
                 [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c; });
  out += "\r\n";
}

// "Sun, 06 Nov 1994 08:49:37 GMT", in English whatever the locale.
std::string http_date() {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm t{};
  gmtime_r(&now, &t);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[t.tm_wday], t.tm_mday, kMonths[t.tm_mon],
                     t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

}  // namespace

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

bool never_has_body(int status) { return status == 204 || status == 304; }

void append_head(std::string& out, const ResponseHead& head, const HttpHeaders& headers,
                 const HttpHeaders& more_headers) {
  fmt::format_to(std::back_inserter(out), "{}{} {}\r\n", kVersion, head.status, reason_phrase(head.status));
  append_header(out, "Date", http_date());
  if (head.framing != Framing::kNothing && !head.content_type.empty())
    append_header(out, "Content-Type", head.content_type);
  if (head.framing == Framing::kLength) append_header(out, "Content-Length", std::to_string(head.length));
  if (head.framing == Framing::kChunked) append_header(out, "Transfer-Encoding", "chunked");
  if (!head.connection.empty()) append_header(out, "Connection", head.connection);
  for (const HttpHeaders* list : {&headers, &more_headers}) {
    for (const auto& [name, value] : *list) {
      if (is_token(name) && !ours(name)) append_header(out, name, value);
    }
  }
  out += "\r\n";
}

}  // namespace mimo::http
