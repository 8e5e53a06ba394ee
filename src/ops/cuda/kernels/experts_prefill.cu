// A block takes (expert group, 256 weight rows) items in turn. Two warpgroups multiply, 128 weight rows each: weights are
// wgmma's 64-row operand, decoded into registers, and the group's tokens its other one, 128 columns of K at a time. A third
// warpgroup fills a ring of stages: tokens by cp.async row by row, weights by bulk copies.
#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/kernels/experts_prefill.h"
#include "ops/cuda/kernels/moe_decode.cuh"
#include "ops/cuda/kernels/moe_ptx.cuh"
#include "ops/cuda/kernels/wgmma.cuh"

namespace mimo::cuda {
namespace {

constexpr int kStages = 4;
constexpr int kItemTiles = 16;                       // row tiles
constexpr int kHalfBytes = kPrefillGroupRows * 128;  // 64 columns of all tokens
constexpr int kTokenBytes = 2 * kHalfBytes;
constexpr int kStageBytes = kTokenBytes + kItemTiles * kMoeTileBytes;
constexpr int kLag = 2;  // stages of cp.async in flight behind the one being issued
constexpr int kProducers = 128;
constexpr int kConsumerWarps = 8;
constexpr int kThreads = kConsumerWarps * 32 + kProducers;
constexpr int kSharedBytes = 1024 + kStages * kStageBytes;
static_assert(kStageBytes % 1024 == 0 && kLag + 2 <= kStages);

struct Params {
  const std::uint8_t* tokens;  // bf16 rows of K
  const std::uint8_t* weights;
  const float* pair_weights;
  std::int64_t expert_bytes;
  MoePlan plan;
  int k_tiles;    // K / 128
  int row_tiles;  // of an expert
  int items;      // of a group
  int top_k;
  int width;           // of a row of out
  __nv_bfloat16* out;  // gate and up: [slots][inter]; down: [pairs][hidden], weighted
};

struct Shared {
  std::uint64_t full[kStages], empty[kStages];
};

struct RingAt {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

__device__ void copy16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from))
               : "memory");
}
__device__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// One warpgroup. A thread copies 16-byte piece t % 8 of rows t / 8 + 16 i.
template <bool Down>
__device__ void produce(const Params& p, Shared& s, std::uint32_t ring) {
  const int t = static_cast<int>(threadIdx.x) % kProducers, piece = t % 8, row0 = t / 8;
  const int total = *p.plan.group_count * p.items;
  const std::uint64_t policy = ptx::policy_evict_first();
  RingAt at, lagging;
  int issued = 0;
  const auto signal = [&] {
    ptx::fence_proxy_async_shared();
    ptx::mbarrier_arrive(&s.full[lagging.stage]);
    lagging.next();
  };
  for (int item = static_cast<int>(blockIdx.x); item < total; item += static_cast<int>(gridDim.x)) {
    const MoeGroup group = p.plan.groups[item / p.items];
    const int tile0 = item % p.items * kItemTiles;
    const int valid = min(kItemTiles, p.row_tiles - tile0);
    const auto row_bytes = static_cast<std::uint32_t>(p.k_tiles * (kMoeTileCols * 2));
    std::uint32_t offsets[kPrefillGroupRows / 16];
#pragma unroll
    for (int i = 0; i < kPrefillGroupRows / 16; ++i) {
      const int r = row0 + 16 * i;
      offsets[i] = 0;
      if (r < group.count) {
        const int row = Down ? group.begin + r : p.plan.slot_pair[group.begin + r] / p.top_k;
        offsets[i] = static_cast<std::uint32_t>(row) * row_bytes;
      }
    }
    const std::uint8_t* tile = p.weights + group.expert * p.expert_bytes +
                               static_cast<std::int64_t>(tile0 + t) * p.k_tiles * kMoeTileBytes;
    for (int k = 0; k < p.k_tiles; ++k) {
      ptx::mbarrier_wait(&s.empty[at.stage], at.parity ^ 1);
      const std::uint32_t to = ring + static_cast<std::uint32_t>(at.stage * kStageBytes);
      if (t < 32) {
        if (t == 0)
          ptx::mbarrier_arrive_expect(&s.full[at.stage], static_cast<std::uint32_t>(valid * kMoeTileBytes));
        __syncwarp();
        if (t < valid) {
          ptx::bulk_copy(to + static_cast<std::uint32_t>(kTokenBytes + t * kMoeTileBytes),
                         tile + k * kMoeTileBytes, kMoeTileBytes, &s.full[at.stage], policy);
        }
      }
      const std::uint8_t* tokens = p.tokens + k * (kMoeTileCols * 2) + piece * 16;
#pragma unroll
      for (int i = 0; i < kPrefillGroupRows / 16; ++i) {
        const int r = row0 + 16 * i;
        if (r >= group.count) break;
        const std::uint32_t at_row = to + static_cast<std::uint32_t>(r * 128 + (piece ^ (r & 7)) * 16);
        const std::uint8_t* from = tokens + offsets[i];
        copy16(at_row, from);
        copy16(at_row + kHalfBytes, from + 128);
      }
      commit_copies();
      if (++issued > kLag) {
        wait_copies<kLag>();
        signal();
      }
      at.next();
    }
  }
  wait_copies<0>();
  for (int i = 0; i < min(issued, kLag); ++i) signal();
}

