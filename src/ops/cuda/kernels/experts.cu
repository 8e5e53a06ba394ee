// One persistent kernel does gate, up and SwiGLU of all (expert group, row tile) items and then down of all of them; a
// second one adds the experts of a row. Every block owns a contiguous range of the items of each phase, found from the
// plan on the device, and streams their weights through a ring in shared memory that a producer lane fills by bulk
// copies, across items and phases without a pause. Eight warps consume: they split K (a tile of 128 columns each), hold
// the weights as the 16-row operand of mma.m16n8k16 and the tokens as the 8-column one, and add their sums in a fixed
// order at the end of an item. Another warp brings a group's activations when the group changes.
#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/kernels/experts.h"
#include "ops/cuda/kernels/moe_ptx.cuh"

namespace mimo::cuda {
namespace {

constexpr int kConsumers = 8;  // warps
constexpr int kConsumerThreads = kConsumers * 32;
constexpr int kThreads = kConsumerThreads + 64;  // and the two producers of weights and activations
constexpr int kMaxStages = 16;
constexpr int kMaxGroupRows = 16;
constexpr int kRowPad = 16;  // bytes after a row of activations, so that ldmatrix rows meet different banks

// One of the two matrix products.
struct Phase {
  const std::uint8_t* weights;
  std::int64_t expert_bytes;
  int k_tiles;     // K / 128
  int row_tiles;   // of an expert
  int k_warps;     // warps that split K: k_tiles if that is 1, 2 or 4, else 8
  int item_tiles;  // row tiles of an item: tiles a warp holds * (8 / k_warps)
  int items;       // of a group
  int steps;       // ring stages of an item
};

struct Params {
  const std::uint8_t* x;
  const float* weights;
  MoePlan plan;
  Phase phase[2];
  __nv_bfloat16* h;  // [slots][inter]
  float* d;          // [pairs][hidden], weighted
  int hidden, inter, top_k;
  int stages;
  std::uint32_t x_offset, red_offset, ring_offset;  // in shared memory
};

struct Shared {
  std::uint64_t full[kMaxStages], empty[kMaxStages];
  std::uint64_t x_full, x_empty;
  int pair[kMaxGroupRows];
  float weight[kMaxGroupRows];
};

struct Range {
  int begin, end;
};
__device__ Range items_of_block(int groups, int items) {
  const long long total = static_cast<long long>(groups) * items;
  return {static_cast<int>(total * blockIdx.x / gridDim.x),
          static_cast<int>(total * (blockIdx.x + 1) / gridDim.x)};
}

// Turns ring positions into stage and parity.
struct RingAt {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

__device__ void produce_weights(const Params& p, Shared& s, std::uint32_t ring, int tiles) {
  const std::uint64_t policy = ptx::policy_evict_first();
  const int groups = *p.plan.group_count;
  const std::uint32_t stage_bytes = static_cast<std::uint32_t>(tiles * kConsumers * kMoeTileBytes);
  RingAt at;
  for (int f = 0; f < 2; ++f) {
    const Phase& phase = p.phase[f];
    const Range range = items_of_block(groups, phase.items);
    int group = -1;
    const std::uint8_t* expert = nullptr;
    for (int item = range.begin; item < range.end; ++item) {
      if (item / phase.items != group) {
        group = item / phase.items;
        expert = phase.weights + p.plan.groups[group].expert * phase.expert_bytes;
      }
      const int tile = item % phase.items * phase.item_tiles;
      const int valid = min(phase.item_tiles, phase.row_tiles - tile);
      const std::uint8_t* from = expert + static_cast<std::int64_t>(tile) * phase.k_tiles * kMoeTileBytes;
      for (int step = 0; step < phase.steps; ++step) {
        ptx::mbarrier_wait(&s.empty[at.stage], at.parity ^ 1);
        const std::uint32_t to = ring + static_cast<std::uint32_t>(at.stage) * stage_bytes;
        if (phase.k_warps == kConsumers) {
          const int k = min(kConsumers, phase.k_tiles - step * kConsumers);
          const auto bytes = static_cast<std::uint32_t>(k * kMoeTileBytes);
          ptx::mbarrier_arrive_expect(&s.full[at.stage], bytes * static_cast<std::uint32_t>(valid));
          for (int i = 0; i < valid; ++i) {
            ptx::bulk_copy(
                to + static_cast<std::uint32_t>(i * kConsumers * kMoeTileBytes),
                from + static_cast<std::int64_t>(i * phase.k_tiles + step * kConsumers) * kMoeTileBytes,
                bytes, &s.full[at.stage], policy);
          }
        } else {
          const auto bytes = static_cast<std::uint32_t>(valid * phase.k_tiles * kMoeTileBytes);
          ptx::mbarrier_arrive_expect(&s.full[at.stage], bytes);
          ptx::bulk_copy(to, from, bytes, &s.full[at.stage], policy);
        }
        at.next(p.stages);
      }
    }
  }
}

// A whole warp.
__device__ void produce_activations(const Params& p, Shared& s, std::uint32_t x_at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = *p.plan.group_count;
  std::uint32_t parity = 1;
  for (int f = 0; f < 2; ++f) {
    const Phase& phase = p.phase[f];
    const Range range = items_of_block(groups, phase.items);
    const auto row_bytes = static_cast<std::uint32_t>(phase.k_tiles * kMoeTileCols * 2);
    for (int item = range.begin; item < range.end; item = (item / phase.items + 1) * phase.items) {
      const int group_index = item / phase.items;
      const MoeGroup group = p.plan.groups[group_index];
      const int pair = lane < group.count ? p.plan.slot_pair[group.begin + lane] : 0;
      const float weight = lane < group.count && f == 1 ? p.weights[pair] : 0.0f;
      if (f == 1) {
        // The expert's rows of h come from other blocks.
        while (ptx::load_acquire(&p.plan.done[group_index]) != p.phase[0].items) {
        }
        ptx::fence_proxy_async();
      }
      ptx::mbarrier_wait(&s.x_empty, parity);
      parity ^= 1;
      if (lane < group.count) s.pair[lane] = pair, s.weight[lane] = weight;
      __syncwarp();
      if (lane == 0)
        ptx::mbarrier_arrive_expect(&s.x_full, row_bytes * static_cast<std::uint32_t>(group.count));
      __syncwarp();
      if (lane < group.count) {
        const void* from =
            f == 0 ? static_cast<const void*>(p.x + static_cast<std::int64_t>(pair / p.top_k) * row_bytes)
                   : p.h + static_cast<std::int64_t>(group.begin + lane) * p.inter;
        ptx::bulk_copy(x_at + static_cast<std::uint32_t>(lane) * (row_bytes + kRowPad), from, row_bytes,
                       &s.x_full);
      }
    }
  }
}

// bf16 pairs of a lane's word (moe_layout.h), times 2^-126.
__device__ void decode(std::uint32_t q, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kMask = 0x81c081c0u;
  a[0] = q & kMask;
  a[1] = (q << 4) & kMask;
  a[2] = __funnelshift_l(q, q, 10) & kMask;
  a[3] = (__funnelshift_l(q, q, 14) & 0x81808180u) | ((q << 6) & 0x00400040u);
}

// Adds a stage's products to acc: Tiles row tiles x Cols groups of 8 tokens.
template <int Tiles, int Cols>
__device__ void multiply(const std::uint8_t* tile, std::uint32_t x, std::uint32_t x_pitch8,
                         std::uint64_t* empty, float (&acc)[Tiles][Cols][4], int tile_pitch, int lane) {
  uint4 codes[Tiles][2];
  uint2 scales[Tiles];
#pragma unroll
  for (int i = 0; i < Tiles; ++i) {
    const std::uint8_t* t = tile + i * tile_pitch;
    codes[i][0] = reinterpret_cast<const uint4*>(t)[lane];
    codes[i][1] = reinterpret_cast<const uint4*>(t)[32 + lane];
    scales[i] = reinterpret_cast<const uint2*>(t + kMoeTileCodes)[lane / 4];
  }
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(empty);
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    std::uint32_t b[Cols][4];
#pragma unroll
    for (int n = 0; n < Cols; ++n) ptx::ldmatrix_x4(x + n * x_pitch8 + block * 64, b[n]);
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
      const std::uint32_t s0 = __byte_perm(scales[i].x, 0, 0x4040 | block | block << 8) << 7;
      const std::uint32_t s1 = __byte_perm(scales[i].y, 0, 0x4040 | block | block << 8) << 7;
      const uint4 c = codes[i][block / 2];
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        std::uint32_t a[4];
        decode(block % 2 == 0 ? (step == 0 ? c.x : c.y) : (step == 0 ? c.z : c.w), a);
        a[0] = ptx::mul_bf16x2(a[0], s0);
        a[1] = ptx::mul_bf16x2(a[1], s1);
        a[2] = ptx::mul_bf16x2(a[2], s0);
        a[3] = ptx::mul_bf16x2(a[3], s1);
#pragma unroll
        for (int n = 0; n < Cols; ++n) ptx::mma_bf16(acc[i][n], a, b[n][2 * step], b[n][2 * step + 1]);
      }
    }
  }
}

