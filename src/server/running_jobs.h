// The answers under way, by the id that clients know them by: what /abort_request looks for.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace mimo {

class AnswerJob;

class RunningJobs {
 public:
  // In the list as long as the entry lives; the list must outlive it. Several may have the same id.
  class Entry {
   public:
    Entry(RunningJobs& jobs, std::string_view id, std::weak_ptr<AnswerJob> job);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    RunningJobs& jobs_;
    std::multimap<std::string, std::weak_ptr<AnswerJob>>::iterator place_;
  };

  // Ends the answers of this id, with what they have so far. Returns how many there were.
  std::size_t cancel(const std::string& id);
  std::size_t cancel_all();

 private:
  std::mutex mutex_;
  std::multimap<std::string, std::weak_ptr<AnswerJob>> jobs_;
};

}  // namespace mimo
