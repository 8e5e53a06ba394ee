// The kernel of attention_decode. One group of 4 warps loads, one or two others (64 rows of the tile each) compute;
// rows of the tile are query rows x query heads of one KV head. Every CTA walks through its items (every grid-th of
// the list that all CTAs derive from the sequences); the loads run ahead of the products over the borders of items.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/attention_decode_plan.cuh"
#include "ops/cuda/kernels/attention_decode_ptx.cuh"

namespace mimo::cuda::decode {

inline constexpr int kVDim = 128;
inline constexpr float kLog2e = 1.4426950408889634f;

struct Params {
  AttentionArgs args;
  unsigned* barrier = nullptr;  // [2]: arrived, generation
  float* partial = nullptr;     // [row slots][q_heads][target][kVDim], not normalised
  float2* state = nullptr;      // [row slots][q_heads][target]: largest score (log 2), sum of weights
  int sms = 0;
  unsigned page_magic = 0;  // key / page_size = high half of key * page_magic; 0: pages of one token
};

template <int kQk, int kRows, bool kFp8>
struct Shape {
  static constexpr int kGroups = kRows / 64;  // of 4 warps that compute
  static constexpr int kThreads = 128 * (1 + kGroups);
  static constexpr int kStages = kFp8 ? 2 : kRows == 64 ? 4 : 3;
  static constexpr int kRaw = !kFp8 ? 0 : kRows == 64 ? 4 : 2;  // tiles of E4M3 under way
  static constexpr int kScaleSlots = 8;
  static constexpr int kQBytes = kRows * kQk * 2;
  static constexpr int kKBytes = kTile * kQk * 2;
  static constexpr int kVBytes = kTile * kVDim * 2;
  static constexpr int kStageBytes = kKBytes + kVBytes;
  static constexpr int kRawBytes = kTile * (kQk + kVDim);
  static constexpr int kScaleBytes = kFp8 ? kScaleSlots * 2 * kTile * 4 : 0;

