#include <cuda_bf16.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/linear_ptx.cuh"
#include "ops/cuda/kernels/linear_small.h"
#include "ops/cuda/kernels/linear_wgmma.cuh"
#include "ops/cuda/kernels/tensor_map.h"

// Weights are the 64-row operand of the tensor cores and activation rows the narrow one. A weight is a list of blocks
// (all along the columns of the first 128 rows, "tile" 0, then those of the next 128; 256 rows where there are very
// many, so that activations cross L2 half as often) that is shared out among the SMs in one of three ways, which depends
// on its shape only:
// - whole tiles, where their number is just right;
// - the columns of a tile among the thread blocks of a cluster, which add up their sums through shared memory;
// - equal shares of the list. A share takes its tiles from the last to the first: of the last it may have only the
//   first columns, whose sums it leaves in the workspace early on, and its first tile it completes with what the shares
//   before it have left there. It waits for thread blocks of lower index only, which started before.
// All additions are made in the order of the columns.

namespace mimo::cuda {
namespace {

constexpr int kSharedBudget = 222 * 1024;

struct Best {
  float value;
  std::int32_t id;
  float sum;  // of exp(output - value); NaN if an output is not finite
};

struct Params {
  const std::uint8_t* weights;
  const float* scales;
  int scale_rows;
  const float* x_scales;
  std::int64_t x_scale_stride;
  int k_blocks;
  int tiles;
  int row_blocks;
  int n;  // weight rows
  int rows;
  void* y;
  std::int64_t y_stride;
  bool y_bf16;
  bool add;
  bool whole_tiles;     // equal numbers of tiles instead of blocks
  std::int32_t* ready;  // [grid] whether `partial` of a thread block is there
  float4* partial;      // [grid][kRegs / 4][consumer threads]
  Best* best;           // [tiles][rows]
  int count;
};

enum class Mode {
  kShares,   // equal shares, or whole tiles
  kCluster,  // columns of a tile shared out in a cluster
  kBest,     // equal shares; chooses among the outputs
};

// Tiles of kBlocks blocks of 128 rows.
template <bool kFp8, int kRows, Mode kMode, int kBlocks>
struct Plan {
  static constexpr int kConsumers = 256 * kBlocks;  // warpgroups of 64 weight rows each
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kWarps = kConsumers / 32;
  static constexpr int kWeightBytes = kBlocks * kLinearBlockSize;  // of a stage
  static constexpr int kStageBytes = kWeightBytes + kRows * kLinearBlockBytes;
  static constexpr int kScaleBytes = kFp8 ? kRows * 4 : 0;
  static constexpr int kSumBytes = kMode == Mode::kCluster ? kLinearBlockRows * kRows * 4 : 0;
  static constexpr int kBestBytes =
      kMode == Mode::kBest ? kWarps * kRows * static_cast<int>(sizeof(Best)) : 0;
  static constexpr int kStages =
      std::min(12, (kSharedBudget - kSumBytes - kBestBytes) / (kStageBytes + kScaleBytes));
  static constexpr int kBytes = kStages * (kStageBytes + kScaleBytes + 16) + 16 + kSumBytes + 1024;
};

__device__ Best better(const Best& a, const Best& b) {
  const bool first = a.value > b.value || (a.value == b.value && a.id < b.id);
  const float high = first ? a.value : b.value;
  const float low = first ? b.value : a.value;
  const float high_sum = first ? a.sum : b.sum;
  const float low_sum = first ? b.sum : a.sum;
  // Nothing seen yet: value -inf, sum 0.
  const float factor = low == -INFINITY ? 0.0F : __expf(low - high);
  return {high, first ? a.id : b.id, low_sum == low_sum ? fmaf(low_sum, factor, high_sum) : low_sum};
}

__device__ Best other_lane(const Best& b, int step) {
  return {__shfl_xor_sync(0xffffffffU, b.value, step), __shfl_xor_sync(0xffffffffU, b.id, step),
          __shfl_xor_sync(0xffffffffU, b.sum, step)};
}

// Of the first 2 kLeft of `b`, each of two lanes completes half with what the other has; returns which.
template <int kLeft, int kCount>
__device__ __forceinline__ int share_out_best(Best (&b)[kCount], int lane, int step) {
  const bool upper = (lane & step) != 0;
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
    const Best keep = upper ? b[i + kLeft] : b[i];
    const Best give = upper ? b[i] : b[i + kLeft];
    b[i] = better(keep, other_lane(give, step));
  }
  return upper ? kLeft : 0;
}

__device__ Best one_output(float value, int id, int count) {
  if (id >= count) return {-INFINITY, 0x7fffffff, 0.0F};
  if (!isfinite(value)) return {-INFINITY, id, __int_as_float(0x7fffffff)};
  return {value, id, 1.0F};
}

// Writes this thread's sums of one tile: rows n and n + 8 of the weight, activation rows m and m + 1 of float4 `i`.
struct Place {
  int n;
  int m;
};

template <int kBlocks>
__device__ Place place_of(int tile, int i, int thread) {
  return {tile * kBlocks * kLinearBlockRows + thread / 32 * 16 + thread % 32 / 4, i * 8 + thread % 4 * 2};
}

__device__ float4 outputs_before(const Params& params, Place at) {
  float v[4] = {0, 0, 0, 0};
  if (params.add) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int m = at.m + e % 2;
      const int n = at.n + e / 2 * 8;
      if (m < params.rows && n < params.n)
        v[e] = static_cast<const float*>(params.y)[m * params.y_stride + n];
    }
  }
  return {v[0], v[1], v[2], v[3]};
}

