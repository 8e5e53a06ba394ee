// The prefill kernel: warps with two jobs. A producer brings tiles of keys and values to shared memory; each consumer
// warpgroup owns 64 rows and runs S = Q K^T, an online softmax in registers, and O += P V.
//
// A row of the products is one query head of one position: the heads of a KV head's group and neighbouring positions
// are packed together, so that all of them share the tiles.
//
// Shared memory, for Q, K and V alike: atoms of 8 rows x 128 bytes (64 dims), swizzled over 128 bytes; the atoms of 8
// rows lie side by side, then the next 8 rows. Eight keys are thus one run of 3 (K) or 2 (V) atoms of 1 KiB, and one
// copied box brings any multiple of 8 keys.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "ops/cuda/kernels/attention_prefill_plan.cuh"
#include "ops/cuda/kernels/attention_wgmma.cuh"
#include "ops/cuda/kernels/hopper.cuh"

namespace mimo::cuda::prefill {

inline constexpr int kQkDim = 192;
inline constexpr int kVDim = 128;
inline constexpr int kAtom = 1024;                  // bytes
inline constexpr int kQkRun = kQkDim / 64 * kAtom;  // bytes of 8 rows
inline constexpr int kVRun = kVDim / 64 * kAtom;
// With FP8 keys and values queries become f16 too, times this: exact from 1e-3 to 1e6.
inline constexpr float kQueryScale = 1.0f / 16;

struct Params {
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  const std::uint8_t* k = nullptr;  // of KvView
  const std::uint8_t* v = nullptr;
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
  PlanHeader* header = nullptr;
  const Block* list = nullptr;
  __nv_bfloat16* out = nullptr;
  const std::int32_t* pages = nullptr;
  const float* sinks = nullptr;
  MaskRule rule;
  int page_stride = 0;
  int page_size = 0;
  int kv_heads = 0;
  int group_shift = 0;  // log2 of the query heads of a KV head
  int out_stride = 0;
  int box_runs = 0;                // runs of 8 keys that one copied box brings
  float scale_log2 = 0;            // scale * log2(e)
  std::uint64_t page_inverse = 0;  // 2^32 / page_size, rounded up
};

// How tiles of keys and values reach shared memory.
enum class Load {
  kBoxes,   // boxes of the copy engine: bf16, pages of a multiple of 8 keys
  kGather,  // rows copied by threads: bf16, any page size
  kFp8,     // E4M3 rows, turned into f16 and scaled by threads: any page size
};

// What the choices of a variant cost and bring is measured in bench/cuda/attention_prefill.cu.
template <int kWarpgroupsT, int kTileT, int kStagesT, bool kOverlapT, bool kTurnsT,
          Load kLoadT = Load::kBoxes>
struct Config {
  static constexpr Load kLoad = kLoadT;
  static constexpr int kWarpgroups = kWarpgroupsT;  // consumers, 64 rows each
  static constexpr int kTile = kTileT;              // keys
  static constexpr int kStages = kStagesT;
  static constexpr bool kOverlap = kOverlapT;  // the next tile's QK^T and this one's PV run under the softmax
  static constexpr bool kTurns = kTurnsT;      // warpgroups take turns at issuing products
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr bool kConverts = kLoad == Load::kFp8;
  static constexpr bool kThreadsWrite = kLoad == Load::kGather || kLoad == Load::kFp8;
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
  static constexpr int kConsumerRegisters = kWarpgroups == 2 ? (kConverts       ? 208
                                                                : kThreadsWrite ? 224
                                                                                : 232)
                                                             : (kConverts  ? 144
                                                                : kOverlap ? 160
                                                                           : 152);
  static constexpr int kProducerRegisters = kWarpgroups == 2 ? (kConverts       ? 88
                                                                : kThreadsWrite ? 56
                                                                                : 40)
                                                             : (kConverts  ? 80
                                                                : kOverlap ? 32
                                                                           : 56);
  static_assert(kWarpgroups * kConsumerRegisters + kProducerRegisters <=
                65536 / kThreads / 8 * 8 * (kWarpgroups + 1));
  static constexpr int kQBytes = 64 * kQkDim * 2;  // of one warpgroup
  static constexpr int kKBytes = kTile * kQkDim * 2;
  static constexpr int kVBytes = kTile * kVDim * 2;
  static constexpr int kKAt = kWarpgroups * kQBytes;
  static constexpr int kVAt = kKAt + kStages * kKBytes;
  static constexpr int kRawAt = kVAt + kStages * kVBytes;  // E4M3 bytes of a tile, 16 a thread side by side
  static constexpr int kControlAt = kRawAt + (kConverts ? kTile * (kQkDim + kVDim) : 0);
  static constexpr int kSharedBytes = kControlAt + 512;
  static_assert(kTile % 16 == 0 && kSharedBytes <= 232448);
};

// A block and the KV head it is done for; head < 0: no more work.
struct Work {
  Block block;
  int head = 0;
  int next = 0;  // the item after it
  int pad[2] = {};
};

template <class C>
struct Control {
  Work work[2];
  std::uint64_t work_full[2];
  std::uint64_t work_empty[2];
  std::uint64_t q_full[C::kWarpgroups];
  std::uint64_t q_empty[C::kWarpgroups];
  std::uint64_t k_full[C::kStages];
  std::uint64_t k_empty[C::kStages];
  std::uint64_t v_full[C::kStages];
  std::uint64_t v_empty[C::kStages];
};

// A place in a ring of stages and the parity of the phase that fills it.
template <int kStages>
struct Place {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Keys of a block: tiles [0, tiles) from `origin` on, of which [first, last) are seen by some row.
struct KeySpan {
  int origin = 0;
  int first = 0;
  int last = 0;
  int tiles = 0;
};

template <class C>
__device__ __forceinline__ KeySpan key_span(const MaskRule& rule, const Block& block) {
  KeySpan span;
  span.origin = tile_origin(rule, block, C::kTile);
  span.first = max(rule.first(block, block.first), 0);
  span.last = rule.last(block, block.last - 1);
  span.tiles = (span.last - span.origin + C::kTile - 1) / C::kTile;
  return span;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ std::uint32_t pack_half(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// ---- producers ----

// Which block and KV head a work item is. Without a window, all blocks of one KV head come first, so that what runs at
// the same time reads the same keys and finds them in the L2 cache; with one, the heads of a block, whose queries are
// neighbours.
struct ItemPlace {
  int block = 0;
  int head = 0;
};
__device__ __forceinline__ ItemPlace item_place(const Params& params, int item) {
  const int count = params.rule.window > 0 ? params.kv_heads : max(params.header->blocks, 1);
  const int slow = item / count, fast = item - slow * count;
  return params.rule.window > 0 ? ItemPlace{slow, fast} : ItemPlace{fast, slow};
}

// Hands out work, to the consumers as well: calls run(block, head, n) for the n-th item, by the kThreads
// first threads of the producer.
template <class C, int kThreads, class Run>
__device__ __forceinline__ void for_each_item(const Params& params, Control<C>& control, const Run& run) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int items = params.header->blocks * params.kv_heads;
  int item = static_cast<int>(blockIdx.x);
  for (int n = 0;; ++n) {
    Work& work = control.work[n & 1];
    Block block;
    const ItemPlace place = item_place(params, item);
    const int head = item < items ? place.head : -1;
    if (head >= 0) block = params.list[place.block];
    // One thread alone waits: for the others the barrier could go on by a whole phase before they look, since nothing that
    // completes it depends on them, and an even number of phases looks like none.
    if (thread == 0) {
      hopper::barrier_wait(&control.work_empty[n & 1], ((n >> 1) & 1) ^ 1);
      work.block = block;
      work.head = head;
      if (head < 0 && atomicAdd(&params.header->finished, 1) == static_cast<int>(gridDim.x) - 1) {
        // The last one out: the plan can be run again.
        params.header->next = 0;
        params.header->finished = 0;
      }
      hopper::barrier_arrive(&control.work_full[n & 1]);
    }
    __syncwarp();
    if (head < 0) return;
    run(block, head, n);
    // With a window all items cost the same. Without, the next one is taken as late as can be, when the last tiles of
    // this one are on their way: thread blocks that are done sooner take more.
    int next = item + static_cast<int>(gridDim.x);
    if (params.rule.window == 0) {
      if (thread == 0) next = static_cast<int>(gridDim.x) + atomicAdd(&params.header->next, 1);
      if constexpr (kThreads == 32) {
        next = __shfl_sync(~0u, next, 0);
      } else {
        if (thread == 0) work.next = next;
        hopper::named_sync(7, kThreads);
        next = work.next;
      }
    }
    item = next;
  }
}

// Brings the queries of an item, once the rows of the one before are done with. One thread waits and copies (see
// for_each_item).
template <class C>
__device__ __forceinline__ void bring_queries(const Params& params, std::uint8_t* shared, Control<C>& control,
                                              const Block& block, int head, int n) {
  if (threadIdx.x % (C::kLoad == Load::kBoxes ? 32 : 128) == 0) {
    const int positions = 64 >> params.group_shift;
#pragma unroll 1
    for (int w = 0; w < C::kWarpgroups; ++w) {
      hopper::barrier_wait(&control.q_empty[w], (n & 1) ^ 1);
      hopper::barrier_expect(&control.q_full[w], C::kQBytes);
      hopper::copy_box(shared + w * C::kQBytes, &params.q_map, &control.q_full[w], 0, 0, 0,
                       (head << params.group_shift) >> 3, block.origin_row + w * positions);
    }
  }
  __syncwarp();
}

// By one thread: the queries of an item, to the L2 cache.
template <class C>
__device__ __forceinline__ void prefetch_queries(const Params& params, int row, int head) {
#pragma unroll 1
  for (int w = 0; w < C::kWarpgroups; ++w) {
    hopper::prefetch_box(&params.q_map, 0, 0, 0, (head << params.group_shift) >> 3,
                         row + w * (64 >> params.group_shift));
  }
}
// Those of the item after the n-th one of this thread block, where that is known beforehand.
template <class C>
__device__ __forceinline__ void prefetch_next_queries(const Params& params, int n) {
  const int item = static_cast<int>(blockIdx.x) + (n + 1) * static_cast<int>(gridDim.x);
  if (item >= params.header->blocks * params.kv_heads) return;
  const ItemPlace place = item_place(params, item);
  prefetch_queries<C>(params, params.list[place.block].origin_row, place.head);
}

// One warp that brings the queries of all items, beside the one that copies boxes of keys and values: it waits for the
// warpgroups one by one, and neither should wait for the other's sake.
template <class C>
__device__ __forceinline__ void produce_queries(const Params& params, std::uint8_t* shared,
                                                Control<C>& control) {
  for (int n = 0;; ++n) {
    hopper::barrier_wait(&control.work_full[n & 1], (n >> 1) & 1);
    const Block block = control.work[n & 1].block;
    const int head = control.work[n & 1].head;
    __syncwarp();
    if (threadIdx.x % 32 == 0) hopper::barrier_arrive(&control.work_empty[n & 1]);
    if (head < 0) return;
    if (threadIdx.x % 32 == 0) {
      if (params.rule.window > 0) {
        prefetch_next_queries<C>(params, n);
      } else if (n > 0) {
        prefetch_queries<C>(params, block.origin_row, head);
      }
    }
    __syncwarp();
    bring_queries<C>(params, shared, control, block, head, n);
    __syncwarp();
  }
}

// One warp; lane b copies box b of every tile.
template <class C>
__device__ __forceinline__ void produce_boxes(const Params& params, std::uint8_t* shared,
                                              Control<C>& control) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int boxes = C::kTile / 8 / params.box_runs;
  const int box_keys = 8 * params.box_runs;
  Place<C::kStages> at;
  for_each_item<C, 32>(params, control, [&](const Block& block, int head, int n) {
    const KeySpan span = key_span<C>(params.rule, block);
    const std::int32_t* pages = params.pages + static_cast<std::int64_t>(block.sequence) * params.page_stride;
    // Where this lane's box of a tile comes from; page -1 (nothing to see there) is copied as zeros.
    int slot = 0, page = -1;
    const auto locate = [&](int tile) {
      const int key = span.origin + tile * C::kTile + lane * box_keys;
      page = -1;
      slot = 0;
      if (lane < boxes && key < span.last && key + box_keys > span.first) {
        const int entry = key / params.page_size;
        page = pages[entry];
        slot = (key - entry * params.page_size) >> 3;
      }
    };
    locate(0);
    for (int tile = 0; tile < span.tiles; ++tile) {
      const int from = page < 0 ? -1 : page * params.kv_heads + head;
      const int run = slot;
      std::uint8_t* k = shared + C::kKAt + at.stage * C::kKBytes + lane * params.box_runs * kQkRun;
      std::uint8_t* v = shared + C::kVAt + at.stage * C::kVBytes + lane * params.box_runs * kVRun;
      hopper::barrier_wait(&control.k_empty[at.stage], at.parity ^ 1);
      if (lane == 0) hopper::barrier_expect(&control.k_full[at.stage], C::kKBytes);
      __syncwarp();
      if (lane < boxes) hopper::copy_box(k, &params.k_map, &control.k_full[at.stage], 0, 0, 0, run, from);

      if (tile + 1 < span.tiles) locate(tile + 1);
      hopper::barrier_wait(&control.v_empty[at.stage], at.parity ^ 1);
      if (lane == 0) hopper::barrier_expect(&control.v_full[at.stage], C::kVBytes);
      __syncwarp();
      if (lane < boxes) hopper::copy_box(v, &params.v_map, &control.v_full[at.stage], 0, 0, 0, run, from);
      at.next();
    }
  });
}

// Where a thread's keys of a tile are in the caches. Page entries are fetched a tile ahead of their use: a look-up takes
// as long as a good part of a tile's products.
template <int kKeys>
class KeyPlaces {
 public:
  // The thread's keys of a tile stand `step` apart.
  __device__ __forceinline__ KeyPlaces(const Params& params, const Block& block, const KeySpan& span,
                                       int head, int first, int step)
      : params_(params),
        span_(span),
        pages_(params.pages + static_cast<std::int64_t>(block.sequence) * params.page_stride),
        head_(head),
        first_(span.origin + first),
        step_(step) {}

