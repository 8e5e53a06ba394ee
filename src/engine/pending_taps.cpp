#include "engine/pending_taps.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/ring_runs.h"

namespace mimo {

BackendArray<float> TapBuffers::take() {
  BackendArray<float> buffer;
  if (spare_.empty()) {
    buffer.reserve(ops_, static_cast<std::size_t>(rows_) * width_);
  } else {
    buffer = std::move(spare_.back());
    spare_.pop_back();
  }
  return buffer;
}

float* PendingTaps::row(std::int64_t position) const {
  return rows_.data() + static_cast<std::size_t>(position % buffers_.rows()) * buffers_.width();
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
  const std::size_t bytes = width * sizeof(float);
  for_ring_runs(std::max(position, end_ - most), end_, most, [&](std::int64_t at, std::int64_t count) {
    buffers_.ops().copy_rows(row(at), bytes, taps.data() + static_cast<std::size_t>(at - position) * width,
                             bytes, bytes, static_cast<std::size_t>(count));
  });
  if (const std::int64_t lost = end_ - most - begin_; lost > 0) {
    begin_ += lost;
    tokens_.erase(tokens_.begin(), tokens_.begin() + lost);
  }
}

DraftObservation PendingTaps::copy_to(float* taps, int first) const {
  MIMO_CHECK(!empty(), "no rows");
  const std::size_t width = buffers_.width();
  DraftObservation seen;
  seen.row_begin = first;
  seen.rows = static_cast<int>(end_ - begin_);
  seen.position = begin_;
  seen.tokens = tokens_;
  const std::size_t bytes = width * sizeof(float);
  float* out = taps + static_cast<std::size_t>(first) * width;
  for_ring_runs(begin_, end_, buffers_.rows(), [&](std::int64_t at, std::int64_t count) {
    buffers_.ops().copy_rows(out + static_cast<std::size_t>(at - begin_) * width, bytes, row(at), bytes,
                             bytes, static_cast<std::size_t>(count));
  });
  return seen;
}

void PendingTaps::clear() {
  if (!empty()) buffers_.give_back(std::move(rows_));
  tokens_.clear();
}

}  // namespace mimo
