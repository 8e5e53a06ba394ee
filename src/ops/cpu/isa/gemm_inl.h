// Matrix kernels, written once over the vectors of the including instruction set. MIMO_ISA names its
// namespace.
//
// Every kind accumulates a row in an order that depends on the matrix alone (never on how many rows there are
// or which kernel runs), so that a row's bits do not depend on its batch:
//   kMxfp4         int32 over 64 columns in units of the smaller of the two block scales, then
//                  fp32 += int * (weight scale * activation scale), group after group, plane after plane
//   kInt8          int32 over 64 columns, then the same
//   kFp8, kInt16   int32 over 128 columns, then the same
//   kBf16, kF32    two fp32 chains (even and odd columns), added at the end; weights are widened in registers

namespace mimo::MIMO_ISA {
namespace {

// Activations of R rows wherever they lie.
template <int R>
struct RowPointers {
  const std::uint32_t* q[R];
  const float* scale[R];
  const std::int32_t* correction[R];
  const std::uint32_t* at(int m, std::int64_t i) const { return q[m] + i; }
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
  const std::uint32_t* at(int m, std::int64_t i) const { return q + i * R + m; }
  std::uint32_t unit(int m, std::int64_t i) const { return q[i * R + m]; }
  float factor(int m, std::int64_t g) const { return scale[g * R + m]; }
  std::int32_t start(int m, std::int64_t g) const { return correction[g * R + m]; }
};

// Bytes ahead of the current vector that are asked for: far enough to cover DRAM latency at one core's
// bandwidth, and across page borders where the hardware prefetcher stops.
constexpr int kPrefetchBytes = 4096;

inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + kPrefetchBytes, _MM_HINT_T0);
}

inline float as_float(std::uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

// Shifts up to this fit the unsigned byte form of unpacked weights: (12 << 3) + 96 = 192.
constexpr int kMaxByteShift = 3;
constexpr int kByteOffset = 96;

// The scales of one group of 64 columns, for 16 rows.
struct GroupScales {
  F factor;    // fp32 weight scale of the sum
  I left[2];   // left shifts of the two block sums
  I right[2];  // right shifts: wide panels only
};

template <bool Wide>
inline GroupScales group_scales(const std::uint8_t* lines) {
  GroupScales s;
  const I first = load_bytes(lines);
  const I second = load_bytes(lines + kPanelRows);
  if constexpr (!Wide) {
    s.factor = exponent_factor(first);
    s.left[0] = i_and(second, i_set(15));
    s.left[1] = i_srl(second, 4);
    s.right[0] = s.right[1] = i_zero();
  } else {
    const I low = i_min(first, second);
    const I high = i_max(first, second);
    // Sums are in units of the smaller scale, or of 2^-14 of the larger one.
    const I unit = i_max(low, i_sub(high, i_set(kMxfp4MaxShift)));
    s.factor = exponent_factor(unit);
    s.left[0] = i_max(i_sub(first, unit), i_zero());
    s.left[1] = i_max(i_sub(second, unit), i_zero());
    s.right[0] = i_min(i_max(i_sub(unit, first), i_zero()), i_set(31));
    s.right[1] = i_min(i_max(i_sub(unit, second), i_zero()), i_set(31));
  }
  return s;
}

// int32 sum of one group for one row: 16 dots over packed-order vectors v[0..16), unsigned weights with
// offset 12.
template <bool Wide, class Rows>
inline __attribute__((always_inline)) I mxfp4_sum(const Rows& rows, int m, std::int64_t unit,
                                                  std::int64_t correction, const I* v, const GroupScales& s) {
  I a = i_set(rows.start(m, correction));
  I b = i_set(rows.start(m, correction + 1));
  for (int j = 0; j < 8; ++j) {
    a = dot8_at(a, v[j], rows.at(m, unit + j));
    b = dot8_at(b, v[8 + j], rows.at(m, unit + 8 + j));
  }
  a = i_sll(a, s.left[0]);
  b = i_sll(b, s.left[1]);
  if constexpr (Wide) {
    a = i_sra(a, s.right[0]);
    b = i_sra(b, s.right[1]);
  }
  return i_add(a, b);
}

// Straight from packed bytes.
template <int R, int Planes, bool Wide>
void mxfp4_direct(const RowPointers<R>& rows, const std::uint8_t* lines, const std::uint8_t* data,
                  std::int64_t groups, float* out) {
  F sum[R];
  for (int m = 0; m < R; ++m) sum[m] = f_zero();
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::uint8_t* p = data + g * 512;
    I v[16];
    for (int j = 0; j < 8; ++j) {
      prefetch(p + 64 * j);
      unpack_mxfp4(p + 64 * j, v[2 * j], v[2 * j + 1]);
    }
    const GroupScales s = group_scales<Wide>(lines + g * 2 * kPanelRows);
    for (int plane = 0; plane < Planes; ++plane) {
      const std::int64_t at = plane * groups + g;
      for (int m = 0; m < R; ++m) {
        const I total = mxfp4_sum<Wide>(rows, m, at * 16, at * 3, v, s);
        sum[m] = f_fma(i_to_f(total), f_mul(s.factor, f_set(rows.factor(m, at))), sum[m]);
      }
    }
  }
  for (int m = 0; m < R; ++m) f_store(out + m * kPanelRows, sum[m]);
}