__device__ void write_outputs(const Params& params, Place at, float4 sum, float4 before) {
  const float v[4] = {before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w};
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int m = at.m + e % 2;
    const int n = at.n + e / 2 * 8;
    if (m >= params.rows || n >= params.n) continue;
    const std::int64_t to = m * params.y_stride + n;
    if (params.y_bf16) {
      static_cast<__nv_bfloat16*>(params.y)[to] = __float2bfloat16_rn(v[e]);
    } else {
      static_cast<float*>(params.y)[to] = v[e];
    }
  }
}

__device__ float4 plus(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// Blocks of one tile, [k_begin, k_end) along the columns.
struct Segment {
  int tile;
  int k_begin;
  int k_end;
  __device__ int length() const { return k_end - k_begin; }
};

// What a thread block multiplies, segment after segment.
template <Mode kMode>
struct Work {
  __device__ Work(const Params& params, int rank, int cluster_size) : k_blocks(params.k_blocks) {
    const std::int64_t index = blockIdx.x / cluster_size;
    const std::int64_t count = gridDim.x / cluster_size;
    if (kMode == Mode::kCluster || params.whole_tiles) {
      begin = static_cast<int>(params.tiles * index / count) * k_blocks;
      end = static_cast<int>(params.tiles * (index + 1) / count) * k_blocks;
    } else {
      const std::int64_t total = static_cast<std::int64_t>(params.tiles) * k_blocks;
      begin = static_cast<int>(total * index / count);
      end = static_cast<int>(total * (index + 1) / count);
    }
    first_k = k_blocks * rank / cluster_size;
    last_k = k_blocks * (rank + 1) / cluster_size;
  }
  __device__ bool more() const { return begin < end; }
  __device__ bool next(Segment& segment) {
    if (!more()) return false;
    segment.tile = (end - 1) / k_blocks;
    const int tile_begin = segment.tile * k_blocks;
    if (kMode == Mode::kCluster) {
      segment.k_begin = first_k;
      segment.k_end = last_k;
      end = tile_begin;
    } else {
      segment.k_begin = max(begin - tile_begin, 0);
      segment.k_end = end - tile_begin;
      end = tile_begin + segment.k_begin;
    }
    return true;
  }
  int k_blocks;
  int begin;
  int end;
  int first_k;
  int last_k;
};

template <Mode kMode>
__device__ void sync_start() {
  if constexpr (kMode == Mode::kCluster) {
    __syncwarp();
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
}

template <bool kFp8, int kRows, Mode kMode, int kBlocks>
__global__ void __launch_bounds__(Plan<kFp8, kRows, kMode, kBlocks>::kThreads, 1)
    linear_small(const __grid_constant__ CUtensorMap x_map, const Params params) {
  using P = Plan<kFp8, kRows, kMode, kBlocks>;
  constexpr int kConsumers = P::kConsumers;
  constexpr int kWarps = P::kWarps;
  constexpr bool kBest = kMode == Mode::kBest;
  constexpr int kRegs = kRows / 2;
  extern __shared__ std::uint8_t shared_raw[];
  __shared__ Best warp_best[kBest ? kWarps : 1][kBest ? kRows : 1];
  std::uint8_t* const shared = shared_raw + (1024 - ptx::shared_address(shared_raw) % 1024) % 1024;
  float4* const sums = reinterpret_cast<float4*>(shared + P::kStages * P::kStageBytes);
  float* const x_scales = reinterpret_cast<float*>(shared + P::kStages * P::kStageBytes + P::kSumBytes);
  auto* const full = reinterpret_cast<std::uint64_t*>(
      shared + P::kStages * (P::kStageBytes + P::kScaleBytes) + P::kSumBytes);
  std::uint64_t* const empty = full + P::kStages;
  std::uint64_t* const sums_there = empty + P::kStages;
  std::uint64_t* const sums_read = sums_there + 1;

  const int thread = threadIdx.x;
  const int k_blocks = params.k_blocks;
  const int rank = kMode == Mode::kCluster ? static_cast<int>(ptx::cluster_rank()) : 0;
  const int cluster_size = kMode == Mode::kCluster ? static_cast<int>(ptx::cluster_size()) : 1;
  Work<kMode> work(params, rank, cluster_size);

  if (thread >= kConsumers) {
    const bool loader = thread == kConsumers;
    // Shared memory of rows that do not exist keeps what it held: nothing but their own sums depends on it.
    const std::uint32_t stage_bytes =
        static_cast<std::uint32_t>(P::kWeightBytes + params.rows * kLinearBlockBytes + P::kScaleBytes);
    const std::uint64_t once = ptx::evict_first_policy();
    const std::uint64_t again = ptx::evict_last_policy();
    const auto load_weights = [&](int tile, int k, int s) {
      ptx::barrier_expect(full + s, stage_bytes);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int row_block = min(tile * kBlocks + b, params.row_blocks - 1);
        ptx::copy_bulk(
            shared + s * P::kStageBytes + b * kLinearBlockSize,
            params.weights + (static_cast<std::size_t>(row_block) * k_blocks + k) * kLinearBlockSize,
            kLinearBlockSize, full + s, once);
      }
    };
    const auto load_activations = [&](int k, int s) {
      ptx::copy_tile(shared + s * P::kStageBytes + P::kWeightBytes, &x_map, k * (kFp8 ? 128 : 64), 0,
                     full + s, again);
      if constexpr (kFp8) {
        ptx::copy_bulk(x_scales + s * kRows, params.x_scales + k * params.x_scale_stride, kRows * 4, full + s,
                       again);
      }
    };
    Segment segment;
    int filled = 0;
    if (loader) {
      ptx::prefetch_map(&x_map);
      for (int s = 0; s < P::kStages; ++s) {
        ptx::barrier_init(full + s, 1);
        ptx::barrier_init(empty + s, kWarps);
      }
      if (kMode == Mode::kCluster) {
        ptx::barrier_init(sums_there, 1);
        ptx::barrier_init(sums_read, kWarps * cluster_size);
      }
      ptx::barrier_init_fence();
      // Weights do not depend on the kernel before: as many as there is room for.
      Work<kMode> ahead = work;
      while (filled < P::kStages && ahead.next(segment)) {
        for (int i = 0; i < segment.length() && filled < P::kStages; ++i) {
          load_weights(segment.tile, segment.k_begin + i, filled++);
        }
      }
    }
    sync_start<kMode>();
    ptx::let_next_kernel_start();
    if (!loader) return;
    ptx::wait_for_previous_kernel();
    int s = 0;
    int loaded = 0;
    std::uint32_t phase = 1;
    while (work.next(segment)) {
      for (int i = 0; i < segment.length(); ++i) {
        const int k = segment.k_begin + i;
        if (loaded < filled) {
          ++loaded;
        } else {
          ptx::barrier_wait(empty + s, phase);
          load_weights(segment.tile, k, s);
        }
        load_activations(k, s);
        if (++s == P::kStages) {
          s = 0;
          phase ^= 1;
        }
      }
    }
    return;
  }

  sync_start<kMode>();
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int group = thread / 128;

  int s = 0;
  std::uint32_t phase = 0;
  std::uint32_t tiles_done = 0;
  Segment segment;
  while (work.next(segment)) {
    const int tile = segment.tile;
    const int k_begin = segment.k_begin;
    const int k_end = segment.k_end;
    float sum[kRegs];
#pragma unroll
    for (int i = 0; i < kRegs; ++i) sum[i] = 0;
    const int n0 = place_of<kBlocks>(tile, 0, thread).n;  // this thread's weight rows: n0 and n0 + 8
    // Scales of 64 rows: lane i has that of block (base + i).
    const float* const group_scales =
        kFp8 ? params.scales + static_cast<std::size_t>(tile * 2 * kBlocks + group) * k_blocks : nullptr;
    const int length = segment.length();
    const auto fetch_scale = [&](int i) { return i < length ? group_scales[segment.k_begin + i] : 0.0F; };
    float lane_scale = 0;
    float lane_next = 0;
    if (kFp8 && params.scale_rows == 64) lane_next = fetch_scale(lane);
    ptx::wait_for_previous_kernel();

    for (int i = 0; i < length; ++i) {
      float scale0 = 0;
      float scale1 = 0;
      if constexpr (kFp8) {
        if (params.scale_rows == 64) {
          if (i % 32 == 0) {
            lane_scale = lane_next;
            lane_next = fetch_scale(i + 32 + lane);
          }
          scale0 = scale1 = __shfl_sync(0xffffffffU, lane_scale, i % 32);
        } else {
          const int k = segment.k_begin + i;
          scale0 = params.scales[static_cast<std::size_t>(n0) * k_blocks + k];
          scale1 = params.scales[static_cast<std::size_t>(n0 + 8) * k_blocks + k];
        }
      }
      ptx::barrier_wait(full + s, phase);
      const std::uint8_t* const stage = shared + s * P::kStageBytes;
      const std::uint64_t a = wgmma::descriptor(stage + group * 64 * kLinearBlockBytes);
      const std::uint64_t b = wgmma::descriptor(stage + P::kWeightBytes);
      if constexpr (kFp8) {
        float part[kRegs];
        wgmma::hold(part);
        wgmma::fence();
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          wgmma::multiply_fp8(part, a + q * wgmma::kStep, b + q * wgmma::kStep, q > 0);
        }
        wgmma::commit();
        // Meanwhile: this thread's columns are activation rows 8 j + 2 (lane % 4) + {0, 1}.
        wgmma::wait<0>();
        wgmma::hold(part);
        const float* const scales = x_scales + s * kRows + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
          const float2 x_scale = *reinterpret_cast<const float2*>(scales + j * 8);
          sum[j * 4] = fmaf(scale0 * x_scale.x, part[j * 4], sum[j * 4]);
          sum[j * 4 + 1] = fmaf(scale0 * x_scale.y, part[j * 4 + 1], sum[j * 4 + 1]);
          sum[j * 4 + 2] = fmaf(scale1 * x_scale.x, part[j * 4 + 2], sum[j * 4 + 2]);
          sum[j * 4 + 3] = fmaf(scale1 * x_scale.y, part[j * 4 + 3], sum[j * 4 + 3]);
        }
      } else {
        wgmma::hold(sum);
        wgmma::fence();
#pragma unroll
        for (int q = 0; q < 4; ++q) wgmma::multiply_bf16(sum, a + q * wgmma::kStep, b + q * wgmma::kStep, 1);
        wgmma::commit();
        wgmma::wait<0>();
        wgmma::hold(sum);
      }
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(empty + s);
      if (++s == P::kStages) {
        s = 0;
        phase ^= 1;
      }
    }

    if constexpr (kMode == Mode::kCluster) {
      // Each thread block completes its part of the tile with the sums of all.
      constexpr int kPieces = kRegs / 4 * kConsumers;
      const int each = kPieces / cluster_size;
      if (thread == 0) ptx::barrier_expect(sums_there, kPieces * sizeof(float4));
      if (tiles_done > 0) ptx::barrier_wait(sums_read, (tiles_done - 1) % 2);
#pragma unroll
      for (int i = 0; i < kRegs / 4; ++i) {
        const int piece = i * kConsumers + thread;
        ptx::send_shared(static_cast<std::uint32_t>(piece / each), sums + rank * each + piece % each,
                         make_float4(sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]), sums_there);
      }
      constexpr int kMost = (kRegs / 4 + 1) / 2;  // pieces of a thread, at two blocks a cluster
      float4 before[kMost];
#pragma unroll
      for (int p = 0; p < kMost; ++p) {
        const int mine = p * kConsumers + thread;
        const int piece = rank * each + mine;
        if (mine < each)
          before[p] = outputs_before(params, place_of<kBlocks>(tile, piece / kConsumers, piece % kConsumers));
      }
      ptx::barrier_wait(sums_there, tiles_done % 2);
#pragma unroll
      for (int p = 0; p < kMost; ++p) {
        const int mine = p * kConsumers + thread;
        const int piece = rank * each + mine;
        if (mine >= each) continue;
        float4 all = sums[mine];
        for (int r = 1; r < cluster_size; ++r) all = plus(all, sums[r * each + mine]);
        write_outputs(params, place_of<kBlocks>(tile, piece / kConsumers, piece % kConsumers), all,
                      before[p]);
      }
      ++tiles_done;
      if (work.more()) {
        // The sums have been read: the others may send the next.
        __syncwarp();
        if (lane < cluster_size) ptx::barrier_arrive_at(static_cast<std::uint32_t>(lane), sums_read);
      }
      continue;
    }

    if (k_end != k_blocks) {
      float4* const mine =
          params.partial + static_cast<std::size_t>(blockIdx.x) * (kRegs / 4 * kConsumers) + thread;
#pragma unroll
      for (int i = 0; i < kRegs / 4; ++i) {
        __stcg(mine + i * kConsumers,
               make_float4(sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]));
      }
      ptx::named_barrier(1, kConsumers);
      if (thread == 0) ptx::publish(params.ready + blockIdx.x, 1);
      continue;
    }
    if (k_begin != 0) {
      const std::int64_t grid = gridDim.x;
      const std::int64_t total = static_cast<std::int64_t>(params.tiles) * k_blocks;
      const std::int64_t tile_begin = static_cast<std::int64_t>(tile) * k_blocks;
      const int first =
          static_cast<int>(((tile_begin + 1) * grid - 1) / total);  // has the tile's first block
      const int me = static_cast<int>(blockIdx.x);
      for (int block = first + thread; block < me; block += kConsumers) {
        while (ptx::observe(params.ready + block) == 0) {
        }
        params.ready[block] = 0;  // for the next launch
      }
      ptx::named_barrier(1, kConsumers);
      // So many float4 at a time as there are registers for, and loads of so many thread blocks in flight.
      constexpr int kChunk = kBlocks == 1 || kRegs < 16 ? kRegs / 4 : kRegs < 64 ? 4 : 2;
      constexpr int kTogether = kChunk < 8 ? 8 / kChunk : 1;
#pragma unroll
      for (int c = 0; c < kRegs / 4; c += kChunk) {
        float4 all[kChunk];
#pragma unroll
        for (int i = 0; i < kChunk; ++i) all[i] = make_float4(0, 0, 0, 0);
        for (int block = first; block < me; block += kTogether) {
          float4 theirs[kTogether][kChunk];
#pragma unroll
          for (int t = 0; t < kTogether; ++t) {
            const float4* const from =
                params.partial + static_cast<std::size_t>(block + t) * (kRegs / 4 * kConsumers) + thread;
#pragma unroll
            for (int i = 0; i < kChunk; ++i) {
              theirs[t][i] = block + t < me ? __ldcg(from + (c + i) * kConsumers) : make_float4(0, 0, 0, 0);
            }
          }
#pragma unroll
          for (int t = 0; t < kTogether; ++t) {
#pragma unroll
            for (int i = 0; i < kChunk; ++i) all[i] = plus(all[i], theirs[t][i]);
          }
        }
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
          float* const mine = sum + (c + i) * 4;
          const float4 total_sum = plus(all[i], make_float4(mine[0], mine[1], mine[2], mine[3]));
          mine[0] = total_sum.x, mine[1] = total_sum.y, mine[2] = total_sum.z, mine[3] = total_sum.w;
        }
      }
    }

    if constexpr (kBest) {
      ptx::named_barrier(1, kConsumers);  // the readers of the tile before are done
      // Of kEach activation rows at a time, which the eight lanes of a column share out as they go.
      constexpr int kEach = kRows < 32 ? 2 : 8;
#pragma unroll
      for (int c = 0; c < kRows / 4; c += kEach) {
        Best b[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const float* const v = sum + (c + i) / 2 * 4 + i % 2;
          b[i] = better(one_output(v[0], n0, params.count), one_output(v[2], n0 + 8, params.count));
        }
        int mine = 0;  // of the kEach
        if constexpr (kEach == 8) {
          mine =
              share_out_best<4>(b, lane, 16) + share_out_best<2>(b, lane, 8) + share_out_best<1>(b, lane, 4);
        } else {
          mine = share_out_best<1>(b, lane, 16);
          b[0] = better(b[0], other_lane(b[0], 8));
          b[0] = better(b[0], other_lane(b[0], 4));
        }
        const int i = c + mine;
        if (kEach == 8 || lane % 16 < 4) warp_best[warp][i / 2 * 8 + lane % 4 * 2 + i % 2] = b[0];
      }
      ptx::named_barrier(1, kConsumers);
      if (thread < params.rows) {
        Best b = warp_best[0][thread];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) b = better(b, warp_best[w][thread]);
        params.best[static_cast<std::size_t>(tile) * params.rows + thread] = b;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRegs / 4; ++i) {
        const Place at = place_of<kBlocks>(tile, i, thread);
        write_outputs(params, at, make_float4(sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]),
                      outputs_before(params, at));
      }
    }
  }
}

