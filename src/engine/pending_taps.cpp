#include "engine/pending_taps.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace mimo {

std::unique_ptr<float[]> TapBuffers::take() {
  if (spare_.empty())
    return std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(rows_) * width_);
  std::unique_ptr<float[]> buffer = std::move(spare_.back());
  spare_.pop_back();
  return buffer;
}

void PendingTaps::add(std::int64_t position, std::span<const float> taps,
                      std::span<const std::int32_t> tokens) {
  const std::int64_t most = buffers_.rows();
  const std::size_t width = buffers_.width();
  const std::int64_t rows = std::ssize(tokens) - 1;
  MIMO_CHECK(rows > 0 && taps.size() == static_cast<std::size_t>(rows) * width, "{} floats for {} rows",
             taps.size(), rows);
  if (empty()) {
    rows_ = buffers_.take();
    begin_ = position;
  } else {
    MIMO_CHECK(position == end_, "rows at {} after those before {}", position, end_);
    tokens_.pop_back();  // the token after the last row: it comes again
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  end_ = position + rows;
  for (std::int64_t p = std::max(position, end_ - most); p < end_; ++p) {
    std::memcpy(rows_.get() + static_cast<std::size_t>(p % most) * width,
                taps.data() + static_cast<std::size_t>(p - position) * width, width * sizeof(float));
  }
  if (const std::int64_t lost = end_ - most - begin_; lost > 0) {
    begin_ += lost;
    tokens_.erase(tokens_.begin(), tokens_.begin() + lost);
  }
}

DraftObservation PendingTaps::append_to(std::vector<float>& taps) const {
  MIMO_CHECK(!empty(), "no rows");
  const std::size_t width = buffers_.width();
  DraftObservation seen;
  seen.row_begin = static_cast<int>(taps.size() / width);
  seen.rows = static_cast<int>(end_ - begin_);
  seen.position = begin_;
  seen.tokens = tokens_;
  for (std::int64_t p = begin_; p < end_; ++p) {
    const float* row = rows_.get() + static_cast<std::size_t>(p % buffers_.rows()) * width;
    taps.insert(taps.end(), row, row + width);
  }
  return seen;
}

void PendingTaps::clear() {
  if (!empty()) buffers_.give_back(std::move(rows_));
  tokens_.clear();
}

}  // namespace mimo