// A run of weight groups: tiles are multiplied slab by slab, so that a slab's weights stay in L1 for all
// rows. Sums are carried from slab to slab in fp32, in the order in which they would be added anyway.
struct Slab {
  std::int64_t begin;
  std::int64_t end;
};

// Unpacked form of one slab of a panel in scratch.
struct ScratchPanel {
  std::uint8_t* data;    // kMxfp4: bytes in packed column order; kFp8: int16 pairs
  GroupScales* scales;   // kMxfp4: [slab groups]
  std::uint8_t* folded;  // kMxfp4: [slab groups] shifts are in the bytes (offset 96 instead of 12)
};

// int32 sums of one group for R rows and P panels whose shifts are folded into the bytes. Weights are the
// outer loop: R x P independent chains hide the latency of the dots, and a broadcast activation serves P
// panels, since loads are what bounds the loop.
template <int R, int P>
inline __attribute__((always_inline)) void mxfp4_folded_group(const RowTile<R>& rows,
                                                              const std::uint8_t* const* data,
                                                              std::int64_t at, I (*acc)[R]) {
  for (int m = 0; m < R; ++m) {
    const I start = i_set(rows.start(m, at * 3 + 2));
    for (int p = 0; p < P; ++p) acc[p][m] = start;
  }
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) {
    I v[P];
    for (int p = 0; p < P; ++p) v[p] = v_load(data[p] + 64 * j);
    for (int m = 0; m < R; ++m) {
      const std::uint32_t act = rows.unit(m, at * 16 + j);
      for (int p = 0; p < P; ++p) acc[p][m] = dot8(acc[p][m], v[p], act);
    }
  }
}

template <int R, int P>
inline __attribute__((always_inline)) void load_sums(Slab slab, float* const* out, F (*sum)[R]) {
  for (int p = 0; p < P; ++p) {
    for (int m = 0; m < R; ++m) sum[p][m] = slab.begin == 0 ? f_zero() : f_load(out[p] + m * kPanelRows);
  }
}

template <int R, int P, int Planes>
void mxfp4_tile(const RowTile<R>& rows, const ScratchPanel* w, std::int64_t groups, Slab slab,
                float* const* out) {
  F sum[P][R];
  load_sums<R, P>(slab, out, sum);
  for (std::int64_t g = 0; g < slab.end - slab.begin; ++g) {
    bool folded = true;
    const std::uint8_t* data[P];
    for (int p = 0; p < P; ++p) {
      data[p] = w[p].data + g * 1024;
      folded = folded && w[p].folded[g] != 0;
    }
    for (int plane = 0; plane < Planes; ++plane) {
      const std::int64_t at = plane * groups + slab.begin + g;
      I acc[P][R];
      if (folded) [[likely]] {
        mxfp4_folded_group<R, P>(rows, data, at, acc);
      } else {
        for (int p = 0; p < P; ++p) {
          if (w[p].folded[g] != 0) {
            mxfp4_folded_group<R, 1>(rows, data + p, at, acc + p);
            continue;
          }
          I v[16];
          for (int j = 0; j < 16; ++j) v[j] = v_load(data[p] + 64 * j);
          // Right shifts are zero unless the panel is wide: the general form serves both.
          for (int m = 0; m < R; ++m)
            acc[p][m] = mxfp4_sum<true>(rows, m, at * 16, at * 3, v, w[p].scales[g]);
        }
      }
      for (int p = 0; p < P; ++p) {
        const F factor = w[p].scales[g].factor;
        for (int m = 0; m < R; ++m) {
          sum[p][m] = f_fma(i_to_f(acc[p][m]), f_mul(factor, f_set(rows.factor(m, at))), sum[p][m]);
        }
      }
    }
  }
  for (int p = 0; p < P; ++p) {
    for (int m = 0; m < R; ++m) f_store(out[p] + m * kPanelRows, sum[p][m]);
  }
}

