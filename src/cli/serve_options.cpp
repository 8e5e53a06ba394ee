#include "cli/serve_options.h"

#include <CLI/CLI.hpp>

namespace mimo {
namespace {

void add_network_options(CLI::App& command, ServeOptions& options) {
  const char* const group = "Network";
  command.add_option("--host", options.host, "Address to listen on")->capture_default_str()->group(group);
  command.add_option("--port", options.port, "Port; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--http-threads", options.http_threads, "Threads for connections, and as many for requests")
      ->check(CLI::Range(1, 256))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--api-key", options.api_keys,
                  "Key that clients must send; may be given several times. Others see command lines: better "
                  "--api-key-file or MIMO_API_KEY")
      ->envname("MIMO_API_KEY")
      ->allow_extra_args(false)
      ->group(group);
  command.add_option("--api-key-file", options.api_key_file, "File with one key a line")->group(group);
  command
      .add_option("--cors-allow-origins,--allowed-origins", options.cors_origins,
                  "Origins whose pages may use the API (* for all); default: none")
      ->allow_extra_args(false)
      ->group(group);
  command.add_flag("--protect-metrics", options.protect_metrics, "/metrics needs the key too")->group(group);
  command
      .add_option("--shutdown-timeout", options.shutdown_seconds,
                  "Seconds that running answers get after the first SIGTERM or SIGINT")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str()
      ->group(group);
}

void add_api_options(CLI::App& command, ServeOptions& options) {
  const char* const group = "API";
  command
      .add_option("--served-model-name", options.names,
                  "Name clients use; several: the first is echoed. Default: the directory's name")
      ->group(group);
  command
      .add_flag("--accept-any-model", options.accept_any_model, "Any model name is taken for the served one")
      ->group(group);
  command
      .add_flag("--strict-openai", options.strict_openai,
                "finish_reason stop where tool_choice names a function, as OpenAI has it")
      ->group(group);
  command.add_flag("--timings", options.timings, "Answers carry timings, as llama.cpp's server has them")
      ->group(group);
  command.add_option("--reasoning-field", options.reasoning_field, "Where reasoning goes")
      ->check(CLI::IsMember({"reasoning_content", "reasoning", "both"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--generation-config", options.generation_config,
                  "auto: default sampling of the checkpoint's generation_config.json; none: OpenAI's")
      ->check(CLI::IsMember({"auto", "none"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag_function(
          "--enable-thinking", [&options](std::int64_t /*count*/) { options.enable_thinking = true; },
          "Thinking on where a request does not say (neither: the template's default)")
      ->group(group);
  command
      .add_flag_function(
          "--no-enable-thinking", [&options](std::int64_t /*count*/) { options.enable_thinking = false; },
          "Thinking off where a request does not say")
      ->group(group);
  for (const char* name : {"--reasoning-parser", "--tool-call-parser"}) {
    command
        .add_option_function<std::string>(
            name, [](const std::string& /*parser*/) {}, "mimo: the only one, and always used")
        ->check(CLI::IsMember({"mimo"}))
        ->group(group);
  }
}

void add_scheduling_options(CLI::App& command, ServeOptions& options) {
  const char* const group = "Scheduling";
  command
      .add_option("--max-running-requests,--max-num-seqs", options.max_running,
                  "Requests that compute at once")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--max-queued-requests", options.max_queued, "Requests that wait before new ones get 429")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--chunked-prefill-size,--max-num-batched-tokens", options.chunk,
                  "Rows of a step: prompt chunks and decoding requests together")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->group(group);
  command.add_flag("!--no-mixed", options.mixed, "No prompt chunks beside decoding requests")->group(group);
  command
      .add_option("--schedule-policy", options.policy, "fcfs: by arrival; lpm: longest cached prefix first")
      ->check(CLI::IsMember({"fcfs", "lpm"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--schedule-conservativeness", options.conservativeness,
                  "How much of max_tokens is reserved at admission: larger, fewer retractions")
      ->check(CLI::Range(0.01, 10.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--enable-priority-scheduling", options.priorities,
                "The request field priority counts; larger is more urgent")
      ->group(group);
  command
      .add_flag("--schedule-low-priority-values-first", options.low_values_first, "Smaller is more urgent")
      ->group(group);
  command
      .add_option("--priority-scheduling-preemption-threshold", options.preemption_threshold,
                  "A running request gives way to one that is more urgent by more than this")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--watchdog-timeout", options.watchdog_seconds,
                  "Seconds after which a step counts as stuck and the server exits; 0: never")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--health-timeout", options.stuck_seconds,
          "Seconds without a finished step after which /health and new requests get 503, until one ends")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--enable-debug-endpoints", options.debug_endpoints,
                "POST /debug/stall, for tests: the engine stands still")
      ->group(group);
  command
      .add_flag("!--skip-server-warmup", options.warm_up,
                "Ready without having answered: the first client meets what the warm-up would have")
      ->group(group);
  command.add_option("--log-format", options.log_format, "Lines of the log once the port is bound")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str()
      ->group(group);
  command.add_flag("!--disable-log-requests", options.log_requests, "No line in the log for each request")
      ->group(group);
}

void add_memory_options(CLI::App& command, ServeOptions& options) {
  const char* const group = "KV cache";
  command
      .add_option("--context-length,--max-model-len,--ctx", options.context,
                  "Longest prompt + answer; 0: the model's, if the KV cache holds it")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--max-total-tokens", options.max_total_tokens,
          "Tokens of the full-attention pool; 0: what memory allows, at most 128 K or one full context")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--mem-fraction-static,--gpu-memory-utilization", options.mem_fraction,
                  "Share of the free memory that weights and KV cache may take")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--swa-full-tokens-ratio", options.window_ratio,
          "Tokens of the window pool for each of the full pool; default: what --max-running-requests needs")
      ->check(CLI::Range(0.0001, 1.0))
      ->group(group);
  command
      .add_flag("!--disable-radix-cache,!--no-enable-prefix-caching", options.prefix_cache,
                "Nothing is kept of finished requests")
      ->group(group);
  command
      .add_option("--swa-eviction-interval", options.eviction_interval,
                  "Tokens that leave the window before a request's pages are freed; 0: every page at once")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--host-kv-gb,--kv-offloading-size,--hicache-size", options.host_kv_gb,
                  "GiB of host memory for prefixes that the KV cache has no room for; 0: none")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--host-kv-min-tokens", options.host_kv_min_tokens,
                  "A prefix that saves fewer is computed, not brought back")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_serve_options(CLI::App& command, ServeOptions& options) {
  add_model_options(command, options.model);
  add_network_options(command, options);
  add_api_options(command, options);
  add_scheduling_options(command, options);
  add_memory_options(command, options);
}

}  // namespace mimo
