#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>

#include "cli/bundled_model.h"
#include "cli/commands.h"
#include "cli/kv_pools.h"
#include "cli/serve_options.h"
#include "core/file.h"
#include "engine/rehearsal.h"
#include "engine/serving_engine.h"
#include "server/api_service.h"
#include "server/http/http_server.h"
#include "server/warm_up.h"

namespace mimo {
namespace {

// Exit status when the engine is stuck: the supervisor should start a new process.
constexpr int kStuck = 3;
constexpr int kEngineDied = 4;

// Lines of the log go to stderr, with the time in front or as JSON.
class Log {
 public:
  void use_json() { json_ = true; }

  void line(std::string_view text) {
    const std::string time = now();
    print(json_ ? json_line(text, time) : fmt::format("{} {}", time, text));
  }
  void request(const RequestRecord& record) {
    const std::string time = now();
    print(json_ ? json_line(record, time) : fmt::format("{} {}", time, text_line(record)));
  }

 private:
  static std::string now() {
    const std::time_t seconds = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&seconds, &parts);
    char stamp[32];
    std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return stamp;
  }
  void print(std::string_view line) {
    const std::scoped_lock lock(mutex_);
    fmt::print(stderr, "{}\n", line);
  }

  std::mutex mutex_;
  bool json_ = false;
};

Log& the_log() {
  static Log log;
  return log;
}

void log_line(std::string_view line) { the_log().line(line); }

// Requests that did not reach their handler: no key, unknown route, loading, too large.
void log_refused(const AccessRecord& access) {
  if (access.handled) return;
  the_log().request({.id = std::string(access.id),
                     .method = std::string(access.method),
                     .path = std::string(access.path),
                     .client = std::string(access.client),
                     .status = access.status,
                     .seconds = access.seconds,
                     .answer = {}});
}

// Signals go to one thread that waits for them; made before any other thread.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
  }
  void wait() const {
    int number = 0;
    sigwait(&set_, &number);
  }

 private:
  sigset_t set_{};
};

Result<SamplingParams> default_params(const ServeOptions& options) {
  SamplingParams params;
  const std::string path = options.model.directory + "/generation_config.json";
  if (options.generation_config == "none" || !file_exists(path)) return params;
  const Result<json::value> file = parse_json_file(path, {.max_bytes = 1u << 20});
  if (!file) return forward_error(file);
  const json::object* object = file->if_object();
  if (object == nullptr) return fail(ErrorCode::kCorrupt, "{}: expected an object", path);
  const auto number = [&](const char* key, double& value) {
    const json::value* found = object->if_contains(key);
    if (found != nullptr && found->is_number()) value = found->to_number<double>();
  };
  number("temperature", params.temperature);
  number("top_p", params.top_p);
  number("min_p", params.min_p);
  number("repetition_penalty", params.repetition_penalty);
  if (const json::value* k = object->if_contains("top_k"); k != nullptr && k->is_int64())
    params.top_k = k->as_int64();
  if (const Status ok = validate(params, 1 << 30); !ok) return tl::unexpected(ok.error().within(path));
  return params;
}

Result<std::vector<std::string>> api_keys(const ServeOptions& options) {
  std::vector<std::string> keys = options.api_keys;
  if (!options.api_key_file.empty()) {
    const Result<std::string> text = read_file(options.api_key_file, 1u << 20);
    if (!text) return tl::unexpected(text.error().within("--api-key-file"));
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (!line.empty()) keys.push_back(line);
    }
    if (keys.empty())
      return fail(ErrorCode::kInvalidArgument, "--api-key-file {}: no key in it", options.api_key_file);
  }
  return keys;
}

