// The inner loops, once per instruction set, behind one table of function pointers chosen at start. The table
// is the whole interface between portable code and intrinsics.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cpu_features.h"
#include "ops/cpu/packed_matrix.h"

namespace mimo {

// Activations rounded for one kind of matrix, row-major in 4-byte units (1 fp32, 2 int16 or 4 int8 values).
// With two planes the units, scales and corrections of the second follow those of the first in each row.
struct ActRows {
  const std::uint32_t* q = nullptr;
  std::size_t q_stride = 0;  // units a row
  // kMxfp4, kInt8: int8, one scale per 64 columns. kFp8, kInt16: int16 in [-1023, 1023], one per 128. Others: none.
  const float* scale = nullptr;
  std::size_t scale_stride = 0;  // groups a row
  // kMxfp4, kInt8: what unsigned weights add, per group: -12 * sum(q) of each of its two 32-column blocks, and -96 *
  // both.
  const std::int32_t* correction = nullptr;
  std::size_t correction_stride = 0;

  // The same rows from row `first` on.
  ActRows from_row(int first) const {
    const auto row = static_cast<std::size_t>(first);
    ActRows rest = *this;
    rest.q += row * q_stride;
    rest.scale += row * scale_stride;
    rest.correction += row * correction_stride;
    return rest;
  }
};

// Rows that one task multiplies; more are cut into several tasks. Their rounded form stays in a core's L2 beside
// the weights.
inline constexpr int kRowBlock = 128;

// Units, scale groups and corrections of a row of activations for a matrix of this shape, all planes
// together.
std::size_t act_units(const PanelShape& shape);
std::size_t act_groups(const PanelShape& shape);
std::size_t act_corrections(const PanelShape& shape);

enum class Epilogue : std::uint8_t {
  kStore,      // out[m][n] = v
  kAdd,        // out[m][n] += v
  kAddScaled,  // out[scatter[m]][n] += row_scale[m] * v
  kGatedSilu,  // panels alternate gate and up: out[m][16 p + i] = silu(gate) * up; writes whole panels
};

struct GemmArgs {
  PackedPanels w;
  ActRows x;
  const std::int32_t* gather = nullptr;  // row m reads activation row gather[m]; null: m
  int rows = 0;
  std::int64_t panel_begin = 0;
  std::int64_t panel_end = 0;  // kGatedSilu: both even
  Epilogue epilogue = Epilogue::kStore;
  float* out = nullptr;
  std::size_t out_stride = 0;
  const std::int32_t* scatter = nullptr;
  const float* row_scale = nullptr;
  std::uint8_t* scratch = nullptr;  // 64-byte aligned, gemm_scratch_bytes(w.shape, rows)
};

// At most this many rows are multiplied straight from packed weights; more rows unpack each panel once to
// scratch.
inline constexpr int kDirectRows = 4;

std::size_t gemm_scratch_bytes(const PanelShape& shape, int rows);

// Keys are taken in chunks of this many absolute positions; a row's result is the merge of its chunks in
// order, however the work was cut.
inline constexpr int kChunkKeys = 256;
inline constexpr int kTileKeys = 16;

// Widest K or V head; sizes buffers on the stack.
inline constexpr int kMaxHeadWidth = 512;

// One chunk of keys for `queries` query rows that share a KV head.
struct AttentionChunk {
  int queries = 0;
  int qk_dim = 0;
  int v_dim = 0;
  float scale = 0;
  bool wide = false;         // K and V tiles are fp32 instead of bf16
  const float* q = nullptr;  // [queries][qk_dim]
  // Tile t holds keys [16t, 16t + 16) of the chunk. bf16: K as [qk_dim / 2][16][2], V as [8 pairs][v_dim][2];
  // fp32: K as [qk_dim][16], V as [16][v_dim].
  int tiles = 0;
  const void* const* k_tiles = nullptr;
  const void* const* v_tiles = nullptr;
  const float* k_scale = nullptr;       // [16 * tiles] or null: multiplies the scores of a key
  const float* v_scale = nullptr;       // [16 * tiles] or null: multiplies the weights of a key
  const std::int32_t* first = nullptr;  // [queries] first visible key of the chunk
  const std::int32_t* last = nullptr;   // [queries] one past the last; first >= last: sees nothing here
  // Out, per query: maximum, sum of exp(score - maximum), sum of exp(...) * v.
  float* max = nullptr;
  float* sum = nullptr;
  float* out = nullptr;             // [queries][v_dim]
  std::uint8_t* scratch = nullptr;  // attention_scratch_bytes(queries, qk_dim)
};
std::size_t attention_scratch_bytes(int queries, int qk_dim);

struct CpuKernels {
  CpuLevel level;

  // One row of `k` floats to its rounded form; the row's padding up to the packed width is zeroed. A
  // non-finite input makes the result NaN: it is never hidden by an integer.
  void (*quantize)(const PanelShape& shape, const float* x, std::uint32_t* q, float* scale,
                   std::int32_t* correction);

  void (*gemm)(const GemmArgs& args);

  void (*rms_norm)(const float* x, std::int64_t width, const float* weight, float eps, float* out);

  // y += scale * x, one fused multiply-add a value, as Epilogue::kAddScaled does.
  void (*add_scaled)(const float* x, std::int64_t count, float scale, float* y);

  // First of the largest of `count` logits, and 1 / sum exp(x - largest); NaN when a logit is not finite.
  void (*best_token)(const float* x, std::int64_t count, std::int32_t* id, float* probability);

  // Rotates the leading dims of `heads` heads, `stride` floats apart.
  void (*rope)(float* x, int heads, int stride, const float* cos, const float* sin, int dims);

  void (*to_bf16)(const float* x, std::int64_t count, float scale, std::uint16_t* out);

  // E4M3 codes of x / scale, scale = max|x| / 448; returns the scale (NaN when x has a non-finite value).
  float (*to_fp8)(const float* x, std::int64_t count, float multiplier, std::uint8_t* out);

  // bf16 values (exact) of E4M3 codes.
  void (*fp8_to_bf16)(const std::uint8_t* x, std::int64_t count, std::uint16_t* out);

  // Copies a K tile [qk_dim / 2][16][2] and a V tile [8][v_dim][2] with zeros for keys outside [first, last).
  // Source and destination may be the same.
  void (*mask_tile)(const std::uint16_t* k, const std::uint16_t* v, int qk_dim, int v_dim, int first,
                    int last, std::uint16_t* k_out, std::uint16_t* v_out);

  void (*attention_chunk)(const AttentionChunk& chunk);

  // Merges a later partial result into (max, sum, out[v_dim]).
  void (*attention_merge)(float* max, float* sum, float* out, float max2, float sum2, const float* out2,
                          int v_dim);

  // out = acc / (sum + exp(sink - m)) with the sink folded in; sink null: none.
  void (*attention_finish)(float max, float sum, const float* acc, const float* sink, int v_dim, float* out);
};

const CpuKernels& avx2_kernels();
const CpuKernels& avx512_kernels();
const CpuKernels& avx512fp16_kernels();
const CpuKernels& cpu_kernels(CpuLevel level);

}  // namespace mimo