// One item's sums, added over the warps and stored.
template <int Tiles, int Cols>
__device__ void consume_item(const Params& p, const Phase& phase, int f, Shared& s, const std::uint8_t* ring,
                             RingAt& at, std::uint32_t x_at, float4* red, const MoeGroup& group, int tile0) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int k_warp = warp % phase.k_warps, m_warp = warp / phase.k_warps;
  const std::uint32_t pitch = static_cast<std::uint32_t>(phase.k_tiles * kMoeTileCols * 2) + kRowPad;
  // Row of ldmatrix: token lane % 8, 8 columns of matrix lane / 8.
  const std::uint32_t x =
      x_at + static_cast<std::uint32_t>(lane % 8) * pitch + static_cast<std::uint32_t>(lane / 8 * 16);
  float acc[Tiles][Cols][4];
#pragma unroll
  for (int i = 0; i < Tiles; ++i) {
#pragma unroll
    for (int n = 0; n < Cols; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) acc[i][n][c] = 0;
    }
  }
  for (int step = 0; step < phase.steps; ++step) {
    ptx::mbarrier_wait(&s.full[at.stage], at.parity);
    const int k = step * kConsumers + k_warp;
    if (k < phase.k_tiles) {
      const std::uint8_t* tile = ring + at.stage * (Tiles * kConsumers * kMoeTileBytes) +
                                 (m_warp * Tiles * phase.k_warps + k_warp) * kMoeTileBytes;
      multiply<Tiles, Cols>(tile, x + static_cast<std::uint32_t>(k * kMoeTileCols * 2), 8 * pitch,
                            &s.empty[at.stage], acc, phase.k_warps * kMoeTileBytes, lane);
    } else if (lane == 0) {
      ptx::mbarrier_arrive(&s.empty[at.stage]);
    }
    at.next(p.stages);
  }
