#include "core/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace mimo {
namespace {

constexpr int kBarWidth = 30;
constexpr auto kRedraw = std::chrono::milliseconds(100);

}  // namespace

Progress::Progress(std::string label, std::uint64_t total, Unit unit)
    : label_(std::move(label)),
      total_(total),
      unit_(unit),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::update(std::uint64_t done, std::string_view note) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || total_ == 0 || now - last_draw_ < kRedraw) return;
  last_draw_ = now;
  drawn_ = true;
  const double fraction = std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(done) / std::max(seconds, 1e-9);
  const int filled = static_cast<int>(fraction * kBarWidth);
  const std::string speed = unit_ == Unit::kBytes ? fmt::format("{:.2f} GB/s", rate / 1e9)
                                                  : fmt::format("{} of {}, {:.2f}/s", done, total_, rate);
  // Before anything is done there is no rate to go by.
  const std::string left =
      done == 0 ? ""
                : fmt::format("  {:.0f} s left", static_cast<double>(total_ - std::min(done, total_)) / rate);
  const std::string line =
      fmt::format("\r\033[K{} [{:#<{}}{:.<{}}] {:3.0f}%  {}{}{}{}", label_, "", filled, "",
                  kBarWidth - filled, 100 * fraction, speed, left, note.empty() ? "" : "  ", note);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace mimo
