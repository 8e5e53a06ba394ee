// Figures of a run, from the records of its requests alone: an analyzer gets the same from a file of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/distribution.h"
#include "bench/sent_request.h"
#include "core/json.h"
#include "core/result.h"

namespace mimo {

// A request is good if it keeps all that are given. Seconds.
struct GoodputLimits {
  std::optional<double> ttft;
  std::optional<double> tpot;
  std::optional<double> latency;

  bool any() const { return ttft || tpot || latency; }
};

// "ttft:2000", "tpot:50", "e2el:10000": milliseconds.
Result<GoodputLimits> parse_goodput(std::span<const std::string> terms);

// Whether the request ended well and within the limits.
bool is_good(const SentRequest& record, const GoodputLimits& limits);

struct LoadSummary {
  std::int64_t requests = 0;
  std::int64_t failed = 0;  // nothing below is meant to be used when there are any
  std::string first_error;

  double wall = 0;  // first t0 to last t_end
  std::int64_t n_in = 0;
  std::int64_t n_out = 0;
  std::int64_t n_cached = 0;
  std::int64_t n_host = 0;        // of those, from host memory
  bool cached_known = true;       // of every request
  std::int64_t other_input = 0;   // requests whose prompt had another length than wanted
  std::int64_t cut_short = 0;     // that ended before the length wanted
  std::int64_t retokenized = -1;  // tokens of the texts, encoded again; -1: not done

  Distribution ttft;  // seconds, these five
  Distribution tpot;
  Distribution event_gap;  // between events
  Distribution token_gap;  // the same, divided by the tokens of the event, once for each
  Distribution latency;
  std::int64_t without_tpot = 0;       // fewer than two tokens, or not streamed
  std::int64_t without_token_gap = 0;  // the server does not say how many tokens an event has
  std::int64_t first_is_end = 0;       // no event had text: the TTFT is that of the last event
  Distribution start_delay;            // of t0 behind the time due

  double request_rate = 0;  // a second, these
  double output_rate = 0;
  double total_rate = 0;
  double peak_output_rate = 0;  // of the best second or so; 0: not known
  double concurrency = 0;       // mean
  std::optional<double> goodput;
  // (N - 1) / (mean latency - mean TTFT), where one request ran at a time and all had N tokens.
  std::optional<double> single_decode_rate;
  std::vector<std::string> warnings;  // what makes the figures doubtful

  double cached_share() const {
    return n_in > 0 ? static_cast<double>(n_cached) / static_cast<double>(n_in) : 0;
  }
};

LoadSummary summarise_load(std::span<const SentRequest> records, const GoodputLimits& limits);

json::object summary_json(const LoadSummary& summary);

// For people.
std::string summary_text(const LoadSummary& summary);

// A line of a results file, and back.
json::object record_json(const SentRequest& record, bool with_text);
Result<SentRequest> record_from_json(const json::object& line, const std::string& where);

}  // namespace mimo