template <bool Down, int N>
__device__ void consume_item(const Params& p, Shared& s, std::uint32_t ring, const std::uint8_t* ring_bytes,
                             RingAt& at, const MoeGroup& group, int tile0) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = warp / 4 * 8 + warp % 4;  // the warp's row tiles: first and first + 4
  float acc[2][N / 2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) acc[j][i] = 0;
  }
  int before = -1;
  for (int k = 0; k < p.k_tiles; ++k) {
    ptx::mbarrier_wait(&s.full[at.stage], at.parity);
    const std::uint8_t* tile = ring_bytes + at.stage * kStageBytes + kTokenBytes + first * kMoeTileBytes;
    const std::uint64_t tokens =
        ptx::wgmma_descriptor(ring + static_cast<std::uint32_t>(at.stage * kStageBytes));
    // Units of four steps of one of the two tiles: while one multiplies the next is decoded.
    std::uint32_t a[2][4][4];
#pragma unroll
    for (int unit = 0; unit < 4; ++unit) {
      const int half = unit / 2, j = unit % 2;
      const std::uint8_t* from = tile + j * 4 * kMoeTileBytes;
      const uint4 c = reinterpret_cast<const uint4*>(from)[half * 32 + lane];
      const uint2 scales = reinterpret_cast<const uint2*>(from + kMoeTileCodes)[lane / 4];
      const MoeFactors low = moe_factors(scales.x), high = moe_factors(scales.y);
      if (half == 0) {
        moe_decode<0>(c.x, low, high, a[unit % 2][0]);
        moe_decode<0>(c.y, low, high, a[unit % 2][1]);
        moe_decode<1>(c.z, low, high, a[unit % 2][2]);
        moe_decode<1>(c.w, low, high, a[unit % 2][3]);
      } else {
        moe_decode<2>(c.x, low, high, a[unit % 2][0]);
        moe_decode<2>(c.y, low, high, a[unit % 2][1]);
        moe_decode<3>(c.z, low, high, a[unit % 2][2]);
        moe_decode<3>(c.w, low, high, a[unit % 2][3]);
      }
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::wgmma_bf16<N>(acc[j], a[unit % 2][step],
                           tokens + static_cast<std::uint64_t>((half * kHalfBytes + step * 32) >> 4));
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (unit == 0 && before >= 0 && lane == 0) ptx::mbarrier_arrive(&s.empty[before]);
    }
    before = at.stage;
    at.next();
  }
  ptx::wgmma_wait<0>();
  if (lane == 0) ptx::mbarrier_arrive(&s.empty[before]);

    // Accumulators: rows l / 4 and l / 4 + 8 of the warp's tile, tokens 8 i + l % 4 * 2 + odd.
#pragma unroll
  for (int i = 0; i < N / 8; ++i) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int token = i * 8 + lane % 4 * 2 + odd;
      if (token >= group.count) continue;
      std::int64_t row = group.begin + token;
      float weight = 0;
      if constexpr (Down) {
        row = p.plan.slot_pair[row];
        weight = p.pair_weights[row] * kMoeUnscale;
      }
      __nv_bfloat16* out = p.out + row * p.width;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int tile = tile0 + first + 4 * j;
        if (tile >= p.row_tiles) continue;
        const float low = acc[j][i * 4 + odd], high = acc[j][i * 4 + 2 + odd];
        if constexpr (Down) {
          out[tile * 16 + lane / 4] = __float2bfloat16(low * weight);
          out[tile * 16 + 8 + lane / 4] = __float2bfloat16(high * weight);
        } else {
          const float gate = low * kMoeUnscale, up = high * kMoeUnscale;
          out[tile * 8 + lane / 4] = __float2bfloat16(gate / (1.0f + __expf(-gate)) * up);
        }
      }
    }
  }
}