  static constexpr int kQAt = 0;
  static constexpr int kStageAt = kQAt + 2 * kQBytes;
  static constexpr int kRawAt = kStageAt + kStages * kStageBytes;
  static constexpr int kScaleAt = kRawAt + kRaw * kRawBytes;
  static constexpr int kBarriersAt = kScaleAt + kScaleBytes;
  static constexpr int kTablesAt = kBarriersAt + 128;
  static constexpr int kBytes = kTablesAt + (2 * (kSequences + 1) + 4 * kSequences + 16) * 4;
  static_assert(kBytes <= 232448);
};

// What all threads know of the sequences, in shared memory.
struct Tables {
  int* items;     // [sequences + 1]: of the sequences before
  int* rows;      // [sequences + 1]: likewise
  int* position;  // [sequences]
  int* first_key;
  int* row_begin;
  int* scratch;  // [16]
  int sequences;
  Plan plan;
};

__device__ inline SequenceOf table_sequence(const AttentionArgs& args, const Tables& tables, int s) {
  return {tables.row_begin[s], tables.rows[s + 1] - tables.rows[s], tables.position[s], tables.first_key[s],
          args.sequences.pages + static_cast<std::int64_t>(s) * args.sequences.page_stride};
}

// Fills the tables; true if some sequence is split, so that partial results are to be combined.
__device__ inline bool fill_tables(const Params& p, int most, Tables& tables) {
  const AttentionArgs& args = p.args;
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 32;
  const int warp = tid / 32;
  SequenceOf sequence;
  const bool own = tid < args.sequences.sequences;
  if (own) sequence = load_sequence(args.sequences, tid);
  const int active = __syncthreads_count(sequence.rows > 0);
  tables.sequences = args.sequences.sequences;
  tables.plan = make_plan(p.sms, args.kv.kv_heads, max(active, 1));
  int items = 0;
  bool split = false;
  if (sequence.rows > 0) {
    for_blocks(args, tables.plan, sequence, most, [&](const Block& block) {
      items += block.splits * args.kv.kv_heads;
      split = split || block.splits > 1;
      return false;
    });
  }
  int rows = sequence.rows;
  for (int step = 1; step < 32; step *= 2) {
    const int i = __shfl_up_sync(~0u, items, step);
    const int r = __shfl_up_sync(~0u, rows, step);
    if (lane >= step) {
      items += i;
      rows += r;
    }
  }
  if (lane == 31 && warp < 8) {
    tables.scratch[warp] = items;
    tables.scratch[8 + warp] = rows;
  }
  const bool any = __syncthreads_or(split) != 0;
  if (own) {
    for (int w = 0; w < warp; ++w) {
      items += tables.scratch[w];
      rows += tables.scratch[8 + w];
    }
    if (tid == 0) tables.items[0] = tables.rows[0] = 0;
    tables.items[tid + 1] = items;
    tables.rows[tid + 1] = rows;
    tables.position[tid] = sequence.position;
    tables.first_key[tid] = sequence.first_key;
    tables.row_begin[tid] = sequence.row_begin;
  }
  __syncthreads();
  return any;
}

// Item `index` of the list; `s` is the sequence of an earlier one, and is moved to this one's.
__device__ inline Item find_item(const AttentionArgs& args, const Tables& tables, int most, int index,
                                 int& s) {
  while (tables.items[s + 1] <= index) ++s;
  Item item;
  item.sequence = table_sequence(args, tables, s);
  item.row_slot = tables.rows[s];
  int at = index - tables.items[s];
  for_blocks(args, tables.plan, item.sequence, most, [&](const Block& block) {
    const int count = block.splits * args.kv.kv_heads;
    if (at >= count) {
      at -= count;
      return false;
    }
    item.block = block;
    return true;
  });
  item.split = at / args.kv.kv_heads;
  item.head = at - item.split * args.kv.kv_heads;
  const Block& block = item.block;
  const int chunk_begin = block.base + (block.first_chunk + item.split) * block.chunk;
  item.tile_begin = max(block.tile_begin, chunk_begin);
  item.tile_end = min(block.tile_end, chunk_begin + block.chunk);
  return item;
}

// Which token of the cache holds a key: index among [pages][kv_heads][page_size].
__device__ inline int key_page(const Params& p, int key) {
  return p.page_magic == 0 ? key : static_cast<int>(__umulhi(static_cast<unsigned>(key), p.page_magic));
}

// A partial sum joins others: the weights of all are taken relative to one largest score.
struct Sum {
  float top;
  float total;
};
__device__ inline Sum begin_sum(const AttentionArgs& args, int head, float top) {
  if (args.sinks == nullptr) return {top, 0.0f};
  const float sink = args.sinks[head] * kLog2e;
  const float both = fmaxf(top, sink);
  return {both, ptx::exp2_fast(sink - both)};
}
__device__ inline float part_weight(const Sum& sum, float top) {
  return top == -INFINITY ? 0.0f : ptx::exp2_fast(top - sum.top);
}

template <int kQk, int kRows, bool kFp8>
__device__ void load_items(const Params& p, const Tables& tables, std::uint32_t base) {
  using S = Shape<kQk, kRows, kFp8>;
  const AttentionArgs& args = p.args;
  const KvView& kv = args.kv;
  const int tid = static_cast<int>(threadIdx.x);
  const int group = args.q_heads / kv.kv_heads;
  const int most = kRows / group;
  const int items = tables.items[tables.sequences];
  const int grid = static_cast<int>(gridDim.x);
  const std::uint32_t full = base + S::kBarriersAt;
  const std::uint32_t empty = full + 8 * S::kStages;
  const std::uint32_t q_empty = empty + 8 * S::kStages;

  // Consecutive lanes share a key: eight (bf16, 128 bytes at a time) or four (E4M3, 64 bytes).
  constexpr int kLanes = kFp8 ? 4 : 8;
  constexpr int kStep = 128 / kLanes;   // keys between those of a thread
  constexpr int kKeys = kTile / kStep;  // of a thread in a tile
  const int row = tid / kLanes;
  const int column = tid % kLanes;

  int index = static_cast<int>(blockIdx.x);
  if (index >= items) return;
  int s = 0;
  Item item = find_item(args, tables, most, index, s);
  int tile = item.tile_begin;
  int pages[kKeys];
  const auto fetch_pages = [&](const Item& of, int t, int(&to)[kKeys]) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int key = t * kTile + row + i * kStep;
      const bool valid = key >= of.block.keys.first && key < of.block.keys.last;
      to[i] = valid ? __ldg(of.sequence.pages + key_page(p, key)) : -1;
    }
  };
  fetch_pages(item, tile, pages);

  int q_count = 0;
  const auto load_q = [&](int buffer) {
    const std::uint32_t to = base + S::kQAt + buffer * S::kQBytes;
    const int valid_rows = (item.block.row_end - item.block.row_begin) * group;
    const auto* from = static_cast<const __nv_bfloat16*>(args.q) +
                       (item.sequence.row_begin + item.block.row_begin) * args.q_stride +
                       item.head * group * kQk;
    const int c = tid % 8;
    for (int i = 0; i < kRows / 16; ++i) {
      const int m = tid / 8 + 16 * i;
      const int r = m / group;
      const bool valid = m < valid_rows;
      const __nv_bfloat16* q = from + (valid ? r * args.q_stride + (m - r * group) * kQk : 0) + c * 8;
#pragma unroll
      for (int j = 0; j < kQk / 64; ++j) {
        ptx::copy16(to + j * kRows * 128 + m * 128 + ((c ^ (m & 7)) << 4), q + j * 64, valid);
      }
    }
  };
  // Begins the copies of the tile: `to(i, j)` is where 16 bytes of key i of this thread go, j counting along the key
  // and then along the value.
  const auto load_tile = [&](std::uint32_t scales, const auto& to) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const bool valid = pages[i] >= 0;
      const int key = tile * kTile + row + i * kStep;
      const int in_page = key - key_page(p, key) * kv.page_size;
      const std::int64_t token =
          valid ? (static_cast<std::int64_t>(pages[i]) * kv.kv_heads + item.head) * kv.page_size + in_page
                : 0;
      constexpr int kSize = kFp8 ? 1 : 2;
      constexpr int kK = kQk * kSize / (16 * kLanes);
      constexpr int kV = kVDim * kSize / (16 * kLanes);
      const char* k = static_cast<const char*>(kv.k) + token * (kQk * kSize) + column * 16;
      const char* v = static_cast<const char*>(kv.v) + token * (kVDim * kSize) + column * 16;
