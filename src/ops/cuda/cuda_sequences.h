// The sequences of a step in device memory, at addresses that stay while they fit.
#pragma once

#include <memory>
#include <vector>

#include "ops/backend_array.h"
#include "ops/cuda/device.h"
#include "ops/cuda/kernels/views.h"
#include "ops/ops.h"

namespace mimo::cuda {

class CudaSequences final : public SequenceBatch {
 public:
  // `ops` works on `device`; both must outlive it.
  CudaSequences(Ops& ops, const RopeSpec& rope);
  void set(std::span<const SequenceRows> sequences) override;
  void add_key(std::vector<std::int64_t>& key) const override;

  const SequenceView& view() const { return view_; }
  const float* inverse_frequencies() const { return frequencies_.data(); }
  int rotary_dims() const { return rope_.dims; }

 private:
  Ops& ops_;
  RopeSpec rope_;
  Vector frequencies_;
  // One upload a step: [sequences] each of row_begin, rows, position, first_key; [rows] row_sequence; page tables.
  std::vector<std::int32_t> staged_;
  BackendArray<std::int32_t> memory_;
  SequenceView view_;
};

const CudaSequences& cuda_sequences(const SequenceBatch& batch);

}  // namespace mimo::cuda
