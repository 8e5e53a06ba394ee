// One persistent kernel does gate, up and SwiGLU of all (expert group, row tiles) items and then down of all of them.
// Every block owns a contiguous range of the items of each phase, found from the plan on the device, and streams their
// weights through a ring in shared memory that a producer lane fills by bulk copies, across items and phases without a
// pause. Sixteen warps consume: eight split K (a tile of 128 columns each) and two halves split the row tiles; they
// hold the weights as the 16-row operand of mma.m16n8k16 and the tokens as the 8-column one. Four more warps add their
// sums in a fixed order and store, while the sixteen go on. Another warp brings a group's activations when the group
// changes. When all blocks are through, all add the experts of the rows to y.
#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/kernels/experts.h"
#include "ops/cuda/kernels/moe_decode.cuh"
#include "ops/cuda/kernels/moe_ptx.cuh"

namespace mimo::cuda {
namespace {

constexpr int kKWarps = 8;  // warps that split K, where it has that many tiles
constexpr int kEpilogueWarps = 4;
constexpr int kSumBuffers = 1;  // two would cost a stage of the ring and gain nothing
constexpr int kMaxStages = 16;
constexpr int kRowPad = 16;  // bytes after a row of activations, so that ldmatrix rows meet different banks

// One of the two matrix products.
struct Phase {
  const std::uint8_t* weights;
  std::int64_t expert_bytes;
  int k_tiles;     // K / 128
  int row_tiles;   // of an expert
  int k_warps;     // warps that split K: k_tiles if that is 1, 2 or 4, else kKWarps
  int item_tiles;  // row tiles of an item
  int items;       // of a group
  int steps;       // ring stages of an item
};

struct Params {
  const std::uint8_t* x;
  const float* weights;
  const std::int32_t* ids;
  MoePlan plan;
  Phase phase[2];
  __nv_bfloat16* h;  // [slots][inter]
  float* d;          // [pairs][hidden], weighted
  float* y;
  int rows, hidden, inter, top_k, experts;
  int stages;
  std::uint32_t x_offset, red_offset, ring_offset;  // in shared memory
};

struct Shared {
  std::uint64_t full[kMaxStages], empty[kMaxStages];
  std::uint64_t x_full, x_empty;
  std::uint64_t red_full[kSumBuffers], red_empty[kSumBuffers];
};

struct Range {
  int begin, end;
};
__device__ Range items_of_block(int groups, int items) {
  const long long total = static_cast<long long>(groups) * items;
  return {static_cast<int>(total * blockIdx.x / gridDim.x),
          static_cast<int>(total * (blockIdx.x + 1) / gridDim.x)};
}

// Walks a block's items: tile of the group, group.
struct ItemWalk {
  int group, item, left;
  __device__ ItemWalk(Range range, int items)
      : group(range.begin / items), item(range.begin - group * items), left(range.end - range.begin) {}
  __device__ void next(int items) {
    --left;
    if (++item == items) item = 0, ++group;
  }
};

// A place in a ring of stages and the parity of its barriers.
struct RingAt {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// One lane.
__device__ void produce_weights(const Params& p, Shared& s, std::uint32_t ring, std::uint32_t stage_bytes) {
  const std::uint64_t policy = ptx::policy_evict_first();
  const int groups = *p.plan.group_count;
  RingAt at;
  for (int f = 0; f < 2; ++f) {
    const Phase phase = p.phase[f];
    int group = -1;
    const std::uint8_t* expert = nullptr;
    for (ItemWalk walk(items_of_block(groups, phase.items), phase.items); walk.left > 0;
         walk.next(phase.items)) {
      if (walk.group != group) {
        group = walk.group;
        expert = phase.weights + p.plan.groups[group].expert * phase.expert_bytes;
      }
      const int tile = walk.item * phase.item_tiles;
      const int valid = min(phase.item_tiles, phase.row_tiles - tile);
      const std::uint8_t* from = expert + static_cast<std::int64_t>(tile) * phase.k_tiles * kMoeTileBytes;
      for (int step = 0; step < phase.steps; ++step) {
        ptx::mbarrier_wait(&s.empty[at.stage], at.parity ^ 1);
        const std::uint32_t to = ring + static_cast<std::uint32_t>(at.stage) * stage_bytes;
        if (phase.k_warps == kKWarps) {
          const int k = min(kKWarps, phase.k_tiles - step * kKWarps);
          const auto bytes = static_cast<std::uint32_t>(k * kMoeTileBytes);
          ptx::mbarrier_arrive_expect(&s.full[at.stage], bytes * static_cast<std::uint32_t>(valid));
          for (int i = 0; i < valid; ++i) {
            ptx::bulk_copy(
                to + static_cast<std::uint32_t>(i * kKWarps * kMoeTileBytes),
                from + static_cast<std::int64_t>(i * phase.k_tiles + step * kKWarps) * kMoeTileBytes, bytes,
                &s.full[at.stage], policy);
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

// One warp.
__device__ void produce_activations(const Params& p, Shared& s, std::uint32_t x_at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = *p.plan.group_count;
  std::uint32_t parity = 1;
  for (int f = 0; f < 2; ++f) {
    const Phase& phase = p.phase[f];
    const Range range = items_of_block(groups, phase.items);
    const auto row_bytes = static_cast<std::uint32_t>(phase.k_tiles * kMoeTileCols * 2);
    for (int item = range.begin; item < range.end; item = (item / phase.items + 1) * phase.items) {
      const int index = item / phase.items;
      const MoeGroup group = p.plan.groups[index];
      const void* from = nullptr;
      if (lane < group.count) {
        from = f == 0 ? static_cast<const void*>(
                            p.x + static_cast<std::int64_t>(p.plan.slot_pair[group.begin + lane] / p.top_k) *
                                      row_bytes)
                      : p.h + static_cast<std::int64_t>(group.begin + lane) * p.inter;
      }
      if (f == 1) {
        // The expert's rows of h come from other blocks.
        while (ptx::load_acquire(&p.plan.done[index]) != p.phase[0].items) {
        }
        ptx::fence_proxy_async();
      }
      ptx::mbarrier_wait(&s.x_empty, parity);
      parity ^= 1;
      if (lane == 0)
        ptx::mbarrier_arrive_expect(&s.x_full, row_bytes * static_cast<std::uint32_t>(group.count));
      __syncwarp();
      if (lane < group.count) {
        ptx::bulk_copy(x_at + static_cast<std::uint32_t>(lane) * (row_bytes + kRowPad), from, row_bytes,
                       &s.x_full);
      }
    }
  }
}

template <int Block>
__device__ void multiply_block(const uint4& codes, MoeFactors low, MoeFactors high,
                               const std::uint32_t (&b)[4], float (&acc)[4]) {
  std::uint32_t a[4];
  moe_decode<Block>(Block % 2 == 0 ? codes.x : codes.z, low, high, a);
  ptx::mma_bf16(acc, a, b[0], b[1]);
  moe_decode<Block>(Block % 2 == 0 ? codes.y : codes.w, low, high, a);
  ptx::mma_bf16(acc, a, b[2], b[3]);
}

// Adds the products of a warp's tiles of one stage to acc.
template <int Tiles>
__device__ void multiply(const std::uint8_t* tile, int tile_pitch, std::uint32_t x, std::uint64_t* empty,
                         float (&acc)[Tiles][4], int lane) {
  uint4 codes[Tiles][2];
  MoeFactors low[Tiles], high[Tiles];
#pragma unroll
  for (int i = 0; i < Tiles; ++i) {
    const std::uint8_t* t = tile + i * tile_pitch;
    codes[i][0] = reinterpret_cast<const uint4*>(t)[lane];
    codes[i][1] = reinterpret_cast<const uint4*>(t)[32 + lane];
    const uint2 scales = reinterpret_cast<const uint2*>(t + kMoeTileCodes)[lane / 4];
    low[i] = moe_factors(scales.x);
    high[i] = moe_factors(scales.y);
  }
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(empty);
  std::uint32_t b[4];
  ptx::ldmatrix_x4(x, b);
#pragma unroll
  for (int i = 0; i < Tiles; ++i) multiply_block<0>(codes[i][0], low[i], high[i], b, acc[i]);
  ptx::ldmatrix_x4(x + 64, b);
#pragma unroll
  for (int i = 0; i < Tiles; ++i) multiply_block<1>(codes[i][0], low[i], high[i], b, acc[i]);
  ptx::ldmatrix_x4(x + 128, b);
#pragma unroll
  for (int i = 0; i < Tiles; ++i) multiply_block<2>(codes[i][1], low[i], high[i], b, acc[i]);
  ptx::ldmatrix_x4(x + 192, b);
#pragma unroll
  for (int i = 0; i < Tiles; ++i) multiply_block<3>(codes[i][1], low[i], high[i], b, acc[i]);
}

template <int Tiles, int Warps>
__device__ void consume(const Params& p, Shared& s, std::uint8_t* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int groups = *p.plan.group_count;
  const std::uint32_t x_at = ptx::shared_address(shared + p.x_offset);
  RingAt at, red_at;
  std::uint32_t x_parity = 0;
  for (int f = 0; f < 2; ++f) {
    const Phase phase = p.phase[f];
    const int k_warp = warp % phase.k_warps, m_warp = warp / phase.k_warps;
    const std::uint8_t* tiles =
        shared + p.ring_offset + (m_warp * Tiles * phase.k_warps + k_warp) * kMoeTileBytes;
    // Row of ldmatrix: token lane % 8, 8 columns of matrix lane / 8.
    const std::uint32_t pitch = static_cast<std::uint32_t>(phase.k_tiles * kMoeTileCols * 2) + kRowPad;
    const std::uint32_t x = x_at + static_cast<std::uint32_t>(lane % 8) * pitch +
                            static_cast<std::uint32_t>(lane / 8 * 16 + k_warp * kMoeTileCols * 2);
    const int tile_pitch = phase.k_warps * kMoeTileBytes;
    int group = -1;
    for (ItemWalk walk(items_of_block(groups, phase.items), phase.items); walk.left > 0;
         walk.next(phase.items)) {
      if (walk.group != group) {
        group = walk.group;
        ptx::mbarrier_wait(&s.x_full, x_parity);
        x_parity ^= 1;
      }
      float acc[Tiles][4] = {};
      for (int step = 0; step < phase.steps; ++step) {
        ptx::mbarrier_wait(&s.full[at.stage], at.parity);
        if (step * kKWarps + k_warp < phase.k_tiles) {
          multiply<Tiles>(tiles + at.stage * (Tiles * Warps * kMoeTileBytes), tile_pitch,
                          x + static_cast<std::uint32_t>(step * kKWarps * kMoeTileCols * 2),
                          &s.empty[at.stage], acc, lane);
        } else if (lane == 0) {
          ptx::mbarrier_arrive(&s.empty[at.stage]);
        }
        at.next(p.stages);
      }
      if (walk.item + 1 == phase.items || walk.left == 1) {
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(&s.x_empty);
      }
      ptx::mbarrier_wait(&s.red_empty[red_at.stage], red_at.parity ^ 1);
      float4* red = reinterpret_cast<float4*>(shared + p.red_offset) +
                    (red_at.stage * Warps + warp) * Tiles * 32 + lane;
#pragma unroll
      for (int i = 0; i < Tiles; ++i) red[i * 32] = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(&s.red_full[red_at.stage]);
      red_at.next(kSumBuffers);
    }
  }
}

// Items' sums, added over the warps that split K and stored. kEpilogueWarps warps.
template <int Tiles, int Warps>
__device__ void store(const Params& p, Shared& s, const std::uint8_t* shared) {
  constexpr int kThreads = kEpilogueWarps * 32, kBarrier = 1;
  const int tid = static_cast<int>(threadIdx.x) % kThreads, lane = tid % 32;
  const int groups = *p.plan.group_count;
  RingAt at;
  for (int f = 0; f < 2; ++f) {
    const Phase phase = p.phase[f];
    int index = -1, done = 0;
    MoeGroup group{};
    for (ItemWalk walk(items_of_block(groups, phase.items), phase.items); walk.left > 0;
         walk.next(phase.items)) {
      if (walk.group != index) {
        index = walk.group;
        group = p.plan.groups[index];
        done = 0;
      }
      const int tile0 = walk.item * phase.item_tiles;
      const int valid = min(phase.item_tiles, phase.row_tiles - tile0);
      const float4* red =
          reinterpret_cast<const float4*>(shared + p.red_offset) + at.stage * Warps * Tiles * 32;
      ptx::mbarrier_wait(&s.red_full[at.stage], at.parity);
      // Two sums a task: rows l / 4 and l / 4 + 8 of tile m, token l % 4 * 2 + odd.
      for (int task = tid; task < valid * 64; task += kThreads) {
        const int odd = task % 2, l = task / 2 % 32, m = task / 64;
        const int token = l % 4 * 2 + odd;
        if (token >= group.count) continue;
        const float* from =
            reinterpret_cast<const float*>(red + (m / Tiles * phase.k_warps * Tiles + m % Tiles) * 32 + l) +
            odd;
        float low = 0, high = 0;
#pragma unroll 8
        for (int w = 0; w < phase.k_warps; ++w)
          low += from[w * Tiles * 128], high += from[w * Tiles * 128 + 2];
        low *= kMoeUnscale;
        high *= kMoeUnscale;
        if (f == 0) {
          const float h = low / (1.0f + __expf(-low)) * high;
          p.h[static_cast<std::int64_t>(group.begin + token) * p.inter + (tile0 + m) * 8 + l / 4] =
              __float2bfloat16(h);
        } else {
          const std::int64_t pair = p.plan.slot_pair[group.begin + token];
          const float weight = p.weights[pair];
          float* to = p.d + pair * p.hidden + (tile0 + m) * 16 + l / 4;
          to[0] = low * weight;
          to[8] = high * weight;
        }
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(&s.red_empty[at.stage]);
      at.next(kSumBuffers);
      ++done;
      if (f == 0 && (walk.item + 1 == phase.items || walk.left == 1)) {
        ptx::fence_proxy_async();
        __threadfence();
        ptx::named_barrier(kBarrier, kThreads);
        if (tid == 0) ptx::add_release(&p.plan.done[index], done);
      }
    }
  }
}

// y[row] += d of the row's pairs, k ascending; a thread takes four columns.
__device__ void add_experts(const Params& p) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int columns = p.hidden / 4, total = p.rows * columns;
  const int step = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = (warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * 32 + lane; i < total;
       i += step) {
    const std::int64_t row = i / columns;
    const int c = i % columns * 4;
    float4* to = reinterpret_cast<float4*>(p.y + row * p.hidden + c);
    float4 y = *to, sum = make_float4(0, 0, 0, 0);
    bool any = false;
#pragma unroll 8
    for (int k = 0; k < p.top_k; ++k) {
      const std::int64_t pair = row * p.top_k + k;
      const int e = p.ids[pair];
      if (e < 0 || e >= p.experts) continue;
      const float4 v = __ldcg(reinterpret_cast<const float4*>(p.d + pair * p.hidden + c));
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      any = true;
    }
    if (!any) continue;
    y.x += sum.x, y.y += sum.y, y.z += sum.z, y.w += sum.w;
    *to = y;
  }
}

template <int Tiles, int Warps>
__global__ void __launch_bounds__((Warps + 2 + kEpilogueWarps) * 32, 1)
    experts_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  Shared& s = *reinterpret_cast<Shared*>(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      ptx::mbarrier_init(&s.full[i], 1);
      ptx::mbarrier_init(&s.empty[i], Warps);
    }
    ptx::mbarrier_init(&s.x_full, 1);
    ptx::mbarrier_init(&s.x_empty, Warps);
    for (int i = 0; i < kSumBuffers; ++i) {
      ptx::mbarrier_init(&s.red_full[i], Warps);
      ptx::mbarrier_init(&s.red_empty[i], kEpilogueWarps);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  ptx::wait_for_prior_grid();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < Warps) {
    consume<Tiles, Warps>(p, s, shared);
  } else if (warp == Warps) {
    if (threadIdx.x % 32 == 0) {
      produce_weights(p, s, ptx::shared_address(shared + p.ring_offset), Tiles * Warps * kMoeTileBytes);
    }
  } else if (warp == Warps + 1) {
    produce_activations(p, s, ptx::shared_address(shared + p.x_offset));
  } else {
    store<Tiles, Warps>(p, s, shared);
  }
  // All blocks have stored their part of d.
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    ptx::add_release(p.plan.arrived, 1);
    while (ptx::load_acquire(p.plan.arrived) != static_cast<int>(gridDim.x)) {
    }
  }
  __syncthreads();
  add_experts(p);
}

Phase make_phase(const std::uint8_t* weights, std::size_t expert_bytes, int k, int row_tiles, int tiles,
                 int warps) {
  Phase f;
  f.weights = weights;
  f.expert_bytes = static_cast<std::int64_t>(expert_bytes);
  f.k_tiles = k / kMoeTileCols;
  f.row_tiles = row_tiles;
  f.k_warps = f.k_tiles == 1 || f.k_tiles == 2 || f.k_tiles == 4 ? f.k_tiles : kKWarps;
  f.item_tiles = tiles * warps / f.k_warps;
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

template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, int threads, std::size_t shared,
                          bool overlap, cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <int Tiles, int Warps>
cudaError_t launch(const ExpertsArgs& args, Params& p, cudaStream_t stream) {
  const std::size_t x_bytes =
      std::size_t{kExpertsGroupRows} * (static_cast<std::size_t>(std::max(p.hidden, p.inter)) * 2 + kRowPad);
  const std::size_t red_bytes = std::size_t{kSumBuffers} * Warps * Tiles * 512;
  const std::size_t stage_bytes = static_cast<std::size_t>(Tiles) * Warps * kMoeTileBytes;
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
  p.phase[0] = make_phase(args.bank.gate_up, moe_gate_up_bytes(p.hidden, p.inter), p.hidden, p.inter / 8,
                          Tiles, Warps);
  p.phase[1] =
      make_phase(args.bank.down, moe_down_bytes(p.hidden, p.inter), p.inter, p.hidden / 16, Tiles, Warps);
  const auto kernel = experts_kernel<Tiles, Warps>;
  static const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                          static_cast<int>(kSharedLimit));
  if (allowed != cudaSuccess) return allowed;
  return launch_kernel(kernel, dim3(static_cast<unsigned>(args.sm_count)), (Warps + 2 + kEpilogueWarps) * 32,
                       at, args.overlap, stream, p);
}

}  // namespace

std::size_t experts_workspace(int rows, int top_k, int hidden, int inter) {
  return h_bytes(rows, top_k, inter) + static_cast<std::size_t>(rows) * static_cast<std::size_t>(top_k) *
                                           static_cast<std::size_t>(hidden) * 4;
}

ExpertsTuning experts_tuning(const PackedExperts& bank, int rows) {
  ExpertsTuning tuning;
  // Items of half the size where a few experts have too few for all blocks to get some.
  if (bank.inter < 512 && rows <= 4) tuning.tiles = 1;
  return tuning;
}

cudaError_t launch_experts(const ExpertsArgs& args, cudaStream_t stream) {
  if (args.rows <= 0) return cudaSuccess;
  if (!moe_shape_packs(args.bank.hidden, args.bank.inter) || args.rows > kExpertsRows)
    return cudaErrorInvalidValue;
  Params p;
  p.x = static_cast<const std::uint8_t*>(args.x);
  p.weights = args.weights;
  p.ids = args.ids;
  p.plan = args.plan;
  p.rows = args.rows;
  p.hidden = args.bank.hidden;
  p.inter = args.bank.inter;
  p.top_k = args.top_k;
  p.experts = args.bank.experts;
  p.y = args.y;
  p.h = static_cast<__nv_bfloat16*>(args.workspace);
  p.d = reinterpret_cast<float*>(static_cast<std::uint8_t*>(args.workspace) +
                                 h_bytes(args.rows, args.top_k, p.inter));
  const ExpertsTuning& t = args.tuning;
  if (t.warps == 8 && t.tiles == 4) return launch<4, 8>(args, p, stream);
  if (t.warps == 16 && t.tiles == 2) return launch<2, 16>(args, p, stream);
  if (t.warps == 16 && t.tiles == 1) return launch<1, 16>(args, p, stream);
  return cudaErrorInvalidValue;
}

}  // namespace mimo::cuda
