// A block takes (expert group, some weight rows) items in turn. Two to four warpgroups multiply: weights are wgmma's 64-row
// operand, decoded into registers, and the group's tokens its other one, 128 columns of K at a time. One more warpgroup
// fills a ring of stages: tokens by cp.async row by row, weights by bulk copies, and with an item's last stage what its
// tokens' results are to be multiplied by and where they go. Kernels around it quantise rows and add up a row's experts.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "ops/cuda/kernels/experts_prefill.h"
#include "ops/cuda/kernels/moe_bases.h"
#include "ops/cuda/kernels/moe_decode.cuh"
#include "ops/cuda/kernels/moe_decode_fp8.cuh"
#include "ops/cuda/kernels/moe_ptx.cuh"
#include "ops/cuda/kernels/moe_wgmma_fp8.cuh"

namespace mimo::cuda {
namespace {

constexpr int kProducers = 128;
constexpr int kProducersBarrier = 8;
constexpr int kSharedLimit = 227 * 1024;
constexpr int kMaxStages = 8;
constexpr int kOutTokens = 32;  // that leave a warpgroup at a time

// How a kernel is cut: warpgroups that multiply, their row tiles of 64, the most tokens of a group, two smaller numbers of
// tokens that have their own code, and column tiles of a stage (two where there is room: bulk copies of twice the size are
// about as many a second). Bits do not depend on it.
template <bool Fp8, int Groups, int Subs, int Tokens, int Few, int Some, int Depth = 1>
struct Cut {
  using Shallow = Cut<Fp8, Groups, Subs, Tokens, Few, Some>;
  static constexpr bool kFp8 = Fp8;
  static constexpr int kDepth = Depth;  // column tiles of a stage
  static constexpr int kGroups = Groups, kSubs = Subs, kTokens = Tokens, kFew = Few, kSome = Some;
  static constexpr int kConsumerWarps = Groups * 4;
  static constexpr int kItem = kSubs * kConsumerWarps;  // row tiles of an item
  static constexpr int kThreads = kConsumerWarps * 32 + kProducers;
  // A stage: tokens, in rows of 128 bytes (bf16: of the first 64 columns, then of the others), weights, token scales and
  // token rows.
  static constexpr int kHalfBytes = Tokens * 128;
  static constexpr int kDepthBytes = Fp8 ? kHalfBytes : 2 * kHalfBytes;  // tokens of a column tile
  static constexpr int kTokenBytes = Depth * kDepthBytes;
  static constexpr int kTileBytes = Depth * kMoeTileBytes;
  static constexpr int kScalesAt = kTokenBytes + kItem * kTileBytes, kRowsAt = kScalesAt + Tokens * 4;
  static constexpr int kStageBytes = (kRowsAt + Tokens * 4 + 1023) / 1024 * 1024;
  // Results of a warpgroup on their way out.
  static constexpr int kOutPitch = 4 * Subs * 32 + 16;
  static constexpr int kOutBytes = Groups * kOutTokens * kOutPitch;
  static constexpr int kFit = (kSharedLimit - 2048 - kOutBytes) / kStageBytes;
  static constexpr int kStages = kFit < kMaxStages ? kFit : kMaxStages;
  static constexpr int kSharedBytes = 2048 + kStages * kStageBytes + kOutBytes;
  static constexpr int kRegisters = Groups == 2 ? 224 : Groups == 3 ? 152 : 104;
  static constexpr int kProducerRegisters = Groups == 4 ? 40 : 56;
  static_assert(kTokenBytes % 1024 == 0 && kStages >= 3 && kItem <= 32);
  // What the block was given at launch.
  static_assert(kConsumerWarps * 32 * kRegisters + kProducers * kProducerRegisters <=
                kThreads * (65536 / kThreads / 8 * 8));
};

struct Params {
  const std::uint8_t* tokens;  // rows of K
  const float* token_scales;   // of E4M3 rows
  const std::uint8_t* weights;
  const std::uint8_t* bases;
  const float* pair_weights;
  std::int64_t expert_bytes, expert_bases;
  MoePlan plan;
  int k_tiles;    // K / 128
  int row_tiles;  // of an expert
  int items;      // of a group
  int top_k;
  MoeShifts shift;
  int width;           // of a row of out
  __nv_bfloat16* out;  // gate and up: [slots][inter]; down: [pairs][hidden], weighted
};

struct Shared {
  uint2 magnitudes
      [32];  // of moe_decode_fp8.cuh by r; what is past kMoeFp8Span is not looked up for weights that count
  std::uint64_t full[kMaxStages], empty[kMaxStages];
};

struct RingAt {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

__device__ void copy16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from))
               : "memory");
}
// Arrives when all copies that this thread has started are done.
__device__ void arrive_after_copies(std::uint64_t* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ptx::shared_address(bar))
               : "memory");
}