// kInt8: bytes with offset 96 in the order of unpacked MXFP4, and a factor for each row and group.
constexpr std::int64_t kInt8GroupBytes = kMxfp4Group * kPanelRows;

template <int R>
void int8_direct(const RowPointers<R>& rows, const std::uint8_t* factors, const std::uint8_t* data,
                 std::int64_t groups, float* out) {
  F sum[R];
  for (int m = 0; m < R; ++m) sum[m] = f_zero();
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::uint8_t* p = data + g * kInt8GroupBytes;
    I acc[R];
    for (int m = 0; m < R; ++m) acc[m] = i_set(rows.start(m, g * 3 + 2));
    for (int j = 0; j < 16; ++j) {
      prefetch(p + 64 * j);
      const I v = v_load(p + 64 * j);
      for (int m = 0; m < R; ++m) acc[m] = dot8_at(acc[m], v, rows.at(m, g * 16 + j));
    }
    const F factor = f_load(reinterpret_cast<const float*>(factors) + g * kPanelRows);
    for (int m = 0; m < R; ++m) {
      sum[m] = f_fma(i_to_f(acc[m]), f_mul(factor, f_set(rows.factor(m, g))), sum[m]);
    }
  }
  for (int m = 0; m < R; ++m) f_store(out + m * kPanelRows, sum[m]);
}

template <int R, int P>
void int8_tile(const RowTile<R>& rows, const std::uint8_t* const* panels, std::size_t scale_bytes, Slab slab,
               float* const* out) {
  F sum[P][R];
  load_sums<R, P>(slab, out, sum);
  for (std::int64_t g = slab.begin; g < slab.end; ++g) {
    const std::uint8_t* data[P];
    for (int p = 0; p < P; ++p) data[p] = panels[p] + scale_bytes + g * kInt8GroupBytes;
    I acc[P][R];
    mxfp4_folded_group<R, P>(rows, data, g, acc);
    for (int p = 0; p < P; ++p) {
      const F factor = f_load(reinterpret_cast<const float*>(panels[p]) + g * kPanelRows);
      for (int m = 0; m < R; ++m) {
        sum[p][m] = f_fma(i_to_f(acc[p][m]), f_mul(factor, f_set(rows.factor(m, g))), sum[p][m]);
      }
    }
  }
  for (int p = 0; p < P; ++p) {
    for (int m = 0; m < R; ++m) f_store(out[p] + m * kPanelRows, sum[p][m]);
  }
}

// Sources of int16 weight pairs: vector pair j holds columns 4j..4j+3.
struct PackedFp8 {
  const std::uint8_t* data;
  Fp8Unpacker unpacker;
  void load(std::int64_t j, I& first, I& second) const {
    prefetch(data + j * 64);
    unpacker.unpack(data + j * 64, first, second);
  }
};
struct PackedInt16 {
  const std::uint8_t* data;
  void load(std::int64_t j, I& first, I& second) const {
    prefetch(data + j * 128);
    prefetch(data + j * 128 + 64);
    first = v_load(data + j * 128);
    second = v_load(data + j * 128 + 64);
  }
};

// P panels of int16 pairs (the slab's, scratch or packed) times a tile of R rows.
template <int R, int P, int Planes>
void int16_tile(const RowTile<R>& rows, const std::uint8_t* const* data, const float* const* scales,
                std::int64_t groups, Slab slab, float* const* out) {
  F sum[P][R];
  load_sums<R, P>(slab, out, sum);
  for (std::int64_t g = 0; g < slab.end - slab.begin; ++g) {
    for (int plane = 0; plane < Planes; ++plane) {
      const std::int64_t at = plane * groups + slab.begin + g;
      I acc[P][R];
      for (int p = 0; p < P; ++p) {
        for (int m = 0; m < R; ++m) acc[p][m] = i_zero();
      }
      constexpr int kUnits = kWideGroup / 2;
#pragma GCC unroll 4
      for (int j = 0; j < kUnits; ++j) {
        I v[P];
        for (int p = 0; p < P; ++p) v[p] = v_load(data[p] + (g * kUnits + j) * 64);
        for (int m = 0; m < R; ++m) {
          const std::uint32_t act = rows.unit(m, at * kUnits + j);
          for (int p = 0; p < P; ++p) acc[p][m] = dot16(acc[p][m], v[p], act);
        }
      }
      for (int p = 0; p < P; ++p) {
        for (int m = 0; m < R; ++m) {
          sum[p][m] =
              f_fma(i_to_f(acc[p][m]), f_set(scales[p][slab.begin + g] * rows.factor(m, at)), sum[p][m]);
        }
      }
    }
  }
  for (int p = 0; p < P; ++p) {
    for (int m = 0; m < R; ++m) f_store(out[p] + m * kPanelRows, sum[p][m]);
  }
}

