// The options of `mimo serve`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/model_options.h"

namespace CLI {
class App;
}

namespace mimo {

struct ServeOptions {
  ModelOptions model;

  std::string host = "127.0.0.1";
  int port = 8000;
  int http_threads = 2;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::vector<std::string> cors_origins;
  bool protect_metrics = false;
  double shutdown_seconds = 30;

  std::vector<std::string> names;  // served; none: the directory's
  bool accept_any_model = false;
  bool strict_openai = false;
  bool timings = false;
  std::string reasoning_field = "reasoning_content";
  std::string generation_config = "auto";
  std::optional<bool> enable_thinking;

  std::int64_t context = 0;  // 0: the model's
  int max_running = 16;
  int max_queued = 1024;
  int chunk = 512;
  bool mixed = true;
  std::string policy = "fcfs";
  double conservativeness = 1.0;
  bool priorities = false;
  bool low_values_first = false;
  int preemption_threshold = 10;
  std::int64_t max_total_tokens = 0;  // 0: planned
  double mem_fraction = 0.5;
  std::optional<double> window_ratio;
  bool prefix_cache = true;
  double host_kv_gb = 0;
  std::int64_t host_kv_min_tokens = 256;
  int eviction_interval = 0;  // tokens; 0: every page
  double watchdog_seconds = 300;
  bool log_requests = true;
  std::string log_format = "text";
  bool warm_up = true;
  double stuck_seconds = 60;
  bool debug_endpoints = false;
};

// With groups and the names that SGLang and vLLM use.
void add_serve_options(CLI::App& command, ServeOptions& options);

}  // namespace mimo