// One warpgroup. A thread copies 16-byte piece t % 8 of rows t / 8 + 16 i.
template <bool Down, class C>
__device__ void produce(const Params& p, Shared& s, std::uint32_t ring, std::uint8_t* ring_bytes) {
  constexpr int kPer = (C::kTokens + kProducers - 1) / kProducers;
  const int t = static_cast<int>(threadIdx.x) % kProducers, piece = t % 8, row0 = t / 8;
  const int total = *p.plan.group_count * p.items;
  const std::uint64_t policy = ptx::policy_evict_first();
  RingAt at;
  for (int item = static_cast<int>(blockIdx.x); item < total; item += static_cast<int>(gridDim.x)) {
    const MoeGroup group = p.plan.groups[item / p.items];
    const int tile0 = item % p.items * C::kItem;
    const int valid = min(C::kItem, p.row_tiles - tile0);
    const auto row_bytes =
        static_cast<std::uint32_t>(p.k_tiles * (C::kFp8 ? kMoeTileCols : kMoeTileCols * 2));
    std::uint32_t offsets[C::kTokens / 16];
#pragma unroll
    for (int i = 0; i < C::kTokens / 16; ++i) {
      const int r = row0 + 16 * i;
      offsets[i] = 0;
      if (r < group.count) {
        const int row = Down ? group.begin + r : p.plan.slot_pair[group.begin + r] / p.top_k;
        offsets[i] = static_cast<std::uint32_t>(row) * row_bytes;
      }
    }
    // Of tokens t and t + 128.
    float out_scale[kPer];
    int out_row[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int slot = group.begin + t + i * kProducers;
      out_scale[i] = C::kFp8 ? 1.0f : kMoeUnscale;
      out_row[i] = slot;
      if (t + i * kProducers < group.count && (Down || C::kFp8)) {
        const int pair = p.plan.slot_pair[slot];
        if constexpr (C::kFp8) out_scale[i] = p.token_scales[Down ? slot : pair / p.top_k];
        if constexpr (Down) {
          out_scale[i] *= p.pair_weights[pair];
          out_row[i] = pair;
        }
      }
    }
    const std::uint8_t* tile = p.weights + group.expert * p.expert_bytes +
                               static_cast<std::int64_t>(tile0 + t) * p.k_tiles * kMoeTileBytes;
    const std::uint8_t* tokens = p.tokens + piece * 16;
    for (int k = 0; k < p.k_tiles; k += C::kDepth) {
      ptx::mbarrier_wait(&s.empty[at.stage], at.parity ^ 1);
      const std::uint32_t to = ring + static_cast<std::uint32_t>(at.stage * C::kStageBytes);
      if (k + C::kDepth == p.k_tiles) {
        std::uint8_t* stage = ring_bytes + at.stage * C::kStageBytes;
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          const int token = t + i * kProducers;
          if (token < C::kTokens) {
            reinterpret_cast<float*>(stage + C::kScalesAt)[token] = out_scale[i];
            reinterpret_cast<int*>(stage + C::kRowsAt)[token] = out_row[i];
          }
        }
        // Thread 0 arrives for them all; the arrivals of copies release nothing else.
        ptx::named_barrier(kProducersBarrier, kProducers);
      }
      if (t < 32) {
        if (t == 0)
          ptx::mbarrier_arrive_expect(&s.full[at.stage], static_cast<std::uint32_t>(valid * C::kTileBytes));
        __syncwarp();
        if (t < valid) {
          ptx::bulk_copy(to + static_cast<std::uint32_t>(C::kTokenBytes + t * C::kTileBytes),
                         tile + k * kMoeTileBytes, C::kTileBytes, &s.full[at.stage], policy);
        }
      }
      const std::uint32_t at_row = to + static_cast<std::uint32_t>(row0 * 128 + (piece ^ (row0 & 7)) * 16);
#pragma unroll
      for (int i = 0; i < C::kTokens / 16; ++i) {
        if (row0 + 16 * i >= group.count) break;
#pragma unroll
        for (int part = 0; part < C::kTokenBytes / C::kHalfBytes; ++part) {
          copy16(at_row + static_cast<std::uint32_t>(i * 2048 + part * C::kHalfBytes),
                 tokens + offsets[i] + part * 128);
        }
      }
      tokens += C::kTokenBytes / C::kHalfBytes * 128;
      arrive_after_copies(&s.full[at.stage]);
      at.next(C::kStages);
    }
  }
}

