// One line of progress, redrawn in place on a terminal and absent anywhere else.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace mimo {

class Progress {
 public:
  // `label` is shown before the bar; `total` is in bytes.
  Progress(std::string label, std::uint64_t total);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // clears the line

  void update(std::uint64_t done);

 private:
  std::string label_;
  std::uint64_t total_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_draw_;
};

}  // namespace mimo