#pragma unroll
      for (int j = 0; j < kK; ++j) ptx::copy16(to(i, j), k + j * 16 * kLanes, valid);
#pragma unroll
      for (int j = 0; j < kV; ++j) ptx::copy16(to(i, kK + j), v + j * 16 * kLanes, valid);
      if (kFp8) {
        const std::uint32_t at = scales + (row + i * kStep) * 4;
        if (column == 0) ptx::copy4(at, kv.k_scale + token, valid);
        if (column == 1) ptx::copy4(at + kTile * 4, kv.v_scale + token, valid);
      }
    }
  };

  if constexpr (!kFp8) {
    for (int n = 0; index < items; ++n) {
      Item next = item;
      int next_tile = tile + 1;
      int next_index = index;
      int next_pages[kKeys];
      if (next_tile == item.tile_end) {
        next_index += grid;
        if (next_index < items) {
          next = find_item(args, tables, most, next_index, s);
          next_tile = next.tile_begin;
        }
      }
      if (next_index < items) fetch_pages(next, next_tile, next_pages);

      const int stage = n % S::kStages;
      ptx::barrier_wait(empty + 8 * stage, (n / S::kStages + 1) & 1);
      if (tile == item.tile_begin) {
        ptx::barrier_wait(q_empty + 8 * (q_count & 1), (q_count / 2 + 1) & 1);
        load_q(q_count & 1);
        ++q_count;
      }
      const std::uint32_t at =
          base + S::kStageAt + stage * S::kStageBytes + row * 128 + ((column ^ (row & 7)) << 4);
      load_tile(0, [&](int i, int j) { return at + j * (kTile * 128) + i * (kStep * 128); });
      ptx::copies_arrive(full + 8 * stage);

      item = next;
      tile = next_tile;
      index = next_index;
#pragma unroll
      for (int i = 0; i < kKeys; ++i) pages[i] = next_pages[i];
    }
  } else {
    // E4M3: every thread turns into bf16 what it has copied itself.
    constexpr int kCopies = (kQk + kVDim) / 64;
    int begun = 0;
    int turned = 0;
    for (;;) {
      const bool q_ready = tile != item.tile_begin || index >= items ||
                           ptx::barrier_done(q_empty + 8 * (q_count & 1), (q_count / 2 + 1) & 1);
      if (index < items && begun - turned < S::kRaw && q_ready) {
        Item next = item;
        int next_tile = tile + 1;
        int next_index = index;
        int next_pages[kKeys];
        if (next_tile == item.tile_end) {
          next_index += grid;
          if (next_index < items) {
            next = find_item(args, tables, most, next_index, s);
            next_tile = next.tile_begin;
          }
        }
        if (next_index < items) fetch_pages(next, next_tile, next_pages);
        if (tile == item.tile_begin) {
          load_q(q_count & 1);
          ++q_count;
        }
        const std::uint32_t at = base + S::kRawAt + (begun % S::kRaw) * S::kRawBytes + tid * 16;
        load_tile(base + S::kScaleAt + (begun % S::kScaleSlots) * 2 * kTile * 4,
                  [&](int i, int j) { return at + (i * kCopies + j) * 2048; });
        ptx::copies_commit();
        ++begun;
        item = next;
        tile = next_tile;
        index = next_index;
#pragma unroll
        for (int i = 0; i < kKeys; ++i) pages[i] = next_pages[i];
        if (begun - turned < S::kRaw) continue;
      }
      if (begun == turned) {
        if (index >= items) break;
        continue;
      }
      if (begun - turned == S::kRaw) {
        ptx::copies_wait<S::kRaw - 1>();
      } else {
        ptx::copies_wait<0>();
      }
      const int stage = turned % S::kStages;
      ptx::barrier_wait(empty + 8 * stage, (turned / S::kStages + 1) & 1);
      const std::uint32_t from = base + S::kRawAt + (turned % S::kRaw) * S::kRawBytes + tid * 16;
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        const int r = row + i * kStep;
        const std::uint32_t to = base + S::kStageAt + stage * S::kStageBytes + r * 128;
#pragma unroll
        for (int j = 0; j < kCopies; ++j) {
          std::uint32_t x[4];
          asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                       : "r"(from + (i * kCopies + j) * 2048)
                       : "memory");
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                             to + j * (kTile * 128) + (((2 * column + half) ^ (r & 7)) << 4)),
                         "r"(ptx::bf16_from_e4m3<0>(x[2 * half])), "r"(ptx::bf16_from_e4m3<1>(x[2 * half])),
                         "r"(ptx::bf16_from_e4m3<0>(x[2 * half + 1])),
                         "r"(ptx::bf16_from_e4m3<1>(x[2 * half + 1]))
                         : "memory");
          }
        }
      }
      ptx::fence_async();
      ptx::barrier_arrive(full + 8 * stage);
      ++turned;
    }
  }
}