template <int R, int Planes, class Rows, class Weights>
inline __attribute__((always_inline)) void run_int16(const Rows& rows, const Weights& w, const float* scales,
                                                     std::int64_t groups, float* out) {
  // Integer sums may be split freely; few rows need several chains to hide the dot's latency.
  constexpr int kChains = R * Planes == 1 ? 4 : (R * Planes <= 8 ? 2 : 1);
  constexpr int kVectors = kWideGroup / 4;
  F sum[R];
  for (int m = 0; m < R; ++m) sum[m] = f_zero();
  for (std::int64_t g = 0; g < groups; ++g) {
    I acc[Planes][R][kChains];
    for (int plane = 0; plane < Planes; ++plane) {
      for (int m = 0; m < R; ++m) {
        for (int c = 0; c < kChains; ++c) acc[plane][m][c] = i_zero();
      }
    }
    for (int j = 0; j < kVectors; j += 2) {
      for (int h = 0; h < 2; ++h) {
        I first;
        I second;
        w.load(g * kVectors + j + h, first, second);
        for (int plane = 0; plane < Planes; ++plane) {
          const std::int64_t unit = ((plane * groups + g) * kVectors + j + h) * 2;
          for (int m = 0; m < R; ++m) {
            I& a = acc[plane][m][(2 * h) % kChains];
            a = dot16_at(a, first, rows.at(m, unit));
            I& b = acc[plane][m][(2 * h + 1) % kChains];
            b = dot16_at(b, second, rows.at(m, unit + 1));
          }
        }
      }
    }
    for (int plane = 0; plane < Planes; ++plane) {
      for (int m = 0; m < R; ++m) {
        I total = acc[plane][m][0];
        for (int c = 1; c < kChains; ++c) total = i_add(total, acc[plane][m][c]);
        sum[m] = f_fma(i_to_f(total), f_set(scales[g] * rows.factor(m, plane * groups + g)), sum[m]);
      }
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

inline std::int64_t weight_groups(const PanelShape& shape) {
  const bool narrow = shape.kind == PackedKind::kMxfp4 || shape.kind == PackedKind::kInt8;
  return shape.k_padded / (narrow ? kMxfp4Group : kWideGroup);
}

template <bool Wide>
void unpack_mxfp4_slab(const PanelShape& shape, const std::uint8_t* from, Slab slab, const ScratchPanel& to) {
  const std::uint8_t* lines = from + kMxfp4HeaderBytes + slab.begin * 2 * kPanelRows;
  const std::uint8_t* elements = from + shape.scale_bytes + slab.begin * 512;
  for (std::int64_t g = 0; g < slab.end - slab.begin; ++g) {
    const GroupScales s = group_scales<Wide>(lines + g * 2 * kPanelRows);
    const bool fold = !Wide && !any_above(s.left[0], kMaxByteShift) && !any_above(s.left[1], kMaxByteShift);
    to.scales[g] = s;
    to.folded[g] = fold ? 1 : 0;
    for (int block = 0; block < 2; ++block) {
      const I shift = s.left[block];
      // (w + 12) << s becomes (w << s) + 96 in every byte of a row's lane.
      const I offset = repeat_byte(i_sub(i_set(kByteOffset), i_sll(i_set(12), shift)));
      for (int j = 0; j < 4; ++j) {
        I v[2];
        const std::int64_t vector = g * 8 + block * 4 + j;
        prefetch(elements + vector * 64);
        unpack_mxfp4(elements + vector * 64, v[0], v[1]);
        for (int h = 0; h < 2; ++h) {
          if (fold) v[h] = i_add8(i_sll(v[h], shift), offset);
          v_store(to.data + (vector * 2 + h) * 64, v[h]);
        }
      }
    }
  }
}

inline void unpack_slab(const PackedPanels& w, std::int64_t panel, Slab slab, const ScratchPanel& to) {
  const std::uint8_t* from = w.data + static_cast<std::size_t>(panel) * w.shape.bytes;
  if (w.shape.kind == PackedKind::kMxfp4) {
    if (from[0] != 0) {
      unpack_mxfp4_slab<true>(w.shape, from, slab, to);
    } else {
      unpack_mxfp4_slab<false>(w.shape, from, slab, to);
    }
  } else if (w.shape.kind == PackedKind::kFp8) {
    const PackedFp8 packed{from + slab.begin * kWideGroup * kPanelRows, Fp8Unpacker()};
    for (std::int64_t j = 0; j < (slab.end - slab.begin) * kWideGroup / 4; ++j) {
      I first;
      I second;
      packed.load(j, first, second);
      v_store(to.data + j * 128, first);
      v_store(to.data + j * 128 + 64, second);
    }
  }
}

// One panel times R rows straight from packed bytes.
template <int R, int Planes>
void panel_direct(const PackedPanels& w, std::int64_t panel, const RowPointers<R>& rows, float* out) {
  const std::uint8_t* data = w.data + static_cast<std::size_t>(panel) * w.shape.bytes;
  const std::int64_t groups = weight_groups(w.shape);
  switch (w.shape.kind) {
    case PackedKind::kMxfp4:
      if (data[0] != 0) {
        mxfp4_direct<R, Planes, true>(rows, data + kMxfp4HeaderBytes, data + w.shape.scale_bytes, groups,
                                      out);
      } else {
        mxfp4_direct<R, Planes, false>(rows, data + kMxfp4HeaderBytes, data + w.shape.scale_bytes, groups,
                                       out);
      }
      return;
    case PackedKind::kInt8:
      int8_direct<R>(rows, data, data + w.shape.scale_bytes, groups, out);
      return;
    case PackedKind::kFp8:
      run_int16<R, Planes>(rows, PackedFp8{data, Fp8Unpacker()}, w.scales + panel * groups, groups, out);
      return;
    case PackedKind::kInt16:
      run_int16<R, Planes>(rows, PackedInt16{data}, w.scales + panel * groups, groups, out);
      return;
    case PackedKind::kBf16:
      run_float<R>(rows, PackedBf16{data}, w.shape.k_padded / 2, out);
      return;
    case PackedKind::kF32:
      run_float<R>(rows, PackedF32{data}, w.shape.k_padded / 2, out);
      return;
  }
}

// Groups of a slab: the unpacked weights of two panels take 16 KiB, half of the smallest L1 in use.
constexpr std::int64_t kSlabMxfp4 = 8;
constexpr std::int64_t kSlabWide = 2;
constexpr std::size_t kSlabBytes = 8192;
static_assert(kSlabMxfp4 * kMxfp4Group * kPanelRows == kSlabBytes &&
              kSlabWide * kWideGroup * kPanelRows * 2 == kSlabBytes);

// What a tile function needs of the panels it multiplies.
struct TilePanels {
  const PackedPanels* w;
  std::int64_t panel;           // the first of P
  Slab slab;                    // kBf16, kF32: everything
  const ScratchPanel* scratch;  // [P], kMxfp4 and kFp8
};

// P panels times a tile of R rows; MXFP4 and FP8 come unpacked from scratch.
template <PackedKind Kind, int R, int P, int Planes>
void panel_tile(const TilePanels& t, const std::uint32_t* q, const float* scale,
                const std::int32_t* correction, float* const* out) {
  const RowTile<R> rows{q, scale, correction};
  const PanelShape& shape = t.w->shape;
  const std::int64_t groups = weight_groups(shape);
  const std::uint8_t* data[P];
  const float* scales[P];
  for (int p = 0; p < P; ++p) {
    data[p] = Kind == PackedKind::kFp8 ? t.scratch[p].data
                                       : t.w->data + static_cast<std::size_t>(t.panel + p) * shape.bytes;
    if (Kind == PackedKind::kInt16) data[p] += t.slab.begin * kWideGroup * kPanelRows * 2;
    scales[p] = t.w->scales + (t.panel + p) * groups;
  }
  if constexpr (Kind == PackedKind::kMxfp4) {
    mxfp4_tile<R, P, Planes>(rows, t.scratch, groups, t.slab, out);
  } else if constexpr (Kind == PackedKind::kInt8) {
    int8_tile<R, P>(rows, data, shape.scale_bytes, t.slab, out);
  } else if constexpr (Kind == PackedKind::kFp8 || Kind == PackedKind::kInt16) {
    int16_tile<R, P, Planes>(rows, data, scales, groups, t.slab, out);
  } else if constexpr (Kind == PackedKind::kBf16) {
    for (int p = 0; p < P; ++p) run_float<R>(rows, PackedBf16{data[p]}, shape.k_padded / 2, out[p]);
  } else {
    for (int p = 0; p < P; ++p) run_float<R>(rows, PackedF32{data[p]}, shape.k_padded / 2, out[p]);
  }
}

using TileFunction = void (*)(const TilePanels&, const std::uint32_t*, const float*, const std::int32_t*,
                              float* const*);

// functions[p - 1][r - 1] multiplies p panels by r rows.
template <PackedKind Kind, int Max, int Planes>
struct TileTable {
  TileFunction functions[2][Max];
  TileTable() { fill<1>(); }
  template <int R>
  void fill() {
    functions[0][R - 1] = &panel_tile<Kind, R, 1, Planes>;
    functions[1][R - 1] = &panel_tile<Kind, R, 2, Planes>;
    if constexpr (R < Max) fill<R + 1>();
  }
};

inline int tile_rows(const PanelShape& shape) {
  const bool integer = shape.kind != PackedKind::kBf16 && shape.kind != PackedKind::kF32;
  return integer ? kRowsInteger : kRowsFloat;
}

inline TileFunction tile_function(const PanelShape& shape, int rows, int panels) {
  static const TileTable<PackedKind::kMxfp4, kRowsInteger, 1> mxfp4;
  static const TileTable<PackedKind::kMxfp4, kRowsInteger, 2> mxfp4_exact;
  static const TileTable<PackedKind::kInt8, kRowsInteger, 1> int8;
  static const TileTable<PackedKind::kFp8, kRowsInteger, 1> fp8;
  static const TileTable<PackedKind::kFp8, kRowsInteger, 2> fp8_exact;
  static const TileTable<PackedKind::kInt16, kRowsInteger, 1> int16;
  static const TileTable<PackedKind::kBf16, kRowsFloat, 1> bf16;
  static const TileTable<PackedKind::kF32, kRowsFloat, 1> f32;
  const bool exact = shape.planes == 2;
  switch (shape.kind) {
    case PackedKind::kMxfp4:
      return exact ? mxfp4_exact.functions[panels - 1][rows - 1] : mxfp4.functions[panels - 1][rows - 1];
    case PackedKind::kInt8:
      return int8.functions[panels - 1][rows - 1];
    case PackedKind::kFp8:
      return exact ? fp8_exact.functions[panels - 1][rows - 1] : fp8.functions[panels - 1][rows - 1];
    case PackedKind::kInt16:
      return int16.functions[panels - 1][rows - 1];
    case PackedKind::kBf16:
      return bf16.functions[panels - 1][rows - 1];
    case PackedKind::kF32:
      return f32.functions[panels - 1][rows - 1];
  }
  return nullptr;
}

// exp(x) to about 1 ulp over the range softmax and silu use: 2^n * p(r), Cody-Waite reduction, degree-6
// polynomial. Anything below -110 gives exactly 0 (so -inf does); NaN stays NaN (the operand order of the
// maximum keeps it).
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
  const F e = f_exp(f_sub(f_zero(), f_abs(g)));            // in (0, 1]
  const F numerator = f_nonneg_select(g, f_set(1.0f), e);  // sigmoid(g) = num / (1 + e), without overflow
  return f_mul(f_mul(g, f_div(numerator, f_add(f_set(1.0f), e))), u);
}

// Writes the results of one panel ([rows][16], or gate and up of a pair) where the epilogue says.
inline void finish_rows(const GemmArgs& args, std::int64_t panel, int rows, const float* result,
                        const float* up) {
  const std::int64_t column = panel * kPanelRows;
  const int width = static_cast<int>(args.w.rows - column < kPanelRows ? args.w.rows - column : kPanelRows);
  for (int m = 0; m < rows; ++m) {
    const float* from = result + m * kPanelRows;
    if (args.epilogue == Epilogue::kGatedSilu) {
      float* to = args.out + static_cast<std::size_t>(m) * args.out_stride + panel / 2 * kPanelRows;
      f_store(to, f_gated(f_load(from), f_load(up + m * kPanelRows)));
      continue;
    }
    const int target = args.epilogue == Epilogue::kAddScaled ? args.scatter[m] : m;
    float* to = args.out + static_cast<std::size_t>(target) * args.out_stride + column;
    if (width == kPanelRows) {
      const F v = f_load(from);
      if (args.epilogue == Epilogue::kStore) {
        f_store(to, v);
      } else if (args.epilogue == Epilogue::kAdd) {
        f_store(to, f_add(f_load(to), v));
      } else {
        f_store(to, f_fma(f_set(args.row_scale[m]), v, f_load(to)));
      }
      continue;
    }
    for (int i = 0; i < width; ++i) {
      if (args.epilogue == Epilogue::kStore) {
        to[i] = from[i];
      } else if (args.epilogue == Epilogue::kAdd) {
        to[i] += from[i];
      } else {
        to[i] = __builtin_fmaf(args.row_scale[m], from[i], to[i]);
      }
    }
  }
}

template <int R, int Planes>
void gemm_direct(const GemmArgs& args) {
  RowPointers<R> rows;
  for (int m = 0; m < R; ++m) {
    const auto source = static_cast<std::size_t>(args.gather != nullptr ? args.gather[m] : m);
    rows.q[m] = args.x.q + source * args.x.q_stride;
    rows.scale[m] = args.x.scale + source * args.x.scale_stride;
    rows.correction[m] = args.x.correction + source * args.x.correction_stride;
  }
  alignas(64) float result[2][R * kPanelRows];
  const bool gated = args.epilogue == Epilogue::kGatedSilu;
  for (std::int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    panel_direct<R, Planes>(args.w, panel, rows, result[0]);
    if (gated) panel_direct<R, Planes>(args.w, panel + 1, rows, result[1]);
    finish_rows(args, panel, R, result[0], result[1]);
    if (gated) ++panel;
  }
}

// Copies `rows` rows of 4-byte units into tile order [units][rows], 4 x 4 units at a time. Every task does this
// anew, so that with few rows it counts beside the multiplications.
inline void interleave(const void* from, std::size_t stride, const std::int32_t* gather, int first, int rows,
                       std::size_t units, void* to) {
  auto* out = static_cast<std::uint32_t*>(to);
  const auto height = static_cast<std::size_t>(rows);
  const auto row = [&](std::size_t m) {
    const auto source = static_cast<std::size_t>(gather != nullptr ? gather[first + static_cast<int>(m)]
                                                                   : first + static_cast<int>(m));
    return static_cast<const std::uint32_t*>(from) + source * stride;
  };
  std::size_t m = 0;
  for (; m + 4 <= height; m += 4) {
    const std::uint32_t* source[4] = {row(m), row(m + 1), row(m + 2), row(m + 3)};
    std::size_t i = 0;
    for (; i + 4 <= units; i += 4) {
      __m128i v[4];
      for (int r = 0; r < 4; ++r) v[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source[r] + i));
      const __m128i low01 = _mm_unpacklo_epi32(v[0], v[1]);
      const __m128i low23 = _mm_unpacklo_epi32(v[2], v[3]);
      const __m128i high01 = _mm_unpackhi_epi32(v[0], v[1]);
      const __m128i high23 = _mm_unpackhi_epi32(v[2], v[3]);
      const __m128i unit[4] = {_mm_unpacklo_epi64(low01, low23), _mm_unpackhi_epi64(low01, low23),
                               _mm_unpacklo_epi64(high01, high23), _mm_unpackhi_epi64(high01, high23)};
      for (std::size_t u = 0; u < 4; ++u) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (i + u) * height + m), unit[u]);
      }
    }
    for (; i < units; ++i) {
      for (std::size_t r = 0; r < 4; ++r) out[i * height + m + r] = source[r][i];
    }
  }
  for (; m < height; ++m) {
    const std::uint32_t* source = row(m);
    for (std::size_t i = 0; i < units; ++i) out[i * height + m] = source[i];
  }
}

