// Matrix kernels, written once over the vectors of the including instruction set. MIMO_ISA names its namespace.
//
// Every format accumulates a row in an order that depends on the matrix alone (never on how many rows there are or
// which kernel runs), so that a row's bits do not depend on its batch:
//   kMxfp4  int32 over 32 columns, then fp32 += int * (weight scale * activation scale), group after group
//   kFp8    int32 over 128 columns, then the same
//   kBF16, kF32  two fp32 chains (even and odd columns), added at the end; weights are widened in registers

namespace mimo::MIMO_ISA {
namespace {

// Activations of R rows wherever they lie.
template <int R>
struct RowPointers {
  const std::uint32_t* q[R];
  const float* scale[R];
  const std::int32_t* correction[R];
  std::uint32_t unit(int m, std::int64_t i) const { return q[m][i]; }
  float factor(int m, std::int64_t g) const { return scale[m][g]; }
  std::int32_t start(int m, std::int64_t g) const { return correction[m][g]; }
};

// Activations of R rows in tile order: [units][R], so that one pointer and constant offsets reach all rows.
template <int R>
struct RowTile {
  const std::uint32_t* q;
  const float* scale;
  const std::int32_t* correction;
  std::uint32_t unit(int m, std::int64_t i) const { return q[i * R + m]; }
  float factor(int m, std::int64_t g) const { return scale[g * R + m]; }
  std::int32_t start(int m, std::int64_t g) const { return correction[g * R + m]; }
};

// Bytes ahead of the current vector that are asked for: far enough to cover DRAM latency at one core's bandwidth,
// and across page borders where the hardware prefetcher stops.
constexpr int kPrefetchBytes = 4096;

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p) + kPrefetchBytes, _MM_HINT_T0); }