template <int kQk, int kRows, bool kFp8>
__device__ void compute_items(const Params& p, const Tables& tables, std::uint32_t base, const char* shared) {
  using S = Shape<kQk, kRows, kFp8>;
  const AttentionArgs& args = p.args;
  const int tid = static_cast<int>(threadIdx.x) - 128;
  const int group = args.q_heads / args.kv.kv_heads;
  const int most = kRows / group;
  const int items = tables.items[tables.sequences];
  const int lane = tid % 32;
  const int warp_row = tid / 128 * 64 + tid / 32 % 4 * 16;  // first row of the tile that this warp has
  const int quad = lane % 4;
  const std::uint32_t full = base + S::kBarriersAt;
  const std::uint32_t empty = full + 8 * S::kStages;
  const std::uint32_t q_empty = empty + 8 * S::kStages;
  const float scale = args.scale * kLog2e;

  int n = 0;
  int s = 0;
  int q_count = 0;
  for (int index = static_cast<int>(blockIdx.x); index < items;
       index += static_cast<int>(gridDim.x), ++q_count) {
    const Item item = find_item(args, tables, most, index, s);
    const Block& block = item.block;
    const int valid_rows = (block.row_end - block.row_begin) * group;
    const bool active = warp_row < valid_rows;
    VisibleKeys keys[2];  // of this thread's two rows
    for (int i = 0; i < 2; ++i) {
      const int m = min(warp_row + lane / 4 + 8 * i, valid_rows - 1);
      keys[i] = visible_keys(args, item.sequence, block.row_begin + m / group);
    }
    // Keys that every row sees: no mask is needed among them.
    const VisibleKeys common = {visible_keys(args, item.sequence, block.row_end - 1).first,
                                visible_keys(args, item.sequence, block.row_begin).last};

    float out[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) out[i] = 0;
    float top[2] = {-INFINITY, -INFINITY};
    float total[2] = {0, 0};
    const std::uint64_t q =
        ptx::matrix(base + S::kQAt + (q_count & 1) * S::kQBytes + tid / 128 * (64 * 128), 16);

    for (int tile = item.tile_begin; tile < item.tile_end; ++tile, ++n) {
      const int stage = n % S::kStages;
      ptx::barrier_wait(full + 8 * stage, (n / S::kStages) & 1);
      ptx::fence_async();
      const std::uint32_t at = base + S::kStageAt + stage * S::kStageBytes;
      const std::uint64_t k = ptx::matrix(at, 16);
      const std::uint64_t v = ptx::matrix(at + S::kKBytes, kTile * 128);
      float score[32];
      ptx::wgmma_fence();
#pragma unroll
      for (int j = 0; j < kQk / 64; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          ptx::wgmma_scores(score, q + ((j * kRows * 128 + i * 32) >> 4),
                            k + ((j * kTile * 128 + i * 32) >> 4), i + j);
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();

      std::uint32_t weight[4][4];
      if (active) {
        const float2* scales = reinterpret_cast<const float2*>(
            shared + S::kScaleAt + (n % S::kScaleSlots) * 2 * kTile * 4);  // keys', then values'
        if (kFp8) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float2 x = scales[4 * j + quad];
            score[4 * j] *= x.x;
            score[4 * j + 1] *= x.y;
            score[4 * j + 2] *= x.x;
            score[4 * j + 3] *= x.y;
          }
        }
        const int begin = tile * kTile;
        if (begin < common.first || begin + kTile > common.last) {
#pragma unroll
          for (int i = 0; i < 32; ++i) {
            const int key = begin + i / 4 * 8 + quad * 2 + i % 2;
            const VisibleKeys& own = keys[i / 2 % 2];
            if (key < own.first || key >= own.last) score[i] = -INFINITY;
          }
        }
        float keep[2];
        float shift[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float best = top[r];
#pragma unroll
          for (int j = 0; j < 8; ++j)
            best = fmaxf(best, fmaxf(score[4 * j + 2 * r], score[4 * j + 2 * r + 1]));
          best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
          best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
          // A row that has seen no key yet must not subtract two infinities.
          shift[r] = best == -INFINITY ? 0.0f : best * scale;
          keep[r] = ptx::exp2_fast(fmaf(top[r], scale, -shift[r]));
          top[r] = best;
          total[r] *= keep[r];
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          float2 x = {1.0f, 1.0f};
          if (kFp8) x = scales[kTile / 2 + 4 * j + quad];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float a = ptx::exp2_fast(fmaf(score[4 * j + 2 * r], scale, -shift[r]));
            const float b = ptx::exp2_fast(fmaf(score[4 * j + 2 * r + 1], scale, -shift[r]));
            total[r] += a + b;
            weight[j / 2][j % 2 * 2 + r] = kFp8 ? ptx::pack_bf16(a * x.x, b * x.y) : ptx::pack_bf16(a, b);
          }
        }
        if (__any_sync(~0u, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < 64; ++i) out[i] *= keep[i / 2 % 2];
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) weight[i][0] = weight[i][1] = weight[i][2] = weight[i][3] = 0;
      }

      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::wgmma_values(out, weight[i], v + ((i * 16 * 128) >> 4));
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      if (lane == 0) ptx::barrier_arrive(empty + 8 * stage);
    }
    if (lane == 0) ptx::barrier_arrive(q_empty + 8 * (q_count & 1));

    if (!active) continue;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total[r] += __shfl_xor_sync(~0u, total[r], 1);
      total[r] += __shfl_xor_sync(~0u, total[r], 2);
      const int m = warp_row + lane / 4 + 8 * r;
      if (m >= valid_rows) continue;
      const int row = block.row_begin + m / group;
      const int head = item.head * group + m % group;
      const float own_top = top[r] * scale;
      if (block.splits == 1) {
        Sum sum = begin_sum(args, head, own_top);
        const float w = part_weight(sum, own_top);
        sum.total = fmaf(w, total[r], sum.total);
        const float share = 1.0f / sum.total;
        auto* to = static_cast<__nv_bfloat16*>(args.out) +
                   (static_cast<std::int64_t>(item.sequence.row_begin + row) * args.q_heads + head) * kVDim +
                   quad * 2;
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          *reinterpret_cast<std::uint32_t*>(to + 8 * j) =
              ptx::pack_bf16(w * out[4 * j + 2 * r] * share, w * out[4 * j + 2 * r + 1] * share);
        }
      } else {
        const std::int64_t slot = (static_cast<std::int64_t>(item.row_slot + row) * args.q_heads + head) *
                                      (tables.plan.target + 1) +
                                  item.split;
        float* to = p.partial + slot * kVDim + quad * 2;
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          *reinterpret_cast<float2*>(to + 8 * j) = {out[4 * j + 2 * r], out[4 * j + 2 * r + 1]};
        }
        if (quad == 0) p.state[slot] = {own_top, total[r]};
      }
    }
  }
}

