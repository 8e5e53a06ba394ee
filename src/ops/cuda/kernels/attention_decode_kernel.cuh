// The kernel of attention_decode. One group of 4 warps loads, one or two others (64 rows of the tile each) compute;
// rows of the tile are query rows x query heads of one KV head. Every CTA walks through its items (every grid-th of
// the list that all CTAs derive from the sequences); the loads run ahead of the products over the borders of items.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/attention_decode.h"
#include "ops/cuda/kernels/attention_decode_plan.cuh"
#include "ops/cuda/kernels/attention_decode_ptx.cuh"

namespace mimo::cuda::decode {

inline constexpr int kVDim = 128;
inline constexpr float kLog2e = 1.4426950408889634f;

struct Params {
  AttentionArgs args;
  unsigned* barrier = nullptr;  // counts the CTAs that have come to it
  float* partial = nullptr;     // [row slots][q_heads][target + 1][kVDim], not normalised
  float2* state = nullptr;      // [row slots][q_heads][target + 1]: largest score (log 2), sum of weights
  int sms = 0;
  unsigned page_magic = 0;  // key / page_size = high half of key * page_magic; 0: pages of one token
  Overlap overlap = Overlap::kNone;
};

template <int kQk, int kRows, bool kFp8>
struct Shape {
  static constexpr int kGroups = kRows / 64;  // of 4 warps that compute
  static constexpr int kThreads = 128 * (1 + kGroups);
  // Registers of a thread that loads and of one that computes; 0: as many as all get.
  static constexpr int kLoadRegisters = kGroups == 1 ? 0 : kFp8 ? 104 : 88;
  static constexpr int kComputeRegisters = kGroups == 1 ? 0 : kFp8 ? 200 : 208;
  static constexpr int kStages = kFp8 ? 3 : 4;
  static constexpr int kRaw = !kFp8 ? 0 : kRows == 64 ? 3 : 2;  // tiles of E4M3 under way
  static constexpr int kScaleSlots = 8;
  static constexpr int kPageSlots = 8;  // tiles whose pages are asked for ahead, twice
  static constexpr int kQBytes = kRows * kQk * 2;
  static constexpr int kKBytes = kTile * kQk * 2;
  static constexpr int kVBytes = kTile * kVDim * 2;
  static constexpr int kStageBytes = kKBytes + kVBytes;
  static constexpr int kRawBytes = kTile * (kQk + kVDim);
  static constexpr int kScaleBytes = kFp8 ? kScaleSlots * 2 * kTile * 4 : 0;

  static constexpr int kQAt = 0;
  static constexpr int kStageAt = kQAt + kQBytes;
  static constexpr int kRawAt = kStageAt + kStages * kStageBytes;
  static constexpr int kScaleAt = kRawAt + kRaw * kRawBytes;
  static constexpr int kBarriersAt = kScaleAt + kScaleBytes;
  static constexpr int kPagesAt = kBarriersAt + 256;
  static constexpr int kTablesAt = kPagesAt + kPageSlots * kTile * 4;
  static constexpr int kBytes = kTablesAt + (2 * (kSequences + 1) + 4 * kSequences + 16) * 4;
  static_assert(kBytes <= 232448);

