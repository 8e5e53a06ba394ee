#include "ops/cuda/cuda_sequences.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <stdexcept>

#include "ops/attention_select.h"
#include "ops/rotation.h"

namespace mimo::cuda {

CudaSequences::CudaSequences(Ops& ops, const RopeSpec& rope) : ops_(ops), rope_(rope) {
  if (rope.dims == 0) return;
  Result<Vector> frequencies = ops.pack_vector(mimo::inverse_frequencies(rope.theta, rope.dims));
  if (!frequencies) throw std::runtime_error(frequencies.error().message);
  frequencies_ = std::move(*frequencies);
}

void CudaSequences::set(std::span<const SequenceRows> sequences) {
  few_.clear();
  many_.clear();
  all_.clear();
  int rows = 0;
  for (const SequenceRows& sequence : sequences) {
    all_.push_back(&sequence);
    (sequence.rows <= kAttentionDecodeRows ? few_ : many_).push_back(&sequence);
    rows = std::max(rows, sequence.row_begin + sequence.rows);
  }
  staged_.clear();
  view_ = stage(all_, rows);
  parts_.clear();
  if (!few_.empty() && !many_.empty()) {
    parts_.push_back(stage(few_, rows));
    parts_.push_back(stage(many_, rows));
  }
  const std::int32_t* device = memory_.upload(ops_, staged_);
  device = place(view_, device);
  for (SequenceView& part : parts_) device = place(part, device);
  if (parts_.empty()) parts_.push_back(view_);
}

// Appends what the arrays of a view of these sequences hold; the view has their sizes.
SequenceView CudaSequences::stage(std::span<const SequenceRows* const> sequences, int rows) {
  static std::atomic<std::uint64_t> versions = 0;
  SequenceView view;
  view.version = ++versions;
  view.sequences = static_cast<int>(sequences.size());
  view.total_rows = rows;
  std::size_t stride = 1;
  for (const SequenceRows* sequence : sequences) {
    stride = std::max(stride, sequence->pages.size());
    view.max_rows = std::max(view.max_rows, sequence->rows);
    view.max_keys = std::max(view.max_keys, static_cast<int>(sequence->position) + sequence->rows);
  }
  // Rounded up, so that a step like the last one has the arguments of the last one.
  stride = std::bit_ceil(std::max<std::size_t>(stride, 8));
  view.page_stride = static_cast<int>(stride);
  view.max_keys = static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(view.max_keys, 256))));

  const std::size_t count = sequences.size();
  const auto all_rows = static_cast<std::size_t>(rows);
  const std::size_t begin = staged_.size();
  staged_.resize(begin + 4 * count + all_rows + count * stride, -1);
  std::int32_t* at = staged_.data() + begin;
  for (std::size_t s = 0; s < count; ++s) {
    const SequenceRows& sequence = *sequences[s];
    at[s] = sequence.row_begin;
    at[count + s] = sequence.rows;
    at[2 * count + s] = static_cast<std::int32_t>(sequence.position);
    at[3 * count + s] = static_cast<std::int32_t>(sequence.first_key);
    std::fill_n(at + 4 * count + static_cast<std::size_t>(sequence.row_begin), sequence.rows,
                static_cast<std::int32_t>(s));
    std::copy(sequence.pages.begin(), sequence.pages.end(), at + 4 * count + all_rows + s * stride);
  }
  return view;
}

// Points the view at its arrays, which begin at `device`; returns where they end.
const std::int32_t* CudaSequences::place(SequenceView& view, const std::int32_t* device) {
  const int count = view.sequences;
  view.row_begin = device;
  view.rows = device + count;
  view.position = device + 2 * count;
  view.first_key = device + 3 * count;
  view.row_sequence = device + 4 * count;
  view.pages = view.row_sequence + view.total_rows;
  return view.pages + static_cast<std::ptrdiff_t>(count) * view.page_stride;
}

void CudaSequences::add_key(std::vector<std::int64_t>& key) const {
  for (const SequenceView& part : parts_) {
    for (const int value :
         {part.sequences, part.total_rows, part.max_rows, part.max_keys, part.page_stride}) {
      key.push_back(value);
    }
  }
}

const CudaSequences& cuda_sequences(const SequenceBatch& batch) {
  return dynamic_cast<const CudaSequences&>(batch);
}

}  // namespace mimo::cuda