// Of the start, for /server_info. Keys are counted, not shown.
json::object arguments(const ServeOptions& options, const KvPools& pools, const LoadedModel& loaded,
                       std::size_t keys) {
  json::array kernels;
  for (const std::string& line : loaded.ops->describe()) kernels.emplace_back(line);
  return {{"host", options.host},
          {"port", options.port},
          {"api_keys", keys},
          {"backend", loaded.ops->name()},
          {"kernels", std::move(kernels)},
          {"kv_cache_dtype", kv_dtype_name(loaded.kv_dtype)},
          {"page_size", options.model.page_size},
          {"context_length", pools.max_model_len},
          {"max_total_tokens", pools.full_pages * options.model.page_size},
          {"swa_tokens", pools.window_pages * options.model.page_size},
          {"max_running_requests", options.max_running},
          {"max_queued_requests", options.max_queued},
          {"chunked_prefill_size", options.chunk},
          {"mixed_chunk", options.mixed},
          {"schedule_policy", options.policy},
          {"radix_cache", options.prefix_cache},
          {"host_kv_gb", options.host_kv_gb},
          {"swa_eviction_interval", options.eviction_interval},
          {"priority_scheduling", options.priorities},
          {"speculative_algorithm", loaded.drafter ? loaded.drafter->name() : "NONE"}};
}

// The whole server, from options to exit status.
class Serve {
 public:
  explicit Serve(ServeOptions& options) : options_(options) {}

  int run() {
    if (options_.log_format == "json") the_log().use_json();
    static const Signals signals;  // outlives the thread that waits
    std::thread([this] {
      signals.wait();
      if (!ready_) {
        log_line("stopped before the model was loaded");
        std::_Exit(0);
      }
      stopping_ = true;
      stopping_.notify_all();
      signals.wait();
      log_line("second signal: exit at once");
      std::_Exit(0);
    }).detach();
    if (const Status ok = start(); !ok) return report_error(ok.error());
    ready_ = true;
    log_line(fmt::format("ready: {} (OpenAI and Anthropic APIs), model {}", http_->url(), names_.front()));
    stopping_.wait(false);
    return stop();
  }

 private:
  Status start();
  Status start_http(const ModelConfig& config);
  Status start_engine(const ModelConfig& config);
  Status start_answering();
  int stop();

  ServeOptions& options_;
  std::vector<std::string> names_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatFormat> format_;
  std::optional<LoadedModel> loaded_;
  KvPools pools_;
  std::size_t keys_ = 0;
  std::unique_ptr<ServingEngine> engine_;
  std::unique_ptr<ApiService> service_;
  std::unique_ptr<HttpServer> http_;
  std::atomic<bool> ready_{false};
  std::atomic<bool> stopping_{false};
};

Status Serve::start() {
  if (options_.model.directory.empty() && options_.model.load_format != "random") {
    Result<std::string> bundled = bundled_model();
    if (!bundled) return forward_error(bundled);
    options_.model.directory = std::move(*bundled);
  }
  const std::filesystem::path directory(options_.model.directory);
  names_ = options_.names;
  if (names_.empty()) {
    const std::filesystem::path absolute = std::filesystem::weakly_canonical(directory);
    names_.push_back(absolute.filename().string());
  }
  Result<Tokenizer> tokenizer = Tokenizer::load((directory / "tokenizer.json").string());
  if (!tokenizer) return forward_error(tokenizer);
  tokenizer_.emplace(std::move(*tokenizer));
  Result<ChatFormat> format = ChatFormat::load(options_.model.directory);
  if (format) {
    format_.emplace(std::move(*format));
  } else if (format.error().code != ErrorCode::kNotFound) {
    return forward_error(format);
  } else {
    log_line("no chat template: /v1/completions only");
  }
  const Result<ModelConfig> config = read_config(options_.model);
  if (!config) return forward_error(config);
  // First the port: clients and load balancers see that the server lives, and a taken port is known before
  // minutes of loading.
  if (const Status ok = start_http(*config); !ok) return ok;
  log_line(fmt::format("listening: {}, 503 until the model is loaded", http_->url()));
  if (const Status ok = start_engine(*config); !ok) return ok;
  return start_answering();
}

