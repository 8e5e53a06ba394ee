#include "bench/load_summary.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

namespace mimo {
namespace {

constexpr double kMilliseconds = 1e3;

double rate(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

// Tokens of each event; empty: not known. An event without a count of its own carries one token if that adds up.
std::vector<std::int64_t> tokens_of_events(const SentRequest& record) {
  std::vector<std::int64_t> tokens;
  bool known = true;
  for (const TextEvent& event : record.events) {
    known &= event.tokens >= 0;
    tokens.push_back(event.tokens);
  }
  if (known) return tokens;
  if (std::ssize(record.events) != record.n_out) return {};
  std::fill(tokens.begin(), tokens.end(), 1);
  return tokens;
}

bool one_after_the_other(std::span<const SentRequest> records) {
  std::vector<std::pair<double, double>> spans;
  for (const SentRequest& record : records) spans.emplace_back(record.t0, record.t_end);
  std::sort(spans.begin(), spans.end());
  return std::adjacent_find(spans.begin(), spans.end(), [](const auto& one, const auto& next) {
           return next.first < one.second;
         }) == spans.end();
}

struct Samples {
  std::vector<double> ttft, tpot, event_gap, token_gap, latency, start_delay;
};

void add_gaps(const SentRequest& record, Samples& samples, LoadSummary& summary) {
  const std::vector<std::int64_t> tokens = tokens_of_events(record);
  if (tokens.empty() && record.events.size() > 1) ++summary.without_token_gap;
  for (std::size_t i = 1; i < record.events.size(); ++i) {
    const double gap = record.events[i].at - record.events[i - 1].at;
    samples.event_gap.push_back(gap);
    if (tokens.empty()) continue;
    const auto count = static_cast<std::size_t>(std::max<std::int64_t>(tokens[i], 1));
    samples.token_gap.insert(samples.token_gap.end(), count, gap / static_cast<double>(count));
  }
}

// Output tokens of the fullest of the equal parts of about a second into which the run is cut; 0 for a run without
// events or without their counts. The parts cover the run exactly, so that the peak cannot be below the mean unless
// tokens went uncounted.
double peak_rate(std::span<const SentRequest> records, double begin, double wall) {
  if (wall <= 0) return 0;
  const double parts = std::max(1.0, std::floor(wall));
  std::vector<double> counts(static_cast<std::size_t>(parts), 0.0);
  const auto add = [&](double at, double tokens) {
    const double part = std::clamp((at - begin) / wall * parts, 0.0, parts - 1);
    counts[static_cast<std::size_t>(part)] += tokens;
  };
  for (const SentRequest& record : records) {
    const std::vector<std::int64_t> tokens = tokens_of_events(record);
    if (tokens.empty()) return 0;
    std::int64_t left = record.n_out;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      add(record.events[i].at, static_cast<double>(tokens[i]));
      left -= tokens[i];
    }
    // Those without text, such as the end token.
    if (left > 0) add(record.t_end, static_cast<double>(left));
  }
  return *std::max_element(counts.begin(), counts.end()) * parts / wall;
}

void add_warnings(std::span<const SentRequest> records, LoadSummary& summary) {
  const auto warn = [&](std::string text) { summary.warnings.push_back(std::move(text)); };
  if (summary.other_input > 0) {
    warn(fmt::format("{} prompts had another length than wanted: is --tokenizer that of the server?",
                     summary.other_input));
  }
  if (summary.peak_output_rate > 0 && summary.peak_output_rate < summary.output_rate * (1 - 1e-9))
    warn("the peak output rate is below the mean: tokens went uncounted");
  std::int64_t contradicting = 0;
  for (const SentRequest& record : records) {
    std::int64_t counted = 0;
    for (const TextEvent& event : record.events) counted += std::max<std::int64_t>(event.tokens, 0);
    const bool backwards = record.t1 >= 0 && (record.t1 < record.t0 || record.t1 > record.t_end);
    if (counted > record.n_out || backwards || (record.n_cached && *record.n_cached > record.n_in))
      ++contradicting;
  }
  if (contradicting > 0) warn(fmt::format("the counts of {} requests contradict each other", contradicting));
  if (!summary.cached_known) warn("the server does not say how many prompt tokens were cached");
}

void append_row(std::string& out, const char* name, const Distribution& values, double scale) {
  if (values.n == 0) {
    fmt::format_to(std::back_inserter(out), "| {} | - | | | | | | 0 |\n", name);
    return;
  }
  fmt::format_to(std::back_inserter(out),
                 "| {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {} |\n", name,
                 values.mean * scale, values.median * scale, values.p90 * scale, values.p95 * scale,
                 values.p99 * scale, values.max * scale, values.n);
}

}  // namespace

Result<GoodputLimits> parse_goodput(std::span<const std::string> terms) {
  GoodputLimits limits;
  for (const std::string& term : terms) {
    const std::size_t colon = term.find(':');
    const std::string name = term.substr(0, colon);
    const std::string number = colon == std::string::npos ? "" : term.substr(colon + 1);
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    std::optional<double>* limit = name == "ttft"   ? &limits.ttft
                                   : name == "tpot" ? &limits.tpot
                                   : name == "e2el" ? &limits.latency
                                                    : nullptr;
    if (limit == nullptr || number.empty() || *end != '\0' || !(value > 0)) {
      return fail(ErrorCode::kInvalidArgument,
                  "goodput {}: expected ttft:MS, tpot:MS or e2el:MS with a positive number", term);
    }
    *limit = value / kMilliseconds;
  }
  return limits;
}

bool is_good(const SentRequest& record, const GoodputLimits& limits) {
  if (record.failed()) return false;
  if (limits.ttft && record.ttft().value_or(HUGE_VAL) > *limits.ttft) return false;
  // An answer of one token has no time a token that could be too long.
  if (limits.tpot && record.tpot().value_or(0) > *limits.tpot) return false;
  return !limits.latency || record.latency() <= *limits.latency;
}

LoadSummary summarise_load(std::span<const SentRequest> records, const GoodputLimits& limits) {
  LoadSummary summary;
  summary.requests = std::ssize(records);
  if (records.empty()) return summary;
  Samples samples;
  double begin = HUGE_VAL;
  double end = -HUGE_VAL;
  std::int64_t good = 0;
  bool equal_output = true;
  for (const SentRequest& record : records) {
    if (record.failed()) {
      if (summary.failed++ == 0) summary.first_error = record.error;
      continue;
    }
    begin = std::min(begin, record.t0);
    end = std::max(end, record.t_end);
    summary.n_in += record.n_in;
    summary.n_out += record.n_out;
    summary.n_cached += record.n_cached.value_or(0);
    summary.n_host += record.n_host;
    summary.cached_known &= record.n_cached.has_value();
    summary.other_input += record.wanted_in > 0 && record.wanted_in != record.n_in ? 1 : 0;
    summary.cut_short += record.n_out < record.wanted_out ? 1 : 0;
    summary.first_is_end += record.first_is_end ? 1 : 0;
    equal_output &= record.n_out == records.front().n_out;
    good += is_good(record, limits) ? 1 : 0;
    if (const auto ttft = record.ttft()) samples.ttft.push_back(*ttft);
    if (const auto tpot = record.tpot()) {
      samples.tpot.push_back(*tpot);
    } else {
      ++summary.without_tpot;
    }
    samples.latency.push_back(record.latency());
    samples.start_delay.push_back(std::max(0.0, record.t0 - record.due));
    add_gaps(record, samples, summary);
  }
  if (samples.latency.empty()) return summary;
  summary.wall = end - begin;
  const double busy = std::accumulate(samples.latency.begin(), samples.latency.end(), 0.0);
  summary.request_rate = rate(std::ssize(samples.latency), summary.wall);
  summary.output_rate = rate(summary.n_out, summary.wall);
  summary.total_rate = rate(summary.n_in + summary.n_out, summary.wall);
  summary.concurrency = summary.wall > 0 ? busy / summary.wall : 0;
  if (limits.any()) summary.goodput = rate(good, summary.wall);
  if (summary.failed == 0) summary.peak_output_rate = peak_rate(records, begin, summary.wall);
  summary.ttft = describe(std::move(samples.ttft));
  summary.tpot = describe(std::move(samples.tpot));
  summary.event_gap = describe(std::move(samples.event_gap));
  summary.token_gap = describe(std::move(samples.token_gap));
  summary.latency = describe(std::move(samples.latency));
  summary.start_delay = describe(std::move(samples.start_delay));
  const std::int64_t output = records.front().n_out;
  if (equal_output && summary.failed == 0 && output > 1 && summary.ttft.n == summary.requests &&
      one_after_the_other(records)) {
    summary.single_decode_rate = static_cast<double>(output - 1) / (summary.latency.mean - summary.ttft.mean);
  }
  add_warnings(records, summary);
  return summary;
}

json::object summary_json(const LoadSummary& summary) {
  json::object out;
  out["requests"] = summary.requests;
  out["failed"] = summary.failed;
  if (summary.failed > 0) {
    out["status"] = "FAILED";
    out["first_error"] = summary.first_error;
    return out;
  }
  out["status"] = "ok";
  out["wall_s"] = summary.wall;
  out["prompt_tokens"] = summary.n_in;
  out["output_tokens"] = summary.n_out;
  out["cached_tokens"] = summary.cached_known ? json::value(summary.n_cached) : json::value(nullptr);
  out["cached_share"] = summary.cached_known ? json::value(summary.cached_share()) : json::value(nullptr);
  out["cached_host_tokens"] = summary.n_host;
  if (summary.retokenized >= 0) out["retokenized_output_tokens"] = summary.retokenized;
  out["other_input_length"] = summary.other_input;
  out["cut_short"] = summary.cut_short;
  out["request_throughput"] = summary.request_rate;
  out["output_throughput"] = summary.output_rate;
  out["total_throughput"] = summary.total_rate;
  out["peak_output_throughput"] =
      summary.peak_output_rate > 0 ? json::value(summary.peak_output_rate) : json::value(nullptr);
  out["effective_concurrency"] = summary.concurrency;
  if (summary.goodput) out["goodput"] = *summary.goodput;
  if (summary.single_decode_rate) out["decode_throughput"] = *summary.single_decode_rate;
  out["ttft_ms"] = distribution_json(summary.ttft, kMilliseconds);
  out["tpot_ms"] = distribution_json(summary.tpot, kMilliseconds);
  out["event_itl_ms"] = distribution_json(summary.event_gap, kMilliseconds);
  out["token_itl_ms"] = distribution_json(summary.token_gap, kMilliseconds);
  out["latency_ms"] = distribution_json(summary.latency, kMilliseconds);
  out["start_delay_ms"] = distribution_json(summary.start_delay, kMilliseconds);
  out["without_tpot"] = summary.without_tpot;
  out["without_token_itl"] = summary.without_token_gap;
  out["ttft_from_last_event"] = summary.first_is_end;
  json::array warnings;
  for (const std::string& warning : summary.warnings) warnings.emplace_back(warning);
  out["warnings"] = std::move(warnings);
  return out;
}

std::string summary_text(const LoadSummary& summary) {
  std::string out;
  const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
  };
  if (summary.failed > 0) {
    add("FAILED: {} of {} requests; the first: {}\n", summary.failed, summary.requests, summary.first_error);
    return out;
  }
  add("{} requests in {:.3f} s, {:.2f} in flight on average\n", summary.requests, summary.wall,
      summary.concurrency);
  add("tokens: {} prompt", summary.n_in);
  if (summary.cached_known) add(" ({:.2f}% cached", 100 * summary.cached_share());
  if (summary.cached_known && summary.n_host > 0) add(", {} tokens of it from host memory", summary.n_host);
  if (summary.cached_known) add(")");
  add(", {} output", summary.n_out);
  if (summary.retokenized >= 0) add(" ({} when encoded again)", summary.retokenized);
  if (summary.cut_short > 0) add("; {} answers ended before the length wanted", summary.cut_short);
  add("\nthroughput: {:.3f} requests/s, {:.1f} output tokens/s", summary.request_rate, summary.output_rate);
  if (summary.peak_output_rate > 0) add(" (peak {:.1f})", summary.peak_output_rate);
  add(", {:.1f} tokens/s in all\n", summary.total_rate);
  if (summary.goodput) add("goodput: {:.3f} requests/s\n", *summary.goodput);
  if (summary.single_decode_rate) add("decode: {:.2f} tokens/s\n", *summary.single_decode_rate);
  out += "| ms | mean | median | p90 | p95 | p99 | max | n |\n|---|---|---|---|---|---|---|---|\n";
  append_row(out, "TTFT", summary.ttft, kMilliseconds);
  append_row(out, "TPOT", summary.tpot, kMilliseconds);
  append_row(out, "ITL (events)", summary.event_gap, kMilliseconds);
  append_row(out, "ITL (tokens)", summary.token_gap, kMilliseconds);
  append_row(out, "latency", summary.latency, kMilliseconds);
  append_row(out, "start delay", summary.start_delay, kMilliseconds);
  if (summary.first_is_end > 0)
    add("no event of {} answers had text: their TTFT is that of the last event\n", summary.first_is_end);
  for (const std::string& warning : summary.warnings) add("warning: {}\n", warning);
  return out;
}

}  // namespace mimo
