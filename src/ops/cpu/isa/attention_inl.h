// Attention over one chunk of keys, and the merge of chunks. Included after gemm_inl.h (interleave, f_exp).

namespace mimo::MIMO_ISA {
namespace {

// Scores of R queries against 16 keys: q in tile order [pairs][R], K [pairs][16 keys][2].
template <int R>
void qk_tile(const std::uint32_t* q, const std::uint16_t* k, std::int64_t pairs, float* out, std::size_t stride) {
  F acc[R];
  for (int m = 0; m < R; ++m) acc[m] = f_zero();
  for (std::int64_t p = 0; p < pairs; ++p) {
    const I v = v_load(k + p * 32);
    for (int m = 0; m < R; ++m) acc[m] = dot_bf16(acc[m], v, q[p * R + m]);
  }
  for (int m = 0; m < R; ++m) f_store(out + static_cast<std::size_t>(m) * stride, acc[m]);
}

// Weighted sums of 32 value dims for R queries over the chunk's tiles [first, last): p [R][kChunkKeys] bf16, V tiles
// [8 pairs][v_dim][2].
template <int R>
void pv_slice(const std::uint16_t* p, const std::uint16_t* const* v_tiles, int first, int last, int v_dim, int column,
              float* out) {
  F acc[R][2];
  for (int m = 0; m < R; ++m) acc[m][0] = acc[m][1] = f_zero();
  for (int tile = first; tile < last; ++tile) {
    const std::uint16_t* v = v_tiles[tile] + column * 2;
    for (int pair = 0; pair < kTileKeys / 2; ++pair) {
      const I v0 = v_load(v + static_cast<std::ptrdiff_t>(pair) * v_dim * 2);
      const I v1 = v_load(v + static_cast<std::ptrdiff_t>(pair) * v_dim * 2 + 32);
      for (int m = 0; m < R; ++m) {
        std::uint32_t weights;
        __builtin_memcpy(&weights, p + m * kChunkKeys + tile * kTileKeys + 2 * pair, sizeof(weights));
        acc[m][0] = dot_bf16(acc[m][0], v0, weights);
        acc[m][1] = dot_bf16(acc[m][1], v1, weights);
      }
    }
  }
  for (int m = 0; m < R; ++m) {
    f_store(out + static_cast<std::ptrdiff_t>(m) * v_dim + column, acc[m][0]);
    f_store(out + static_cast<std::ptrdiff_t>(m) * v_dim + column + 16, acc[m][1]);
  }
}

using QkFunction = void (*)(const std::uint32_t*, const std::uint16_t*, std::int64_t, float*, std::size_t);
using PvFunction = void (*)(const std::uint16_t*, const std::uint16_t* const*, int, int, int, int, float*);

struct AttentionTable {
  QkFunction qk[kRowsQk];
  PvFunction pv[kRowsPv];
  AttentionTable() {
    fill_qk<1>();
    fill_pv<1>();
  }
  template <int R>
  void fill_qk() {
    qk[R - 1] = &qk_tile<R>;
    if constexpr (R < kRowsQk) fill_qk<R + 1>();
  }
  template <int R>
  void fill_pv() {
    pv[R - 1] = &pv_slice<R>;
    if constexpr (R < kRowsPv) fill_pv<R + 1>();
  }
};

inline const AttentionTable& attention_table() {
  static const AttentionTable table;
  return table;
}

// Softmax weights of one query over tiles [0, tiles): scores in place of s, bf16 weights to p, zero where not visible.
inline void softmax_row(const AttentionChunk& chunk, int query, const float* s, std::uint16_t* p) {
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
    store_bf16(p + t * kTileKeys, w);
  }
  chunk.max[query] = largest;
  chunk.sum[query] = f_hsum(sum);
}

inline void attention_chunk(const AttentionChunk& chunk) {
  const auto queries = static_cast<std::size_t>(chunk.queries);
  auto* scores = reinterpret_cast<float*>(chunk.scratch);
  auto* weights = reinterpret_cast<std::uint16_t*>(scores + queries * kChunkKeys);
  auto* q = reinterpret_cast<std::uint32_t*>(weights + queries * kChunkKeys);
  const std::int64_t pairs = chunk.qk_dim / 2;
  const AttentionTable& table = attention_table();

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
    interleave(reinterpret_cast<const std::uint32_t*>(chunk.q), static_cast<std::size_t>(pairs), nullptr, begin, rows,
               static_cast<std::size_t>(pairs), q);
    for (int t = first; t < last; ++t) {
      table.qk[rows - 1](q, chunk.k_tiles[t], pairs, scores + static_cast<std::size_t>(begin) * kChunkKeys + t * kTileKeys,
                         kChunkKeys);
    }
  }

  // Weights
  for (int m = 0; m < chunk.queries; ++m) {
    if (chunk.first[m] >= chunk.last[m]) {
      chunk.max[m] = -__builtin_inff();
      chunk.sum[m] = 0.0f;
      __builtin_memset(weights + static_cast<std::size_t>(m) * kChunkKeys, 0, kChunkKeys * sizeof(std::uint16_t));
      continue;
    }
    softmax_row(chunk, m, scores + static_cast<std::size_t>(m) * kChunkKeys,
                weights + static_cast<std::size_t>(m) * kChunkKeys);
  }

  // Values
  for (int begin = 0; begin < chunk.queries; begin += kRowsPv) {
    const int rows = chunk.queries - begin < kRowsPv ? chunk.queries - begin : kRowsPv;
    int first = 0;
    int last = 0;
    tile_range(begin, rows, first, last);
    for (int column = 0; column < chunk.v_dim; column += 32) {
      table.pv[rows - 1](weights + static_cast<std::size_t>(begin) * kChunkKeys, chunk.v_tiles, first, last, chunk.v_dim,
                         column, chunk.out + static_cast<std::ptrdiff_t>(begin) * chunk.v_dim);
    }
  }
}

inline float exp_scalar(float x) {
  float lanes[16];
  f_store(lanes, f_exp(f_set(x)));
  return lanes[0];
}

inline void attention_merge(float* max, float* sum, float* out, float max2, float sum2, const float* out2, int v_dim) {
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

inline void attention_finish(float max, float sum, const float* acc, const float* sink, int v_dim, float* out) {
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