Status Serve::start_engine(const ModelConfig& config) {
  options_.model.max_running = options_.max_running;
  options_.model.allowed_vocab = static_cast<int>(tokenizer_->vocab_size());
  Result<LoadedModel> loaded = load_model(options_.model);
  if (!loaded) return forward_error(loaded);
  loaded_.emplace(std::move(*loaded));

  EngineOptions engine;
  engine.scheduler.layout = {options_.model.page_size, config.window.window, options_.eviction_interval};
  engine.scheduler.rows = options_.chunk;
  engine.scheduler.max_running = std::min(options_.max_running, options_.chunk);
  engine.scheduler.max_queued = options_.max_queued;
  engine.scheduler.block = 1 + (loaded_->drafter ? loaded_->drafter->max_drafts() : 0);
  engine.scheduler.mixed = options_.mixed;
  engine.scheduler.conservativeness = options_.conservativeness;
  engine.scheduler.longest_prefix_first = options_.policy == "lpm";
  engine.scheduler.priorities = options_.priorities;
  engine.scheduler.low_values_first = options_.low_values_first;
  engine.scheduler.preemption_threshold = options_.preemption_threshold;
  engine.kv_dtype = loaded_->kv_dtype;
  engine.tokenizer = &*tokenizer_;
  engine.drafter = loaded_->drafter.get();
  engine.speculation = options_.model.drafter.speculation;
  std::uint64_t reserve = 0;
  if (!loaded_->ops->host_memory()) {
    const Result<std::uint64_t> needed = rehearse_steps(*loaded_->model, *loaded_->ops, engine);
    if (!needed) return forward_error(needed);
    reserve = *needed;
  }
  const std::uint64_t free = loaded_->ops->free_memory();
  Result<KvPools> pools =
      plan_kv_pools(config, options_, engine.scheduler, loaded_->kv_dtype, free - std::min(free, reserve));
  if (!pools) return forward_error(pools);
  pools_ = std::move(*pools);
  fmt::print(stderr, "{}", pools_.text);
  for (const std::string& line : loaded_->ops->describe()) fmt::print(stderr, "  {}\n", line);

  engine.full_pages = pools_.full_pages;
  engine.window_pages = pools_.window_pages;
  engine.max_model_len = pools_.max_model_len;
  engine.prefix_cache = options_.prefix_cache;
  engine.host_kv_bytes = static_cast<std::uint64_t>(options_.host_kv_gb * (1u << 30));
  engine.host_kv_min_tokens = options_.host_kv_min_tokens;
  engine.log = log_line;
  Result<std::unique_ptr<EngineCore>> core = EngineCore::make(*loaded_->model, *loaded_->ops, engine);
  if (!core) return forward_error(core);
  if (const HostTier* host = (*core)->host_tier()) {
    fmt::print(stderr, "  {:<22} {:>10} tokens and {} windows with their drafter tails, written through\n",
               "host KV tier", host->full_capacity() * options_.model.page_size, host->window_records());
  }

  ServingEngineOptions serving;
  serving.max_queued = options_.max_queued;
  serving.watchdog_seconds = options_.watchdog_seconds;
  serving.log = log_line;
  serving.on_stuck = [](std::string_view) { std::_Exit(kStuck); };
  serving.on_death = [](std::string_view why) {
    log_line(fmt::format("error: the engine has ended: {}", why));
    std::_Exit(kEngineDied);
  };
  engine_ = std::make_unique<ServingEngine>(std::move(*core), loaded_->model->config(), serving);
  return {};
}

