#include "engine/draft_bench.h"

#include <algorithm>
#include <array>
#include <chrono>

namespace mimo {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

DraftBench::DraftBench(Drafter& drafter, Ops& ops, BenchSequences& sequences, int hidden,
                       const Options& options)
    : drafter_(drafter),
      ops_(ops),
      sequences_(sequences),
      options_(options),
      block_(1 + drafter.max_drafts()),
      width_(drafter.taps().size() * static_cast<std::size_t>(hidden)) {}

std::int64_t DraftBench::room_needed(const Drafter& drafter, int steps) {
  const std::int64_t block = 1 + drafter.max_drafts();
  return 1 + steps * std::min<std::int64_t>(kMostAccepted, block) + block;
}

void DraftBench::wait() {
  float value = 0;
  ops_.download(&value, taps_.data(), sizeof(value));
}

// New states that have seen the context: states of one step of the target again and again.
Status DraftBench::begin(std::int64_t depth, int count) {
  states_.clear();
  anchors_.clear();
  positions_.assign(1, 0);
  const std::size_t rows = std::max(static_cast<std::size_t>(options_.context_rows),
                                    static_cast<std::size_t>(count) * static_cast<std::size_t>(block_));
  tap_rows_ = std::max(tap_rows_, rows);
  const std::size_t floats = tap_rows_ * width_;
  sequences_.step(positions_, options_.context_rows, false,
                  {.indices = drafter_.taps(), .out = {taps_.reserve(ops_, floats), floats}});
  depth = std::max<std::int64_t>(depth, 1);  // an anchor has a token before it
  for (int s = 0; s < count; ++s) {
    Result<std::unique_ptr<DraftState>> state = drafter_.open(depth + room_needed(drafter_, options_.steps));
    if (!state) return forward_error(state);
    anchors_.push_back(sequences_.random_token());
    for (std::int64_t at = drafter_.first_needed(depth); at < depth;) {
      const auto shown = static_cast<int>(std::min<std::int64_t>(options_.context_rows, depth - at));
      tokens_.assign(1, anchors_.back());
      for (int i = 0; i < shown; ++i) tokens_.push_back(sequences_.random_token());
      anchors_.back() = tokens_.back();
      const DraftObservation seen{state->get(), 0, shown, at, tokens_};
      drafter_.observe({&seen, 1}, {taps_.data(), floats});
      at += shown;
    }
    states_.push_back(std::move(*state));
  }
  positions_.assign(states_.size(), depth);
  wait();
  return {};
}

void DraftBench::draft() {
  const auto most = static_cast<std::size_t>(drafter_.max_drafts());
  drafts_.resize(states_.size() * most);
  confidence_.resize(drafts_.size());
  requests_.clear();
  for (std::size_t s = 0; s < states_.size(); ++s) {
    requests_.push_back({states_[s].get(), anchors_[s], positions_[s],
                         std::span(drafts_).subspan(s * most, most),
                         std::span(confidence_).subspan(s * most, most)});
  }
  drafter_.draft(requests_);
  for (const DraftRequest& request : requests_) failed_ = failed_ || request.failed;
}

void DraftBench::verify() {
  sequences_.step(positions_, block_, true,
                  {.indices = drafter_.taps(), .out = {taps_.data(), tap_rows_ * width_}});
}

void DraftBench::observe(int step) {
  const int most = std::min(kMostAccepted, block_);
  const int fewest = std::min(kFewestAccepted, most);
  const std::span<const std::int32_t> verified = sequences_.tokens();
  tokens_.clear();
  tokens_.reserve(verified.size() + states_.size());  // so that spans into it stay valid
  observations_.clear();
  for (std::size_t s = 0; s < states_.size(); ++s) {
    const int accepted = fewest + (step + static_cast<int>(s)) % (most - fewest + 1);
    const auto begin = tokens_.size();
    const auto first = static_cast<int>(s) * block_;
    const auto rows = verified.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(accepted));
    tokens_.push_back(anchors_[s]);
    tokens_.insert(tokens_.end(), rows.begin() + 1, rows.end());
    tokens_.push_back(sequences_.random_token());
    anchors_[s] = tokens_.back();
    observations_.push_back(
        {states_[s].get(), first, accepted, positions_[s], std::span(tokens_).subspan(begin)});
    positions_[s] += accepted;
  }
  drafter_.observe(observations_, {taps_.data(), tap_rows_ * width_});
}

Result<DraftStepTimes> DraftBench::run(std::int64_t depth, int count) {
  DraftStepTimes times;
  std::vector<double> steps;
  failed_ = false;
  for (int repeat = -1; repeat < options_.repeats; ++repeat) {
    if (const Status ok = begin(depth, count); !ok) return forward_error(ok);
    const auto start = Clock::now();
    for (int i = 0; i < options_.steps; ++i) {
      draft();
      verify();
      observe(i);
    }
    wait();
    if (repeat >= 0) steps.push_back(seconds(start, Clock::now()) / options_.steps);
  }
  times.step = median(steps);
  if (const Status ok = begin(depth, count); !ok) return forward_error(ok);
  std::array<std::vector<double>, 3> parts;
  for (int i = 0; i < options_.steps; ++i) {
    const auto start = Clock::now();
    draft();
    const auto drafted = Clock::now();
    verify();
    const auto verified = Clock::now();
    observe(i);
    wait();
    parts[0].push_back(seconds(start, drafted));
    parts[1].push_back(seconds(drafted, verified));
    parts[2].push_back(seconds(verified, Clock::now()));
  }
  times.draft = median(parts[0]);
  times.verify = median(parts[1]);
  times.observe = median(parts[2]);
  states_.clear();
  if (failed_) return fail(ErrorCode::kCorrupt, "{}: a draft is not finite", drafter_.name());
  return times;
}

}  // namespace mimo