  __device__ __forceinline__ void fetch(int tile_offset) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int key = first_ + tile_offset + i * step_;
      // A key that is not seen looks up the last one that is: no branch, so that all loads are under way together.
      page_[i] = __ldg(pages_ + entry(seen(key) ? key : span_.last - 1));
    }
  }
  // Rows of the caches, after fetch of the same tile; -1: not seen.
  __device__ __forceinline__ void locate(int tile_offset, int (&place)[kKeys]) const {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int key = first_ + tile_offset + i * step_;
      const int row =
          (page_[i] * params_.kv_heads + head_) * params_.page_size + key - entry(key) * params_.page_size;
      place[i] = seen(key) ? row : -1;
    }
  }

 private:
  __device__ __forceinline__ bool seen(int key) const { return key >= span_.first && key < span_.last; }
  __device__ __forceinline__ int entry(int key) const {
    return static_cast<int>(static_cast<std::uint32_t>(key) * params_.page_inverse >> 32);
  }

  const Params& params_;
  const KeySpan& span_;
  const std::int32_t* pages_;
  int head_, first_, step_;
  int page_[kKeys];
};

// Four warps; eight lanes copy the 64 dims of a slab of one key, a pass covers 16 keys. Keys that no row of the block
// sees become zeros.
template <class C>
__device__ __forceinline__ void produce_gathered(const Params& params, std::uint8_t* shared,
                                                 Control<C>& control) {
  constexpr int kPasses = C::kTile / 16;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int key_of_pass = thread / 8, chunk = thread % 8;
  const std::uint32_t swizzled = key_of_pass % 8 * 128 + ((chunk ^ (key_of_pass % 8)) * 16);
  const std::uint32_t k_to = hopper::shared_address(shared) + C::kKAt + key_of_pass / 8 * kQkRun + swizzled;
  const std::uint32_t v_to = hopper::shared_address(shared) + C::kVAt + key_of_pass / 8 * kVRun + swizzled;
  Place<C::kStages> at;
  for_each_item<C, 128>(params, control, [&](const Block& block, int head, int n) {
    const KeySpan span = key_span<C>(params.rule, block);
    if (thread == 0) {
      if (params.rule.window > 0) {
        prefetch_next_queries<C>(params, n);
      } else {
        prefetch_queries<C>(params, block.origin_row, head);
      }
    }
    KeyPlaces<kPasses> places(params, block, span, head, key_of_pass, 16);
    int place[kPasses];
    places.fetch(0);
    places.locate(0, place);
    places.fetch(C::kTile);
    for (int tile = 0; tile < span.tiles; ++tile) {
      hopper::barrier_wait(&control.k_empty[at.stage], at.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        const std::uint8_t* from =
            params.k + static_cast<std::int64_t>(max(place[i], 0)) * (kQkDim * 2) + chunk * 16;
        const std::uint32_t to = k_to + at.stage * C::kKBytes + i * 2 * kQkRun;
#pragma unroll
        for (int slab = 0; slab < kQkDim / 64; ++slab) {
          hopper::copy_16(to + slab * kAtom, from + slab * 128, place[i] >= 0);
        }
      }
      hopper::barrier_arrive_after_copies(&control.k_full[at.stage]);
      hopper::barrier_wait(&control.v_empty[at.stage], at.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        const std::uint8_t* from =
            params.v + static_cast<std::int64_t>(max(place[i], 0)) * (kVDim * 2) + chunk * 16;
        const std::uint32_t to = v_to + at.stage * C::kVBytes + i * 2 * kVRun;
#pragma unroll
        for (int slab = 0; slab < kVDim / 64; ++slab) {
          hopper::copy_16(to + slab * kAtom, from + slab * 128, place[i] >= 0);
        }
      }
      hopper::barrier_arrive_after_copies(&control.v_full[at.stage]);
      // As late as possible: it waits for the item before. No later tile finds a free stage without it.
      if (tile == min(C::kStages, span.tiles) - 1) bring_queries<C>(params, shared, control, block, head, n);
      places.locate((tile + 1) * C::kTile, place);
      places.fetch((tile + 2) * C::kTile);
      at.next();
    }
  });
}

