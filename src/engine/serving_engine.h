// The engine of a server: an EngineCore on a thread of its own, which takes requests from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "engine/engine_core.h"

namespace mimo {

struct ServingEngineOptions {
  int max_queued = 1024;  // requests that wait before submit() says kBusy
  // A step that takes longer than this is taken for stuck: `on_stuck` is called (once), with what the engine was
  // doing. 0: never.
  double watchdog_seconds = 300;
  std::function<void(std::string_view what)> on_stuck = {};
  // The loop has ended by itself: steps keep failing. Called once, from the engine's thread, after every request
  // was ended with an error.
  std::function<void(std::string_view what)> on_death = {};
  LogLine log = {};  // null: stderr
};

class ServingEngine final : public EngineClient {
 public:
  ServingEngine(std::unique_ptr<EngineCore> core, const ModelConfig& config,
                const ServingEngineOptions& options);
  ~ServingEngine() override;
  ServingEngine(const ServingEngine&) = delete;
  ServingEngine& operator=(const ServingEngine&) = delete;

  Result<RequestId> submit(EngineRequest request, std::shared_ptr<AnswerSink> sink) override;
  void abort(RequestId id) override;
  EngineStatus status() const override;
  Status flush_cache() override;
  std::int64_t max_model_len() const override { return max_model_len_; }

  // From now on submit() says kUnavailable; what runs goes on.
  void drain() { draining_ = true; }
  // Until nothing runs, at most so long. False: something still does.
  bool wait_idle(std::chrono::duration<double> at_most);
  // Ends all requests with `error`.
  void fail_all(Error error);
  // Ends what runs with kUnavailable, and the loop. The object can still be called from any thread, and refuses: a
  // server stops the engine first, then the threads that may be about to call it.
  void stop();

  EngineTimes times() const;
  SpeculationStats speculation() const;
  PrefixCacheStats prefix_cache() const;
  HostTierStats host_tier() const;

  // For tests of health checks: the loop stands still for so long.
  void stall(std::chrono::duration<double> seconds);

 private:
  using Clock = std::chrono::steady_clock;

  struct Submit {
    RequestId id;
    EngineRequest request;
    std::shared_ptr<AnswerSink> sink;
  };
  struct Abort {
    RequestId id;
  };
  struct FailAll {
    Error error;
  };
  struct Flush {
    std::function<void(Status)> done;
  };
  struct Stall {
    std::chrono::duration<double> seconds;
  };
  using Command = std::variant<Submit, Abort, FailAll, Flush, Stall>;

  void post(Command command);
  void loop(const std::stop_token& stop);
  void watch(const std::stop_token& stop);
  void run(Command& command);
  void refuse(Command& command);
  bool step();
  void publish();
  void beat(bool asleep);

  std::unique_ptr<EngineCore> core_;
  ModelConfig config_;
  ServingEngineOptions options_;
  std::int64_t max_model_len_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> dead_{false};
  std::atomic<RequestId> next_id_{1};
  std::atomic<std::int64_t> posted_{0};  // submits that the loop has not seen
  std::atomic<std::int64_t> beat_{0};    // of Clock
  std::atomic<bool> asleep_{true};

  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  std::condition_variable_any idle_;
  std::vector<Command> commands_;
  bool closed_ = false;   // the loop has taken its last command
  bool all_done_ = true;  // no command waits and nothing runs
  // As of the end of the last step.
  EngineStatus status_;
  EngineTimes times_;
  SpeculationStats speculation_;
  PrefixCacheStats prefix_cache_;
  HostTierStats host_tier_;

  int failed_steps_ = 0;  // in a row
  std::jthread thread_;
  std::jthread watchdog_;
};

}  // namespace mimo