__device__ inline uint2 magnitudes_of(const Shared& s, std::uint32_t shifted, int byte) {
  const std::uint32_t offset = __byte_perm(shifted, 0, 0x4440 + byte);
  return *reinterpret_cast<const uint2*>(reinterpret_cast<const std::uint8_t*>(s.magnitudes) + offset);
}

// `block` is known when the loop around is unrolled.
__device__ __forceinline__ void decode_block(int block, uint2 codes, MoeFactors low, MoeFactors high,
                                             std::uint32_t (&a0)[4], std::uint32_t (&a1)[4]) {
  if (block == 0) {
    moe_decode<0>(codes.x, low, high, a0);
    moe_decode<0>(codes.y, low, high, a1);
  } else if (block == 1) {
    moe_decode<1>(codes.x, low, high, a0);
    moe_decode<1>(codes.y, low, high, a1);
  } else if (block == 2) {
    moe_decode<2>(codes.x, low, high, a0);
    moe_decode<2>(codes.y, low, high, a1);
  } else {
    moe_decode<3>(codes.x, low, high, a0);
    moe_decode<3>(codes.y, low, high, a1);
  }
}

__device__ inline std::uint32_t bf16_pair(float even, float odd) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(even, odd);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

// The products of an item. kSubs row tiles of 64, N tokens.
template <class C, int N>
__device__ __forceinline__ void multiply_item(const Params& p, Shared& s, std::uint32_t ring,
                                              const std::uint8_t* ring_bytes, RingAt& at,
                                              const int (&tiles)[C::kSubs],
                                              const std::uint32_t (&base)[C::kSubs][2],
                                              float (&acc)[C::kSubs][N / 2], int& before) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < C::kSubs; ++j) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) acc[j][i] = 0;
  }
  for (int k = 0; k < p.k_tiles; k += C::kDepth) {
    ptx::mbarrier_wait(&s.full[at.stage], at.parity);
    ptx::fence_proxy_async_shared();  // tokens came by ordinary copies
    const std::uint8_t* stage = ring_bytes + at.stage * C::kStageBytes;
    const std::uint64_t tokens =
        ptx::wgmma_descriptor(ring + static_cast<std::uint32_t>(at.stage * C::kStageBytes));
    // Units of 64 columns of one row tile: while one multiplies the next is decoded.
    constexpr int kSteps = C::kFp8 ? 2 : 4;
    std::uint32_t a[2][kSteps][4];
#pragma unroll
    for (int unit = 0; unit < 2 * C::kSubs * C::kDepth; ++unit) {
      const int half = unit / C::kSubs % 2, j = unit % C::kSubs, depth = unit / C::kSubs / 2;
      const std::uint8_t* from = stage + tiles[j] + depth * kMoeTileBytes;
      const std::uint64_t at_depth = tokens + static_cast<std::uint64_t>((depth * C::kDepthBytes) >> 4);
      const uint4 codes = reinterpret_cast<const uint4*>(from)[half * 32 + lane];
      const uint2 scales = reinterpret_cast<const uint2*>(from + kMoeTileCodes)[lane / 4];
      std::uint32_t(&to)[kSteps][4] = a[unit % 2];
      if constexpr (C::kFp8) {
        const std::uint32_t low = (base[j][0] - scales.x) << 3, high = (base[j][1] - scales.y) << 3;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint2 m_low = magnitudes_of(s, low, half * 2 + i),
                      m_high = magnitudes_of(s, high, half * 2 + i);
          moe_decode_fp8(i == 0 ? codes.x : codes.z, m_low, m_high, p.shift, to[i][0], to[i][1]);
          moe_decode_fp8(i == 0 ? codes.y : codes.w, m_low, m_high, p.shift, to[i][2], to[i][3]);
        }
      } else {
        const MoeFactors low = moe_factors(scales.x), high = moe_factors(scales.y);
        decode_block(half * 2, {codes.x, codes.y}, low, high, to[0], to[1]);
        decode_block(half * 2 + 1, {codes.z, codes.w}, low, high, to[2], to[3]);
      }
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if constexpr (C::kFp8) {
          ptx::wgmma_fp8<N>(acc[j], to[i], at_depth + static_cast<std::uint64_t>((half * 64 + i * 32) >> 4));
        } else {
          ptx::wgmma_bf16<N>(acc[j], to[i],
                             at_depth + static_cast<std::uint64_t>((half * C::kHalfBytes + i * 32) >> 4));
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (unit == 0 && before >= 0 && lane == 0) ptx::mbarrier_arrive(&s.empty[before]);
    }
    before = at.stage;
    at.next(C::kStages);
  }
  ptx::wgmma_wait<0>();
}