Status Serve::start_answering() {
  if (options_.warm_up) {
    // One chunk and a row more: both kinds of prompt steps run.
    const Result<WarmUp> done = warm_up(*engine_, *tokenizer_, format_ ? &*format_ : nullptr,
                                        {.prompt_tokens = std::int64_t{options_.chunk} + 1});
    if (!done) return forward_error(done);
    log_line(fmt::format("warm-up: {} tokens in {:.2f} s{}{}", done->tokens, done->seconds,
                         done->cut ? ", cut: slow machine" : "",
                         loaded_->drafter
                             ? fmt::format(", accept length {:.2f}", done->speculation.accept_length())
                             : std::string()));
    if (const std::string warning = draft_warning(*done); !warning.empty()) log_line(warning);
  }
  ApiEngine engine;
  engine.client = engine_.get();
  engine.figures = [running = engine_.get()] {
    return EngineFigures{running->status(), running->times(), running->speculation(), running->prefix_cache(),
                         running->host_tier()};
  };
  engine.arguments = arguments(options_, pools_, *loaded_, keys_);
  engine.stall = [running = engine_.get()](double seconds) {
    running->stall(std::chrono::duration<double>(seconds));
  };
  service_->serve(std::move(engine));
  return {};
}

Status Serve::start_http(const ModelConfig& config) {
  Result<SamplingParams> params = default_params(options_);
  if (!params) return forward_error(params);
  Result<std::vector<std::string>> keys = api_keys(options_);
  if (!keys) return forward_error(keys);
  keys_ = keys->size();

  ApiServiceOptions api;
  api.context.models = {names_, options_.accept_any_model};
  api.context.vocab = static_cast<int>(tokenizer_->vocab_size());
  api.context.default_params = std::move(*params);
  api.context.enable_thinking = options_.enable_thinking;
  api.context.priorities = options_.priorities;
  api.card = {std::time(nullptr), names_.front(), 0};
  api.model_path = names_.front();
  api.version = MIMO_VERSION;
  api.metrics_open = !options_.protect_metrics;
  if (options_.reasoning_field == "reasoning") api.reasoning_field = ReasoningField::kReasoning;
  if (options_.reasoning_field == "both") api.reasoning_field = ReasoningField::kBoth;
  api.strict_openai = options_.strict_openai;
  api.timings = options_.timings;
  api.stuck_seconds = options_.stuck_seconds;
  api.debug_endpoints = options_.debug_endpoints;
  api.workers = options_.http_threads;
  if (options_.log_requests) api.log = [](const RequestRecord& record) { the_log().request(record); };
  service_ = std::make_unique<ApiService>(*tokenizer_, format_ ? &*format_ : nullptr, config.eos_token_ids,
                                          std::move(api));

  HttpServerOptions http;
  http.host = options_.host;
  http.port = static_cast<std::uint16_t>(options_.port);
  http.threads = options_.http_threads;
  http.api_keys = std::move(*keys);
  http.cors_origins = options_.cors_origins;
  http.unavailable = [this] { return service_->unavailable(); };
  http.problem = log_line;
  if (options_.log_requests) http.access_log = log_refused;
  http.cut = [this](const std::shared_ptr<Exchange>&) {  // only after the engine has started
    engine_->fail_all({ErrorCode::kUnavailable, "the server is shutting down"});
  };
  Result<std::unique_ptr<HttpServer>> server = HttpServer::start(std::move(http), service_->routes());
  if (!server) return forward_error(server);
  http_ = std::move(*server);
  return {};
}

int Serve::stop() {
  service_->drain();
  log_line(fmt::format("shutting down: running answers have {} s", options_.shutdown_seconds));
  const std::size_t cut =
      http_->drain(std::chrono::milliseconds(static_cast<std::int64_t>(options_.shutdown_seconds * 1000)));
  if (cut > 0) log_line(fmt::format("{} answers were cut", cut));
  http_.reset();
  // The service's threads may still be about to submit or abort, or told that a request has ended.
  if (engine_) engine_->stop();
  service_.reset();
  engine_.reset();
  log_line("bye");
  return 0;
}

}  // namespace

CommandBody add_serve_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("serve", "Serve a checkpoint over HTTP: OpenAI and Anthropic APIs");
  auto options = std::make_shared<ServeOptions>();
  add_serve_options(*command, *options);
  return [options] { return Serve(*options).run(); };
}

}  // namespace mimo
