#include "server/request_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/json.h"

namespace mimo {
namespace {

constexpr std::size_t kShownPath = 200;  // anybody can ask for a path of 32 KB

// Cut at a character border: the JSON log stays valid UTF-8.
std::string_view shown(std::string_view path) {
  std::size_t end = std::min(kShownPath, path.size());
  while (end < path.size() && (static_cast<unsigned char>(path[end]) & 0xc0) == 0x80) --end;
  return path.substr(0, end);
}

// Microseconds are enough, and 0.1 stays short.
double rounded(double seconds) { return std::round(seconds * 1e6) / 1e6; }

}  // namespace

std::string text_line(const RequestRecord& record) {
  std::string line = fmt::format("request {}: {} {} {}, client {}, {:.3f} s", record.id, record.method,
                                 shown(record.path), record.status, record.client, record.seconds);
  if (!record.answer) return line;
  const RequestRecord::Answer& answer = *record.answer;
  fmt::format_to(std::back_inserter(line), ", {} prompt tokens ({} cached), {} generated",
                 answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens);
  if (answer.choices > 1) fmt::format_to(std::back_inserter(line), " in {} choices", answer.choices);
  fmt::format_to(std::back_inserter(line), ", queue {:.3f} s", answer.queue_seconds);
  if (answer.ttft_seconds) fmt::format_to(std::back_inserter(line), ", TTFT {:.3f} s", *answer.ttft_seconds);
  if (answer.tpot_seconds) {
    fmt::format_to(std::back_inserter(line), ", TPOT {:.2f} ms", *answer.tpot_seconds * 1000);
  }
  fmt::format_to(std::back_inserter(line), ", accept length {:.2f}, {}", answer.accept_length, answer.finish);
  return line;
}

std::string json_line(const RequestRecord& record, std::string_view time) {
  json::object line = {{"time", time},
                       {"event", "request"},
                       {"id", record.id},
                       {"method", record.method},
                       {"route", shown(record.path)},
                       {"status", record.status},
                       {"client", record.client},
                       {"duration", rounded(record.seconds)}};
  if (record.answer) {
    const RequestRecord::Answer& answer = *record.answer;
    line["model"] = answer.model;
    line["stream"] = answer.stream;
    line["choices"] = answer.choices;
    line["prompt_tokens"] = answer.prompt_tokens;
    line["cached_tokens"] = answer.cached_tokens;
    line["completion_tokens"] = answer.completion_tokens;
    line["reasoning_tokens"] = answer.reasoning_tokens;
    line["queue"] = rounded(answer.queue_seconds);
    if (answer.ttft_seconds) line["ttft"] = rounded(*answer.ttft_seconds);
    if (answer.tpot_seconds) line["tpot"] = rounded(*answer.tpot_seconds);
    line["accept_length"] = rounded(answer.accept_length);
    line["finish"] = answer.finish;
  }
  return json::serialize(line);
}

std::string json_line(std::string_view message, std::string_view time) {
  return json::serialize(json::object{{"time", time}, {"event", "log"}, {"message", message}});
}

}  // namespace mimo
