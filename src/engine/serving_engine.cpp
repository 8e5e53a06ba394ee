#include "engine/serving_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <future>
#include <iterator>
#include <utility>

namespace mimo {
namespace {

// Steps that fail one after another before the engine gives up: one bad request may fail once.
constexpr int kFailuresInARow = 3;

template <class... Handlers>
struct Overload : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overload(Handlers...) -> Overload<Handlers...>;

void end_unserved(AnswerSink& sink, Error error) {
  AnswerStep step;
  step.error = std::move(error);
  sink.on_step(std::move(step));
}

}  // namespace

ServingEngine::ServingEngine(std::unique_ptr<EngineCore> core, const ModelConfig& config,
                             const ServingEngineOptions& options)
    : core_(std::move(core)), config_(config), options_(options), max_model_len_(core_->max_model_len()) {
  if (!options_.log) options_.log = [](std::string_view line) { fmt::print(stderr, "{}\n", line); };
  publish();
  beat(true);
  thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
  if (options_.watchdog_seconds > 0) {
    watchdog_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  }
}

ServingEngine::~ServingEngine() { stop(); }

void ServingEngine::stop() {
  draining_ = true;
  watchdog_.request_stop();
  thread_.request_stop();
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<RequestId> ServingEngine::submit(EngineRequest request, std::shared_ptr<AnswerSink> sink) {
  if (dead_) return fail(ErrorCode::kUnavailable, "the engine has stopped");
  if (draining_) return fail(ErrorCode::kUnavailable, "the server is shutting down");
  if (const Status ok = check_request(request, config_, max_model_len_); !ok) return forward_error(ok);
  {
    const std::scoped_lock lock(mutex_);
    if (status_.waiting + posted_ >= options_.max_queued && request.priority == 0) {
      return fail(ErrorCode::kBusy, "{} requests wait already, at most {} may (--max-queued-requests)",
                  status_.waiting + posted_, options_.max_queued);
    }
  }
  const RequestId id = next_id_++;
  ++posted_;
  post(Submit{id, std::move(request), std::move(sink)});
  return id;
}

void ServingEngine::abort(RequestId id) { post(Abort{id}); }

void ServingEngine::fail_all(Error error) { post(FailAll{std::move(error)}); }

void ServingEngine::stall(std::chrono::duration<double> seconds) { post(Stall{seconds}); }

Status ServingEngine::flush_cache() {
  if (dead_) return fail(ErrorCode::kUnavailable, "the engine has stopped");
  auto promise = std::make_shared<std::promise<Status>>();
  std::future<Status> answer = promise->get_future();
  post(Flush{[promise](Status status) { promise->set_value(std::move(status)); }});
  return answer.get();
}

void ServingEngine::post(Command command) {
  {
    const std::scoped_lock lock(mutex_);
    if (!closed_) {
      commands_.push_back(std::move(command));
      all_done_ = false;
      wake_.notify_one();
      return;
    }
  }
  refuse(command);
}

bool ServingEngine::wait_idle(std::chrono::duration<double> at_most) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, at_most, [this] { return all_done_; });
}

void ServingEngine::loop(const std::stop_token& stop) {
  std::vector<Command> commands;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (commands_.empty() && core_->idle()) {
        all_done_ = true;
        idle_.notify_all();
        beat(true);
        wake_.wait(lock, stop, [this] { return !commands_.empty(); });
      }
      std::swap(commands, commands_);
    }
    beat(false);
    if (stop.stop_requested()) break;
    for (Command& command : commands) run(command);
    commands.clear();
    if (!step()) break;
    if (core_->idle() && posted_ == 0) core_->settle();
    publish();
  }
  dead_ = true;
  core_->fail_all({ErrorCode::kUnavailable, "the server is shutting down"});
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    // Behind those that were taken when the loop was told to end.
    std::move(commands_.begin(), commands_.end(), std::back_inserter(commands));
    commands_.clear();
  }
  for (Command& command : commands) refuse(command);
  publish();
  {
    const std::scoped_lock lock(mutex_);
    all_done_ = true;
  }
  idle_.notify_all();
  if (!stop.stop_requested() && options_.on_death) options_.on_death("steps keep failing");
}

