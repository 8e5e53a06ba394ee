// Attention over one chunk of keys, and the merge of chunks. Included after gemm_inl.h (interleave, f_exp)
// and elementwise_inl.h (load_tail). MIMO_BF16_DOT chooses how bf16 tiles are multiplied.

namespace mimo::MIMO_ISA {
namespace {

// What is wanted after a tile of keys: its values (read in slices too narrow for the hardware prefetcher) and
// the next keys. Asked for line by line between the multiplications, into L2, so that no burst fills the line
// buffers.
struct TileAhead {
  const void* values;
  const void* keys;
  void prefetch(std::int64_t step) const {
    _mm_prefetch(static_cast<const char*>(values) + step * 64, _MM_HINT_T1);
    _mm_prefetch(static_cast<const char*>(keys) + step * 64, _MM_HINT_T1);
  }
};

// How stored keys and values are multiplied. Query: what queries and softmax weights are rounded to; Stored:
// elements of K and V tiles.

// bf16 tiles, bf16 queries and weights, the pair-dot instruction: fastest where it runs at twice the rate of
// fp32 multiply-add (Zen 4 and 5).
struct Bf16DotTiles {
  using Query = std::uint16_t;
  using Stored = std::uint16_t;
  // Scores of R queries against 16 keys: q in tile order [qk_dim / 2][R] pairs, K [qk_dim / 2][16 keys][2].
  template <int R>
  static void scores(const std::uint32_t* q, const Stored* k, int qk_dim, TileAhead ahead, F* acc) {
    for (std::int64_t p = 0; p < qk_dim / 2; ++p) {
      ahead.prefetch(p);
      const I v = v_load(k + p * 32);
      for (int m = 0; m < R; ++m) acc[m] = dot_bf16(acc[m], v, q[p * R + m]);
    }
  }
  // acc += weights x 32 value dims of one tile: weights [R] rows kChunkKeys apart, V [8 pairs][v_dim][2].
  template <int R>
  static void values(const Query* weights, const Stored* v, int v_dim, int column, F (*acc)[2]) {
    for (int pair = 0; pair < kTileKeys / 2; ++pair) {
      const Stored* from = v + (static_cast<std::ptrdiff_t>(pair) * v_dim + column) * 2;
      const I v0 = v_load(from);
      const I v1 = v_load(from + 32);
      for (int m = 0; m < R; ++m) {
        std::uint32_t two;
        __builtin_memcpy(&two, weights + m * kChunkKeys + 2 * pair, sizeof(two));
        acc[m][0] = dot_bf16(acc[m][0], v0, two);
        acc[m][1] = dot_bf16(acc[m][1], v1, two);
      }
    }
  }
  static std::ptrdiff_t value_index(int key, int d, int v_dim) {
    return (static_cast<std::ptrdiff_t>(key / 2) * v_dim + d) * 2 + key % 2;
  }
  static void store_query(Query* to, F x) { store_bf16(to, x); }
};

// bf16 tiles widened in registers, fp32 queries and weights: exact products, and faster where the pair-dot
// has half the rate (Sapphire and Emerald Rapids: 92 against 184 GFLOP/s a core) or does not exist.
struct Bf16WideTiles {
  using Query = float;
  using Stored = std::uint16_t;
  template <int R>
  static void scores(const std::uint32_t* q, const Stored* k, int qk_dim, TileAhead ahead, F* acc) {
    // Two chains a row: with few rows one would be bound by the latency of multiply-add.
    F odd_sum[R];
    for (int m = 0; m < R; ++m) odd_sum[m] = f_zero();
    for (std::int64_t p = 0; p < qk_dim / 2; ++p) {
      ahead.prefetch(p);
      F even;
      F odd;
      bf16_pairs(k + p * 32, even, odd);
      for (int m = 0; m < R; ++m) acc[m] = f_fma(even, f_set(as_float(q[2 * p * R + m])), acc[m]);
      for (int m = 0; m < R; ++m)
        odd_sum[m] = f_fma(odd, f_set(as_float(q[(2 * p + 1) * R + m])), odd_sum[m]);
    }
    for (int m = 0; m < R; ++m) acc[m] = f_add(acc[m], odd_sum[m]);
  }
  template <int R>
  static void values(const Query* weights, const Stored* v, int v_dim, int column, F (*acc)[2]) {
    for (int pair = 0; pair < kTileKeys / 2; ++pair) {
      const Stored* from = v + (static_cast<std::ptrdiff_t>(pair) * v_dim + column) * 2;
      F even[2];
      F odd[2];
      bf16_pairs(from, even[0], odd[0]);
      bf16_pairs(from + 32, even[1], odd[1]);
      for (int m = 0; m < R; ++m) {
        const F w0 = f_set(weights[m * kChunkKeys + 2 * pair]);
        acc[m][0] = f_fma(even[0], w0, acc[m][0]);
        acc[m][1] = f_fma(even[1], w0, acc[m][1]);
      }
      for (int m = 0; m < R; ++m) {
        const F w1 = f_set(weights[m * kChunkKeys + 2 * pair + 1]);
        acc[m][0] = f_fma(odd[0], w1, acc[m][0]);
        acc[m][1] = f_fma(odd[1], w1, acc[m][1]);
      }
    }
  }
  static std::ptrdiff_t value_index(int key, int d, int v_dim) {
    return (static_cast<std::ptrdiff_t>(key / 2) * v_dim + d) * 2 + key % 2;
  }
  static void store_query(Query* to, F x) { f_store(to, x); }
};

// fp32 throughout: K [qk_dim][16 keys], V [16 keys][v_dim].
struct F32Tiles {
  using Query = float;
  using Stored = float;
  template <int R>
  static void scores(const std::uint32_t* q, const Stored* k, int qk_dim, TileAhead /*ahead*/, F* acc) {
    for (std::int64_t d = 0; d < qk_dim; ++d) {
      const F v = f_load(k + d * kTileKeys);
      for (int m = 0; m < R; ++m) acc[m] = f_fma(v, f_set(as_float(q[d * R + m])), acc[m]);
    }
  }
  template <int R>
  static void values(const Query* weights, const Stored* v, int v_dim, int column, F (*acc)[2]) {
    for (int key = 0; key < kTileKeys; ++key) {
      const Stored* from = v + static_cast<std::ptrdiff_t>(key) * v_dim + column;
      const F v0 = f_load(from);
      const F v1 = f_load(from + 16);
      for (int m = 0; m < R; ++m) {
        const F w = f_set(weights[m * kChunkKeys + key]);
        acc[m][0] = f_fma(v0, w, acc[m][0]);
        acc[m][1] = f_fma(v1, w, acc[m][1]);
      }
    }
  }
  static std::ptrdiff_t value_index(int key, int d, int v_dim) {
    return static_cast<std::ptrdiff_t>(key) * v_dim + d;
  }
  static void store_query(Query* to, F x) { f_store(to, x); }
};

#ifdef MIMO_BF16_DOT
using StoredTiles = Bf16DotTiles;
#else
using StoredTiles = Bf16WideTiles;
#endif

template <class Tiles, int R>
void qk_tile(const std::uint32_t* q, const void* k, int qk_dim, TileAhead ahead, float* out,
             std::size_t stride) {
  F acc[R];
  for (int m = 0; m < R; ++m) acc[m] = f_zero();
  Tiles::template scores<R>(q, static_cast<const typename Tiles::Stored*>(k), qk_dim, ahead, acc);
  for (int m = 0; m < R; ++m) f_store(out + static_cast<std::size_t>(m) * stride, acc[m]);
}

// Weighted sums of 32 value dims for R queries over the chunk's tiles [first, last).
template <class Tiles, int R>
void pv_slice(const void* weights, const void* const* v_tiles, int first, int last, int v_dim, int column,
              float* out) {
  using Query = typename Tiles::Query;
  using Stored = typename Tiles::Stored;
  F acc[R][2];
  for (int m = 0; m < R; ++m) acc[m][0] = acc[m][1] = f_zero();
  for (int tile = first; tile < last; ++tile) {
    Tiles::template values<R>(static_cast<const Query*>(weights) + tile * kTileKeys,
                              static_cast<const Stored*>(v_tiles[tile]), v_dim, column, acc);
  }
  for (int m = 0; m < R; ++m) {
    f_store(out + static_cast<std::ptrdiff_t>(m) * v_dim + column, acc[m][0]);
    f_store(out + static_cast<std::ptrdiff_t>(m) * v_dim + column + 16, acc[m][1]);
  }
}

using QkFunction = void (*)(const std::uint32_t*, const void*, int, TileAhead, float*, std::size_t);
using PvFunction = void (*)(const void*, const void* const*, int, int, int, int, float*);

template <class Tiles>
struct AttentionTable {
  QkFunction qk[kRowsQk];
  PvFunction pv[kRowsPv];
  AttentionTable() {
    fill_qk<1>();
    fill_pv<1>();
  }
  template <int R>
  void fill_qk() {
    qk[R - 1] = &qk_tile<Tiles, R>;
    if constexpr (R < kRowsQk) fill_qk<R + 1>();
  }
  template <int R>
  void fill_pv() {
    pv[R - 1] = &pv_slice<Tiles, R>;
    if constexpr (R < kRowsPv) fill_pv<R + 1>();
  }
};

// Softmax weights of one query over tiles [0, tiles), zero where not visible. The row of weights may be that
// of the scores.
template <class Tiles>
void softmax_row(const AttentionChunk& chunk, int query, const float* s, typename Tiles::Query* p) {
  const int first = chunk.first[query];
  const int last = chunk.last[query];
  const F scale = f_set(chunk.scale);
  F top = f_set(-__builtin_inff());
  F scores[kChunkKeys / kTileKeys];
  for (int t = 0; t < chunk.tiles; ++t) {
    F v = f_mul(f_load(s + t * kTileKeys), scale);
    if (chunk.k_scale != nullptr) v = f_mul(v, f_load(chunk.k_scale + t * kTileKeys));
    v = f_keep(v, first - t * kTileKeys, last - t * kTileKeys);
    scores[t] = v;
    top = f_max(top, v);
  }
  const float largest = f_hmax(top);
  F sum = f_zero();
  const F shift = f_set(largest);
  for (int t = 0; t < chunk.tiles; ++t) {
    F w = f_exp(f_sub(scores[t], shift));
    sum = f_add(sum, w);
    if (chunk.v_scale != nullptr) w = f_mul(w, f_load(chunk.v_scale + t * kTileKeys));
    Tiles::store_query(p + t * kTileKeys, w);
  }
  chunk.max[query] = largest;
  chunk.sum[query] = f_hsum(sum);
}

inline bool all_finite(const float* x, int count) {
  F poison = f_zero();
  for (int i = 0; i < count; i += 16) poison = f_fma(f_load(x + i), f_zero(), poison);
  return f_hsum(poison) == 0.0f;
}

// Weighted sum of one query over exactly the keys it sees: those that share a tile with them are cut out.
template <class Tiles>
__attribute__((noinline)) void sum_visible(const AttentionChunk& chunk, int query,
                                           typename Tiles::Query* weights, PvFunction pv) {
  using Stored = typename Tiles::Stored;
  const int first = chunk.first[query];
  const int last = chunk.last[query];
  const int first_tile = first / kTileKeys;
  const int last_tile = (last + kTileKeys - 1) / kTileKeys;
  const void* tiles[kChunkKeys / kTileKeys];
  for (int t = first_tile; t < last_tile; ++t) tiles[t] = chunk.v_tiles[t];
  Stored edges[2][kTileKeys * kMaxHeadWidth];
  for (const int t : {first_tile, last_tile - 1}) {
    if (t * kTileKeys >= first && (t + 1) * kTileKeys <= last) continue;
    Stored* edge = edges[t == first_tile ? 0 : 1];
    __builtin_memcpy(edge, chunk.v_tiles[t],
                     static_cast<std::size_t>(kTileKeys * chunk.v_dim) * sizeof(Stored));
    for (int key = 0; key < kTileKeys; ++key) {
      const int at = t * kTileKeys + key;
      if (at >= first && at < last) continue;
      weights[at] = 0;  // an FP8 scale may have made it NaN
      for (int d = 0; d < chunk.v_dim; ++d) edge[Tiles::value_index(key, d, chunk.v_dim)] = 0;
    }
    tiles[t] = edge;
  }
  for (int column = 0; column < chunk.v_dim; column += 32) {
    pv(weights, tiles, first_tile, last_tile, chunk.v_dim, column,
       chunk.out + static_cast<std::ptrdiff_t>(query) * chunk.v_dim);
  }
}

template <class Tiles>
void attend_chunk(const AttentionChunk& chunk) {
  using Query = typename Tiles::Query;
  static const AttentionTable<Tiles> table;
  const auto queries = static_cast<std::size_t>(chunk.queries);
  auto* scores = reinterpret_cast<float*>(chunk.scratch);
  auto* weights = reinterpret_cast<Query*>(scores + queries * kChunkKeys);
  auto* q = reinterpret_cast<std::uint32_t*>(weights + queries * kChunkKeys);
  // Rows rounded to Query, then brought into tile order in 4-byte units.
  const auto width = static_cast<std::size_t>(chunk.qk_dim);
  auto* rounded = reinterpret_cast<Query*>(q + kRowsQk * width);
  const std::size_t units = width * sizeof(Query) / 4;

  // Tiles that any query sees; the range of a group of rows skips the rest of a causal triangle.
  const auto tile_range = [&](int begin, int count, int& first, int& last) {
    first = chunk.tiles;
    last = 0;
    for (int m = begin; m < begin + count; ++m) {
      if (chunk.first[m] >= chunk.last[m]) continue;
      first = chunk.first[m] / kTileKeys < first ? chunk.first[m] / kTileKeys : first;
      const int end = (chunk.last[m] + kTileKeys - 1) / kTileKeys;
      last = end > last ? end : last;
    }
  };

  // Scores
  for (int begin = 0; begin < chunk.queries; begin += kRowsQk) {
    const int rows = chunk.queries - begin < kRowsQk ? chunk.queries - begin : kRowsQk;
    int first = 0;
    int last = 0;
    tile_range(begin, rows, first, last);
    for (int m = 0; m < rows; ++m) {
      const float* from = chunk.q + static_cast<std::size_t>(begin + m) * width;
      Query* to = rounded + static_cast<std::size_t>(m) * width;
      for (std::size_t d = 0; d < width; d += 16)
        Tiles::store_query(to + d, load_tail(from, static_cast<std::int64_t>(d), chunk.qk_dim));
    }
    interleave(rounded, units, nullptr, 0, rows, units, q);
    for (int t = first; t < last; ++t) {
      const TileAhead ahead{chunk.v_tiles[t], t + 1 < last ? chunk.k_tiles[t + 1] : chunk.v_tiles[t]};
      table.qk[rows - 1](q, chunk.k_tiles[t], chunk.qk_dim, ahead,
                         scores + static_cast<std::size_t>(begin) * kChunkKeys + t * kTileKeys, kChunkKeys);
    }
  }

  // Weights
  for (int m = 0; m < chunk.queries; ++m) {
    const std::size_t row = static_cast<std::size_t>(m) * kChunkKeys;
    if (chunk.first[m] >= chunk.last[m]) {
      chunk.max[m] = -__builtin_inff();
      chunk.sum[m] = 0.0f;
      __builtin_memset(weights + row, 0, kChunkKeys * sizeof(Query));
      continue;
    }
    softmax_row<Tiles>(chunk, m, scores + row, weights + row);
  }

  // Values
  for (int begin = 0; begin < chunk.queries; begin += kRowsPv) {
    const int rows = chunk.queries - begin < kRowsPv ? chunk.queries - begin : kRowsPv;
    int first = 0;
    int last = 0;
    tile_range(begin, rows, first, last);
    for (int column = 0; column < chunk.v_dim; column += 32) {
      table.pv[rows - 1](weights + static_cast<std::size_t>(begin) * kChunkKeys, chunk.v_tiles, first, last,
                         chunk.v_dim, column, chunk.out + static_cast<std::ptrdiff_t>(begin) * chunk.v_dim);
    }
  }

  // A key that a query does not see weighs zero, but zero times a value that is not finite is not zero.
  for (int m = 0; m < chunk.queries; ++m) {
    if (chunk.first[m] >= chunk.last[m]) continue;
    if (all_finite(chunk.out + static_cast<std::ptrdiff_t>(m) * chunk.v_dim, chunk.v_dim)) continue;
    sum_visible<Tiles>(chunk, m, weights + static_cast<std::size_t>(m) * kChunkKeys, table.pv[0]);
  }
}

inline void attention_chunk(const AttentionChunk& chunk) {
  if (chunk.wide) {
    attend_chunk<F32Tiles>(chunk);
  } else {
    attend_chunk<StoredTiles>(chunk);
  }
}

inline float exp_scalar(float x) {
  float lanes[16];
  f_store(lanes, f_exp(f_set(x)));
  return lanes[0];
}

inline void attention_merge(float* max, float* sum, float* out, float max2, float sum2, const float* out2,
                            int v_dim) {
  if (sum2 == 0.0f) return;  // saw nothing
  if (*sum == 0.0f) {
    *max = max2;
    *sum = sum2;
    __builtin_memcpy(out, out2, static_cast<std::size_t>(v_dim) * sizeof(float));
    return;
  }
  const float top = *max > max2 ? *max : max2;
  const float a = exp_scalar(*max - top);
  const float b = exp_scalar(max2 - top);
  *max = top;
  *sum = *sum * a + sum2 * b;
  for (int d = 0; d < v_dim; d += 16) {
    f_store(out + d, f_fma(f_load(out2 + d), f_set(b), f_mul(f_load(out + d), f_set(a))));
  }
}

inline void attention_finish(float max, float sum, const float* acc, const float* sink, int v_dim,
                             float* out) {
  float factor = 1.0f;
  if (sink != nullptr) {
    const float top = max > *sink ? max : *sink;
    factor = exp_scalar(max - top);
    sum = sum * factor + exp_scalar(*sink - top);
  }
  const F inverse = f_set(factor / sum);
  for (int d = 0; d < v_dim; d += 16) f_store(out + d, f_mul(f_load(acc + d), inverse));
}

}  // namespace
}  // namespace mimo::MIMO_ISA