inline void gemm_tiled(const GemmArgs& args) {
  const PanelShape& shape = args.w.shape;
  const std::size_t units = act_units(shape);
  const std::size_t groups = act_groups(shape);
  const std::size_t corrections = act_corrections(shape);
  const auto count = static_cast<std::size_t>(args.rows);
  const std::int64_t panel_groups = weight_groups(shape);
  const bool narrow = shape.kind == PackedKind::kMxfp4 || shape.kind == PackedKind::kInt8;
  const std::int64_t slab_groups = narrow ? kSlabMxfp4 : kSlabWide;
  std::uint8_t* at = args.scratch;
  const auto take = [&at](std::size_t bytes) {
    std::uint8_t* p = at;
    at += (bytes + 63) / 64 * 64;
    return p;
  };
  ScratchPanel scratch[2] = {};
  for (ScratchPanel& panel : scratch) {
    if (shape.kind == PackedKind::kMxfp4 || shape.kind == PackedKind::kFp8) {
      panel.data = take(kSlabBytes);
    }
    if (shape.kind == PackedKind::kMxfp4) {
      panel.scales = reinterpret_cast<GroupScales*>(take(kSlabMxfp4 * sizeof(GroupScales)));
      panel.folded = take(kSlabMxfp4);
    }
  }
  // Results of the two panels in hand, [rows][16] each; gate and up of a gated pair.
  float* result[2];
  for (float*& part : result) part = reinterpret_cast<float*>(take(count * kPanelRows * sizeof(float)));
  auto* q = reinterpret_cast<std::uint32_t*>(take(units * count * 4));
  auto* scale = reinterpret_cast<float*>(take(groups * count * 4));
  auto* correction = reinterpret_cast<std::int32_t*>(take(corrections * count * 4));

  // Tiles of nearly equal height: a last tile of one row would run at the speed of its weight loads.
  const int limit = tile_rows(shape);
  const int tiles = (args.rows + limit - 1) / limit;
  const auto tile_begin = [&](int tile) {
    return static_cast<int>(static_cast<std::int64_t>(args.rows) * tile / tiles);
  };
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = tile_begin(tile);
    const int rows = tile_begin(tile + 1) - first;
    const auto offset = static_cast<std::size_t>(first);
    interleave(args.x.q, args.x.q_stride, args.gather, first, rows, units, q + units * offset);
    interleave(args.x.scale, args.x.scale_stride, args.gather, first, rows, groups, scale + groups * offset);
    interleave(args.x.correction, args.x.correction_stride, args.gather, first, rows, corrections,
               correction + corrections * offset);
  }

  const bool gated = args.epilogue == Epilogue::kGatedSilu;
  for (std::int64_t panel = args.panel_begin; panel < args.panel_end; panel += 2) {
    const int panels = args.panel_end - panel >= 2 ? 2 : 1;
    const bool integer = shape.kind != PackedKind::kBf16 && shape.kind != PackedKind::kF32;
    for (std::int64_t begin = 0; begin < (integer ? panel_groups : 1); begin += slab_groups) {
      const Slab slab{begin, begin + slab_groups < panel_groups ? begin + slab_groups : panel_groups};
      for (int p = 0; p < panels; ++p) unpack_slab(args.w, panel + p, slab, scratch[p]);
      const TilePanels tile_panels{&args.w, panel, slab, scratch};
      for (int tile = 0; tile < tiles; ++tile) {
        const int first = tile_begin(tile);
        const auto offset = static_cast<std::size_t>(first);
        float* out[2] = {result[0] + offset * kPanelRows, result[1] + offset * kPanelRows};
        tile_function(shape, tile_begin(tile + 1) - first, panels)(
            tile_panels, q + units * offset, scale + groups * offset, correction + corrections * offset, out);
      }
    }
    if (gated) {
      finish_rows(args, panel, args.rows, result[0], result[1]);
    } else {
      for (int p = 0; p < panels; ++p) finish_rows(args, panel + p, args.rows, result[p], nullptr);
    }
  }
}