constexpr int kPickThreads = 256;

// One row a block: the best of all tiles.
__global__ void __launch_bounds__(kPickThreads)
    pick_best(const Best* best, int tiles, int rows, std::int32_t* ids, float* probabilities) {
  __shared__ Best warps[kPickThreads / 32];
  const int row = blockIdx.x;
  const int thread = threadIdx.x;
  ptx::wait_for_previous_kernel();
  Best b = {-INFINITY, 0x7fffffff, 0.0F};
  for (int tile = thread; tile < tiles; tile += kPickThreads) {
    b = better(b, best[static_cast<std::size_t>(tile) * rows + row]);
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    b = better(b, other_lane(b, step));
  }
  if (thread % 32 == 0) warps[thread / 32] = b;
  __syncthreads();
  if (thread != 0) return;
  for (int w = 1; w < kPickThreads / 32; ++w) b = better(b, warps[w]);
  const bool finite = b.sum == b.sum;
  ids[row] = finite ? b.id : -1;
  if (probabilities != nullptr) probabilities[row] = 1.0F / b.sum;
}

int device_blocks() {
  static const int count = [] {
    int device = 0;
    int sms = 0;
    MIMO_CUDA(cudaGetDevice(&device));
    MIMO_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    return sms;
  }();
  return count;
}

