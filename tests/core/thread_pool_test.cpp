#include "core/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace mimo {
namespace {

double process_cpu_ms() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) / 1e3;
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

ThreadPool::Options unpinned(int threads) { return {.threads = threads, .pin = false}; }

TEST(ThreadPool, EveryIndexOnceWhateverTheGrain) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(unpinned(threads));
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const std::int64_t grain : {-1, 0, 1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
        std::atomic<std::int64_t> sum = 0;
        pool.for_each(count, grain, [&](std::int64_t index, int worker) {
          EXPECT_GE(worker, 0);
          EXPECT_LT(worker, threads);
          ++seen[static_cast<std::size_t>(index)];
          sum += index;
        });
        EXPECT_EQ(sum, count * (count - 1) / 2);
        for (const auto& times : seen) ASSERT_EQ(times, 1) << count << " by " << grain;
      }
    }
  }
}

TEST(ThreadPool, RunCallsEveryWorkerOnce) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(unpinned(threads));
    for (int loop = 0; loop < 50; ++loop) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(threads));
      pool.run([&](int worker) { ++calls[static_cast<std::size_t>(worker)]; });
      for (const auto& count : calls) ASSERT_EQ(count, 1);
    }
  }
}

// What a loop wrote is there when it returns, also for plain memory; tens of thousands of short loops in a
// row.
TEST(ThreadPool, ManyShortLoops) {
  ThreadPool pool(unpinned(3));
  std::vector<std::int64_t> values(24, 0);
  for (int loop = 0; loop < 20000; ++loop) {
    pool.for_each(24, 1, [&](std::int64_t i, int) { values[static_cast<std::size_t>(i)] += i; });
  }
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<std::int64_t>(20000 * i));
}

TEST(ThreadPool, LoopsAfterSleepWakeUp) {
  ThreadPool pool({.threads = 3, .pin = false, .spin_us = 0});
  for (int loop = 0; loop < 20; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> calls = 0;
    pool.run([&](int) { ++calls; });
    ASSERT_EQ(calls, 3);
  }
}

TEST(ThreadPool, IdleWorkersSleep) {
  ThreadPool pool(unpinned(4));
  pool.run([](int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double before = process_cpu_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(process_cpu_ms() - before, 50.0) << "three spinning workers would use 900 ms";
}

TEST(ThreadPool, PoolsComeAndGo) {
  for (int i = 0; i < 100; ++i) {
    ThreadPool pool(unpinned(3));
    if (i % 2 == 0) continue;  // never used
    std::atomic<int> calls = 0;
    pool.run([&](int) { ++calls; });
    ASSERT_EQ(calls, 3);
  }
}

TEST(ThreadPool, FewerThanOneThreadIsOne) {
  EXPECT_EQ(ThreadPool(unpinned(0)).threads(), 1);
  EXPECT_EQ(ThreadPool(unpinned(-3)).threads(), 1);
}

// A pinned pool binds its threads to different CPUs; a later pool that does not pin may use all of them
// again, although the thread that makes it is still bound.
TEST(ThreadPool, PinningDoesNotReachLaterPools) {
  const int cpus = available_cpus();
  if (cpus < 2) GTEST_SKIP() << "needs two CPUs";
  cpu_set_t own;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(own), &own), 0);
  const auto allowed = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : -1;
  };
  {
    ThreadPool pool({.threads = 2, .pin = true});
    std::vector<int> cpu(2, -1);
    std::vector<int> count(2, 0);
    pool.run([&](int worker) {
      cpu[static_cast<std::size_t>(worker)] = ::sched_getcpu();
      count[static_cast<std::size_t>(worker)] = allowed();
    });
    if (count[1] != 1) GTEST_SKIP() << "this system does not let threads be bound";
    EXPECT_EQ(count[0], 1);
    EXPECT_NE(cpu[0], cpu[1]);
  }
  EXPECT_EQ(available_cpus(), cpus);
  ThreadPool later(unpinned(2));
  std::vector<int> count(2, 0);
  later.run([&](int worker) { count[static_cast<std::size_t>(worker)] = allowed(); });
  EXPECT_EQ(count[1], cpus);
  ::sched_setaffinity(0, sizeof(own), &own);
}

}  // namespace
}  // namespace mimo