// A key's scale as two f16 factors, the second of which is 1 unless the first would lose digits.
struct HalfScale {
  __half2 factor;
  __half2 rest;
};
__device__ __forceinline__ HalfScale half_scale(float scale) {
  const bool small = scale < 0x1p-14f;
  return {__float2half2_rn(small ? scale * 0x1p14f : scale), __float2half2_rn(small ? 0x1p-14f : 1.0f)};
}

// Sixteen E4M3 numbers times a scale, as f16. `plain`: the second factor is 1 for all of the warp.
__device__ __forceinline__ void convert_16(const uint4& raw, const HalfScale& scale, bool plain, uint4& low,
                                           uint4& high) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  __half2 out[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (16 * (i % 2)));
    out[i] = __hmul2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)), scale.factor);
  }
  if (!plain) {
#pragma unroll
    for (__half2& pair : out) pair = __hmul2(pair, scale.rest);
  }
  const auto word = [&](int i) { return *reinterpret_cast<const std::uint32_t*>(&out[i]); };
  low = make_uint4(word(0), word(1), word(2), word(3));
  high = make_uint4(word(4), word(5), word(6), word(7));
}

// A select after the load would wait for it.
__device__ __forceinline__ float load_or_zero(const float* from, bool real) {
  float value;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.f32 %0, 0f00000000;\n@p ld.global.nc.f32 %0, [%1];\n}\n"
      : "=&f"(value)
      : "l"(from), "r"(static_cast<int>(real)));
  return value;
}