// How a weight is shared out; depends on its shape and the device only.
struct Sharing {
  int grid = 0;
  int cluster = 1;
  bool whole_tiles = false;
  int tile_blocks = 1;
};

// Most clusters of so many thread blocks that the device runs at once, one thread block an SM.
int device_clusters(int size) {
  static const std::array<int, 4> counts = [] {
    std::array<int, 4> found = {};
    using P = Plan<false, 8, Mode::kCluster, 1>;
    constexpr int kBytes = P::kBytes;
    const auto kernel = linear_small<false, 8, Mode::kCluster, 1>;
    MIMO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    for (int i = 1; i < 4; ++i) {
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(static_cast<unsigned>(1 << i));
      config.blockDim = dim3(P::kThreads);
      config.dynamicSmemBytes = kBytes;
      cudaLaunchAttribute attribute = {};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(1 << i), 1, 1};
      config.attrs = &attribute;
      config.numAttrs = 1;
      MIMO_CUDA(cudaOccupancyMaxActiveClusters(&found[static_cast<std::size_t>(i)], kernel, &config));
    }
    return found;
  }();
  return size == 1 ? device_blocks() : counts[static_cast<std::size_t>(size == 2 ? 1 : size == 4 ? 2 : 3)];
}

Sharing share_out(const LinearWeight& weight, bool best) {
  const int row_blocks = linear_row_blocks(weight.rows);
  const bool wide = weight.format == LinearFormat::kBF16 && row_blocks >= 4 * device_blocks();
  const int tile_blocks = wide ? 2 : 1;
  const int tiles = (row_blocks + tile_blocks - 1) / tile_blocks;
  const int k_blocks = linear_k_blocks(weight.format, weight.cols);
  const double units = static_cast<double>(tiles) * k_blocks;
  // In microseconds: reading one block at an SM's share of the memory's rate, adding up partial sums.
  const double block = tile_blocks * 16384.0 / (4.6e6 / 132);
  constexpr double kMerge = 4.0;
  constexpr double kClusterMerge = 1.0;
  Sharing chosen;
  chosen.grid = static_cast<int>(std::min<double>(units, device_blocks()));
  chosen.tile_blocks = tile_blocks;
  double least = std::ceil(units / chosen.grid) * block + kMerge;
  for (int size = 1; size <= (best || wide ? 1 : 8); size *= 2) {
    if (size > k_blocks) break;
    const int clusters = std::min(tiles, device_clusters(size));
    if (clusters == 0) continue;
    const double rounds = (tiles + clusters - 1) / clusters;
    if (size > 1 && rounds > 1) continue;
    const double time = rounds * ((k_blocks + size - 1) / size * block + (size == 1 ? 0 : kClusterMerge));
    if (time < least) {
      least = time;
      chosen = {clusters * size, size, true, tile_blocks};
    }
  }
  return chosen;
}

