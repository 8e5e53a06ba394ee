#include "core/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <span>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mimo {
namespace {

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// The CPUs this process was given, in order. Asked once: later the calling thread may itself be bound to one.
const std::vector<int>& allowed_cpus() {
  static const std::vector<int> cpus = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<int> found;
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return found;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) found.push_back(cpu);
    }
    return found;
  }();
  return cpus;
}

void bind_thread(pthread_t thread, std::span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  // Best effort: a container may forbid it, and the pool works unpinned.
  (void)pthread_setaffinity_np(thread, sizeof(set), &set);
}

}  // namespace

int available_cpus() {
  const std::size_t count = allowed_cpus().size();
  return count == 0 ? 1 : static_cast<int>(count);
}

ThreadPool::ThreadPool(const Options& options) : spin_us_(options.spin_us) {
  const int threads = options.threads < 1 ? 1 : options.threads;
  const std::vector<int>& cpus = allowed_cpus();
  // Pinning more threads than CPUs would stack two on one CPU; leave those to the kernel.
  const bool pin = options.pin && static_cast<std::size_t>(threads) <= cpus.size() && threads > 1;
  // An unpinned caller may be put on a worker's CPU, where the two wait for each other by turns of a
  // scheduler tick.
  if (pin) bind_thread(pthread_self(), {cpus.data(), 1});
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] { work(worker); });
    // A new thread inherits the binding of its maker, so that a free one has to be set free.
    const std::span<const int> own =
        pin ? std::span<const int>(cpus.data() + worker, 1) : std::span<const int>(cpus);
    bind_thread(workers_.back().native_handle(), own);
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
}

void ThreadPool::work(int worker) {
  std::uint32_t seen = 0;
  while (true) {
    std::uint32_t job = job_.load(std::memory_order_acquire);
    if (job == seen) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
      int polls = 0;
      while ((job = job_.load(std::memory_order_acquire)) == seen) {
        pause_cpu();
        // Reading the clock costs more than a poll; look at it now and then.
        if (++polls % 64 == 0 && std::chrono::steady_clock::now() > deadline) {
          job_.wait(seen, std::memory_order_acquire);
        }
      }
    }
    seen = job;
    if (stop_) return;
    (*body_)(worker);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::run(FunctionRef<void(int)> body) {
  if (workers_.empty()) {
    body(0);
    return;
  }
  body_ = &body;
  pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  body(0);
  int polls = 0;
  while (pending_.load(std::memory_order_acquire) != 0) {
    pause_cpu();
    // A worker that lost its CPU to another process needs ours more than we do.
    if (++polls % 4096 == 0) sched_yield();
  }
}

void ThreadPool::for_each(std::int64_t count, std::int64_t grain, FunctionRef<void(std::int64_t, int)> body) {
  if (count <= 0) return;
  if (grain < 1) grain = 1;
  if (workers_.empty() || count <= grain) {
    for (std::int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  next_.store(0, std::memory_order_relaxed);
  run([&](int worker) {
    while (true) {
      const std::int64_t begin = next_.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      const std::int64_t end = begin + grain < count ? begin + grain : count;
      for (std::int64_t i = begin; i < end; ++i) body(i, worker);
    }
  });
}

}  // namespace mimo
