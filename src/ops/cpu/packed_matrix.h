// Weights packed for the CPU kernels: panels of 16 output rows, so that one vector holds the same input
// columns of 16 outputs and a broadcast activation multiplies all of them without horizontal sums. Stored
// precision is kept: the packed form has the bytes of the checkpoint (plus padding to whole panels) and
// nothing else is held.
//
// Layout of one panel (16 rows, K columns padded to packed_k_step), by kind; "vector" is 64 bytes:
//   kF32    vector k:  16 floats, rows 0..15 of column k
//   kBf16   vector p:  rows 0..15 x columns (2p, 2p+1), bf16
//   kInt16  the same with int16: round(w / scale), scale a power of two per 128 columns of the panel. Holds
//           BF16 matrices that long prompts multiply: the integer dot is two to four times as fast as fp32
//           multiply-add, and values down to 2^-7 of the group's largest are exact. Scales apart:
//           [panel][K/128] floats.
//   kInt8   first a vector of 16 fp32 scales (one a row) for each group of 64 columns; then vector j: columns
//           4j..4j+3 of 16 rows as bytes, round(w / scale) + 96. Holds BF16 matrices of drafters: half the bytes,
//           and the fastest dots.
//   kFp8    vector j:  columns 4j..4j+3 of 16 rows; 16-byte lane q holds rows 4q..4q+3: first (4j, 4j+1) of
//           each row, then (4j+2, 4j+3) of each row, which is the order a byte-to-word unpack wants. Scales
//           apart: [panel][K/128] floats. A panel never straddles two scale blocks: rows come in multiples
//           of 16.
//   kMxfp4  first a vector whose byte 0 is 1 for a wide panel (below); then for each group of 64 columns two
//           lines of 16 bytes, one byte a row, padded to 64 in all; then vector j: columns 8j..8j+7 of 16
//           rows; byte 4r+t holds column 8j+t in the low and 8j+4+t in the high nibble.
//           The two blocks of a group are added as integers in units of their smaller scale. Line 0 is that
//           scale (e8m0 code - 1: the halving that pays for the doubled integer elements), line 1 the left
//           shifts of the two block sums (low and high nibble, at most 14). A wide panel has a pair of
//           blocks further apart; its lines are the two codes themselves and the kernels work the shifts out.
#pragma once

#include <cstdint>

#include "core/huge_buffer.h"
#include "core/result.h"
#include "core/thread_pool.h"
#include "core/weight_view.h"
#include "ops/ops.h"

namespace mimo {

inline constexpr int kPanelRows = 16;

enum class PackedKind : std::uint8_t { kF32, kBf16, kInt16, kInt8, kFp8, kMxfp4 };

// Columns that share one activation scale.
inline constexpr int kWideGroup = 128;  // kInt16, kFp8
inline constexpr int kMxfp4Group = 64;  // kMxfp4 (two scale blocks), kInt8

// Two blocks whose scales differ by up to this power of two are added exactly in int32 (|sum| < 2^16 before
// the shift); beyond it the low bits of the smaller one are dropped.
inline constexpr int kMxfp4MaxShift = 14;

// Largest integer of a kInt8 weight, and what is added to make bytes of them: unpacked MXFP4 has the same offset.
inline constexpr int kInt8Limit = 96;

// Of an MXFP4 panel; its first byte is 1 for a wide panel.
inline constexpr std::size_t kMxfp4HeaderBytes = 64;

// Columns are padded to a multiple of this.
constexpr std::int64_t packed_k_step(PackedKind kind) {
  switch (kind) {
    case PackedKind::kF32:
    case PackedKind::kBf16:
      return 2;
    case PackedKind::kInt16:
    case PackedKind::kFp8:
      return kWideGroup;
    case PackedKind::kInt8:
    case PackedKind::kMxfp4:
      return kMxfp4Group;
  }
  return 1;
}

// How finely activations are rounded for integer kernels.
enum class ActivationPrecision : std::uint8_t {
  kFast,   // one integer a value: int8 for MXFP4, 11 bits for FP8 and BF16
  kExact,  // a second integer holds what the first left over (15 and 21 bits), and BF16 matrices use fp32
           // arithmetic
};

// Geometry of packed panels.
struct PanelShape {
  PackedKind kind = PackedKind::kF32;
  int planes = 1;      // integers a value: 2 for kExact, else 1
  std::int64_t k = 0;  // columns of the matrix
  std::int64_t k_padded = 0;
  std::size_t scale_bytes = 0;  // kMxfp4, kInt8: bytes before the elements
  std::size_t bytes = 0;        // of one panel
};
PanelShape panel_shape(PackedKind kind, std::int64_t k, ActivationPrecision precision);

// What a stored format is packed to. Vocabulary matrices keep BF16 (they are multiplied by a row or two at a
// time), and so does everything that must be exact.
PackedKind packed_kind(WeightFormat format, MatrixUse use, ActivationPrecision precision);

// Packs rows [16 * panel, 16 * panel + 16) of the view (missing rows are zero) into `out`
// (PanelShape::bytes). For kFp8 and kInt16 also writes K/128 scales to `scales`. False: a weight
// that must become an integer is not finite.
bool pack_panel(const WeightView& view, const PanelShape& shape, std::int64_t panel, std::uint8_t* out,
                float* scales);

// Where kernels read a packed matrix.
struct PackedPanels {
  PanelShape shape;
  std::int64_t rows = 0;  // real output rows
  std::int64_t panels = 0;
  const std::uint8_t* data = nullptr;  // [panels][shape.bytes]
  const float* scales = nullptr;       // kFp8, kInt16: [panels][K/128]
};

class PackedMatrix final : public Matrix {
 public:
  static Result<std::unique_ptr<PackedMatrix>> pack(const WeightView& view, MatrixUse use,
                                                    ActivationPrecision precision, ThreadPool& pool);

  std::int64_t rows() const override { return panels_.rows; }
  std::int64_t cols() const override { return panels_.shape.k; }
  std::size_t bytes() const override { return data_.size() + scales_.size(); }
  const PackedPanels& panels() const { return panels_; }

 private:
  HugeBuffer data_;
  HugeBuffer scales_;
  PackedPanels panels_;
};

// All experts of a layer in one allocation. Gate and up panels of the same 16 rows lie next to each other, so
// that one task can finish silu(gate) * up.
class PackedMlpBank final : public MlpBank {
 public:
  static Result<std::unique_ptr<PackedMlpBank>> pack(std::span<const MlpViews> experts, MatrixUse use,
                                                     ActivationPrecision precision, ThreadPool& pool);

  int experts() const override { return experts_; }
  std::size_t bytes() const override { return data_.size() + scales_.size(); }
  std::size_t expert_bytes() const override { return bytes() / static_cast<std::size_t>(experts_); }

  std::int64_t hidden() const { return hidden_; }
  std::int64_t intermediate() const { return intermediate_; }
  // Panel 2p is gate rows [16p, 16p+16), panel 2p+1 the up rows; `rows` is 2 * padded intermediate.
  PackedPanels gate_up(int expert) const;
  PackedPanels down(int expert) const;

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
