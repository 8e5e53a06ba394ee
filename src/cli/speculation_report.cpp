#include "cli/speculation_report.h"

#include <fmt/format.h>

namespace mimo {

json::object speculation_json(const SpeculationStats& stats) {
  json::object out;
  out["accept_length"] = stats.accept_length();
  out["accept_rate"] = stats.accept_rate();
  out["verify_steps"] = stats.verify_steps;
  out["plain_steps"] = stats.plain_steps;
  out["proposed"] = stats.proposed;
  out["accepted"] = stats.accepted;
  out["emitted"] = stats.emitted;
  out["pauses"] = stats.pauses;
  out["failures"] = stats.failures;
  json::array histogram;
  for (const std::int64_t steps : stats.accepted_histogram) histogram.push_back(steps);
  out["accepted_histogram"] = std::move(histogram);
  return out;
}

std::string speculation_line(const SpeculationStats& stats) {
  std::string line = fmt::format("accept length {:.2f} over {} steps, {} of {} drafts accepted",
                                 stats.accept_length(), stats.verify_steps, stats.accepted, stats.proposed);
  if (stats.plain_steps > 0) line += fmt::format(", {} steps without drafts", stats.plain_steps);
  for (int i = 1; i < static_cast<int>(stats.proposed_histogram.size()); ++i) {
    line += fmt::format("{}{:.2f}", i == 1 ? "; by draft " : " ", stats.survival(i));
  }
  return line;
}

}  // namespace mimo
