#include "ops/cpu/kernels.h"

#include <cmath>

#include "core/number_formats.h"
#include "ops/cpu/fp8_tables.h"

namespace mimo {
namespace {

constexpr std::size_t round_up(std::size_t x) { return (x + 63) / 64 * 64; }

}  // namespace

const Fp8Int16Tables& fp8_int16_tables() {
  static const Fp8Int16Tables tables = [] {
    Fp8Int16Tables t{};
    // Code 127 is NaN; packing refuses it.
    for (unsigned code = 0; code < 127; ++code) {
      const float value = 32.0f * e4m3_to_float(static_cast<std::uint8_t>(code));
      const auto integer = static_cast<unsigned>(std::nearbyint(value));
      t.low[code] = static_cast<std::uint8_t>(integer);
      t.high[code] = static_cast<std::uint8_t>(integer >> 8);
    }
    return t;
  }();
  return tables;
}

std::size_t act_units(const PanelShape& shape) {
  const auto planes = static_cast<std::size_t>(shape.planes);
  switch (shape.kind) {
    case PackedKind::kF32:
    case PackedKind::kBf16:
      return static_cast<std::size_t>(shape.k_padded);
    case PackedKind::kInt16:
    case PackedKind::kFp8:
      return planes * static_cast<std::size_t>(shape.k_padded / 2);
    case PackedKind::kInt8:
    case PackedKind::kMxfp4:
      return planes * static_cast<std::size_t>(shape.k_padded / 4);
  }
  return 0;
}

std::size_t act_groups(const PanelShape& shape) {
  const auto planes = static_cast<std::size_t>(shape.planes);
  switch (shape.kind) {
    case PackedKind::kF32:
    case PackedKind::kBf16:
      return 0;
    case PackedKind::kInt16:
    case PackedKind::kFp8:
      return planes * static_cast<std::size_t>(shape.k_padded / kWideGroup);
    case PackedKind::kInt8:
    case PackedKind::kMxfp4:
      return planes * static_cast<std::size_t>(shape.k_padded / kMxfp4Group);
  }
  return 0;
}

std::size_t act_corrections(const PanelShape& shape) {
  const bool offset = shape.kind == PackedKind::kMxfp4 || shape.kind == PackedKind::kInt8;
  return offset ? 3 * act_groups(shape) : 0;
}

std::size_t gemm_scratch_bytes(const PanelShape& shape, int rows) {
  // Slabs of two unpacked panels with their scales (8 KiB and less than 4 KiB each), results of a panel pair,
  // and the activations of all rows in tile order.
  const std::size_t panel = 2 * (12u << 10);
  const std::size_t results = 2 * static_cast<std::size_t>(rows) * kPanelRows * sizeof(float);
  const std::size_t row = (act_units(shape) + act_groups(shape) + act_corrections(shape)) * 4;
  return panel + results + round_up(row * static_cast<std::size_t>(rows)) + 1024;
}

std::size_t attention_scratch_bytes(int queries, int qk_dim) {
  const auto q = static_cast<std::size_t>(queries);
  // Scores, weights, and a tile of queries in two orders.
  constexpr std::size_t kMostRows = 16;
  return q * kChunkKeys * 2 * sizeof(float) +
         2 * kMostRows * (static_cast<std::size_t>(qk_dim) + 16) * sizeof(float) + 1024;
}

const CpuKernels& cpu_kernels(CpuLevel level) {
  switch (level) {
    case CpuLevel::kAvx2:
      return avx2_kernels();
    case CpuLevel::kAvx512:
      return avx512_kernels();
    case CpuLevel::kAvx512Fp16:
      return avx512fp16_kernels();
  }
  return avx2_kernels();
}

}  // namespace mimo