// Takes 32 tokens at a time through shared memory, so that what is stored is 16 bytes of a token.
template <bool Down, class C, int N>
__device__ __forceinline__ void store_item(const Params& p, const std::uint8_t* stage,
                                           std::uint8_t* out_bytes, const MoeGroup& group, int tile0,
                                           const std::uint32_t (&base)[C::kSubs][2],
                                           const float (&acc)[C::kSubs][N / 2]) {
  constexpr int kTileValues = Down ? 16 : 8;           // of a row tile
  constexpr int kPieces = C::kSubs * kTileValues / 2;  // 16-byte pieces of a token from a warpgroup
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int t = static_cast<int>(threadIdx.x) % 128, warpgroup = warp / 4;
  const auto* scales = reinterpret_cast<const float*>(stage + C::kScalesAt);
  const auto* rows = reinterpret_cast<const int*>(stage + C::kRowsAt);
  std::uint8_t* out = out_bytes + warpgroup * (kOutTokens * C::kOutPitch);
  // Lane l names row l % 8 of 8 x 8 matrix l / 8: down: of rows 0..7 and 8..15 of one tile, of two blocks of tokens.
  const std::uint32_t to =
      ptx::shared_address(out) +
      static_cast<std::uint32_t>(Down ? (lane / 16 * 8 + lane % 8) * C::kOutPitch + lane / 8 % 2 * 16 +
                                            warp % 4 * 32
                                      : (lane / 8 % 2 * 8 + lane % 8) * C::kOutPitch + warp % 4 * 16);
  float row_scale[C::kSubs][2];
#pragma unroll
  for (int j = 0; j < C::kSubs; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // 2^(base - bias of the format - 6).
      const int e = static_cast<int>(base[j][i] & 0xffu) - kMoeScaleBias - 127 - 6;
      row_scale[j][i] = C::kFp8 ? __int_as_float((max(e, -126) + 127) << 23) : 1.0f;
    }
  }