// This thread's part of a tile's keys (three slabs of 64 dims) or values (two), to its own bytes of shared memory. Places
// are in rows of the caches; -1 becomes zeros.
template <int kSlabs, int kPasses>
__device__ __forceinline__ void copy_raw(const std::uint8_t* data, const float* scales,
                                         const int (&place)[kPasses], std::uint32_t raw,
                                         float (&scale)[kPasses]) {
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int row = max(place[i], 0);
    const std::uint8_t* from = data + static_cast<std::int64_t>(row) * (kSlabs * 64);
    scale[i] = load_or_zero(scales + row, place[i] >= 0);
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      hopper::copy_16(raw + (i * kSlabs + slab) * 2048, from + slab * 64, place[i] >= 0);
    }
  }
}
// And from there to a stage. What a pass reads is under way while the one before is converted (the compiler moves no read
// over a write).
template <int kSlabs, int kPasses>
__device__ __forceinline__ void convert_raw(const std::uint8_t* raw, const float (&scale)[kPasses],
                                            std::uint8_t* stage, int low_at, int high_at) {
  uint4 bytes[2][kSlabs];
  const auto read = [&](int i) {
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      bytes[i % 2][slab] = *reinterpret_cast<const uint4*>(raw + (i * kSlabs + slab) * 2048);
    }
  };
  read(0);
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    if (i + 1 < kPasses) read(i + 1);
    const HalfScale factors = half_scale(scale[i]);
    const bool plain = __all_sync(~0u, scale[i] >= 0x1p-14f);
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      std::uint8_t* to = stage + (i * 4 * kSlabs + slab) * kAtom;
      uint4 low, high;
      convert_16(bytes[i % 2][slab], factors, plain, low, high);
      *reinterpret_cast<uint4*>(to + low_at) = low;
      *reinterpret_cast<uint4*>(to + high_at) = high;
    }
  }
}

