#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace mimo {
namespace {

constexpr std::array kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                                    1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
constexpr std::array kGap = {0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05,
                             0.075, 0.1,   0.15,  0.2,   0.3,   0.4,  0.5,   0.75, 1.0,   2.5,  5.0,  80.0};
constexpr std::array kLatency = {0.1,  0.3,  0.5,  0.8,  1.0,   1.5,   2.0,   2.5,   5.0,    10.0,  15.0,
                                 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
constexpr std::array kTokens = {1.0,     2.0,      5.0,      10.0,     20.0,     50.0,    100.0,
                                200.0,   500.0,    1000.0,   2000.0,   5000.0,   10000.0, 20000.0,
                                50000.0, 100000.0, 200000.0, 500000.0, 1000000.0};

// One family under its names.
class Page {
 public:
  explicit Page(std::string_view label) : label_(label) {}

  // `names`: "vllm:num_requests_running" and the like; all have the same value.
  void value(std::initializer_list<const char*> names, const char* type, const char* help, double number) {
    for (const char* name : names) {
      fmt::format_to(std::back_inserter(text_), "# HELP {0} {1}\n# TYPE {0} {2}\n{0}{3}}} {4}\n", name, help,
                     type, label_, number);
    }
  }

  void histogram(std::initializer_list<const char*> names, const char* help, const Histogram& values) {
    for (const char* name : names) {
      fmt::format_to(std::back_inserter(text_), "# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
      std::int64_t below = 0;
      for (std::size_t i = 0; i < values.bounds().size(); ++i) {
        below += values.counts()[i];
        fmt::format_to(std::back_inserter(text_), "{}_bucket{},le=\"{}\"}} {}\n", name, label_,
                       values.bounds()[i], below);
      }
      below += values.counts().back();
      fmt::format_to(std::back_inserter(text_),
                     "{0}_bucket{1},le=\"+Inf\"}} {2}\n{0}_sum{1}}} {3}\n{0}_count{1}}} {2}\n", name, label_,
                     below, values.sum());
    }
  }

  void family(const char* name, const char* type, const char* help) {
    fmt::format_to(std::back_inserter(text_), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  }
  void sample(const char* name, const char* key, std::string_view key_value, std::int64_t number) {
    fmt::format_to(std::back_inserter(text_), "{}{},{}=\"{}\"}} {}\n", name, label_, key, key_value, number);
  }

  std::string take() { return std::move(text_); }

 private:
  std::string_view label_;
  std::string text_;
};

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

// Label values of the text format.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

void Histogram::observe(double value, std::int64_t times) {
  const auto place = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<std::size_t>(place)] += times;
  sum_ += value * static_cast<double>(times);
}

Metrics::Metrics(std::string_view model_name)
    : label_("{model_name=\"" + escaped(model_name) + "\""),
      ttft_(kFirstToken),
      gap_(kGap),
      latency_(kLatency),
      queue_(kFirstToken),
      prefill_(kFirstToken),
      decode_(kLatency),
      prompt_(kTokens),
      generated_(kTokens) {}

void Metrics::first_token(double seconds_since_arrival) {
  const std::scoped_lock lock(mutex_);
  ttft_.observe(seconds_since_arrival);
}

void Metrics::tokens_after(double seconds, std::int64_t tokens) {
  if (tokens <= 0) return;
  const std::scoped_lock lock(mutex_);
  gap_.observe(seconds / static_cast<double>(tokens), tokens);
}

void Metrics::ended(Ending how, const RequestUsage& usage, double seconds_since_arrival) {
  const std::scoped_lock lock(mutex_);
  ++endings_[static_cast<std::size_t>(how)];
  prompt_tokens_ += usage.prompt_tokens;
  cached_tokens_ += usage.cached_tokens;
  cached_host_tokens_ += usage.cached_host_tokens;
  generated_tokens_ += usage.completion_tokens;
  latency_.observe(seconds_since_arrival);
  queue_.observe(usage.queue_seconds);
  prefill_.observe(usage.prefill_seconds);
  decode_.observe(usage.decode_seconds);
  prompt_.observe(static_cast<double>(usage.prompt_tokens));
  generated_.observe(static_cast<double>(usage.completion_tokens));
}

void Metrics::refused(int status) {
  const std::scoped_lock lock(mutex_);
  ++refused_[static_cast<std::size_t>(std::clamp(status / 100, 0, 5))];
}

std::string Metrics::text(const EngineFigures& engine) const {
  const std::scoped_lock lock(mutex_);
  Page page(label_);
  const EngineStatus& status = engine.status;
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const auto used = [](const PoolStatus& pool) { return pool.total - pool.free - pool.cached; };
  const double full_usage = share(used(status.full), status.full.total);
  const double window_usage = share(used(status.window), status.window.total);

  page.value({"mimo:num_requests_running", "vllm:num_requests_running", "sglang:num_running_reqs"}, "gauge",
             "Requests that compute.", number(status.running));
  page.value({"mimo:num_requests_waiting", "vllm:num_requests_waiting", "sglang:num_queue_reqs"}, "gauge",
             "Requests that wait.", number(status.waiting));
  page.value({"mimo:kv_cache_usage_perc", "vllm:kv_cache_usage_perc", "sglang:token_usage"}, "gauge",
             "Share of the KV pages that requests use, of the fuller pool.",
             std::max(full_usage, window_usage));
  page.value({"mimo:full_token_usage", "sglang:full_token_usage"}, "gauge",
             "Share of the full-attention pool that requests use.", full_usage);
  page.value({"mimo:swa_token_usage", "sglang:swa_token_usage"}, "gauge",
             "Share of the window pool that requests use.", window_usage);
  page.value({"mimo:kv_available_tokens", "sglang:kv_available_tokens"}, "gauge",
             "Free tokens of the full pool.", number(status.full.free));
  page.value({"mimo:kv_evictable_tokens", "sglang:kv_evictable_tokens"}, "gauge",
             "Tokens of the full pool that only the prefix cache holds.", number(status.full.cached));
  page.value({"mimo:kv_used_tokens", "sglang:kv_used_tokens", "sglang:num_used_tokens"}, "gauge",
             "Tokens of the full pool that requests use.", number(used(status.full)));
  page.value({"mimo:swa_available_tokens", "sglang:swa_available_tokens"}, "gauge",
             "Free tokens of the window pool.", number(status.window.free));
  page.value({"mimo:swa_evictable_tokens", "sglang:swa_evictable_tokens"}, "gauge",
             "Tokens of the window pool that only the prefix cache holds.", number(status.window.cached));
  page.value({"mimo:swa_used_tokens", "sglang:swa_used_tokens"}, "gauge",
             "Tokens of the window pool that requests use.", number(used(status.window)));
  page.value({"mimo:kv_total_tokens"}, "gauge", "Tokens of the full pool.", number(status.full.total));
  page.value({"mimo:swa_total_tokens"}, "gauge", "Tokens of the window pool.", number(status.window.total));
  page.value({"mimo:host_used_tokens", "sglang:hicache_host_used_tokens"}, "gauge",
             "Tokens in the host tier.", number(status.host_used));
  page.value({"mimo:host_total_tokens", "sglang:hicache_host_total_tokens"}, "gauge",
             "Tokens the host tier can hold.", number(status.host_total));
  page.value({"mimo:host_restores_total"}, "counter", "Prefixes that came back from host memory.",
             number(engine.host_tier.restores));
  page.value({"mimo:host_restored_tokens_total", "vllm:external_prefix_cache_hits_total"}, "counter",
             "Tokens that came back from host memory.", number(engine.host_tier.restored_tokens));
  page.value({"mimo:host_failed_restores_total"}, "counter",
             "Restores whose pages were not what they should be; they were computed again.",
             number(engine.host_tier.failed_restores));
  page.value({"mimo:host_stored_full_pages_total"}, "counter", "Full pages copied to host memory.",
             number(engine.host_tier.stored_full));
  page.value({"mimo:host_stored_window_pages_total"}, "counter", "Window pages copied to host memory.",
             number(engine.host_tier.stored_window));
  page.value({"mimo:host_evicted_full_pages_total"}, "counter", "Full pages that host memory gave up.",
             number(engine.host_tier.evicted_full));
  page.value({"mimo:host_evicted_windows_total"}, "counter", "Windows that host memory gave up.",
             number(engine.host_tier.evicted_records));
  page.value(
      {"mimo:num_preemptions_total", "vllm:num_preemptions_total", "sglang:num_retracted_requests_total"},
      "counter", "Requests sent back to the queue for want of pages.", number(status.retractions));

  page.value({"mimo:prompt_tokens_total", "vllm:prompt_tokens_total", "sglang:prompt_tokens_total"},
             "counter", "Prompt tokens of requests that have ended.", number(prompt_tokens_));
  page.value(
      {"mimo:generation_tokens_total", "vllm:generation_tokens_total", "sglang:generation_tokens_total"},
      "counter", "Tokens delivered to requests that have ended.", number(generated_tokens_));
  page.value({"mimo:cached_tokens_total", "sglang:cached_tokens_total", "vllm:prompt_tokens_cached_total"},
             "counter", "Prompt tokens that came from the prefix cache.", number(cached_tokens_));
  page.value({"mimo:cached_host_tokens_total"}, "counter", "Part of them that came back from host memory.",
             number(cached_host_tokens_));
  page.value({"mimo:prefix_cache_queries_total", "vllm:prefix_cache_queries_total"}, "counter",
             "Prompt tokens looked up in the prefix cache.", number(prompt_tokens_));
  page.value({"mimo:prefix_cache_hits_total", "vllm:prefix_cache_hits_total"}, "counter",
             "Prompt tokens found in the prefix cache.", number(cached_tokens_));
  page.value({"mimo:cache_hit_rate", "sglang:cache_hit_rate"}, "gauge", "Found tokens of those looked up.",
             share(cached_tokens_, prompt_tokens_));
  page.value({"mimo:evicted_full_pages_total"}, "counter", "Full pages that the prefix cache gave up.",
             number(engine.prefix_cache.evicted_full));
  page.value({"mimo:evicted_window_pages_total"}, "counter", "Window pages that the prefix cache gave up.",
             number(engine.prefix_cache.evicted_window));

  std::int64_t requests = 0;
  for (const char* name : {"mimo:request_success_total", "vllm:request_success_total"}) {
    page.family(name, "counter", "Requests by how they ended.");
    for (std::size_t i = 0; i < endings_.size(); ++i)
      page.sample(name, "finished_reason", kEndingNames[i], endings_[i]);
  }
  for (const std::int64_t count : endings_) requests += count;
  page.value({"mimo:num_requests_total", "sglang:num_requests_total"}, "counter", "Requests that have ended.",
             number(requests));
  page.value({"mimo:num_aborted_requests_total", "sglang:num_aborted_requests_total"}, "counter",
             "Requests that were aborted.", number(endings_[static_cast<std::size_t>(Ending::kAbort)]));
  page.family("mimo:refused_requests_total", "counter",
              "Requests that never reached the engine, by status class.");
  for (const std::size_t hundred : {std::size_t{4}, std::size_t{5}}) {
    page.sample("mimo:refused_requests_total", "status", fmt::format("{}xx", hundred), refused_[hundred]);
  }

  const SpeculationStats& drafts = engine.speculation;
  page.value({"mimo:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts_total"}, "counter",
             "Verified blocks of drafts.", number(drafts.verify_steps));
  page.value({"mimo:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"},
             "counter", "Verified drafts.", number(drafts.proposed));
  page.value({"mimo:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"},
             "counter", "Drafts that were the model's own tokens.", number(drafts.accepted));
  for (const char* name : {"mimo:spec_decode_num_accepted_tokens_per_pos_total",
                           "vllm:spec_decode_num_accepted_tokens_per_pos_total"}) {
    page.family(name, "counter", "Accepted drafts by their place in the block.");
    std::int64_t beyond = 0;
    for (const std::int64_t count : drafts.accepted_histogram) beyond += count;
    for (std::size_t i = 0; i + 1 < drafts.accepted_histogram.size(); ++i) {
      beyond -= drafts.accepted_histogram[i];
      page.sample(name, "position", fmt::to_string(i), beyond);
    }
  }
  page.value({"mimo:spec_accept_length", "sglang:spec_accept_length"}, "gauge",
             "Tokens a verified block gave, the bonus token included.", drafts.accept_length());
  page.value({"mimo:spec_accept_rate", "sglang:spec_accept_rate"}, "gauge", "Accepted of verified drafts.",
             drafts.accept_rate());

  page.value({"mimo:engine_steps_total"}, "counter", "Steps of the engine.", number(engine.times.steps));
  page.value({"mimo:engine_rows_total"}, "counter", "Rows that the target has run.",
             number(engine.times.rows));
  page.value({"mimo:engine_plan_seconds_total"}, "counter", "Time spent on planning.",
             engine.times.plan_seconds);
  page.value({"mimo:engine_target_seconds_total"}, "counter", "Time of the target model.",
             engine.times.target_seconds);
  page.value({"mimo:engine_draft_seconds_total"}, "counter", "Time of drafting.", engine.times.draft_seconds);
  page.value({"mimo:engine_observe_seconds_total"}, "counter", "Time spent on the drafter's context.",
             engine.times.observe_seconds);

  page.histogram({"mimo:time_to_first_token_seconds", "vllm:time_to_first_token_seconds",
                  "sglang:time_to_first_token_seconds"},
                 "From the arrival of a request to its first token.", ttft_);
  page.histogram({"mimo:inter_token_latency_seconds", "vllm:inter_token_latency_seconds",
                  "sglang:inter_token_latency_seconds"},
                 "Between tokens; those of one step share its time.", gap_);
  page.histogram({"mimo:e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds",
                  "sglang:e2e_request_latency_seconds"},
                 "From the arrival of a request to its end.", latency_);
  page.histogram(
      {"mimo:request_queue_time_seconds", "vllm:request_queue_time_seconds", "sglang:queue_time_seconds"},
      "From the arrival at the engine to admission.", queue_);
  page.histogram({"mimo:request_prefill_time_seconds", "vllm:request_prefill_time_seconds"},
                 "From admission to the first token.", prefill_);
  page.histogram({"mimo:request_decode_time_seconds", "vllm:request_decode_time_seconds"},
                 "From the first token to the end.", decode_);
  page.histogram({"mimo:request_prompt_tokens", "vllm:request_prompt_tokens"}, "Tokens of a prompt.",
                 prompt_);
  page.histogram({"mimo:request_generation_tokens", "vllm:request_generation_tokens"}, "Tokens of an answer.",
                 generated_);
  return page.take();
}

}  // namespace mimo
