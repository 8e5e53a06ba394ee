// Tapped states of committed rows that the drafter has not been shown. While nothing is drafted for a request its
// rows wait here, which costs a copy each; they are shown in one batch when drafts are wanted again. Only the
// newest are kept: a drafter reads a window, and with a part of it it drafts nearly as well until it has refilled.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/drafter.h"
#include "ops/backend_array.h"

namespace mimo {

// Backend memory for the rows of any number of requests, one after another: making it anew would cost more than the
// copies.
class TapBuffers {
 public:
  // Each holds `rows` rows of `width` floats. `ops` must outlive it.
  TapBuffers(Ops& ops, int rows, std::size_t width) : ops_(ops), rows_(rows), width_(width) {}

  int rows() const { return rows_; }
  std::size_t width() const { return width_; }
  Ops& ops() const { return ops_; }
  BackendArray<float> take();
  void give_back(BackendArray<float> buffer) { spare_.push_back(std::move(buffer)); }

 private:
  Ops& ops_;
  int rows_;
  std::size_t width_;
  std::vector<BackendArray<float>> spare_;
};

class PendingTaps {
 public:
  // `buffers` must outlive it.
  explicit PendingTaps(TapBuffers& buffers) : buffers_(buffers) {}
  PendingTaps(const PendingTaps&) = delete;
  PendingTaps& operator=(const PendingTaps&) = delete;
  ~PendingTaps() { clear(); }

  bool empty() const { return rows_.data() == nullptr; }

  // Adds rows at [position, position + tokens.size() - 1), which follow those that are held: taps [rows, width],
  // and the tokens of the rows and of the one after them. The newest buffers.rows() stay.
  void add(std::int64_t position, std::span<const float> taps, std::span<const std::int32_t> tokens);

  std::int64_t rows() const { return end_ - begin_; }
  // Copies all rows to `taps` [.., width] from row `first` on and describes them; the tokens are valid until clear()
  // or add().
  DraftObservation copy_to(float* taps, int first) const;

  void clear();

 private:
  TapBuffers& buffers_;
  float* row(std::int64_t position) const;

  BackendArray<float> rows_;          // position p in row p % buffers_.rows(); null: nothing is held
  std::vector<std::int32_t> tokens_;  // at begin_ .. end_
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
};

}  // namespace mimo