#pragma unroll
  for (int first = 0; first < N; first += kOutTokens) {
    if (first >= group.count) break;
    constexpr int kPairs = 2;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int i = first / 8 + pair * 2;  // two blocks of 8 tokens
      if (i * 8 >= N) break;
      const float2 a = *reinterpret_cast<const float2*>(scales + i * 8 + lane % 4 * 2),
                   b = *reinterpret_cast<const float2*>(scales + i * 8 + 8 + lane % 4 * 2);
      const float token_scale[4] = {a.x, a.y, b.x, b.y};
#pragma unroll
      for (int j = 0; j < C::kSubs; ++j) {
        float low[4], high[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          low[v] = acc[j][(i + v / 2) * 4 + v % 2] * (row_scale[j][0] * token_scale[v]);
          high[v] = acc[j][(i + v / 2) * 4 + 2 + v % 2] * (row_scale[j][1] * token_scale[v]);
        }
        const std::uint32_t at =
            to + static_cast<std::uint32_t>(pair * 16 * C::kOutPitch + j * (4 * kTileValues * 2));
        if constexpr (Down) {
          ptx::stmatrix_x4_trans(at, bf16_pair(low[0], low[1]), bf16_pair(high[0], high[1]),
                                 bf16_pair(low[2], low[3]), bf16_pair(high[2], high[3]));
        } else {
#pragma unroll
          for (int v = 0; v < 4; ++v) low[v] = low[v] / (1.0f + __expf(-low[v])) * high[v];
          ptx::stmatrix_x2_trans(at, bf16_pair(low[0], low[1]), bf16_pair(low[2], low[3]));
        }
      }
    }
    ptx::named_barrier(1 + warpgroup, 128);
#pragma unroll
    for (int i = t; i < kOutTokens * kPieces; i += 128) {
      const int token = i / kPieces, piece = i % kPieces;
      if (first + token >= group.count) continue;
      const int tile = tile0 + warpgroup * 4 * C::kSubs + piece * 8 / kTileValues;
      if (tile >= p.row_tiles) continue;
      const uint4 v = *reinterpret_cast<const uint4*>(out + token * C::kOutPitch + piece * 16);
      *reinterpret_cast<uint4*>(p.out + static_cast<std::int64_t>(rows[first + token]) * p.width +
                                (tile0 + warpgroup * 4 * C::kSubs) * kTileValues + piece * 8) = v;
    }
    ptx::named_barrier(1 + warpgroup, 128);
  }
}

template <bool Down, class C, int N>
__device__ void consume_item(const Params& p, Shared& s, std::uint32_t ring, const std::uint8_t* ring_bytes,
                             std::uint8_t* out, RingAt& at, const MoeGroup& group, int tile0) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = warp / 4 * (4 * C::kSubs) + warp % 4;  // the warp's row tiles: every fourth from here
  const int last =
      min(C::kItem, p.row_tiles - tile0) - 1;  // where there are fewer that one is taken, for nothing
  float acc[C::kSubs][N / 2];
  std::uint32_t base[C::kSubs][2];  // of rows l / 4 and l / 4 + 8, in all four bytes
  int tiles[C::kSubs];              // in a stage
#pragma unroll
  for (int j = 0; j < C::kSubs; ++j) {
    const int tile = min(first + 4 * j, last);
    tiles[j] = C::kTokenBytes + tile * C::kTileBytes;
    if constexpr (C::kFp8) {
      const std::uint8_t* bases =
          p.bases + group.expert * p.expert_bases + (tile0 + tile) * kMoeTileRows + lane / 4;
      base[j][0] = bases[0] * 0x01010101u;
      base[j][1] = bases[8] * 0x01010101u;
    } else {
      base[j][0] = base[j][1] = 0;
    }
  }
  int before = -1;
  multiply_item<C, N>(p, s, ring, ring_bytes, at, tiles, base, acc, before);
  store_item<Down, C, N>(p, ring_bytes + before * C::kStageBytes, out, group, tile0, base, acc);
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(&s.empty[before]);
}