  // Barriers, by their places behind the first: stages filled, stages free, queries there, queries taken, pages there.
  static constexpr int kFull = 0;
  static constexpr int kFree = 8 * kStages;
  static constexpr int kQFull = 16 * kStages;
  static constexpr int kQFree = 16 * kStages + 8;
  static constexpr int kPagesThere = 16 * kStages + 16;
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

// How many items a sequence makes, and whether its context is split.
struct Count {
  int items = 0;
  bool split = false;
};
__device__ inline Count count_items(const AttentionArgs& args, const Plan& plan, const SequenceOf& sequence,
                                    int most) {
  Count count;
  for_blocks(args, plan, sequence, most, [&](const Block& block) {
    count.items += block.splits * args.kv.kv_heads;
    count.split = count.split || block.splits > 1;
    return false;
  });
  return count;
}

// Fills the tables; true if some sequence is split, so that partial results are to be combined.
__device__ inline bool fill_tables(const Params& p, int most, Tables& tables) {
  const AttentionArgs& args = p.args;
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int sequences = args.sequences.sequences;
  tables.sequences = sequences;
  // Few sequences: every warp counts them all, which takes one barrier.
  const bool few = sequences <= 32;
  const int own = few ? lane : tid;
  SequenceOf sequence;
  if (own < sequences) sequence = load_sequence(args.sequences, own);
  // Windows are not split.
  if (args.window == 0 || args.window > kWholeWindow) {
    const int active =
        few ? __popc(__ballot_sync(~0u, sequence.rows > 0)) : __syncthreads_count(sequence.rows > 0);
    tables.plan = make_plan(p.sms, args.kv.kv_heads, max(active, 1));
  }
  const Count count = count_items(args, tables.plan, sequence, most);
  int items = count.items;
  int rows = sequence.rows;
  for (int step = 1; step < 32 && step < sequences; step *= 2) {
    const int i = __shfl_up_sync(~0u, items, step);
    const int r = __shfl_up_sync(~0u, rows, step);
    if (lane >= step) {
      items += i;
      rows += r;
    }
  }
  bool any = __any_sync(~0u, count.split);
  if (!few) {
    if (lane == 31 && warp < 8) {
      tables.scratch[warp] = items;
      tables.scratch[8 + warp] = rows;
    }
    any = __syncthreads_or(any) != 0;
    for (int w = 0; w < min(warp, 8); ++w) {
      items += tables.scratch[w];
      rows += tables.scratch[8 + w];
    }
  }
  if (tid < sequences) {
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
  item.split = quotient(at, args.kv.kv_heads);
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

// Partial sums are joined relative to one largest score; the sink is one of them.
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
__device__ __forceinline__ void load_items(const Params& p, const Tables& tables, std::uint32_t base,
                                           const char* shared) {
  using S = Shape<kQk, kRows, kFp8>;
  const AttentionArgs& args = p.args;
  const KvView& kv = args.kv;
  const int tid = static_cast<int>(threadIdx.x);
  const int group = quotient(args.q_heads, kv.kv_heads);
  const int most = quotient(kRows, group);
  const int items = tables.items[tables.sequences];
  const int grid = static_cast<int>(gridDim.x);
  const std::uint32_t barriers = base + S::kBarriersAt;

  // Consecutive lanes share a key: eight (bf16, 128 bytes at a time) or four (E4M3, 64 bytes).
  constexpr int kLanes = kFp8 ? 4 : 8;
  constexpr int kStep = 128 / kLanes;   // keys between those of a thread
  constexpr int kKeys = kTile / kStep;  // of a thread in a tile
  const int row = tid / kLanes;
  const int column = tid % kLanes;

  // The next tile to load.
  int index = static_cast<int>(blockIdx.x);
  if (index >= items) return;
  int s = 0;
  Item item = find_item(args, tables, most, index, s);
  int tile = item.tile_begin;
  const auto advance = [&] {
    if (++tile < item.tile_end) return;
    index += grid;
    if (index >= items) return;
    item = find_item(args, tables, most, index, s);
    tile = item.tile_begin;
  };

  // Pages are asked for some tiles ahead: a look-up takes as long as the copies before it.
  constexpr int kAhead = S::kPageSlots / 2;
  const std::uint32_t page_slots = base + S::kPagesAt;
  int fetched = 0;
  int fetch_index = index;
  int fetch_s = 0;
  Item fetch_item = item;
  int fetch_tile = tile;
  const auto fetch_pages = [&] {
    if (fetch_index >= items) return;
    const int slot = fetched % S::kPageSlots;
    if (tid < kTile) {
      const int key = fetch_tile * kTile + tid;
      const bool valid = key >= fetch_item.block.keys.first && key < fetch_item.block.keys.last;
      ptx::copy4(page_slots + (slot * kTile + tid) * 4,
                 fetch_item.sequence.pages + (valid ? key_page(p, key) : 0), valid);
    }
    ptx::copies_arrive(barriers + S::kPagesThere + 8 * slot);
    ++fetched;
    if (++fetch_tile < fetch_item.tile_end) return;
    fetch_index += grid;
    if (fetch_index >= items) return;
    fetch_item = find_item(args, tables, most, fetch_index, fetch_s);
    fetch_tile = fetch_item.tile_begin;
  };
  int pages[kKeys];  // of this thread's keys; -1: not seen
  const auto take_pages = [&](int n) {
    const int slot = n % S::kPageSlots;
    ptx::barrier_wait(barriers + S::kPagesThere + 8 * slot, (n / S::kPageSlots) & 1);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int key = tile * kTile + row + i * kStep;
      const bool valid = key >= item.block.keys.first && key < item.block.keys.last;
      const int page = ptx::load4(page_slots + (slot * kTile + row + i * kStep) * 4);
      pages[i] = valid ? page : -1;
    }
  };
  for (int i = 0; i < kAhead; ++i) fetch_pages();

  // What the kernel before may still write: queries, and the keys of the step.
  bool waited = p.overlap != Overlap::kRead;
  const auto wait_for_step = [&] {
    if (!waited) ptx::wait_for_kernel_before();
    waited = true;
  };
  int q_count = 0;
  const auto load_q = [&] {
    const std::uint32_t to = base + S::kQAt;
    const int valid_rows = (item.block.row_end - item.block.row_begin) * group;
    const auto* from = static_cast<const __nv_bfloat16*>(args.q) +
                       (item.sequence.row_begin + item.block.row_begin) * args.q_stride +
                       item.head * group * kQk;
    const int c = tid % 8;
#pragma unroll 2
    for (int i = 0; i < kRows / 16; ++i) {
      const int m = tid / 8 + 16 * i;
      const int r = quotient(m, group);
      const bool valid = m < valid_rows;
      const __nv_bfloat16* q = from + (valid ? r * args.q_stride + (m - r * group) * kQk : 0) + c * 8;
#pragma unroll
      for (int j = 0; j < kQk / 64; ++j) {
        ptx::copy16(to + j * kRows * 128 + m * 128 + ((c ^ (m & 7)) << 4), q + j * 64, valid);
      }
    }
    ptx::copies_arrive(barriers + S::kQFull);
    ++q_count;
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
  const auto is_old = [&] { return (tile + 1) * kTile <= item.sequence.position; };

  if constexpr (!kFp8) {
    for (int n = 0; index < items; ++n) {
      take_pages(n);
      fetch_pages();
      const int stage = n % S::kStages;
      ptx::barrier_wait(barriers + S::kFree + 8 * stage, (n / S::kStages + 1) & 1);
      if (!is_old()) wait_for_step();
      const bool first = tile == item.tile_begin;
      if (first && waited) {
        ptx::barrier_wait(barriers + S::kQFree, (q_count + 1) & 1);
        load_q();
      }
      const std::uint32_t at =
          base + S::kStageAt + stage * S::kStageBytes + row * 128 + ((column ^ (row & 7)) << 4);
      load_tile(0, [&](int i, int j) { return at + j * (kTile * 128) + i * (kStep * 128); });
      ptx::copies_arrive(barriers + S::kFull + 8 * stage);
      // The first queries of all, if they had to wait: when the stages are full or the item ends.
      if (q_count == 0 && (n == S::kStages - 1 || tile + 1 == item.tile_end)) {
        wait_for_step();
        load_q();
      }
      advance();
    }
  } else {
    // E4M3: every thread turns into bf16 what it has copied itself.
    constexpr int kCopies = (kQk + kVDim) / 64;
    int begun = 0;
    int turned = 0;
    for (;;) {
      const bool more = index < items;
      const bool first = more && tile == item.tile_begin;
      const bool q_free = !first || begun == 0 || ptx::barrier_done(barriers + S::kQFree, (q_count + 1) & 1);
      if (more && begun - turned < S::kRaw && q_free) {
        take_pages(begun);
        fetch_pages();
        if (!is_old()) wait_for_step();
        if (first && waited) load_q();
        const std::uint32_t at = base + S::kRawAt + (begun % S::kRaw) * S::kRawBytes + tid * 16;
        load_tile(base + S::kScaleAt + (begun % S::kScaleSlots) * 2 * kTile * 4,
                  [&](int i, int j) { return at + (i * kCopies + j) * 2048; });
        ptx::copies_commit();
        ++begun;
        if (q_count == 0 && (begun == S::kRaw || tile + 1 == item.tile_end)) {
          wait_for_step();
          load_q();
        }
        advance();
        if (begun - turned < S::kRaw) continue;
      }
      if (begun == turned) {
        if (!more) break;
        continue;
      }
      if (begun - turned == S::kRaw) {
        ptx::copies_wait<S::kRaw - 1>();
      } else {
        ptx::copies_wait<0>();
      }
      uint4 x[kKeys * kCopies];
      const char* from = shared + S::kRawAt + (turned % S::kRaw) * S::kRawBytes + tid * 16;
#pragma unroll
      for (int i = 0; i < kKeys * kCopies; ++i) x[i] = *reinterpret_cast<const uint4*>(from + i * 2048);
      const int stage = turned % S::kStages;
      ptx::barrier_wait(barriers + S::kFree + 8 * stage, (turned / S::kStages + 1) & 1);
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        const int r = row + i * kStep;
        const std::uint32_t to = base + S::kStageAt + stage * S::kStageBytes + r * 128;
#pragma unroll
        for (int j = 0; j < kCopies; ++j) {
          const uint4& four = x[i * kCopies + j];
          ptx::store16(to + j * (kTile * 128) + (((2 * column) ^ (r & 7)) << 4),
                       ptx::bf16_from_e4m3<0>(four.x), ptx::bf16_from_e4m3<1>(four.x),
                       ptx::bf16_from_e4m3<0>(four.y), ptx::bf16_from_e4m3<1>(four.y));
          ptx::store16(to + j * (kTile * 128) + (((2 * column + 1) ^ (r & 7)) << 4),
                       ptx::bf16_from_e4m3<0>(four.z), ptx::bf16_from_e4m3<1>(four.z),
                       ptx::bf16_from_e4m3<0>(four.w), ptx::bf16_from_e4m3<1>(four.w));
        }
      }
      ptx::fence_async();
      ptx::barrier_arrive(barriers + S::kFull + 8 * stage);
      ++turned;
    }
  }
}

// The softmax of this thread's two rows of the tile as far as it has come.
struct Softmax {
  float top[2] = {-INFINITY, -INFINITY};  // largest score, log 2
  float total[2] = {0, 0};                // of the weights, this thread's part
};

// Turns the scores of a tile into weights, in place, relative to the largest score so far; `keep`: what earlier
// weights are to be multiplied by. `scales`: of keys and then values (E4M3 only).
template <bool kFp8>
__device__ __forceinline__ void soften(float (&score)[32], Softmax& state, float (&keep)[2], float scale,
                                       const float2* scales, int quad, int begin, const VisibleKeys& common,
                                       const VisibleKeys (&keys)[2]) {
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
  if (begin < common.first || begin + kTile > common.last) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int key = begin + i / 4 * 8 + quad * 2 + i % 2;
      const VisibleKeys& own = keys[i / 2 % 2];
      if (key < own.first || key >= own.last) score[i] = -INFINITY;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float best = fmaxf(score[2 * r], score[2 * r + 1]);
#pragma unroll
    for (int j = 1; j < 8; ++j) best = fmaxf(best, fmaxf(score[4 * j + 2 * r], score[4 * j + 2 * r + 1]));
    best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
    best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
    const float top = fmaxf(state.top[r], best * scale);
    // A row that has seen no key yet must not subtract two infinities.
    const float shift = top == -INFINITY ? 0.0f : top;
    keep[r] = ptx::exp2_fast(state.top[r] - shift);
    state.top[r] = top;
    float total = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float& a = score[4 * j + 2 * r];
      float& b = score[4 * j + 2 * r + 1];
      a = ptx::exp2_fast(fmaf(a, scale, -shift));
      b = ptx::exp2_fast(fmaf(b, scale, -shift));
      total += a + b;
    }
    state.total[r] = fmaf(state.total[r], keep[r], total);
  }
  if (kFp8) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 x = scales[kTile / 2 + 4 * j + quad];
      score[4 * j] *= x.x;
      score[4 * j + 1] *= x.y;
      score[4 * j + 2] *= x.x;
      score[4 * j + 3] *= x.y;
    }
  }
}