// Waits until all CTAs of the grid have come here and what they wrote can be read. All of them run at once: the grid
// is no larger than the chip.
__device__ inline void grid_barrier(unsigned* barrier) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned generation = *static_cast<volatile unsigned*>(barrier + 1);
    __threadfence();
    if (atomicAdd(barrier, 1u) + 1 == gridDim.x) {
      atomicExch(barrier, 0u);
      __threadfence();
      atomicAdd(barrier + 1, 1u);
    } else {
      while (*static_cast<volatile unsigned*>(barrier + 1) == generation) {
      }
    }
    __threadfence();
  }
  __syncthreads();
}

// Joins the partial results of the rows that were split: a warp for every row and head, parts in order.
__device__ inline void combine(const Params& p, const Tables& tables, int most) {
  const AttentionArgs& args = p.args;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x / 32 * gridDim.x);
  const int rows = tables.rows[tables.sequences];
  int s = 0;
  // Warps of one CTA take tasks that lie far apart: so few tasks as there are spread over all SMs.
  for (int task = static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x); task < rows * args.q_heads;
       task += warps) {
    const int slot = task / args.q_heads;
    const int head = task - slot * args.q_heads;
    while (tables.rows[s + 1] <= slot) ++s;
    const SequenceOf sequence = table_sequence(args, tables, s);
    const int row = slot - tables.rows[s];
    int splits = 0;
    for_blocks(args, tables.plan, sequence, most, [&](const Block& block) {
      splits = block.splits;
      return row < block.row_end;
    });
    if (splits == 1) continue;
    const std::int64_t first = static_cast<std::int64_t>(task) * (tables.plan.target + 1);
    float top = -INFINITY;
    for (int i = lane; i < splits; i += 32) top = fmaxf(top, __ldcg(p.state + first + i).x);
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    Sum sum = begin_sum(args, head, top);
    float4 out = {0, 0, 0, 0};
    const float4* from = reinterpret_cast<const float4*>(p.partial + first * kVDim) + lane;
    for (int begin = 0; begin < splits; begin += 32) {
      const int count = min(32, splits - begin);
      float2 state = {-INFINITY, 0.0f};
      if (lane < count) state = __ldcg(p.state + first + begin + lane);
      const float own = part_weight(sum, state.x);
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        const float w = __shfl_sync(~0u, own, i);
        sum.total = fmaf(w, __shfl_sync(~0u, state.y, i), sum.total);
        const float4 x = __ldcg(from + (begin + i) * (kVDim / 4));
        out = {fmaf(w, x.x, out.x), fmaf(w, x.y, out.y), fmaf(w, x.z, out.z), fmaf(w, x.w, out.w)};
      }
    }
    const float share = 1.0f / sum.total;
    auto* to = static_cast<__nv_bfloat16*>(args.out) +
               (static_cast<std::int64_t>(sequence.row_begin + row) * args.q_heads + head) * kVDim + lane * 4;
    *reinterpret_cast<uint2*>(to) = {ptx::pack_bf16(out.x * share, out.y * share),
                                     ptx::pack_bf16(out.z * share, out.w * share)};
  }
}