// Four warps; four lanes bring a key, a pass covers 32 keys. A thread converts what it has copied itself, so that no
// thread waits for another; the next tile's bytes are on their way meanwhile. Keys that no row of the block sees become
// zeros. The fence that tensor cores need between these stores and their reads is the consumers': here it would wait for
// copies that are on their way.
template <class C>
__device__ __forceinline__ void produce_converted(const Params& params, std::uint8_t* shared,
                                                  Control<C>& control) {
  static_assert(C::kTile % 32 == 0);
  constexpr int kPasses = C::kTile / 32;
  constexpr int kKSlabs = kQkDim / 64, kVSlabs = kVDim / 64;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int key_of_pass = thread / 4, part = thread % 4, row = key_of_pass % 8;
  std::uint8_t* k_to = shared + C::kKAt + key_of_pass / 8 * kQkRun + row * 128;
  std::uint8_t* v_to = shared + C::kVAt + key_of_pass / 8 * kVRun + row * 128;
  const int low_at = (2 * part ^ row) * 16, high_at = ((2 * part + 1) ^ row) * 16;
  constexpr int kVRaw = kPasses * kKSlabs * 2048;
  const std::uint8_t* own = shared + C::kRawAt + thread * 16;
  const std::uint32_t raw = hopper::shared_address(own);
  Place<C::kStages> at;
  for_each_item<C, 128>(params, control, [&](const Block& block, int head, int n) {
    const KeySpan span = key_span<C>(params.rule, block);
    KeyPlaces<kPasses> places(params, block, span, head, key_of_pass, 32);
    int place[kPasses];
    float k_scale[kPasses], v_scale[kPasses];
    if (thread == 0) {
      if (params.rule.window > 0) {
        prefetch_next_queries<C>(params, n);
      } else {
        prefetch_queries<C>(params, block.origin_row, head);
      }
    }
    places.fetch(0);
    places.locate(0, place);
    places.fetch(C::kTile);
    copy_raw<kKSlabs>(params.k + part * 16, params.k_scale, place, raw, k_scale);
    hopper::copies_commit();
    copy_raw<kVSlabs>(params.v + part * 16, params.v_scale, place, raw + kVRaw, v_scale);
    hopper::copies_commit();
    for (int tile = 0; tile < span.tiles; ++tile) {
      hopper::barrier_wait(&control.k_empty[at.stage], at.parity ^ 1);
      hopper::copies_wait<1>();
      convert_raw<kKSlabs>(own, k_scale, k_to + at.stage * C::kKBytes, low_at, high_at);
      hopper::barrier_arrive(&control.k_full[at.stage]);
      const bool more = tile + 1 < span.tiles;
      if (more) {
        places.locate((tile + 1) * C::kTile, place);
        places.fetch((tile + 2) * C::kTile);
        copy_raw<kKSlabs>(params.k + part * 16, params.k_scale, place, raw, k_scale);
      }
      hopper::copies_commit();

      hopper::barrier_wait(&control.v_empty[at.stage], at.parity ^ 1);
      hopper::copies_wait<1>();
      convert_raw<kVSlabs>(own + kVRaw, v_scale, v_to + at.stage * C::kVBytes, low_at, high_at);
      hopper::barrier_arrive(&control.v_full[at.stage]);
      if (more) copy_raw<kVSlabs>(params.v + part * 16, params.v_scale, place, raw + kVRaw, v_scale);
      hopper::copies_commit();
      if (tile == min(C::kStages, span.tiles) - 1) bring_queries<C>(params, shared, control, block, head, n);
      at.next();
    }
  });
}

// ---- consumer ----

// What one thread of a consumer keeps of its two rows, r and r + 8.
struct RowState {
  float maximum[2];  // of the scores so far, unscaled
  float sum[2];      // of this thread's columns
};

// Scores to -inf where a row does not see the key; s[4 j + 2 r + e] is row r's score of key `column` + 8 j + e. A row
// sees a run of keys, so that what a thread holds of it is a run too: bits, which become predicates seven at a time.
template <int kTile>
__device__ __forceinline__ void mask_scores(float (&s)[kTile / 2], int column, const int (&first)[2],
                                            const int (&last)[2]) {
  static_assert(kTile <= 128);
  // Of a thread's kTile / 4 columns of a row, how many stand before key `bound`.
  const auto before = [&](int bound) {
    const int keys = min(max(bound - column, 0), kTile);
    return keys / 8 * 2 + min(keys % 8, 2);
  };
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int low = before(first[row]), high = before(last[row]);
    const std::uint32_t below_high = high >= 32 ? ~0u : (1u << high) - 1;
    const std::uint32_t below_low = low >= 32 ? ~0u : (1u << low) - 1;
    const std::uint32_t seen = below_high & ~below_low;
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) {
      float& score = s[i / 2 * 4 + row * 2 + i % 2];
      score = seen & (1u << i) ? score : -INFINITY;
    }
  }
}

// Turns scores into weights in place and returns by what earlier weights and sums shrink.
template <int kTile>
__device__ __forceinline__ void softmax_step(float (&s)[kTile / 2], RowState& state, float (&shrink)[2],
                                             float scale_log2) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    // Two chains each for maxima and sums: one would wait for its own latency.
    float tops[2] = {s[2 * row], s[2 * row + 1]};