// Tiles of up to Few, Some or all tokens of a group. (With four variants the compiler serialises wgmma.)
template <bool Down, int Few, int Some>
__global__ void __launch_bounds__(kThreads, 1) prefill_kernel(const __grid_constant__ Params p) {
  extern __shared__ std::uint8_t shared[];
  Shared& s = *reinterpret_cast<Shared*>(shared);
  // The ring begins at a multiple of 1024 bytes of the shared window.
  std::uint8_t* ring_bytes = shared + (1024 - ptx::shared_address(shared) % 1024);
  const std::uint32_t ring = ptx::shared_address(ring_bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&s.full[i], kProducers + 1);
      ptx::mbarrier_init(&s.empty[i], kConsumerWarps);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumerWarps * 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    produce<Down>(p, s, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    const int total = *p.plan.group_count * p.items;
    RingAt at;
    for (int item = static_cast<int>(blockIdx.x); item < total; item += static_cast<int>(gridDim.x)) {
      const MoeGroup group = p.plan.groups[item / p.items];
      const int tile0 = item % p.items * kItemTiles;
      if (group.count <= Few) {
        consume_item<Down, Few>(p, s, ring, ring_bytes, at, group, tile0);
      } else if (group.count <= Some) {
        consume_item<Down, Some>(p, s, ring, ring_bytes, at, group, tile0);
      } else {
        consume_item<Down, kPrefillGroupRows>(p, s, ring, ring_bytes, at, group, tile0);
      }
    }
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

constexpr std::size_t h_bytes(int rows, int top_k, int inter) {
  return (static_cast<std::size_t>(rows) * static_cast<std::size_t>(top_k) * static_cast<std::size_t>(inter) *
              2 +
          255) /
         256 * 256;
}

template <bool Down, int Few, int Some>
cudaError_t launch_variant(const Params& p, int sm_count, cudaStream_t stream) {
  const auto kernel = prefill_kernel<Down, Few, Some>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (allowed != cudaSuccess) return allowed;
  kernel<<<static_cast<unsigned>(sm_count), kThreads, kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

// Which tiles fit the usual number of rows of an expert; bits do not depend on it.
template <bool Down>
cudaError_t launch(const Params& p, int mean_rows, int sm_count, cudaStream_t stream) {
  if (mean_rows <= 20) return launch_variant<Down, 16, 32>(p, sm_count, stream);
  if (mean_rows <= 48) return launch_variant<Down, 32, 48>(p, sm_count, stream);
  return launch_variant<Down, 64, 96>(p, sm_count, stream);
}

}  // namespace

std::size_t prefill_experts_workspace(int rows, int top_k, int hidden, int inter) {
  return h_bytes(rows, top_k, inter) + h_bytes(rows, top_k, hidden);
}

cudaError_t launch_prefill_experts(const PrefillExpertsArgs& args, cudaStream_t stream) {
  if (args.rows <= 0) return cudaSuccess;
  const int hidden = args.bank.hidden, inter = args.bank.inter;
  if (!moe_shape_packs(hidden, inter)) return cudaErrorInvalidValue;
  // The kernel's offsets of rows have 32 bits.
  const std::int64_t widest =
      std::max(static_cast<std::int64_t>(args.top_k) * inter, static_cast<std::int64_t>(hidden));
  if (args.rows * widest * 2 > std::int64_t{0xffffffff}) return cudaErrorInvalidValue;
  auto* h = static_cast<__nv_bfloat16*>(args.workspace);
  auto* d = reinterpret_cast<__nv_bfloat16*>(static_cast<std::uint8_t*>(args.workspace) +
                                             h_bytes(args.rows, args.top_k, inter));
  Params p;
  p.plan = args.plan;
  p.top_k = args.top_k;
  p.pair_weights = args.weights;
  const auto cut = [&](int k, int row_tiles) {
    p.k_tiles = k / kMoeTileCols;
    p.row_tiles = row_tiles;
    p.items = (row_tiles + kItemTiles - 1) / kItemTiles;
  };
  const int mean_rows = args.rows * args.top_k / args.bank.experts;
  p.tokens = static_cast<const std::uint8_t*>(args.x);
  p.weights = args.bank.gate_up;
  p.expert_bytes = static_cast<std::int64_t>(moe_gate_up_bytes(hidden, inter));
  p.width = inter;
  p.out = h;
  cut(hidden, inter / 8);
  cudaError_t code = launch<false>(p, mean_rows, args.sm_count, stream);
  if (code != cudaSuccess) return code;
  p.tokens = reinterpret_cast<const std::uint8_t*>(h);
  p.weights = args.bank.down;
  p.expert_bytes = static_cast<std::int64_t>(moe_down_bytes(hidden, inter));
  p.width = hidden;
  p.out = d;
  cut(inter, hidden / 16);
  code = launch<true>(p, mean_rows, args.sm_count, stream);
  if (code != cudaSuccess) return code;
  const int threads = hidden / 8 < 256 ? hidden / 8 : 256;
  combine_kernel<<<dim3(static_cast<unsigned>(args.rows),
                        static_cast<unsigned>((hidden / 8 + threads - 1) / threads)),
                   threads, 0, stream>>>(d, args.ids, args.bank.experts, args.top_k, hidden, args.y);
  return cudaGetLastError();
}

}  // namespace mimo::cuda
