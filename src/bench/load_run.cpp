#include "bench/load_run.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <utility>

#include "bench/arrivals.h"

namespace mimo {
namespace {

// Opened ahead of an open load: one request that comes while all are busy opens another.
constexpr std::int64_t kSpare = 16;
// Between the last preparations and the first request.
constexpr double kLead = 0.001;

class Run {
 public:
  Run(LoadClient& client, const RequestStyle& style, std::span<const LoadPrompt> prompts, const Pace& pace,
      const std::function<void(const SentRequest&)>& ended)
      : client_(client),
        style_(style),
        prompts_(prompts),
        pace_(pace),
        ended_(ended),
        records_(prompts.size()) {}

  LoadResult run() {
    // Written before the clock runs: this thread has better things to do then.
    for (const LoadPrompt& prompt : prompts_) bodies_.push_back(request_body(style_, prompt));
    const std::int64_t all = std::ssize(prompts_);
    std::int64_t open = std::isinf(pace_.rate) ? all : std::min(all, kSpare);
    if (pace_.max_concurrency > 0) open = std::min<std::int64_t>(open, pace_.max_concurrency);
    client_.open(static_cast<int>(open));
    const std::vector<double> arrivals = arrival_times(all, pace_.rate, pace_.burstiness, pace_.seed);
    const double start = client_.now() + kLead;
    for (std::size_t i = 0; i < prompts_.size(); ++i) records_[i].due = start + arrivals[i];
    // Those that are due together go out in their order, which equal timers would not keep.
    for (std::size_t i = 0; i < prompts_.size();) {
      std::size_t end = i + 1;
      while (end < prompts_.size() && arrivals[end] == arrivals[i]) ++end;
      client_.at(records_[i].due, [this, i, end] {
        for (std::size_t due = i; due < end; ++due) waiting_.push_back(due);
        launch();
      });
      i = end;
    }
    client_.take_cost();
    client_.run();
    return {std::move(records_), client_.take_cost()};
  }

 private:
  void launch() {
    while (!waiting_.empty() && (pace_.max_concurrency == 0 || in_flight_ < pace_.max_concurrency)) {
      const std::size_t i = waiting_.front();
      waiting_.pop_front();
      ++in_flight_;
      SentRequest record = std::move(records_[i]);
      // In a closed load a request is due when its turn comes.
      if (std::isinf(pace_.rate)) record.due = client_.now();
      record.id = std::to_string(i);
      record.wanted_in = prompts_[i].prompt_tokens;
      record.wanted_out = prompts_[i].output_tokens;
      client_.send(style_.endpoint, style_.stream, bodies_[i], std::move(record),
                   [this, i](SentRequest done) {
                     --in_flight_;
                     records_[i] = std::move(done);
                     if (ended_) ended_(records_[i]);
                     launch();
                   });
      std::string().swap(bodies_[i]);
    }
  }

  LoadClient& client_;
  const RequestStyle& style_;
  std::span<const LoadPrompt> prompts_;
  const Pace& pace_;
  const std::function<void(const SentRequest&)>& ended_;
  std::vector<std::string> bodies_;
  std::vector<SentRequest> records_;
  std::deque<std::size_t> waiting_;
  int in_flight_ = 0;
};

}  // namespace

LoadResult run_load(LoadClient& client, const RequestStyle& style, std::span<const LoadPrompt> prompts,
                    const Pace& pace, const std::function<void(const SentRequest&)>& ended) {
  return Run(client, style, prompts, pace, ended).run();
}

}  // namespace mimo
