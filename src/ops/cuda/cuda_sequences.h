// The sequences of a step in device memory, at addresses that stay while they fit.
#pragma once

#include <memory>
#include <span>
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
  // The same sequences as attention takes them: those of few rows (decoding) and those of many (prompts) apart where
  // there are both, so that neither runs in the kernel that is made for the other. Rows keep their places.
  std::span<const SequenceView> parts() const { return parts_; }
  const float* inverse_frequencies() const { return frequencies_.data(); }
  int rotary_dims() const { return rope_.dims; }

 private:
  SequenceView stage(std::span<const SequenceRows* const> sequences, int rows);
  static const std::int32_t* place(SequenceView& view, const std::int32_t* device);

  Ops& ops_;
  RopeSpec rope_;
  Vector frequencies_;
  // One upload a step: [sequences] each of row_begin, rows, position, first_key; [rows] row_sequence; page tables; and
  // the same of each part.
  std::vector<std::int32_t> staged_;
  BackendArray<std::int32_t> memory_;
  SequenceView view_;
  std::vector<SequenceView> parts_;
  std::vector<const SequenceRows*> all_;
  std::vector<const SequenceRows*> few_;
  std::vector<const SequenceRows*> many_;
};

const CudaSequences& cuda_sequences(const SequenceBatch& batch);

}  // namespace mimo::cuda