template <bool Down, class C>
__global__ void __launch_bounds__(C::kThreads, 1) prefill_kernel(const __grid_constant__ Params p) {
  extern __shared__ std::uint8_t shared[];
  Shared& s = *reinterpret_cast<Shared*>(shared);
  // The ring begins at a multiple of 1024 bytes of the shared window.
  const std::uint32_t past = ptx::shared_address(shared) + static_cast<std::uint32_t>(sizeof(Shared));
  const std::uint32_t ring = (past + 1023) / 1024 * 1024;
  std::uint8_t* ring_bytes = shared + (ring - ptx::shared_address(shared));
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(&s.full[i], kProducers + 1);
      ptx::mbarrier_init(&s.empty[i], C::kConsumerWarps);
    }
    ptx::fence_barrier_init();
  }
  if (threadIdx.x < 256) {
    constexpr float kMagnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const int r = static_cast<int>(threadIdx.x) / 8, m = static_cast<int>(threadIdx.x) % 8;
    float v = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) v = i == m ? kMagnitude[i] : v;
    const __nv_fp8_e4m3 e(ldexpf(v, 6 - r));
    reinterpret_cast<std::uint8_t*>(s.magnitudes)[threadIdx.x] = e.__x;
  }
  __syncthreads();
  if (threadIdx.x >= C::kConsumerWarps * 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(C::kProducerRegisters));
    produce<Down, C>(p, s, ring, ring_bytes);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(C::kRegisters));
    const int total = *p.plan.group_count * p.items;
    std::uint8_t* out = ring_bytes + C::kStages * C::kStageBytes;
    RingAt at;
    for (int item = static_cast<int>(blockIdx.x); item < total; item += static_cast<int>(gridDim.x)) {
      const MoeGroup group = p.plan.groups[item / p.items];
      const int tile0 = item % p.items * C::kItem;
      // With four cases the compiler serialises wgmma.
      if (group.count <= C::kFew) {
        consume_item<Down, C, C::kFew>(p, s, ring, ring_bytes, out, at, group, tile0);
      } else if (group.count <= C::kSome) {
        consume_item<Down, C, C::kSome>(p, s, ring, ring_bytes, out, at, group, tile0);
      } else {
        consume_item<Down, C, C::kTokens>(p, s, ring, ring_bytes, out, at, group, tile0);
      }
    }
  }
}

// Quantises rows of bf16 into E4M3 in the order of moe_decode_fp8.cuh; a warp takes a row. The scale is what a value is to be
// multiplied by.
__global__ void __launch_bounds__(256)
    quantise_kernel(const __nv_bfloat16* x, int rows, int cols, std::uint8_t* out, float* scales) {
  const int row = static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32),
            lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= rows) return;
  const auto* from = reinterpret_cast<const uint4*>(x + static_cast<std::int64_t>(row) * cols);
  const int pieces = cols / 8;
  float largest = 1e-10f;
  bool nan = false;
#pragma unroll 4
  for (int i = lane; i < pieces; i += 32) {
    const uint4 v = from[i];
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float a = __uint_as_float(words[w] << 16), b = __uint_as_float(words[w] & 0xffff0000u);
      largest = fmaxf(largest, fmaxf(fabsf(a), fabsf(b)));
      nan = nan || a != a || b != b;
    }
  }
#pragma unroll
  for (int d = 1; d < 32; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, d));
  if (__any_sync(0xffffffffu, nan)) largest = __int_as_float(0x7fffffff);
  const float inverse = 448.0f / largest;
  if (lane == 0) scales[row] = largest / 448.0f;
  auto* to = reinterpret_cast<uint4*>(out + static_cast<std::int64_t>(row) * cols);
#pragma unroll 2
  for (int i = lane; i < pieces / 2; i += 32) {
    const uint4 u = from[2 * i], v = from[2 * i + 1];
    // Bytes 4 q + {0, 1, 2, 3} are columns 2 q + {8, 0, 9, 1}.
    const std::uint32_t first[4] = {u.x, u.y, u.z, u.w}, second[4] = {v.x, v.y, v.z, v.w};
    std::uint32_t words[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float c0 = __uint_as_float(first[q] << 16) * inverse,
                  c1 = __uint_as_float(first[q] & 0xffff0000u) * inverse,
                  c8 = __uint_as_float(second[q] << 16) * inverse,
                  c9 = __uint_as_float(second[q] & 0xffff0000u) * inverse;
      std::uint16_t lower, upper;
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(lower) : "f"(c0), "f"(c8));
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(upper) : "f"(c1), "f"(c9));
      words[q] = static_cast<std::uint32_t>(upper) << 16 | lower;
    }
    to[i] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// y[row] += d of the row's pairs, k ascending; eight columns a thread.