template <int kQk, int kRows, bool kFp8>
__device__ __forceinline__ void compute_items(const Params& p, const Tables& tables, std::uint32_t base,
                                              const char* shared) {
  using S = Shape<kQk, kRows, kFp8>;
  const AttentionArgs& args = p.args;
  const int tid = static_cast<int>(threadIdx.x) - 128;
  const int group = quotient(args.q_heads, args.kv.kv_heads);
  const int most = quotient(kRows, group);
  const int items = tables.items[tables.sequences];
  const int lane = tid % 32;
  const int warp_row = tid / 128 * 64 + tid / 32 % 4 * 16;  // first row of the tile that this warp has
  const int quad = lane % 4;
  const std::uint32_t barriers = base + S::kBarriersAt;
  const float scale = args.scale * kLog2e;
  if (p.overlap == Overlap::kRead) ptx::wait_for_kernel_before();  // which may use the same partial results

  if (S::kGroups == 2 && tid >= 128) ptx::named_arrive<256>(2);  // the first group begins
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
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int m = min(warp_row + lane / 4 + 8 * i, valid_rows - 1);
      keys[i] = visible_keys(args, item.sequence, block.row_begin + quotient(m, group));
    }
    // Keys that every row sees: no mask is needed among them.
    const VisibleKeys common = {visible_keys(args, item.sequence, block.row_end - 1).first,
                                visible_keys(args, item.sequence, block.row_begin).last};

    std::uint32_t q[kQk / 16][4];
    ptx::barrier_wait(barriers + S::kQFull, q_count & 1);
    {
      const int m = warp_row + lane % 16;
#pragma unroll
      for (int i = 0; i < kQk / 16; ++i) {
        const int c = i % 4 * 2 + lane / 16;
        ptx::load_matrices(q[i], base + S::kQAt + i / 4 * (kRows * 128) + m * 128 + ((c ^ (m & 7)) << 4));
      }
    }
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(barriers + S::kQFree);

    float out[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) out[i] = 0;
    Softmax state;
    float keep[2] = {1.0f, 1.0f};
    float score[32];
    std::uint32_t weight[4][4];
    const auto begin_scores = [&](int tile_number) {
      const int stage = tile_number % S::kStages;
      ptx::barrier_wait(barriers + S::kFull + 8 * stage, (tile_number / S::kStages) & 1);
      ptx::fence_async();
      const std::uint32_t k = ptx::matrix(base + S::kStageAt + stage * S::kStageBytes, 16);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kQk / 16; ++i) {
        ptx::wgmma_scores(score, q[i], ptx::matrix_at(k, i / 4 * (kTile * 128) + i % 4 * 32), i);
      }
      ptx::wgmma_commit();
    };
    const auto begin_values = [&](int tile_number) {
      const int stage = tile_number % S::kStages;
      const std::uint64_t v =
          ptx::matrix(base + S::kStageAt + stage * S::kStageBytes + S::kKBytes, kTile * 128);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::wgmma_values(out, weight[i], ptx::matrix_at(v, i * 16 * 128));
      ptx::wgmma_commit();
    };
    // The two groups take turns at the tensor cores, so that one's products run beside the other's softmax.
    const int own_turn = 2 + tid / 128;
    const auto await_turn = [&] {
      if (S::kGroups == 2) ptx::named_wait<256>(own_turn);
    };
    const auto pass_turn = [&] {
      if (S::kGroups == 2) ptx::named_arrive<256>(5 - own_turn);
    };
    const auto soften_tile = [&](int tile_number, int tile) {
      if (!active) return;
      const float2* scales = reinterpret_cast<const float2*>(shared + S::kScaleAt +
                                                             (tile_number % S::kScaleSlots) * 2 * kTile * 4);
      soften<kFp8>(score, state, keep, scale, scales, quad, tile * kTile, common, keys);
    };
    const auto pack_weights = [&] {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          weight[j / 2][j % 2 * 2 + r] = ptx::pack_bf16(score[4 * j + 2 * r], score[4 * j + 2 * r + 1]);
        }
      }
    };
    const auto release = [&](int tile_number) {
      if (lane == 0) ptx::barrier_arrive(barriers + S::kFree + 8 * (tile_number % S::kStages));
    };

    // The scores of a tile are computed while the softmax of the one before waits for them, its values summed beside
    // the softmax of the next.
    await_turn();
    begin_scores(n);
    pass_turn();
    ptx::wgmma_wait<0>();
    soften_tile(n, item.tile_begin);
    pack_weights();
    for (int tile = item.tile_begin + 1; tile < item.tile_end; ++tile, ++n) {
      await_turn();
      begin_scores(n + 1);
      begin_values(n);
      pass_turn();
      ptx::wgmma_wait<1>();
      soften_tile(n + 1, tile);
      ptx::wgmma_wait<0>();
      release(n);
      if (__any_sync(~0u, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 64; ++i) out[i] *= keep[i / 2 % 2];
      }
      pack_weights();
    }
    begin_values(n);
    ptx::wgmma_wait<0>();
    release(n);
    ++n;

    if (!active) continue;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = state.total[r];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const int m = warp_row + lane / 4 + 8 * r;
      if (m >= valid_rows) continue;
      const int row_in_block = quotient(m, group);
      const int row = block.row_begin + row_in_block;
      const int head = item.head * group + m - row_in_block * group;
      const float top = state.top[r];
      if (block.splits == 1) {
        // The same operations as when one part of several is joined with others that saw nothing.
        const Sum sum = begin_sum(args, head, top);
        const float w = part_weight(sum, top);
        const float share = 1.0f / __fadd_rn(sum.total, __fmul_rn(w, total));
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
        if (quad == 0) p.state[slot] = {top, total};
      }
    }
  }
  if (S::kGroups == 2 && tid < 128) ptx::named_wait<256>(2);
}