std::size_t partial_bytes(const Sharing& sharing) {
  return static_cast<std::size_t>(device_blocks()) * static_cast<std::size_t>(sharing.tile_blocks) *
         kLinearBlockRows * kLinearSmallRows * sizeof(float);
}

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), int grid, int cluster, int threads, std::size_t shared,
            bool overlap, cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  std::array<cudaLaunchAttribute, 2> attributes = {};
  config.attrs = attributes.data();
  if (overlap) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  MIMO_CUDA(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

template <bool kFp8, int kRows, Mode kMode, int kBlocks>
void launch_rows(const CUtensorMap& x_map, const Params& params, const Sharing& sharing, bool overlap,
                 cudaStream_t stream) {
  using P = Plan<kFp8, kRows, kMode, kBlocks>;
  const auto kernel = linear_small<kFp8, kRows, kMode, kBlocks>;
  static const bool raised = [kernel] {
    MIMO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::kBytes));
    return true;
  }();
  static_cast<void>(raised);
  launch(kernel, sharing.grid, sharing.cluster, P::kThreads, P::kBytes, overlap, stream, x_map, params);
}

template <bool kFp8, Mode kMode, int kBlocks>
void launch_width(int width, const CUtensorMap& x_map, const Params& params, const Sharing& sharing,
                  bool overlap, cudaStream_t stream) {
  switch (width) {
    case 8:
      return launch_rows<kFp8, 8, kMode, kBlocks>(x_map, params, sharing, overlap, stream);
    case 16:
      return launch_rows<kFp8, 16, kMode, kBlocks>(x_map, params, sharing, overlap, stream);
    case 32:
      return launch_rows<kFp8, 32, kMode, kBlocks>(x_map, params, sharing, overlap, stream);
    case 64:
      return launch_rows<kFp8, 64, kMode, kBlocks>(x_map, params, sharing, overlap, stream);
    default:
      return launch_rows<kFp8, 128, kMode, kBlocks>(x_map, params, sharing, overlap, stream);
  }
}

