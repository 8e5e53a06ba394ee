#include "server/running_jobs.h"

#include <utility>
#include <vector>

#include "server/answer_job.h"

namespace mimo {
namespace {

// Outside the lock: the last owner of a job takes it to remove its entry.
std::size_t cancel_each(const std::vector<std::shared_ptr<AnswerJob>>& jobs) {
  for (const std::shared_ptr<AnswerJob>& job : jobs) job->cancel();
  return jobs.size();
}

}  // namespace

RunningJobs::Entry::Entry(RunningJobs& jobs, std::string_view id, std::weak_ptr<AnswerJob> job)
    : jobs_(jobs) {
  const std::scoped_lock lock(jobs_.mutex_);
  place_ = jobs_.jobs_.emplace(std::string(id), std::move(job));
}

RunningJobs::Entry::~Entry() {
  const std::scoped_lock lock(jobs_.mutex_);
  jobs_.jobs_.erase(place_);
}

std::size_t RunningJobs::cancel(const std::string& id) {
  std::vector<std::shared_ptr<AnswerJob>> found;
  {
    const std::scoped_lock lock(mutex_);
    const auto [begin, end] = jobs_.equal_range(id);
    for (auto job = begin; job != end; ++job) {
      if (std::shared_ptr<AnswerJob> alive = job->second.lock()) found.push_back(std::move(alive));
    }
  }
  return cancel_each(found);
}

std::size_t RunningJobs::cancel_all() {
  std::vector<std::shared_ptr<AnswerJob>> found;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [id, job] : jobs_) {
      if (std::shared_ptr<AnswerJob> alive = job.lock()) found.push_back(std::move(alive));
    }
  }
  return cancel_each(found);
}

}  // namespace mimo