void ServingEngine::run(Command& command) {
  std::visit(Overload{[this](Submit& submit) {
                        --posted_;
                        const Status taken = core_->submit(submit.id, std::move(submit.request), submit.sink);
                        if (!taken) end_unserved(*submit.sink, taken.error());
                      },
                      [this](const Abort& abort) { core_->abort(abort.id); },
                      [this](const FailAll& all) { core_->fail_all(all.error); },
                      [this](const Flush& flush) {
                        Status flushed = core_->flush_cache();
                        publish();  // first: who flushes sees it in status()
                        flush.done(std::move(flushed));
                      },
                      [](const Stall& stall) { std::this_thread::sleep_for(stall.seconds); }},
             command);
}

// Of a loop that has ended: nobody waits for an answer that will not come.
void ServingEngine::refuse(Command& command) {
  const Error error{ErrorCode::kUnavailable, "the server is shutting down"};
  if (auto* submit = std::get_if<Submit>(&command)) {
    --posted_;
    end_unserved(*submit->sink, error);
  } else if (auto* flush = std::get_if<Flush>(&command)) {
    flush->done(tl::unexpected(error));
  }
}

// False: the engine gives up.
bool ServingEngine::step() {
  try {
    core_->step();
    failed_steps_ = 0;
    return true;
  } catch (const std::exception& error) {
    ++failed_steps_;
    options_.log(fmt::format("error: a step failed ({} in a row): {}", failed_steps_, error.what()));
    core_->fail_step({ErrorCode::kInternal, "the step that computed this request failed"});
  }
  return failed_steps_ < kFailuresInARow;
}

// In this order: whoever reads that the loop is awake (status() reads asleep_ first) finds the time at which it woke, not
// the one at which it fell asleep.
void ServingEngine::beat(bool asleep) {
  beat_ = Clock::now().time_since_epoch().count();
  asleep_ = asleep;
}

void ServingEngine::publish() {
  const std::scoped_lock lock(mutex_);
  status_ = core_->status();
  times_ = core_->times();
  speculation_ = core_->speculation();
  if (core_->prefix_tree() != nullptr) prefix_cache_ = core_->prefix_tree()->stats();
  if (core_->host_tier() != nullptr) host_tier_ = core_->host_tier()->stats();
}

EngineStatus ServingEngine::status() const {
  EngineStatus status;
  {
    const std::scoped_lock lock(mutex_);
    status = status_;
  }
  status.waiting += posted_;
  const bool asleep = asleep_;
  const Clock::duration beat(beat_.load());
  const std::chrono::duration<double> age = Clock::now().time_since_epoch() - beat;
  status.heartbeat_seconds = asleep ? 0 : age.count();
  status.alive =
      !dead_ && (options_.watchdog_seconds <= 0 || status.heartbeat_seconds < options_.watchdog_seconds);
  return status;
}

EngineTimes ServingEngine::times() const {
  const std::scoped_lock lock(mutex_);
  return times_;
}

SpeculationStats ServingEngine::speculation() const {
  const std::scoped_lock lock(mutex_);
  return speculation_;
}

PrefixCacheStats ServingEngine::prefix_cache() const {
  const std::scoped_lock lock(mutex_);
  return prefix_cache_;
}

HostTierStats ServingEngine::host_tier() const {
  const std::scoped_lock lock(mutex_);
  return host_tier_;
}

void ServingEngine::watch(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  const auto pause = std::chrono::duration<double>(std::min(1.0, options_.watchdog_seconds / 4));
  while (!stop.stop_requested()) {
    never.wait_for(lock, stop, pause, [] { return false; });
    const EngineStatus now = status();
    if (now.heartbeat_seconds < options_.watchdog_seconds || dead_) continue;
    const std::string what = fmt::format(
        "the engine's step {} takes {:.0f} s, more than --watchdog-timeout {:.0f}: {} requests run, {} wait",
        now.steps + 1, now.heartbeat_seconds, options_.watchdog_seconds, now.running, now.waiting);
    options_.log("error: " + what);
    if (options_.on_stuck) options_.on_stuck(what);
    return;
  }
}

}  // namespace mimo
