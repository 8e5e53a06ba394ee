// A few threads for work that would hold up the network: reading bodies, rendering chats, tokenising.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mimo {

class WorkQueue {
 public:
  explicit WorkQueue(int threads);
  // Runs what waits, then joins.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // In order of arrival; with one thread also one after the other.
  void post(std::function<void()> work);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  bool closing_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace mimo
