// What the log says about one request: figures and closed sets of words, never anything a client wrote but its
// request id and the path.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace mimo {

struct RequestRecord {
  std::string id;
  std::string method;
  std::string path;
  std::string client;  // address of the connection; behind a proxy, the proxy's
  int status = 0;      // 499: the client went away
  double seconds = 0;  // from arrival to the end

  // Of answers that the engine has computed, all choices together.
  struct Answer {
    std::string model;  // as served
    bool stream = false;
    std::int64_t choices = 1;
    std::int64_t prompt_tokens = 0;
    std::int64_t cached_tokens = 0;
    std::int64_t completion_tokens = 0;
    std::int64_t reasoning_tokens = 0;
    double queue_seconds = 0;            // of the slowest choice
    std::optional<double> ttft_seconds;  // from arrival to the first token; none: there was no token
    std::optional<double> tpot_seconds;  // mean from token to token after the first; none: fewer than two
    double accept_length = 1;
    std::string finish;  // stop, length, tool_calls, abort or error; of several choices, each that occurred
  };
  std::optional<Answer> answer;
};

using RequestLog = std::function<void(const RequestRecord& record)>;

// "request req-1: POST /v1/completions 200, ..."
std::string text_line(const RequestRecord& record);

// One JSON object; `time` as in the text log. Absent figures are left out.
std::string json_line(const RequestRecord& record, std::string_view time);

// Other lines of the log, in the same form.
std::string json_line(std::string_view message, std::string_view time);

}  // namespace mimo
