#include "ops/cuda/cuda_sequences.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "ops/rotation.h"

namespace mimo::cuda {

CudaSequences::CudaSequences(Ops& ops, const RopeSpec& rope) : ops_(ops), rope_(rope) {
  if (rope.dims == 0) return;
  Result<Vector> frequencies = ops.pack_vector(mimo::inverse_frequencies(rope.theta, rope.dims));
  if (!frequencies) throw std::runtime_error(frequencies.error().message);
  frequencies_ = std::move(*frequencies);
}

void CudaSequences::set(std::span<const SequenceRows> sequences) {
  const std::size_t count = sequences.size();
  std::size_t rows = 0;
  std::size_t stride = 1;
  SequenceView view;
  for (const SequenceRows& sequence : sequences) {
    rows = std::max(rows, static_cast<std::size_t>(sequence.row_begin + sequence.rows));
    stride = std::max(stride, sequence.pages.size());
    view.max_rows = std::max(view.max_rows, sequence.rows);
    view.max_keys = std::max(view.max_keys, static_cast<int>(sequence.position) + sequence.rows);
  }
  // Rounded up, so that a step like the last one has the arguments of the last one.
  stride = std::bit_ceil(std::max<std::size_t>(stride, 8));
  view.max_keys = static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(view.max_keys, 256))));
  staged_.assign(4 * count + rows + count * stride, -1);
  std::int32_t* at = staged_.data();
  for (std::size_t s = 0; s < count; ++s) {
    const SequenceRows& sequence = sequences[s];
    at[s] = sequence.row_begin;
    at[count + s] = sequence.rows;
    at[2 * count + s] = static_cast<std::int32_t>(sequence.position);
    at[3 * count + s] = static_cast<std::int32_t>(sequence.first_key);
    std::fill_n(at + 4 * count + static_cast<std::size_t>(sequence.row_begin), sequence.rows,
                static_cast<std::int32_t>(s));
    std::copy(sequence.pages.begin(), sequence.pages.end(), at + 4 * count + rows + s * stride);
  }
  const std::int32_t* device = memory_.upload(ops_, staged_);
  view.row_begin = device;
  view.rows = device + count;
  view.position = device + 2 * count;
  view.first_key = device + 3 * count;
  view.row_sequence = device + 4 * count;
  view.pages = device + 4 * count + rows;
  view.page_stride = static_cast<int>(stride);
  view.sequences = static_cast<int>(count);
  view.total_rows = static_cast<int>(rows);
  view_ = view;
}

void CudaSequences::add_key(std::vector<std::int64_t>& key) const {
  for (const int value :
       {view_.sequences, view_.total_rows, view_.max_rows, view_.max_keys, view_.page_stride}) {
    key.push_back(value);
  }
}

const CudaSequences& cuda_sequences(const SequenceBatch& batch) {
  return dynamic_cast<const CudaSequences&>(batch);
}

}  // namespace mimo::cuda