#pragma unroll
  for (int i = 0; i < Tiles; ++i) {
#pragma unroll
    for (int n = 0; n < Cols; ++n) {
      red[((warp * Tiles + i) * Cols + n) * 32 + lane] =
          make_float4(acc[i][n][0], acc[i][n][1], acc[i][n][2], acc[i][n][3]);
    }
  }
  ptx::named_barrier(1, kConsumerThreads);
  // Two sums a task: rows l / 4 and l / 4 + 8 of a tile, token l % 4 * 2 + odd of column group n.
  const int valid = min(phase.item_tiles, phase.row_tiles - tile0);
  for (int task = tid; task < valid * Cols * 64; task += kConsumerThreads) {
    const int odd = task % 2, l = task / 2 % 32, n = task / 64 % Cols, m = task / 64 / Cols;
    const int token = n * 8 + l % 4 * 2 + odd;
    if (token >= group.count) continue;
    const float* from = reinterpret_cast<const float*>(
        red + ((m / Tiles * phase.k_warps * Tiles + m % Tiles) * Cols + n) * 32 + l);
    float low = 0, high = 0;
    for (int w = 0; w < phase.k_warps; ++w) {
      low += from[w * Tiles * Cols * 128 + odd];
      high += from[w * Tiles * Cols * 128 + 2 + odd];
    }
    low *= kMoeUnscale;
    high *= kMoeUnscale;
    if (f == 0) {
      const float h = low / (1.0f + __expf(-low)) * high;
      p.h[static_cast<std::int64_t>(group.begin + token) * p.inter + (tile0 + m) * 8 + l / 4] =
          __float2bfloat16(h);
    } else {
      float* to = p.d + static_cast<std::int64_t>(s.pair[token]) * p.hidden + (tile0 + m) * 16 + l / 4;
      to[0] = low * s.weight[token];
      to[8] = high * s.weight[token];
    }
  }
}