__global__ void combine_kernel(const __nv_bfloat16* d, const std::int32_t* ids, int experts, int top_k,
                               int hidden, float* y) {
  const int c = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * 8;
  if (c >= hidden) return;
  const std::int64_t row = blockIdx.x;
  float sum[8] = {};
  bool any = false;
#pragma unroll 8
  for (int k = 0; k < top_k; ++k) {
    const std::int64_t pair = row * top_k + k;
    const int e = ids[pair];
    if (e < 0 || e >= experts) continue;
    const uint4 v = *reinterpret_cast<const uint4*>(d + pair * hidden + c);
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[2 * i] += __uint_as_float(words[i] << 16);
      sum[2 * i + 1] += __uint_as_float(words[i] & 0xffff0000u);
    }
    any = true;
  }
  if (!any) return;
  float4* to = reinterpret_cast<float4*>(y + row * hidden + c);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float4 v = to[i];
    v.x += sum[4 * i], v.y += sum[4 * i + 1], v.z += sum[4 * i + 2], v.w += sum[4 * i + 3];
    to[i] = v;
  }
}

template <bool Down, class C>
cudaError_t launch_cut(Params p, int sm_count, cudaStream_t stream) {
  if constexpr (C::kDepth > 1) {
    if (p.k_tiles % C::kDepth != 0) return launch_cut<Down, typename C::Shallow>(p, sm_count, stream);
  }
  p.items = (p.row_tiles + C::kItem - 1) / C::kItem;
  const auto kernel = prefill_kernel<Down, C>;
  const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
  if (allowed != cudaSuccess) return allowed;
  kernel<<<static_cast<unsigned>(sm_count), C::kThreads, C::kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

template <bool Down>
cudaError_t launch(const Params& p, ExpertActivations activations, int cut, int sm_count,
                   cudaStream_t stream) {
  if (activations == ExpertActivations::kBF16) {
    switch (cut) {
      case 0:
        return launch_cut<Down, Cut<false, 2, 2, 64, 16, 32, 2>>(p, sm_count, stream);
      case 1:
        return launch_cut<Down, Cut<false, 2, 2, 128, 80, 112>>(p, sm_count, stream);
      case 2:
        return launch_cut<Down, Cut<false, 2, 2, 128, 64, 96>>(p, sm_count, stream);
    }
  } else {
    switch (cut) {
      case 0:
        return launch_cut<Down, Cut<true, 2, 2, 64, 32, 48, 2>>(p, sm_count, stream);
      case 1:
        return launch_cut<Down, Cut<true, 2, 2, 96, 64, 80, 2>>(p, sm_count, stream);
      case 2:
        return launch_cut<Down, Cut<true, 2, 2, 160, 128, 144>>(p, sm_count, stream);
    }
  }
  return cudaErrorInvalidValue;
}

// Parts of the workspace, each a multiple of 256 bytes.
struct Parts {
  std::size_t x, x_scales, h, h8, h_scales, d, end;
  Parts(bool fp8, int rows, int top_k, int hidden, int inter) {
    const auto pairs = static_cast<std::size_t>(rows) * static_cast<std::size_t>(top_k);
    const std::size_t n = fp8 ? static_cast<std::size_t>(rows) : 0, quantised = fp8 ? pairs : 0;
    const auto after = [](std::size_t at, std::size_t bytes) { return at + (bytes + 255) / 256 * 256; };
    x = 0;
    x_scales = after(x, n * static_cast<std::size_t>(hidden));
    h = after(x_scales, n * 4);
    h8 = after(h, pairs * static_cast<std::size_t>(inter) * 2);
    h_scales = after(h8, quantised * static_cast<std::size_t>(inter));
    d = after(h_scales, quantised * 4);
    end = after(d, pairs * static_cast<std::size_t>(hidden) * 2);
  }
};

}  // namespace

bool prefill_experts_pays(int rows, int top_k, int experts) {
  return rows > kExpertsRows || (rows >= 320 && rows * top_k >= 10 * experts);
}

bool prefill_experts_fp8_pays(int rows, int top_k, int experts) { return rows * top_k >= 48 * experts; }

int prefill_experts_cut(ExpertActivations activations, int rows, int top_k, int experts) {
  const int mean = rows * top_k / experts, most = activations == ExpertActivations::kFp8 ? 80 : 96;
  return mean <= 40 ? 0 : mean <= most ? 1 : 2;
}

int prefill_group_rows(ExpertActivations activations, int cut) {
  constexpr int kBF16[kPrefillCuts] = {64, 128, 128}, kFp8[kPrefillCuts] = {64, 96, 160};
  return activations == ExpertActivations::kBF16 ? kBF16[cut] : kFp8[cut];
}

