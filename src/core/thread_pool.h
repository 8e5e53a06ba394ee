// A fixed pool for fork-join loops inside one forward pass. The caller works too (it is worker 0), so a pool
// of one thread starts none. Workers spin for a short time after a loop, since the next one usually follows
// within microseconds, and then sleep: an idle engine uses no CPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace mimo {

// Non-owning reference to a callable; the callable must outlive the call.
template <class Signature>
class FunctionRef;

template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>) FunctionRef(
      F&& f)  // NOLINT(google-explicit-constructor): a lambda is passed where a FunctionRef is taken
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(static_cast<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, static_cast<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

class ThreadPool {
 public:
  struct Options {
    int threads = 1;  // including the caller
    bool pin =
        true;  // bind worker i to the i-th CPU this process may use, and the constructing thread to the first
    int spin_us = 50;  // how long an idle worker spins before it sleeps
  };

  explicit ThreadPool(const Options& options);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs body(worker) once on every worker, 0 <= worker < threads(), and returns when all are done. One loop
  // at a time, from one thread; not reentrant.
  void run(FunctionRef<void(int)> body);

  // Runs body(index, worker) for every index in [0, count), handing out `grain` indices at a time. Runs on
  // the caller alone when one grain covers everything.
  void for_each(std::int64_t count, std::int64_t grain, FunctionRef<void(std::int64_t, int)> body);

 private:
  void work(int worker);

  // Counts loops; a worker compares it with the last one it ran.
  alignas(64) std::atomic<std::uint32_t> job_{0};
  alignas(64) std::atomic<int> pending_{0};
  alignas(64) std::atomic<std::int64_t> next_{0};
  const FunctionRef<void(int)>* body_ = nullptr;
  bool stop_ = false;
  int spin_us_;
  std::vector<std::jthread> workers_;
};

// CPUs this process may run on.
int available_cpus();

}  // namespace mimo
