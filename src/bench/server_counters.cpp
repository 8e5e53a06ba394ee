#include "bench/server_counters.h"

#include <cstdlib>

namespace mimo {

std::map<std::string, double, std::less<>> parse_counters(std::string_view text) {
  std::map<std::string, double, std::less<>> values;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    const std::string_view name = line.substr(0, line.find_first_of("{ "));
    // Label values may hold anything but an unescaped quote; the value stands behind the last brace.
    const std::size_t labels = line.rfind('}');
    const std::size_t space = line.find(' ', labels == std::string_view::npos ? name.size() : labels);
    if (space == std::string_view::npos) continue;
    const std::string number(line.substr(space + 1));
    char* stop = nullptr;
    const double value = std::strtod(number.c_str(), &stop);
    if (stop != number.c_str()) values[std::string(name)] += value;
  }
  return values;
}

Result<ServerCounters> ServerCounters::read(LoadClient& client) {
  const Result<RawAnswer> answer = client.ask("GET", "/metrics");
  if (!answer) return forward_error(answer);
  if (answer->status != 200) return ServerCounters();
  return ServerCounters(answer->body);
}

std::optional<double> ServerCounters::value(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    if (const auto found = values_.find(name); found != values_.end()) return found->second;
  }
  return std::nullopt;
}

std::optional<double> ServerWork::accept_length() const {
  if (verify_steps && accepted) {
    if (*verify_steps > 0) return 1 + *accepted / *verify_steps;
    return std::nullopt;
  }
  return gauge_accept_length;
}

std::optional<double> ServerWork::acceptance_rate() const {
  if (!accepted || !proposed || *proposed <= 0) return std::nullopt;
  return *accepted / *proposed;
}

ServerWork work_between(const ServerCounters& before, const ServerCounters& after) {
  const auto delta = [&](std::initializer_list<const char*> names) -> std::optional<double> {
    const auto from = before.value(names);
    const auto to = after.value(names);
    if (!from || !to) return std::nullopt;
    return *to - *from;
  };
  ServerWork work;
  work.verify_steps = delta({"mimo:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts_total"});
  work.proposed =
      delta({"mimo:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"});
  work.accepted =
      delta({"mimo:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"});
  work.retractions = delta(
      {"mimo:num_preemptions_total", "vllm:num_preemptions_total", "sglang:num_retracted_requests_total"});
  work.evicted_pages = delta({"mimo:evicted_full_pages_total"});
  work.host_restores = delta({"mimo:host_restores_total"});
  work.gauge_accept_length = after.value({"sglang:spec_accept_length"});
  return work;
}

json::object work_json(const ServerWork& work) {
  json::object out;
  const auto put = [&](const char* key, const std::optional<double>& value) {
    out[key] = value ? json::value(*value) : json::value(nullptr);
  };
  put("accept_length", work.accept_length());
  put("acceptance_rate", work.acceptance_rate());
  put("verify_steps", work.verify_steps);
  put("retractions", work.retractions);
  put("evicted_full_pages", work.evicted_pages);
  put("host_restores", work.host_restores);
  return out;
}

}  // namespace mimo