#pragma unroll
    for (int i = 1; i < kTile / 8; ++i) {
      tops[0] = fmaxf(tops[0], s[4 * i + 2 * row]);
      tops[1] = fmaxf(tops[1], s[4 * i + 2 * row + 1]);
    }
    float top = fmaxf(tops[0], tops[1]);
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    top = fmaxf(top, state.maximum[row]);
    const float base = top == -INFINITY ? 0.0f : top * scale_log2;
    shrink[row] = exp2_fast(fmaf(state.maximum[row], scale_log2, -base));
    state.maximum[row] = top;
    float sums[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = s[4 * i + 2 * row + e];
        score = exp2_fast(fmaf(score, scale_log2, -base));
        sums[e] += score;
      }
    }
    state.sum[row] = fmaf(state.sum[row], shrink[row], sums[0] + sums[1]);
  }
}

__device__ __forceinline__ void multiply_output(float (&o)[kVDim / 2], const float (&shrink)[2]) {
#pragma unroll
  for (int i = 0; i < kVDim / 2; ++i) o[i] *= shrink[(i >> 1) & 1];
}

// Multiplies the output by what its rows shrink by: nothing to do for most tiles, since maxima settle early.
__device__ __forceinline__ void shrink_output(float (&o)[kVDim / 2], const float (&shrink)[2]) {
  if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) multiply_output(o, shrink);
}

template <int kTile, bool kHalf>
__device__ __forceinline__ void pack_weights(const float (&s)[kTile / 2], std::uint32_t (&p)[kTile / 16][4]) {
#pragma unroll
  for (int k = 0; k < kTile / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = s[8 * k + 2 * i], high = s[8 * k + 2 * i + 1];
      p[k][i] = kHalf ? pack_half(low, high) : pack_bf16(low, high);
    }
  }
}

template <int kTile, bool kHalf>
__device__ __forceinline__ void issue_qk(float (&s)[kTile / 2], std::uint64_t q, std::uint64_t k) {
#pragma unroll
  for (int i = 0; i < kQkDim / 16; ++i) {
    const int offset = i / 4 * kAtom + i % 4 * 32;
    if constexpr (kHalf) {
      hopper::wgmma_ss_half(s, hopper::advanced(q, offset), hopper::advanced(k, offset), i > 0);
    } else {
      hopper::wgmma_ss(s, hopper::advanced(q, offset), hopper::advanced(k, offset), i > 0);
    }
  }
  hopper::wgmma_commit();
}