template <int Tiles, int MaxCols>
__device__ void consume(const Params& p, Shared& s, std::uint8_t* shared) {
  const int groups = *p.plan.group_count;
  const std::uint8_t* ring = shared + p.ring_offset;
  const std::uint32_t x_at = ptx::shared_address(shared + p.x_offset);
  RingAt at;
  std::uint32_t x_parity = 0;
  int buffer = 0;
  for (int f = 0; f < 2; ++f) {
    const Phase& phase = p.phase[f];
    const Range range = items_of_block(groups, phase.items);
    int item = range.begin;
    while (item < range.end) {
      const int group_index = item / phase.items;
      const int end = min(range.end, (group_index + 1) * phase.items);
      const int first = item;
      const MoeGroup group = p.plan.groups[group_index];
      ptx::mbarrier_wait(&s.x_full, x_parity);
      x_parity ^= 1;
      for (; item < end; ++item) {
        float4* red =
            reinterpret_cast<float4*>(shared + p.red_offset) + buffer * (kConsumers * Tiles * MaxCols * 32);
        buffer ^= 1;
        const int tile0 = (item - group_index * phase.items) * phase.item_tiles;
        if (MaxCols == 1 || group.count <= 8) {
          consume_item<Tiles, 1>(p, phase, f, s, ring, at, x_at, red, group, tile0);
        } else {
          consume_item<Tiles, MaxCols>(p, phase, f, s, ring, at, x_at, red, group, tile0);
        }
      }
      if (f == 0) {
        ptx::fence_proxy_async();
        __threadfence();
      }
      ptx::named_barrier(1, kConsumerThreads);
      if (threadIdx.x == 0) {
        if (f == 0) ptx::add_release(&p.plan.done[group_index], end - first);
        ptx::mbarrier_arrive(&s.x_empty);
      }
    }
  }
}

template <int Tiles, int MaxCols>
__global__ void __launch_bounds__(kThreads, 1) experts_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  Shared& s = *reinterpret_cast<Shared*>(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      ptx::mbarrier_init(&s.full[i], 1);
      ptx::mbarrier_init(&s.empty[i], kConsumers);
    }
    ptx::mbarrier_init(&s.x_full, 1);
    ptx::mbarrier_init(&s.x_empty, 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kConsumers) {
    consume<Tiles, MaxCols>(p, s, shared);
  } else if (warp == kConsumers) {
    if (threadIdx.x % 32 == 0) produce_weights(p, s, ptx::shared_address(shared + p.ring_offset), Tiles);
  } else {
    produce_activations(p, s, ptx::shared_address(shared + p.x_offset));
  }
}

// y[row] += d of the row's pairs, k ascending; four columns a thread.
__global__ void combine_kernel(const float* d, const std::int32_t* ids, int experts, int top_k, int hidden,
                               float* y) {
  const int c = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * 4;
  if (c >= hidden) return;
  const std::int64_t row = blockIdx.x;
  float4 sum = make_float4(0, 0, 0, 0);
  bool any = false;
#pragma unroll 8
  for (int k = 0; k < top_k; ++k) {
    const std::int64_t pair = row * top_k + k;
    const int e = ids[pair];
    if (e < 0 || e >= experts) continue;
    const float4 v = *reinterpret_cast<const float4*>(d + pair * hidden + c);
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    any = true;
  }
  if (!any) return;
  float4* to = reinterpret_cast<float4*>(y + row * hidden + c);
  float4 old = *to;
  old.x += sum.x, old.y += sum.y, old.z += sum.z, old.w += sum.w;
  *to = old;
}

Phase make_phase(const std::uint8_t* weights, std::size_t expert_bytes, int k, int row_tiles, int tiles) {
  Phase f;
  f.weights = weights;
  f.expert_bytes = static_cast<std::int64_t>(expert_bytes);
  f.k_tiles = k / kMoeTileCols;
  f.row_tiles = row_tiles;
  f.k_warps = f.k_tiles == 1 || f.k_tiles == 2 || f.k_tiles == 4 ? f.k_tiles : kConsumers;
  f.item_tiles = tiles * kConsumers / f.k_warps;
  f.items = (row_tiles + f.item_tiles - 1) / f.item_tiles;
  f.steps = (f.k_tiles + f.k_warps - 1) / f.k_warps;
  return f;
}

constexpr std::size_t h_bytes(int rows, int top_k, int inter) {
  return (static_cast<std::size_t>(rows) * static_cast<std::size_t>(top_k) * static_cast<std::size_t>(inter) *
              2 +
          255) /
         256 * 256;
}

constexpr std::size_t kSharedLimit = 227 * 1024;

