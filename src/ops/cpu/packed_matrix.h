// Weights packed for the CPU kernels: panels of 16 output rows, so that one vector holds the same input columns of 16
// outputs and a broadcast activation multiplies all of them without horizontal sums. Stored precision is kept: the
// packed form has the bytes of the checkpoint (plus padding to whole panels) and nothing else is held.
//
// Layout of one panel (16 rows, K columns padded to kKStep), by format; "vector" is 64 bytes:
//   kF32    vector k:  16 floats, rows 0..15 of column k
//   kBF16   vector p:  rows 0..15 x columns (2p, 2p+1), bf16
//   kFp8    vector j:  columns 4j..4j+3 of 16 rows; 16-byte lane q holds rows 4q..4q+3: first (4j, 4j+1) of each row,
//           then (4j+2, 4j+3) of each row, which is the order a byte-to-word unpack wants. Scales apart:
//           [panel][K/128] floats. A panel never straddles two scale blocks: rows come in multiples of 16.
//   kMxfp4  first [K/32][16] scale bytes (e8m0 code - 1: the halving that pays for the doubled integer elements),
//           padded to 64 bytes, then vector j: columns 8j..8j+7 of 16 rows; byte 4r+t holds column 8j+t in the low and
//           8j+4+t in the high nibble.
#pragma once

#include <cstdint>

#include "core/huge_buffer.h"
#include "core/result.h"
#include "core/thread_pool.h"
#include "core/weight_view.h"
#include "ops/ops.h"

namespace mimo {

inline constexpr int kPanelRows = 16;

// Columns are padded to a multiple of this: whole scale groups, and whole unrolled steps of the kernels.
constexpr std::int64_t packed_k_step(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
      return 2;
    case WeightFormat::kFp8:
      return kFp8Block;
    case WeightFormat::kMxfp4:
      return kMxfp4Block;
  }
  return 1;
}

// Geometry of packed panels.
struct PanelShape {
  WeightFormat format = WeightFormat::kF32;
  std::int64_t k = 0;        // columns of the matrix
  std::int64_t k_padded = 0;
  std::size_t scale_bytes = 0;  // kMxfp4: bytes before the elements
  std::size_t bytes = 0;        // of one panel
};
PanelShape panel_shape(WeightFormat format, std::int64_t k);

// Packs rows [16 * panel, 16 * panel + 16) of the view (missing rows are zero) into `out` (PanelShape::bytes). For kFp8
// also writes K/128 scales to `scales`.
void pack_panel(const WeightView& view, const PanelShape& shape, std::int64_t panel, std::uint8_t* out, float* scales);

// Where kernels read a packed matrix.
struct PackedPanels {
  PanelShape shape;
  std::int64_t rows = 0;     // real output rows
  std::int64_t panels = 0;
  const std::uint8_t* data = nullptr;  // [panels][shape.bytes]
  const float* scales = nullptr;       // kFp8: [panels][K/128]
};

class PackedMatrix final : public Matrix {
 public:
  static Result<std::unique_ptr<PackedMatrix>> pack(const WeightView& view, ThreadPool& pool);

  std::int64_t rows() const override { return panels_.rows; }
  std::int64_t cols() const override { return panels_.shape.k; }
  std::size_t bytes() const override { return data_.size() + scales_.size(); }
  const PackedPanels& panels() const { return panels_; }

 private:
  HugeBuffer data_;
  HugeBuffer scales_;
  PackedPanels panels_;
};

// All experts of a layer in one allocation. Gate and up panels of the same 16 rows lie next to each other, so that one
// task can finish silu(gate) * up.
class PackedMlpBank final : public MlpBank {
 public:
  static Result<std::unique_ptr<PackedMlpBank>> pack(std::span<const MlpViews> experts, ThreadPool& pool);

  int experts() const override { return experts_; }
  std::size_t bytes() const override { return data_.size() + scales_.size(); }
  std::size_t expert_bytes() const override { return bytes() / static_cast<std::size_t>(experts_); }

  std::int64_t hidden() const { return hidden_; }
  std::int64_t intermediate() const { return intermediate_; }
  // Panel 2p is gate rows [16p, 16p+16), panel 2p+1 the up rows; `rows` is 2 * padded intermediate.
  PackedPanels gate_up(int expert) const;
  PackedPanels down(int expert) const;
  WeightFormat format() const { return gate_up_shape_.format; }

 private:
  HugeBuffer data_;
  HugeBuffer scales_;
  int experts_ = 0;
  std::int64_t hidden_ = 0;
  std::int64_t intermediate_ = 0;
  PanelShape gate_up_shape_;
  PanelShape down_shape_;
  std::int64_t gate_up_panels_ = 0;
  std::int64_t down_panels_ = 0;
  std::size_t expert_data_ = 0;    // bytes of one expert in data_
  std::size_t expert_scales_ = 0;  // floats of one expert in scales_
};

// Refuses what the CPU kernels cannot multiply, naming the matrix.
Status check_packable(const WeightView& view);

}  // namespace mimo
