// Counters and histograms of the server, in Prometheus' text format. Names are those of vLLM's and SGLang's
// dashboards where the meaning is the same, and `mimo:` for all. Labels have values from closed sets only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/prefix_tree.h"
#include "engine/engine_client.h"
#include "engine/engine_core.h"

namespace mimo {

// How a request ended, for the counters: each one ends in exactly one of these.
enum class Ending : std::uint8_t { kStop, kLength, kToolCalls, kAbort, kError };
inline constexpr std::array<const char*, 5> kEndingNames = {"stop", "length", "tool_calls", "abort", "error"};

class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1, 0) {}

  void observe(double value, std::int64_t times = 1);
  std::span<const double> bounds() const { return bounds_; }
  std::span<const std::int64_t> counts() const {
    return counts_;
  }  // not cumulative; the last: above all bounds
  double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::vector<std::int64_t> counts_;
  double sum_ = 0;
};

// What the engine says at the time of a scrape.
struct EngineFigures {
  EngineStatus status;
  EngineTimes times;
  SpeculationStats speculation;
  PrefixCacheStats prefix_cache;
  HostTierStats host_tier = {};
};

class Metrics {
 public:
  explicit Metrics(std::string_view model_name);

  void first_token(double seconds_since_arrival);
  // `tokens` came `seconds` after those before them: each counts as one gap of seconds / tokens.
  void tokens_after(double seconds, std::int64_t tokens);
  void ended(Ending how, const RequestUsage& usage, double seconds_since_arrival);
  // Refused before it reached the engine.
  void refused(int status);

  std::string text(const EngineFigures& engine) const;

 private:
  mutable std::mutex mutex_;
  std::string label_;  // {model_name="..."
  Histogram ttft_;
  Histogram gap_;
  Histogram latency_;
  Histogram queue_;
  Histogram prefill_;
  Histogram decode_;
  Histogram prompt_;
  Histogram generated_;
  std::array<std::int64_t, kEndingNames.size()> endings_{};
  std::array<std::int64_t, 6> refused_{};  // by hundreds of the status
  std::int64_t prompt_tokens_ = 0;
  std::int64_t cached_tokens_ = 0;
  std::int64_t cached_host_tokens_ = 0;
  std::int64_t generated_tokens_ = 0;
};

}  // namespace mimo
