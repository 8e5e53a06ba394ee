// Tapped states of committed rows that the drafter has not been shown. While nothing is drafted for a request its
// rows wait here, which costs a copy each; they are shown in one batch when drafts are wanted again. Only the
// newest are kept: a drafter reads a window, and with a part of it it drafts nearly as well until it has refilled.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/drafter.h"

namespace mimo {

// Memory for the rows of any number of requests, one after another: fresh pages from the system would cost more
// than the copies.
class TapBuffers {
 public:
  // Each holds `rows` rows of `width` floats.
  TapBuffers(int rows, std::size_t width) : rows_(rows), width_(width) {}

  int rows() const { return rows_; }
  std::size_t width() const { return width_; }
  std::unique_ptr<float[]> take();
  void give_back(std::unique_ptr<float[]> buffer) { spare_.push_back(std::move(buffer)); }

 private:
  int rows_;
  std::size_t width_;
  std::vector<std::unique_ptr<float[]>> spare_;
};

class PendingTaps {
 public:
  // `buffers` must outlive it.
  explicit PendingTaps(TapBuffers& buffers) : buffers_(buffers) {}
  PendingTaps(const PendingTaps&) = delete;
  PendingTaps& operator=(const PendingTaps&) = delete;
  ~PendingTaps() { clear(); }

  bool empty() const { return rows_ == nullptr; }

  // Adds rows at [position, position + tokens.size() - 1), which follow those that are held: taps [rows, width],
  // and the tokens of the rows and of the one after them. The newest buffers.rows() stay.
  void add(std::int64_t position, std::span<const float> taps, std::span<const std::int32_t> tokens);

  // Appends all rows to `taps` [rows, width] and describes them; the tokens are valid until clear() or add().
  DraftObservation append_to(std::vector<float>& taps) const;

  void clear();

 private:
  TapBuffers& buffers_;
  std::unique_ptr<float[]> rows_;     // position p in row p % buffers_.rows(); null: nothing is held
  std::vector<std::int32_t> tokens_;  // at begin_ .. end_
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
};

}  // namespace mimo