template <bool kFp8>
void launch_mode(int width, const CUtensorMap& x_map, const Params& params, const Sharing& sharing, bool best,
                 bool overlap, cudaStream_t stream) {
  if constexpr (!kFp8) {
    if (best) {
      return sharing.tile_blocks == 2
                 ? launch_width<false, Mode::kBest, 2>(width, x_map, params, sharing, overlap, stream)
                 : launch_width<false, Mode::kBest, 1>(width, x_map, params, sharing, overlap, stream);
    }
    if (sharing.tile_blocks == 2) {
      return launch_width<false, Mode::kShares, 2>(width, x_map, params, sharing, overlap, stream);
    }
  }
  sharing.cluster > 1 ? launch_width<kFp8, Mode::kCluster, 1>(width, x_map, params, sharing, overlap, stream)
                      : launch_width<kFp8, Mode::kShares, 1>(width, x_map, params, sharing, overlap, stream);
}

void run(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight, const BestArgs* best,
         void* workspace, bool overlap, cudaStream_t stream) {
  if (args.rows == 0 || weight.rows == 0) return;
  const bool fp8 = weight.format == LinearFormat::kFp8;
  if (args.rows > kLinearSmallRows || weight.format == LinearFormat::kF32 || (fp8 && quant == nullptr) ||
      (!fp8 && args.x_type != ActType::kBF16)) {
    throw std::invalid_argument("linear_small: rows or formats it does not take");
  }
  int width = 8;
  while (width < args.rows) width *= 2;
  const CUtensorMap x_map =
      fp8 ? tensor_map_rows(quant->values, 1, args.rows, weight.cols, quant->stride, args.rows)
          : tensor_map_rows(args.x, 2, args.rows, weight.cols, args.x_stride * 2, args.rows);
  Params params = {};
  params.weights = static_cast<const std::uint8_t*>(weight.data);
  params.scales = weight.scales;
  params.scale_rows = weight.scale_rows;
  params.x_scales = fp8 ? quant->scales : nullptr;
  params.x_scale_stride = fp8 ? quant->scale_stride : 0;
  params.k_blocks = linear_k_blocks(weight.format, weight.cols);
  const Sharing sharing = share_out(weight, best != nullptr);
  params.row_blocks = linear_row_blocks(weight.rows);
  params.tiles = (params.row_blocks + sharing.tile_blocks - 1) / sharing.tile_blocks;
  params.n = weight.rows;
  params.rows = args.rows;
  params.y = args.y;
  params.y_stride = args.y_stride;
  params.y_bf16 = args.y_type == ActType::kBF16;
  params.add = args.add;
  auto* bytes = static_cast<std::uint8_t*>(workspace);
  params.ready = reinterpret_cast<std::int32_t*>(bytes);
  bytes += linear_small_counter_bytes();
  params.partial = reinterpret_cast<float4*>(bytes);
  params.best = reinterpret_cast<Best*>(bytes + partial_bytes(sharing));
  params.count = best != nullptr ? best->count : 0;
  params.whole_tiles = sharing.whole_tiles;
  fp8 ? launch_mode<true>(width, x_map, params, sharing, false, overlap, stream)
      : launch_mode<false>(width, x_map, params, sharing, best != nullptr, overlap, stream);
  if (best != nullptr) {
    launch(pick_best, args.rows, 1, kPickThreads, 0, overlap, stream, static_cast<const Best*>(params.best),
           params.tiles, args.rows, best->ids, best->probabilities);
  }
}

}  // namespace