template <int Tiles, int MaxCols>
cudaError_t launch(const ExpertsArgs& args, Params& p, cudaStream_t stream) {
  const std::size_t x_bytes = static_cast<std::size_t>(MaxCols) * 8 *
                              (static_cast<std::size_t>(std::max(p.hidden, p.inter)) * 2 + kRowPad);
  const std::size_t red_bytes = std::size_t{2} * kConsumers * Tiles * MaxCols * 512;
  const std::size_t stage_bytes = static_cast<std::size_t>(Tiles) * kConsumers * kMoeTileBytes;
  std::size_t at = (sizeof(Shared) + 127) / 128 * 128;
  p.x_offset = static_cast<std::uint32_t>(at);
  at += (x_bytes + 127) / 128 * 128;
  p.red_offset = static_cast<std::uint32_t>(at);
  at += red_bytes;
  p.ring_offset = static_cast<std::uint32_t>(at);
  if (at + 2 * stage_bytes > kSharedLimit) return cudaErrorInvalidValue;
  const int fit = static_cast<int>(std::min<std::size_t>((kSharedLimit - at) / stage_bytes, kMaxStages));
  p.stages = args.tuning.stages > 0 ? std::min(args.tuning.stages, fit) : fit;
  at += static_cast<std::size_t>(p.stages) * stage_bytes;
  p.phase[0] =
      make_phase(args.bank.gate_up, moe_gate_up_bytes(p.hidden, p.inter), p.hidden, p.inter / 8, Tiles);
  p.phase[1] = make_phase(args.bank.down, moe_down_bytes(p.hidden, p.inter), p.inter, p.hidden / 16, Tiles);
  const auto kernel = experts_kernel<Tiles, MaxCols>;
  static const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                          static_cast<int>(kSharedLimit));
  if (allowed != cudaSuccess) return allowed;
  kernel<<<args.sm_count, kThreads, at, stream>>>(p);
  const int threads = std::min(256, (p.hidden / 4 + 31) / 32 * 32);
  combine_kernel<<<dim3(static_cast<unsigned>(args.rows),
                        static_cast<unsigned>((p.hidden / 4 + threads - 1) / threads)),
                   threads, 0, stream>>>(p.d, args.ids, args.bank.experts, p.top_k, p.hidden, args.y);
  return cudaGetLastError();
}

}  // namespace

std::size_t experts_workspace(int rows, int top_k, int hidden, int inter) {
  return h_bytes(rows, top_k, inter) + static_cast<std::size_t>(rows) * static_cast<std::size_t>(top_k) *
                                           static_cast<std::size_t>(hidden) * 4;
}

ExpertsTuning experts_tuning(int rows, int top_k, const PackedExperts& bank) {
  ExpertsTuning tuning;
  // 16 rows of activations of more than 4096 elements leave no room for the ring.
  const bool wide = std::max(bank.hidden, bank.inter) > 4096;
  tuning.group_rows = !wide && rows * top_k > 2 * bank.experts ? 16 : 8;
  tuning.tiles = 2;
  return tuning;
}

cudaError_t launch_experts(const ExpertsArgs& args, cudaStream_t stream) {
  if (args.rows <= 0) return cudaSuccess;
  if (!moe_shape_packs(args.bank.hidden, args.bank.inter) || args.rows > kExpertsRows)
    return cudaErrorInvalidValue;
  Params p;
  p.x = static_cast<const std::uint8_t*>(args.x);
  p.weights = args.weights;
  p.plan = args.plan;
  p.hidden = args.bank.hidden;
  p.inter = args.bank.inter;
  p.top_k = args.top_k;
  p.h = static_cast<__nv_bfloat16*>(args.workspace);
  p.d = reinterpret_cast<float*>(static_cast<std::uint8_t*>(args.workspace) +
                                 h_bytes(args.rows, args.top_k, p.inter));
  const ExpertsTuning& t = args.tuning;
  if (t.group_rows == 8 && t.tiles == 2) return launch<2, 1>(args, p, stream);
  if (t.group_rows == 8 && t.tiles == 4) return launch<4, 1>(args, p, stream);
  if (t.group_rows == 16 && t.tiles == 2) return launch<2, 2>(args, p, stream);
  if (t.group_rows == 16 && t.tiles == 4) return launch<4, 2>(args, p, stream);
  return cudaErrorInvalidValue;
}

}  // namespace mimo::cuda
