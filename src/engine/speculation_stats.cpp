#include "engine/speculation_stats.h"

#include <algorithm>
#include <numeric>

namespace mimo {
namespace {

void count(std::vector<std::int64_t>& histogram, int value) {
  const auto index = static_cast<std::size_t>(value);
  if (histogram.size() <= index) histogram.resize(index + 1);
  ++histogram[index];
}

void add_to(std::vector<std::int64_t>& histogram, const std::vector<std::int64_t>& other) {
  histogram.resize(std::max(histogram.size(), other.size()));
  for (std::size_t i = 0; i < other.size(); ++i) histogram[i] += other[i];
}

std::int64_t at_least(const std::vector<std::int64_t>& histogram, int value) {
  const auto skip = std::min(histogram.size(), static_cast<std::size_t>(value));
  return std::accumulate(histogram.begin() + static_cast<std::ptrdiff_t>(skip), histogram.end(),
                         std::int64_t{0});
}

}  // namespace

void SpeculationStats::record(int proposed_drafts, int accepted_drafts, int emitted_tokens) {
  if (proposed_drafts == 0) {
    ++plain_steps;
    return;
  }
  ++verify_steps;
  proposed += proposed_drafts;
  accepted += accepted_drafts;
  emitted += emitted_tokens;
  count(accepted_histogram, accepted_drafts);
  count(proposed_histogram, proposed_drafts);
}

void SpeculationStats::add(const SpeculationStats& other) {
  verify_steps += other.verify_steps;
  plain_steps += other.plain_steps;
  proposed += other.proposed;
  accepted += other.accepted;
  emitted += other.emitted;
  pauses += other.pauses;
  failures += other.failures;
  add_to(accepted_histogram, other.accepted_histogram);
  add_to(proposed_histogram, other.proposed_histogram);
}

double SpeculationStats::accept_length() const {
  if (verify_steps == 0) return 1;
  return 1 + static_cast<double>(accepted) / static_cast<double>(verify_steps);
}

double SpeculationStats::accept_rate() const {
  return proposed == 0 ? 0 : static_cast<double>(accepted) / static_cast<double>(proposed);
}

double SpeculationStats::survival(int i) const {
  const std::int64_t verified = at_least(proposed_histogram, i);
  if (verified == 0) return 0;
  return static_cast<double>(at_least(accepted_histogram, i)) / static_cast<double>(verified);
}

}  // namespace mimo