template <int kQk, int kRows, bool kFp8>
__global__ void __launch_bounds__(Shape<kQk, kRows, kFp8>::kThreads, 1)
    attention_decode_kernel(const __grid_constant__ Params p) {
  using S = Shape<kQk, kRows, kFp8>;
  extern __shared__ __align__(1024) char shared[];
  const std::uint32_t base = ptx::shared_address(shared);
  if (threadIdx.x == 0) {
    const std::uint32_t full = base + S::kBarriersAt;
    for (int i = 0; i < S::kStages; ++i) {
      ptx::barrier_init(full + 8 * i, 128);
      ptx::barrier_init(full + 8 * (S::kStages + i), 4 * S::kGroups);
    }
    for (int i = 0; i < 2; ++i) ptx::barrier_init(full + 8 * (2 * S::kStages + i), 4 * S::kGroups);
  }
  Tables tables;
  tables.items = reinterpret_cast<int*>(shared + S::kTablesAt);
  tables.rows = tables.items + kSequences + 1;
  tables.position = tables.rows + kSequences + 1;
  tables.first_key = tables.position + kSequences;
  tables.row_begin = tables.first_key + kSequences;
  tables.scratch = tables.row_begin + kSequences;
  const int most = kRows / (p.args.q_heads / p.args.kv.kv_heads);
  const bool split = fill_tables(p, most, tables);  // its barriers show the mbarriers to all

  if (threadIdx.x < 128) {
    load_items<kQk, kRows, kFp8>(p, tables, base);
  } else {
    compute_items<kQk, kRows, kFp8>(p, tables, base, shared);
  }
  if (!split) return;
  grid_barrier(p.barrier);
  combine(p, tables, most);
}

template <int kQk, int kRows, bool kFp8>
void launch(const Params& p, int grid, cudaStream_t stream) {
  using S = Shape<kQk, kRows, kFp8>;
  const auto kernel = attention_decode_kernel<kQk, kRows, kFp8>;
  MIMO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes));
  kernel<<<grid, S::kThreads, S::kBytes, stream>>>(p);
  MIMO_CUDA_LAUNCHED();
}

template <bool kFp8>
void launch_all(const Params& p, int grid, cudaStream_t stream) {
  const int rows = std::min(p.args.sequences.max_rows, 128) * (p.args.q_heads / p.args.kv.kv_heads);
  if (p.args.kv.qk_dim == 192) {
    rows <= 64 ? launch<192, 64, kFp8>(p, grid, stream) : launch<192, 128, kFp8>(p, grid, stream);
  } else {
    rows <= 64 ? launch<128, 64, kFp8>(p, grid, stream) : launch<128, 128, kFp8>(p, grid, stream);
  }
}

// One for each type of the cache: they are compiled apart.
void launch_bf16(const Params& p, int grid, cudaStream_t stream);
void launch_fp8(const Params& p, int grid, cudaStream_t stream);

}  // namespace mimo::cuda::decode