template <int Planes>
void gemm_planes(const GemmArgs& args) {
  switch (args.rows) {
    case 0:
      return;
    case 1:
      return gemm_direct<1, Planes>(args);
    case 2:
      return gemm_direct<2, Planes>(args);
    case 3:
      return gemm_direct<3, Planes>(args);
    case 4:
      return gemm_direct<4, Planes>(args);
    default:
      break;
  }
  // A verified block of drafts: weights are unpacked in registers, and no task has to bring rows into tile order.
  if constexpr (Planes == 1 && kRowsInteger >= 8) {
    const PackedKind kind = args.w.shape.kind;
    if (kind == PackedKind::kFp8 || kind == PackedKind::kInt16 || kind == PackedKind::kInt8) {
      switch (args.rows) {
        case 5:
          return gemm_direct<5, Planes>(args);
        case 6:
          return gemm_direct<6, Planes>(args);
        case 7:
          return gemm_direct<7, Planes>(args);
        case 8:
          return gemm_direct<8, Planes>(args);
        default:
          break;
      }
    }
  }
  return gemm_tiled(args);
}

inline void gemm(const GemmArgs& args) {
  if (args.w.shape.planes == 2) {
    gemm_planes<2>(args);
  } else {
    gemm_planes<1>(args);
  }
}

}  // namespace
}  // namespace mimo::MIMO_ISA