// Waits until the kThreads threads that compute have come here in all CTAs of the grid, and what they wrote can be
// read. All CTAs run at once: the grid is no larger than the chip.
template <int kThreads>
__device__ inline void grid_barrier(unsigned* barrier) {
  ptx::named_wait<kThreads>(1);
  // A launch adds 1024 in all, the last 1 of it when all have come: then the count's higher bits change.
  if (threadIdx.x == 128) {
    const unsigned before = ptx::add_release(barrier, blockIdx.x == 0 ? 1025 - gridDim.x : 1);
    while ((ptx::load_acquire(barrier) ^ before) < 1024) {
    }
  }
  ptx::named_wait<kThreads>(1);
}

inline constexpr int kClasses = 8;

// What the warps of a task leave for its first one.
struct Part {
  float4 out[kClasses][32];
  float total[kClasses];
};

// Joins the partial results of the rows that were split, kShare warps a row and head. Part i belongs to class i % 8;
// each class is summed in order, then the classes in order: parts that saw nothing change no bit, and the number of
// warps changes none.
template <int kThreads, int kShare>
__device__ __forceinline__ void combine(const Params& p, const Tables& tables, int most, Part* parts) {
  constexpr int kAtATime = kThreads / 32 / kShare;
  constexpr int kOwn = kClasses / kShare;  // classes of a warp
  constexpr int kDeep = 16 / kOwn;         // parts of each that are loaded at a time
  const AttentionArgs& args = p.args;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;
  const int grid = static_cast<int>(gridDim.x);
  const int tasks = tables.rows[tables.sequences] * args.q_heads;
  const int own = warp / kShare;
  const int first_class = warp % kShare;
  int s = 0;
  for (int begin = 0; begin < tasks; begin += kAtATime * grid) {
    const int task = begin + own * grid + static_cast<int>(blockIdx.x);
    int splits = 0;
    std::int64_t out_row = 0;
    const int slot = quotient(task, args.q_heads);
    const int head = task - slot * args.q_heads;
    if (task < tasks) {
      while (tables.rows[s + 1] <= slot) ++s;
      const SequenceOf sequence = table_sequence(args, tables, s);
      const int row = slot - tables.rows[s];
      out_row = sequence.row_begin + row;
      for_blocks(args, tables.plan, sequence, most, [&](const Block& block) {
        splits = block.splits;
        return row < block.row_end;
      });
    }
    const bool split = splits > 1;
    Sum sum = {0, 0};
    float4 out[kOwn];
    float total[kOwn];
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      out[c] = {0, 0, 0, 0};
      total[c] = 0;
    }
    if (split) {
      const std::int64_t first = static_cast<std::int64_t>(task) * (tables.plan.target + 1);
      const float2* states = p.state + first;
      const float4* from = reinterpret_cast<const float4*>(p.partial + first * kVDim) + lane;
      float top = -INFINITY;
      for (int i = lane; i < splits; i += 32) top = fmaxf(top, __ldcg(states + i).x);
      for (int group = first_class; group < splits; group += kDeep * kClasses) {
        float4 x[kDeep][kOwn];
        float2 state[kDeep][kOwn];
#pragma unroll
        for (int i = 0; i < kDeep; ++i) {
#pragma unroll
          for (int c = 0; c < kOwn; ++c) {
            const int part = group + i * kClasses + c * kShare;
            state[i][c] = {-INFINITY, 0.0f};
            x[i][c] = {0, 0, 0, 0};
            if (part < splits) {
              state[i][c] = __ldcg(states + part);
              x[i][c] = __ldcg(from + part * (kVDim / 4));
            }
          }
        }
        if (group == first_class) {  // the loads are under way
          for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
          sum = begin_sum(args, head, top);
        }
#pragma unroll
        for (int i = 0; i < kDeep; ++i) {
#pragma unroll
          for (int c = 0; c < kOwn; ++c) {
            const float w = part_weight(sum, state[i][c].x);
            const float4& y = x[i][c];
            total[c] = fmaf(w, state[i][c].y, total[c]);
            out[c] = {fmaf(w, y.x, out[c].x), fmaf(w, y.y, out[c].y), fmaf(w, y.z, out[c].z),
                      fmaf(w, y.w, out[c].w)};
          }
        }
      }
    }
    float4 result = out[0];
    float weights = total[0];
    const auto add = [&](const float4& x, float t) {
      result = {result.x + x.x, result.y + x.y, result.z + x.z, result.w + x.w};
      weights += t;
    };
    if constexpr (kShare == 1) {
#pragma unroll
      for (int c = 1; c < kClasses; ++c) add(out[c], total[c]);
    } else {
      ptx::named_wait<kThreads>(1);  // the parts before have been read
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        parts[own].out[first_class + c * kShare][lane] = out[c];
        if (lane == 0) parts[own].total[first_class + c * kShare] = total[c];
      }
      ptx::named_wait<kThreads>(1);
      for (int c = 1; c < kClasses; ++c) add(parts[own].out[c][lane], parts[own].total[c]);
    }
    if (split && first_class == 0) {
      const float share = 1.0f / __fadd_rn(sum.total, weights);
      auto* to = static_cast<__nv_bfloat16*>(args.out) + (out_row * args.q_heads + head) * kVDim + lane * 4;
      *reinterpret_cast<uint2*>(to) = {ptx::pack_bf16(result.x * share, result.y * share),
                                       ptx::pack_bf16(result.z * share, result.w * share)};
    }
  }
}