inline float as_float(std::uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

// Weight sources: packed bytes, or the scratch copy that unpack_panel made.
struct PackedMxfp4 {
  const std::uint8_t* scales;
  const std::uint8_t* data;
  void load(std::int64_t g, I* v, F& scale) const {
    const std::uint8_t* p = data + g * 256;
    for (int j = 0; j < 4; ++j) {
      prefetch(p + 64 * j);
      unpack_mxfp4(p + 64 * j, v[2 * j], v[2 * j + 1]);
    }
    scale = e8m0_factors(scales + g * kPanelRows);
  }
};
struct ScratchMxfp4 {
  const float* scales;
  const std::uint8_t* data;
  void load(std::int64_t g, I* v, F& scale) const {
    for (int j = 0; j < 8; ++j) v[j] = v_load(data + g * 512 + 64 * j);
    scale = f_load(scales + g * kPanelRows);
  }
};

template <int R, class Rows, class Weights>
inline __attribute__((always_inline)) void run_mxfp4(const Rows& rows, const Weights& w, std::int64_t groups,
                                                     float* out) {
  F sum[R];
  for (int m = 0; m < R; ++m) sum[m] = f_zero();
  for (std::int64_t g = 0; g < groups; ++g) {
    I v[8];
    F scale;
    w.load(g, v, scale);
    for (int m = 0; m < R; ++m) {
      I acc = i_set(rows.start(m, g));
      for (int j = 0; j < 8; ++j) acc = dot8(acc, v[j], rows.unit(m, g * 8 + j));
      sum[m] = f_fma(i_to_f(acc), f_mul(scale, f_set(rows.factor(m, g))), sum[m]);
    }
  }
  for (int m = 0; m < R; ++m) f_store(out + m * kPanelRows, sum[m]);
}

struct PackedFp8 {
  const std::uint8_t* data;
  Fp8Unpacker unpacker;
  void load(std::int64_t j, I& first, I& second) const {
    prefetch(data + j * 64);
    unpacker.unpack(data + j * 64, first, second);
  }
};
struct ScratchFp8 {
  const std::uint8_t* data;
  void load(std::int64_t j, I& first, I& second) const {
    first = v_load(data + j * 128);
    second = v_load(data + j * 128 + 64);
  }
};

template <int R, class Rows, class Weights>
inline __attribute__((always_inline)) void run_fp8(const Rows& rows, const Weights& w, const float* scales,
                                                   std::int64_t groups, float* out) {
  // Integer sums may be split freely; one or two rows need several chains to hide the dot's latency.
  constexpr int kChains = R == 1 ? 4 : (R <= 4 ? 2 : 1);
  constexpr int kVectors = kFp8Block / 4;
  F sum[R];
  for (int m = 0; m < R; ++m) sum[m] = f_zero();
  for (std::int64_t g = 0; g < groups; ++g) {
    I acc[R][kChains];
    for (int m = 0; m < R; ++m) {
      for (int c = 0; c < kChains; ++c) acc[m][c] = i_zero();
    }
    for (int j = 0; j < kVectors; j += 2) {
      for (int h = 0; h < 2; ++h) {
        I first;
        I second;
        w.load(g * kVectors + j + h, first, second);
        const std::int64_t unit = (g * kVectors + j + h) * 2;
        for (int m = 0; m < R; ++m) {
          I& a = acc[m][(2 * h) % kChains];
          a = dot16(a, first, rows.unit(m, unit));
          I& b = acc[m][(2 * h + 1) % kChains];
          b = dot16(b, second, rows.unit(m, unit + 1));
        }
      }
    }
    for (int m = 0; m < R; ++m) {
      I total = acc[m][0];
      for (int c = 1; c < kChains; ++c) total = i_add(total, acc[m][c]);
      sum[m] = f_fma(i_to_f(total), f_set(scales[g] * rows.factor(m, g)), sum[m]);
    }
  }
  for (int m = 0; m < R; ++m) f_store(out + m * kPanelRows, sum[m]);
}

// Columns 2p and 2p + 1 of 16 rows as fp32.
struct PackedBf16 {
  const std::uint8_t* data;
  void load(std::int64_t p, F& even, F& odd) const {
    prefetch(data + p * 64);
    bf16_pairs(data + p * 64, even, odd);
  }
};
struct PackedF32 {
  const std::uint8_t* data;
  void load(std::int64_t p, F& even, F& odd) const {
    even = f_load(reinterpret_cast<const float*>(data + p * 128));
    odd = f_load(reinterpret_cast<const float*>(data + p * 128 + 64));
  }
};

template <int R, class Rows, class Weights>
inline __attribute__((always_inline)) void run_float(const Rows& rows, const Weights& w, std::int64_t pairs,
                                                     float* out) {
  F even_sum[R];
  F odd_sum[R];
  for (int m = 0; m < R; ++m) even_sum[m] = odd_sum[m] = f_zero();
  for (std::int64_t p = 0; p < pairs; ++p) {
    F even;
    F odd;
    w.load(p, even, odd);
    for (int m = 0; m < R; ++m) {
      even_sum[m] = f_fma(even, f_set(as_float(rows.unit(m, 2 * p))), even_sum[m]);
      odd_sum[m] = f_fma(odd, f_set(as_float(rows.unit(m, 2 * p + 1))), odd_sum[m]);
    }
  }
  for (int m = 0; m < R; ++m) f_store(out + m * kPanelRows, f_add(even_sum[m], odd_sum[m]));
}

// Unpacked form of one panel in scratch.
struct ScratchPanel {
  std::uint8_t* data;
  float* scales;  // kMxfp4: [groups][16]
};

inline void unpack_panel(const PackedPanels& w, std::int64_t panel, const ScratchPanel& to) {
  const std::uint8_t* from = w.data + static_cast<std::size_t>(panel) * w.shape.bytes;
  if (w.shape.format == WeightFormat::kMxfp4) {
    const PackedMxfp4 packed{from, from + w.shape.scale_bytes};
    const std::int64_t groups = w.shape.k_padded / kMxfp4Block;
    for (std::int64_t g = 0; g < groups; ++g) {
      I v[8];
      F scale;
      packed.load(g, v, scale);
      for (int j = 0; j < 8; ++j) v_store(to.data + g * 512 + 64 * j, v[j]);
      f_store(to.scales + g * kPanelRows, scale);
    }
  } else if (w.shape.format == WeightFormat::kFp8) {
    const PackedFp8 packed{from, Fp8Unpacker()};
    for (std::int64_t j = 0; j < w.shape.k_padded / 4; ++j) {
      I first;
      I second;
      packed.load(j, first, second);
      v_store(to.data + j * 128, first);
      v_store(to.data + j * 128 + 64, second);
    }
  }
}

// One panel times R rows straight from packed bytes.
template <int R>
void panel_direct(const PackedPanels& w, std::int64_t panel, const RowPointers<R>& rows, float* out) {
  const std::uint8_t* data = w.data + static_cast<std::size_t>(panel) * w.shape.bytes;
  switch (w.shape.format) {
    case WeightFormat::kMxfp4:
      run_mxfp4<R>(rows, PackedMxfp4{data, data + w.shape.scale_bytes}, w.shape.k_padded / kMxfp4Block, out);
      return;
    case WeightFormat::kFp8: {
      const std::int64_t groups = w.shape.k_padded / kFp8Block;
      run_fp8<R>(rows, PackedFp8{data, Fp8Unpacker()}, w.scales + panel * groups, groups, out);
      return;
    }
    case WeightFormat::kBF16:
      run_float<R>(rows, PackedBf16{data}, w.shape.k_padded / 2, out);
      return;
    case WeightFormat::kF32:
      run_float<R>(rows, PackedF32{data}, w.shape.k_padded / 2, out);
      return;
  }
}

// One panel times a tile of R rows; integer formats come unpacked from scratch.
template <WeightFormat Format, int R>
void panel_tile(const PackedPanels& w, std::int64_t panel, const ScratchPanel& scratch, const std::uint32_t* q,
                const float* scale, const std::int32_t* correction, float* out) {
  const RowTile<R> rows{q, scale, correction};
  const std::uint8_t* data = w.data + static_cast<std::size_t>(panel) * w.shape.bytes;
  if constexpr (Format == WeightFormat::kMxfp4) {
    run_mxfp4<R>(rows, ScratchMxfp4{scratch.scales, scratch.data}, w.shape.k_padded / kMxfp4Block, out);
  } else if constexpr (Format == WeightFormat::kFp8) {
    const std::int64_t groups = w.shape.k_padded / kFp8Block;
    run_fp8<R>(rows, ScratchFp8{scratch.data}, w.scales + panel * groups, groups, out);
  } else if constexpr (Format == WeightFormat::kBF16) {
    run_float<R>(rows, PackedBf16{data}, w.shape.k_padded / 2, out);
  } else {
    run_float<R>(rows, PackedF32{data}, w.shape.k_padded / 2, out);
  }
}

using TileFunction = void (*)(const PackedPanels&, std::int64_t, const ScratchPanel&, const std::uint32_t*, const float*,
                              const std::int32_t*, float*);

// table[r - 1] multiplies r rows.
template <WeightFormat Format, int Max>
struct TileTable {
  TileFunction functions[Max];
  TileTable() { fill<1>(); }
  template <int R>
  void fill() {
    functions[R - 1] = &panel_tile<Format, R>;
    if constexpr (R < Max) fill<R + 1>();
  }
};

inline int tile_rows(WeightFormat format) {
  switch (format) {
    case WeightFormat::kMxfp4:
      return kRowsMxfp4;
    case WeightFormat::kFp8:
      return kRowsFp8;
    case WeightFormat::kBF16:
      return kRowsFloat;
    case WeightFormat::kF32:
      return kRowsFloat;
  }
  return 1;
}

inline TileFunction tile_function(WeightFormat format, int rows) {
  static const TileTable<WeightFormat::kMxfp4, kRowsMxfp4> mxfp4;
  static const TileTable<WeightFormat::kFp8, kRowsFp8> fp8;
  static const TileTable<WeightFormat::kBF16, kRowsFloat> bf16;
  static const TileTable<WeightFormat::kF32, kRowsFloat> f32;
  switch (format) {
    case WeightFormat::kMxfp4:
      return mxfp4.functions[rows - 1];
    case WeightFormat::kFp8:
      return fp8.functions[rows - 1];
    case WeightFormat::kBF16:
      return bf16.functions[rows - 1];
    case WeightFormat::kF32:
      return f32.functions[rows - 1];
  }
  return nullptr;
}

// exp(x) to about 1 ulp over the range softmax and silu use: 2^n * p(r), Cody-Waite reduction, degree-6 polynomial.
// Anything below -110 gives exactly 0 (so -inf does); NaN stays NaN (the operand order of the maximum keeps it).
inline F f_exp(F x) {
  x = f_max(f_set(-110.0f), x);
  const F n = f_round(f_mul(x, f_set(1.44269504088896341f)));
  F r = f_fma(n, f_set(-0.693359375f), x);
  r = f_fma(n, f_set(2.12194440e-4f), r);
  F p = f_set(1.0f / 720.0f);
  p = f_fma(p, r, f_set(1.0f / 120.0f));
  p = f_fma(p, r, f_set(1.0f / 24.0f));
  p = f_fma(p, r, f_set(1.0f / 6.0f));
  p = f_fma(p, r, f_set(0.5f));
  p = f_fma(p, r, f_set(1.0f));
  p = f_fma(p, r, f_set(1.0f));
  return f_scale2(p, n);
}

// silu(g) * u
inline F f_gated(F g, F u) {
  const F e = f_exp(f_sub(f_zero(), f_abs(g)));           // in (0, 1]
  const F numerator = f_nonneg_select(g, f_set(1.0f), e);  // sigmoid(g) = num / (1 + e), without overflow
  return f_mul(f_mul(g, f_div(numerator, f_add(f_set(1.0f), e))), u);
}

// Writes the results of one panel ([rows][16], or gate and up of a pair) where the epilogue says.
inline void finish_rows(const GemmArgs& args, std::int64_t panel, int row_begin, int rows, const float* result,
                        const float* up) {
  const std::int64_t column = panel * kPanelRows;
  const int width = static_cast<int>(args.w.rows - column < kPanelRows ? args.w.rows - column : kPanelRows);
  for (int m = 0; m < rows; ++m) {
    const int row = row_begin + m;
    const float* from = result + m * kPanelRows;
    if (args.epilogue == Epilogue::kGatedSilu) {
      float* to = args.out + static_cast<std::size_t>(row) * args.out_stride + panel / 2 * kPanelRows;
      f_store(to, f_gated(f_load(from), f_load(up + m * kPanelRows)));
      continue;
    }
    const int target = args.epilogue == Epilogue::kAddScaled ? args.scatter[row] : row;
    float* to = args.out + static_cast<std::size_t>(target) * args.out_stride + column;
    if (width == kPanelRows) {
      const F v = f_load(from);
      if (args.epilogue == Epilogue::kStore) {
        f_store(to, v);
      } else if (args.epilogue == Epilogue::kAdd) {
        f_store(to, f_add(f_load(to), v));
      } else {
        f_store(to, f_fma(f_set(args.row_scale[row]), v, f_load(to)));
      }
      continue;
    }
    for (int i = 0; i < width; ++i) {
      if (args.epilogue == Epilogue::kStore) {
        to[i] = from[i];
      } else if (args.epilogue == Epilogue::kAdd) {
        to[i] += from[i];
      } else {
        to[i] = __builtin_fmaf(args.row_scale[row], from[i], to[i]);
      }
    }
  }
}

template <int R>
void gemm_direct(const GemmArgs& args) {
  RowPointers<R> rows;
  for (int m = 0; m < R; ++m) {
    const auto source = static_cast<std::size_t>(args.gather != nullptr ? args.gather[m] : m);
    rows.q[m] = args.x.q + source * args.x.q_stride;
    rows.scale[m] = args.x.scale + source * args.x.scale_stride;
    rows.correction[m] = args.x.correction + source * args.x.scale_stride;
  }
  alignas(64) float result[2][R * kPanelRows];
  const bool gated = args.epilogue == Epilogue::kGatedSilu;
  for (std::int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    panel_direct<R>(args.w, panel, rows, result[0]);
    if (gated) panel_direct<R>(args.w, ++panel, rows, result[1]);
    finish_rows(args, panel, 0, R, result[0], result[1]);
  }
}

// Copies `rows` rows of units into tile order.
inline void interleave(const std::uint32_t* from, std::size_t stride, const std::int32_t* gather, int first, int rows,
                       std::size_t units, std::uint32_t* to) {
  for (int m = 0; m < rows; ++m) {
    const auto source = static_cast<std::size_t>(gather != nullptr ? gather[first + m] : first + m);
    const std::uint32_t* row = from + source * stride;
    for (std::size_t i = 0; i < units; ++i) to[i * static_cast<std::size_t>(rows) + static_cast<std::size_t>(m)] = row[i];
  }
}

inline void gemm_tiled(const GemmArgs& args) {
  const PanelShape& shape = args.w.shape;
  const std::size_t units = act_units(shape);
  const std::size_t groups = act_groups(shape);
  const auto round_up = [](std::size_t x) { return (x + 63) / 64 * 64; };
  std::uint8_t* at = args.scratch;
  ScratchPanel scratch{};
  scratch.data = at;
  at += round_up(static_cast<std::size_t>(shape.k_padded) * kPanelRows * 2);
  scratch.scales = reinterpret_cast<float*>(at);
  at += round_up(groups * kPanelRows * sizeof(float));
  // Results of one panel for all rows; a gated pair keeps the gate results while the up panel is multiplied.
  auto* result = reinterpret_cast<float*>(at);
  float* up = result + static_cast<std::size_t>(args.rows) * kPanelRows;
  auto* q = reinterpret_cast<std::uint32_t*>(up + static_cast<std::size_t>(args.rows) * kPanelRows);

  // Tiles of nearly equal height: a last tile of one row would run at the speed of its weight loads.
  const int limit = tile_rows(shape.format);
  const int tiles = (args.rows + limit - 1) / limit;
  auto* scale = reinterpret_cast<float*>(q + units * static_cast<std::size_t>(args.rows));
  auto* correction = reinterpret_cast<std::int32_t*>(scale + groups * static_cast<std::size_t>(args.rows));
  const auto tile_begin = [&](int tile) {
    return static_cast<int>(static_cast<std::int64_t>(args.rows) * tile / tiles);
  };
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = tile_begin(tile);
    const int rows = tile_begin(tile + 1) - first;
    const auto offset = static_cast<std::size_t>(first);
    interleave(args.x.q, args.x.q_stride, args.gather, first, rows, units, q + units * offset);
    if (groups > 0) {
      interleave(reinterpret_cast<const std::uint32_t*>(args.x.scale), args.x.scale_stride, args.gather, first, rows,
                 groups, reinterpret_cast<std::uint32_t*>(scale + groups * offset));
    }
    if (shape.format == WeightFormat::kMxfp4) {
      interleave(reinterpret_cast<const std::uint32_t*>(args.x.correction), args.x.scale_stride, args.gather, first, rows,
                 groups, reinterpret_cast<std::uint32_t*>(correction + groups * offset));
    }
  }

  const auto multiply = [&](std::int64_t panel, float* out) {
    unpack_panel(args.w, panel, scratch);
    for (int tile = 0; tile < tiles; ++tile) {
      const int first = tile_begin(tile);
      const auto offset = static_cast<std::size_t>(first);
      tile_function(shape.format, tile_begin(tile + 1) - first)(args.w, panel, scratch, q + units * offset,
                                                                scale + groups * offset, correction + groups * offset,
                                                                out + offset * kPanelRows);
    }
  };
  const bool gated = args.epilogue == Epilogue::kGatedSilu;
  for (std::int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    multiply(panel, result);
    if (gated) multiply(++panel, up);
    finish_rows(args, panel, 0, args.rows, result, up);
  }
}

inline void gemm(const GemmArgs& args) {
  switch (args.rows) {
    case 0:
      return;
    case 1:
      return gemm_direct<1>(args);
    case 2:
      return gemm_direct<2>(args);
    case 3:
      return gemm_direct<3>(args);
    case 4:
      return gemm_direct<4>(args);
    default:
      return gemm_tiled(args);
  }
}

}  // namespace
}  // namespace mimo::MIMO_ISA