std::size_t prefill_experts_workspace(ExpertActivations activations, int rows, int top_k, int hidden,
                                      int inter) {
  return Parts(activations == ExpertActivations::kFp8, rows, top_k, hidden, inter).end;
}

cudaError_t launch_prefill_experts(const PrefillExpertsArgs& args, cudaStream_t stream) {
  if (args.rows <= 0) return cudaSuccess;
  const int hidden = args.bank.hidden, inter = args.bank.inter, pairs = args.rows * args.top_k;
  const bool fp8 = args.activations == ExpertActivations::kFp8;
  if (!moe_shape_packs(hidden, inter) || (fp8 && args.bank.bases == nullptr)) return cudaErrorInvalidValue;
  // The kernel's offsets of rows have 32 bits.
  const std::int64_t widest =
      std::max(static_cast<std::int64_t>(args.top_k) * inter, static_cast<std::int64_t>(hidden));
  if (args.rows * widest * (fp8 ? 1 : 2) > std::int64_t{0xffffffff}) return cudaErrorInvalidValue;
  const Parts parts(fp8, args.rows, args.top_k, hidden, inter);
  auto* memory = static_cast<std::uint8_t*>(args.workspace);
  const auto floats = [&](std::size_t at) { return reinterpret_cast<float*>(memory + at); };
  const auto bf16 = [&](std::size_t at) { return reinterpret_cast<__nv_bfloat16*>(memory + at); };
  const auto quantise = [&](const void* from, int rows, int cols, std::size_t to, std::size_t scales) {
    quantise_kernel<<<static_cast<unsigned>((rows + 7) / 8), 256, 0, stream>>>(
        static_cast<const __nv_bfloat16*>(from), rows, cols, memory + to, floats(scales));
    return cudaGetLastError();
  };
  cudaError_t code = cudaSuccess;
  Params p = {};
  p.plan = args.plan;
  p.top_k = args.top_k;
  p.pair_weights = args.weights;
  p.expert_bases = 2 * inter + hidden;
  p.tokens = static_cast<const std::uint8_t*>(args.x);
  if (fp8) {
    code = quantise(args.x, args.rows, hidden, parts.x, parts.x_scales);
    if (code != cudaSuccess) return code;
    p.tokens = memory + parts.x;
    p.token_scales = floats(parts.x_scales);
    p.bases = args.bank.bases;
  }
  p.weights = args.bank.gate_up;
  p.expert_bytes = static_cast<std::int64_t>(moe_gate_up_bytes(hidden, inter));
  p.width = inter;
  p.out = bf16(parts.h);
  p.k_tiles = hidden / kMoeTileCols;
  p.row_tiles = inter / 8;
  code = launch<false>(p, args.activations, args.cut, args.sm_count, stream);
  if (code != cudaSuccess) return code;
  p.tokens = memory + parts.h;
  if (fp8) {
    code = quantise(memory + parts.h, pairs, inter, parts.h8, parts.h_scales);
    if (code != cudaSuccess) return code;
    p.tokens = memory + parts.h8;
    p.token_scales = floats(parts.h_scales);
    p.bases = args.bank.bases + 2 * inter;
  }
  p.weights = args.bank.down;
  p.expert_bytes = static_cast<std::int64_t>(moe_down_bytes(hidden, inter));
  p.width = hidden;
  p.out = bf16(parts.d);
  p.k_tiles = inter / kMoeTileCols;
  p.row_tiles = hidden / kMoeTileRows;
  code = launch<true>(p, args.activations, args.cut, args.sm_count, stream);
  if (code != cudaSuccess) return code;
  const int threads = hidden / 8 < 256 ? hidden / 8 : 256;
  combine_kernel<<<dim3(static_cast<unsigned>(args.rows),
                        static_cast<unsigned>((hidden / 8 + threads - 1) / threads)),
                   threads, 0, stream>>>(bf16(parts.d), args.ids, args.bank.experts, args.top_k, hidden,
                                         args.y);
  return cudaGetLastError();
}

}  // namespace mimo::cuda