template <int kQk, int kRows, bool kFp8>
__global__ void __launch_bounds__(Shape<kQk, kRows, kFp8>::kThreads, 1)
    attention_decode_kernel(const __grid_constant__ Params p) {
  using S = Shape<kQk, kRows, kFp8>;
  extern __shared__ __align__(1024) char shared[];
  const std::uint32_t base = ptx::shared_address(shared);
  if (threadIdx.x == 0) {
    const std::uint32_t barriers = base + S::kBarriersAt;
    for (int i = 0; i < S::kStages; ++i) {
      ptx::barrier_init(barriers + S::kFull + 8 * i, 128);
      ptx::barrier_init(barriers + S::kFree + 8 * i, 4 * S::kGroups);
    }
    ptx::barrier_init(barriers + S::kQFull, 128);
    ptx::barrier_init(barriers + S::kQFree, 4 * S::kGroups);
    for (int i = 0; i < S::kPageSlots; ++i) ptx::barrier_init(barriers + S::kPagesThere + 8 * i, 128);
  }
  if (p.overlap == Overlap::kLaunch) ptx::wait_for_kernel_before();
  Tables tables;
  tables.items = reinterpret_cast<int*>(shared + S::kTablesAt);
  tables.rows = tables.items + kSequences + 1;
  tables.position = tables.rows + kSequences + 1;
  tables.first_key = tables.position + kSequences;
  tables.row_begin = tables.first_key + kSequences;
  tables.scratch = tables.row_begin + kSequences;
  const int most = quotient(kRows, quotient(p.args.q_heads, p.args.kv.kv_heads));
  const bool split = fill_tables(p, most, tables);  // its barriers show the mbarriers to all
  ptx::let_next_kernel_begin();

  if (threadIdx.x < 128) {
    if constexpr (S::kLoadRegisters > 0) ptx::give_registers<S::kLoadRegisters>();
    load_items<kQk, kRows, kFp8>(p, tables, base, shared);
  } else {
    if constexpr (S::kComputeRegisters > 0) ptx::take_registers<S::kComputeRegisters>();
    compute_items<kQk, kRows, kFp8>(p, tables, base, shared);
    if (!split) return;
    constexpr int kThreads = 128 * S::kGroups;
    grid_barrier<kThreads>(p.barrier);
    Part* parts = reinterpret_cast<Part*>(shared);  // the stages are free now
    if (tables.rows[tables.sequences] * p.args.q_heads <= 2 * S::kGroups * static_cast<int>(gridDim.x)) {
      combine<kThreads, 4>(p, tables, most, parts);
    } else {
      combine<kThreads, 1>(p, tables, most, parts);
    }
  }
}

template <int kQk, int kRows, bool kFp8>
void launch(const Params& p, int grid, cudaStream_t stream) {
  using S = Shape<kQk, kRows, kFp8>;
  const auto kernel = attention_decode_kernel<kQk, kRows, kFp8>;
  MIMO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes));
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(S::kThreads);
  config.dynamicSmemBytes = S::kBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = p.overlap == Overlap::kNone ? 0 : 1;
  MIMO_CUDA(cudaLaunchKernelEx(&config, kernel, p));
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
