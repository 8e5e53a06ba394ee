// One line of progress, redrawn in place on a terminal and absent anywhere else.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace mimo {

class Progress {
 public:
  enum class Unit : std::uint8_t { kBytes, kItems };

  // `label` is shown before the bar; `total` is in `unit`s.
  Progress(std::string label, std::uint64_t total, Unit unit = Unit::kBytes);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // clears the line

  // `note` is shown after the bar.
  void update(std::uint64_t done, std::string_view note = {});

 private:
  std::string label_;
  std::uint64_t total_;
  Unit unit_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_draw_;
};

}  // namespace mimo