bool linear_small_whole(const LinearWeight& weight) {
  const Sharing sharing = share_out(weight, false);
  return sharing.whole_tiles && sharing.cluster == 1;
}

std::size_t linear_small_counter_bytes() {
  return (static_cast<std::size_t>(device_blocks()) * sizeof(std::int32_t) + 255) / 256 * 256;
}

std::size_t linear_small_workspace(const LinearWeight& weight, bool best) {
  const std::size_t tiles = static_cast<std::size_t>(linear_row_blocks(weight.rows));
  return linear_small_counter_bytes() + partial_bytes(share_out(weight, best)) +
         (best ? tiles * kLinearSmallRows * sizeof(Best) : 0);
}

void launch_linear_small(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                         void* workspace, bool overlap, cudaStream_t stream) {
  run(args, quant, weight, nullptr, workspace, overlap, stream);
}

void launch_linear_best(const LinearArgs& args, const LinearWeight& weight, const BestArgs& best,
                        void* workspace, bool overlap, cudaStream_t stream) {
  if (weight.format != LinearFormat::kBF16) throw std::invalid_argument("linear_best: BF16 weights only");
  if (best.count < 1 || best.count > weight.rows) throw std::invalid_argument("linear_best: count");
  run(args, nullptr, weight, &best, workspace, overlap, stream);
}

}  // namespace mimo::cuda