// Turns a warpgroup's queries into f16 where they are.
__device__ __forceinline__ void halve_queries(std::uint8_t* queries) {
  const auto clamped = [](float x) {
    asm("{\n.reg .f32 y;\nmax.NaN.f32 y, %0, 0fC77FE000;\nmin.NaN.f32 %0, y, 0f477FE000;\n}\n" : "+f"(x));
    return x;
  };
  auto* at = reinterpret_cast<uint4*>(queries) + threadIdx.x % 128;
#pragma unroll 4
  for (int i = 0; i < 64 * kQkDim * 2 / 2048; ++i) {
    const uint4 raw = at[i * 128];
    std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (std::uint32_t& word : words) {
      word = pack_half(clamped(__uint_as_float(word << 16) * kQueryScale),
                       clamped(__uint_as_float(word & 0xffff0000u) * kQueryScale));
    }
    at[i * 128] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

template <int kTile, bool kHalf>
__device__ __forceinline__ void issue_pv(float (&o)[kVDim / 2], const std::uint32_t (&p)[kTile / 16][4],
                                         std::uint64_t v) {
#pragma unroll
  for (int i = 0; i < kTile / 16; ++i) {
    if constexpr (kHalf) {
      hopper::wgmma_rs_mn_half(o, p[i], hopper::advanced(v, i * 2 * kVRun), true);
    } else {
      hopper::wgmma_rs_mn(o, p[i], hopper::advanced(v, i * 2 * kVRun), true);
    }
  }
  hopper::wgmma_commit();
}

// Zeroes the values of keys that no row of the block sees: their slots may hold anything, and 0 * NaN is NaN. Every
// warpgroup writes the same zeros before its own product, so that none waits for another.
template <int kTile>
__device__ __forceinline__ void zero_unseen(std::uint8_t* v, int tile_begin, const KeySpan& span,
                                            int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int below = min(max(span.first - tile_begin, 0), kTile);
  const int above = min(max(span.last - tile_begin, 0), kTile);
  const int chunks = (below + kTile - above) * 16;
#pragma unroll 1
  for (int i = thread; i < chunks; i += 128) {
    const int key = i / 16 < below ? i / 16 : above + i / 16 - below;
    *reinterpret_cast<int4*>(v + key / 8 * kVRun + (i / 8 % 2) * kAtom + key % 8 * 128 + i % 8 * 16) =
        make_int4(0, 0, 0, 0);
  }
  hopper::proxy_fence();
  hopper::named_sync(8 + warpgroup, 128);
}

// Writes a warp's 16 rows of output. Lanes of a quad trade pairs of columns so that each stores 16 bytes at once.
__device__ __forceinline__ void store_output(const float (&o)[kVDim / 2], const float (&inverse)[2],
                                             __nv_bfloat16* const (&to)[2]) {
  const int quad = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int block = 0; block < 4; ++block) {  // of 32 columns
      std::uint32_t word[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = (block * 4 + c) * 4 + row * 2;
        word[c] = pack_bf16(o[i] * inverse[row], o[i + 1] * inverse[row]);
      }
      // A 4 x 4 transpose over the quad: afterwards this lane holds all of chunk `quad` (8 columns).
      const bool odd = quad & 1, high = quad & 2;
#pragma unroll
      for (int c = 0; c < 4; c += 2) {
        const std::uint32_t got = __shfl_xor_sync(~0u, odd ? word[c] : word[c + 1], 1);
        (odd ? word[c] : word[c + 1]) = got;
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const std::uint32_t got = __shfl_xor_sync(~0u, high ? word[c] : word[c + 2], 2);
        (high ? word[c] : word[c + 2]) = got;
      }
      if (to[row] != nullptr) {
        *reinterpret_cast<uint4*>(to[row] + block * 32 + quad * 8) =
            make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }
}

template <class C>
__device__ __forceinline__ void consume(const Params& params, std::uint8_t* shared, Control<C>& control,
                                        int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int row = warpgroup * 64 + thread / 32 * 16 + lane / 4;  // of the block; the other is row + 8
  const int group = 1 << params.group_shift;
  const std::uint32_t base = hopper::shared_address(shared);
  const std::uint64_t q = hopper::swizzled_descriptor(base + warpgroup * C::kQBytes, 0, kQkRun);
  const std::uint64_t k0 = hopper::swizzled_descriptor(base + C::kKAt, 0, kQkRun);
  const std::uint64_t v0 = hopper::swizzled_descriptor(base + C::kVAt, kAtom, kVRun);
  const auto arrive = [&](std::uint64_t* barrier) {
    if (lane == 0) hopper::barrier_arrive(barrier);
  };
  // Turns go round in a ring; the first one is warpgroup 0's.
  const auto take_turn = [&] {
    if constexpr (C::kTurns) hopper::named_sync(1 + warpgroup, 256);
  };
  const auto pass_turn = [&] {
    if constexpr (C::kTurns) hopper::named_arrive(1 + (warpgroup + 1) % C::kWarpgroups, 256);
  };
  if (C::kTurns && warpgroup == C::kWarpgroups - 1) pass_turn();

  Place<C::kStages> at_k, at_v;
  const float scale_log2 = params.scale_log2 * (C::kConverts ? 1.0f / kQueryScale : 1.0f);
  for (int n = 0;; ++n) {
    hopper::barrier_wait(&control.work_full[n & 1], (n >> 1) & 1);
    const Block block = control.work[n & 1].block;
    const int head = control.work[n & 1].head;
    __syncwarp();
    arrive(&control.work_empty[n & 1]);
    if (head < 0) break;

    const KeySpan span = key_span<C>(params.rule, block);
    int first[2], last[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int position = block.origin + ((row + 8 * i) >> params.group_shift);
      first[i] = params.rule.first(block, position);
      last[i] = params.rule.last(block, position);
    }
    // Tiles inside of [all_first, all_last) are seen whole by every row.
    const int all_first = params.rule.first(block, block.last - 1);
    const int all_last = params.rule.last(block, block.first);
    const int column = 2 * (lane % 4);

    float o[kVDim / 2];
#pragma unroll
    for (int i = 0; i < kVDim / 2; ++i) o[i] = 0;
    float s[C::kTile / 2];
    std::uint32_t p[C::kTile / 16][4];
    RowState state = {{-INFINITY, -INFINITY}, {0, 0}};
    float shrink[2];

    const auto scores = [&](int tile) {
      const int begin = span.origin + tile * C::kTile;
      if (begin < all_first || begin + C::kTile > all_last) {
        mask_scores<C::kTile>(s, begin + column, first, last);
      }
      softmax_step<C::kTile>(s, state, shrink, scale_log2);
    };
    const auto wait_keys = [&] {
      hopper::barrier_wait(&control.k_full[at_k.stage], at_k.parity);
      // What threads wrote, tensor cores read.
      if constexpr (C::kThreadsWrite) hopper::proxy_fence();
    };
    const auto wait_values = [&] {
      hopper::barrier_wait(&control.v_full[at_v.stage], at_v.parity);
      if constexpr (C::kThreadsWrite) hopper::proxy_fence();
    };
    // To be called before the product that reads the values.
    const auto clean_values = [&](int tile) {
      if constexpr (C::kLoad == Load::kBoxes) {
        const int begin = span.origin + tile * C::kTile;
        if (begin < span.first || begin + C::kTile > span.last) {
          hopper::barrier_wait(&control.v_full[at_v.stage], at_v.parity);
          zero_unseen<C::kTile>(shared + C::kVAt + at_v.stage * C::kVBytes, begin, span, warpgroup);
        }
      }
    };
    const auto k_now = [&] { return hopper::advanced(k0, at_k.stage * C::kKBytes); };
    const auto v_now = [&] { return hopper::advanced(v0, at_v.stage * C::kVBytes); };

    hopper::barrier_wait(&control.q_full[warpgroup], n & 1);
    if constexpr (C::kConverts) {
      halve_queries(shared + warpgroup * C::kQBytes);
      hopper::proxy_fence();
      hopper::named_sync(8 + warpgroup, 128);
    }
    if constexpr (C::kOverlap) {
      wait_keys();
      take_turn();
      hopper::wgmma_fence();
      issue_qk<C::kTile, C::kConverts>(s, q, k_now());
      pass_turn();
      hopper::wgmma_wait<0>();
      arrive(&control.k_empty[at_k.stage]);
      at_k.next();
      scores(0);
      pack_weights<C::kTile, C::kConverts>(s, p);
      for (int tile = 1; tile < span.tiles; ++tile) {
        wait_keys();
        clean_values(tile - 1);
        take_turn();
        hopper::wgmma_fence();
        issue_qk<C::kTile, C::kConverts>(s, q, k_now());
        wait_values();
        hopper::wgmma_fence();
        issue_pv<C::kTile, C::kConverts>(o, p, v_now());
        pass_turn();
        hopper::wgmma_wait<1>();
        arrive(&control.k_empty[at_k.stage]);
        at_k.next();
        scores(tile);
        // The vote needs the sums and so comes after all of the softmax; a wait outside of its branches would be moved
        // up by the compiler, over the arithmetic that is meant to run under the product.
        const bool shrinks =
            __any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f || !(state.sum[0] + state.sum[1] >= 0));
        if (shrinks) {
          hopper::wgmma_wait<0>();
          multiply_output(o, shrink);
        } else {
          hopper::wgmma_wait<0>();
        }
        arrive(&control.v_empty[at_v.stage]);
        at_v.next();
        pack_weights<C::kTile, C::kConverts>(s, p);
      }
      arrive(&control.q_empty[warpgroup]);
      clean_values(span.tiles - 1);
      wait_values();
      hopper::wgmma_fence();
      issue_pv<C::kTile, C::kConverts>(o, p, v_now());
      hopper::wgmma_wait<0>();
      arrive(&control.v_empty[at_v.stage]);
      at_v.next();
    } else {
      for (int tile = 0; tile < span.tiles; ++tile) {
        wait_keys();
        take_turn();
        hopper::wgmma_fence();
        issue_qk<C::kTile, C::kConverts>(s, q, k_now());
        pass_turn();
        hopper::wgmma_wait<0>();
        arrive(&control.k_empty[at_k.stage]);
        at_k.next();
        if (tile == span.tiles - 1) arrive(&control.q_empty[warpgroup]);
        scores(tile);
        shrink_output(o, shrink);
        pack_weights<C::kTile, C::kConverts>(s, p);
        clean_values(tile);
        wait_values();
        hopper::wgmma_fence();
        issue_pv<C::kTile, C::kConverts>(o, p, v_now());
        hopper::wgmma_wait<0>();
        arrive(&control.v_empty[at_v.stage]);
        at_v.next();
      }
    }

    float inverse[2];
    __nv_bfloat16* to[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = state.sum[i];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int q_head = (head << params.group_shift) + ((row + 8 * i) & (group - 1));
      const int index = (row + 8 * i) >> params.group_shift, position = block.origin + index;
      const bool real = position >= block.first && position < block.last;
      if (params.sinks != nullptr) {
        constexpr float kLog2E = 1.4426950408889634f;
        sum += exp2_fast(fmaf(params.sinks[q_head], kLog2E, -state.maximum[i] * scale_log2));
      }
      inverse[i] = 1.0f / sum;
      to[i] = real ? params.out + static_cast<std::int64_t>(block.origin_row + index) * params.out_stride +
                         q_head * kVDim
                   : nullptr;
    }
    store_output(o, inverse, to);
  }
  // The turn that is left over belongs to the warpgroup before warpgroup 0.
  if (C::kTurns && warpgroup == 0) hopper::named_sync(1, 256);
}

template <class C>
__global__ __launch_bounds__(C::kThreads, 1) void prefill_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  static_assert(sizeof(Control<C>) <= C::kSharedBytes - C::kControlAt);
  Control<C>& control = *reinterpret_cast<Control<C>*>(shared + C::kControlAt);
  if (threadIdx.x == 0) {
    constexpr int kWarps = 4 * C::kWarpgroups;  // of consumers; one arrival each
    // Warps that read what work there is: the consumers', and those producers that do not hand it out.
    constexpr int kReaders = kWarps + (C::kLoad == Load::kBoxes ? 1 : 0);
    constexpr int kFills = C::kLoad == Load::kBoxes ? 1 : 128;
    for (int i = 0; i < 2; ++i) {
      hopper::barrier_init(&control.work_full[i], 1);
      hopper::barrier_init(&control.work_empty[i], kReaders);
    }
    for (int i = 0; i < C::kWarpgroups; ++i) {
      hopper::barrier_init(&control.q_full[i], 1);
      hopper::barrier_init(&control.q_empty[i], 4);
    }
    for (int i = 0; i < C::kStages; ++i) {
      hopper::barrier_init(&control.k_full[i], kFills);
      hopper::barrier_init(&control.k_empty[i], kWarps);
      hopper::barrier_init(&control.v_full[i], kFills);
      hopper::barrier_init(&control.v_empty[i], kWarps);
    }
    hopper::barrier_init_fence();
    hopper::prefetch_map(&params.q_map);
    if constexpr (!C::kThreadsWrite) {
      hopper::prefetch_map(&params.k_map);
      hopper::prefetch_map(&params.v_map);
    }
  }
  __syncthreads();
  const int warpgroup_warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0),
            warpgroup = warpgroup_warp / 4;
  if (warpgroup == C::kWarpgroups) {
    hopper::registers_lower<C::kProducerRegisters>();
    if constexpr (C::kLoad == Load::kBoxes) {
      const int warp = warpgroup_warp - 4 * C::kWarpgroups;
      if (warp == 0) produce_boxes<C>(params, shared, control);
      if (warp == 1) produce_queries<C>(params, shared, control);
    } else if constexpr (C::kLoad == Load::kGather) {
      produce_gathered<C>(params, shared, control);
    } else {
      produce_converted<C>(params, shared, control);
    }
  } else {
    hopper::registers_raise<C::kConsumerRegisters>();
    consume<C>(params, shared, control, warpgroup);
  }
}

}  // namespace mimo::cuda::prefill
