// Blocks of 16 experts x 512 columns x some rows write partial logits by mma. For a few rows the last block to finish adds
// them up in order, chooses, one warp a row, and makes the plan; for more a second kernel does.
#include <cuda_bf16.h>

#include "ops/cuda/kernels/moe_plan.cuh"
#include "ops/cuda/kernels/moe_ptx.cuh"
#include "ops/cuda/kernels/moe_route.h"

namespace mimo::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kBlockExperts = 16;
constexpr int kBlockCols = 512;  // 64 a warp
constexpr int kFusedRows = 8;

struct Params {
  RouteArgs args;
  int splits;             // of the columns
  std::int32_t* tickets;  // [2], 0 between launches
  float* partial;         // [splits][rows][pitch]
  int pitch;              // what the lanes of choose read: 256 or 512
};

// Eight neighbouring elements as bf16 pairs, in one part or three that add up to them.
template <ActType T>
constexpr int kParts = T == ActType::kF32 ? 3 : 1;

template <ActType T>
struct Raw8 {
  uint4 v[T == ActType::kF32 ? 2 : 1];
};

template <ActType T>
__device__ Raw8<T> load8(const void* row, int c, bool valid) {
  constexpr int kVectors = T == ActType::kF32 ? 2 : 1;
  const uint4* at =
      reinterpret_cast<const uint4*>(static_cast<const std::uint8_t*>(row) + c * (kVectors * 2));
  Raw8<T> raw;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) raw.v[i] = valid ? at[i] : uint4{0, 0, 0, 0};
  return raw;
}

template <ActType T>
__device__ void split8(const Raw8<T>& raw, std::uint32_t (&out)[kParts<T>][4]) {
  if constexpr (T == ActType::kBF16) {
    out[0][0] = raw.v[0].x, out[0][1] = raw.v[0].y, out[0][2] = raw.v[0].z, out[0][3] = raw.v[0].w;
  } else {
    const std::uint32_t v[8] = {raw.v[0].x, raw.v[0].y, raw.v[0].z, raw.v[0].w,
                                raw.v[1].x, raw.v[1].y, raw.v[1].z, raw.v[1].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float a = __uint_as_float(v[2 * i]), b = __uint_as_float(v[2 * i + 1]);
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        // The upper halves are bf16 by truncation; what is left is exact.
        const std::uint32_t ua = __float_as_uint(a) & 0xffff0000u, ub = __float_as_uint(b) & 0xffff0000u;
        out[part][i] = ua >> 16 | ub;
        a -= __uint_as_float(ua);
        b -= __uint_as_float(ub);
      }
    }
  }
}

// Orders floats as unsigned numbers; 0 is left for "taken".
__device__ std::uint32_t order_key(float v) {
  const std::uint32_t u = __float_as_uint(v + 0.0f);  // -0 becomes 0
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

struct Chosen {
  int id[kWarps][kMoeMaxTopK];
  float score[kWarps][kMoeMaxTopK];
};

// One warp chooses for one row; a lane looks at Per neighbouring experts.
template <int Per>
__device__ void choose(const Params& p, int row, Chosen& chosen) {
  const RouteArgs& a = p.args;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float score[Per], bias[Per];
  std::uint32_t key[Per];
#pragma unroll
  for (int i = 0; i < Per; ++i) {
    const int e = lane * Per + i;
    score[i] = 0;
    bias[i] = a.bias == nullptr || e >= a.experts ? 0.0f : a.bias[e];  // on its way while the logits are
  }
#pragma unroll 8
  for (int s = 0; s < p.splits; ++s) {
    const float4* from =
        reinterpret_cast<const float4*>(p.partial + (static_cast<std::int64_t>(s) * a.rows + row) * p.pitch) +
        lane * (Per / 4);
#pragma unroll
    for (int i = 0; i < Per / 4; ++i) {
      const float4 v = __ldcg(from + i);
      score[4 * i] += v.x, score[4 * i + 1] += v.y, score[4 * i + 2] += v.z, score[4 * i + 3] += v.w;
    }
  }
  std::uint32_t best = 0;
#pragma unroll
  for (int i = 0; i < Per; ++i) {
    const int e = lane * Per + i;
    key[i] = 0;
    if (e < a.experts) {
      score[i] = 1.0f / (1.0f + expf(-score[i]));
      float biased = score[i] + bias[i];
      if (!isfinite(biased)) biased = -INFINITY;
      key[i] = order_key(biased);
    }
    best = max(best, key[i]);
  }
  std::uint32_t taken = 0;
  for (int k = 0; k < a.top_k; ++k) {
    const std::uint32_t top = __reduce_max_sync(0xffffffffu, best);
    const int winner = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, best == top))) - 1;
    if (lane == winner) {
      bool found = false;
      best = 0;
#pragma unroll
      for (int i = 0; i < Per; ++i) {
        if (!found && key[i] == top) {
          found = true;
          key[i] = 0;
          taken |= 1u << i;
        }
        best = max(best, key[i]);
      }
    }
  }
  // Places in ascending order of id.
  int place = __popc(taken);
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, place, d);
    if (lane >= d) place += other;
  }
  place -= __popc(taken);
#pragma unroll
  for (int i = 0; i < Per; ++i) {
    if (taken >> i & 1) {
      chosen.id[warp][place] = lane * Per + i;
      chosen.score[warp][place] = score[i];
      ++place;
    }
  }
  __syncwarp();
  float sum = 0;
  for (int k = 0; k < a.top_k; ++k) sum += chosen.score[warp][k];
  if (lane < a.top_k) {
    const bool padding = a.row_sequence != nullptr && a.row_sequence[row] < 0;
    float w = chosen.score[warp][lane];
    if (a.normalize) w /= sum + 1e-20f;
    w *= a.scale;
    a.ids[static_cast<std::int64_t>(row) * a.top_k + lane] = padding ? -1 : chosen.id[warp][lane];
    a.weights[static_cast<std::int64_t>(row) * a.top_k + lane] = padding ? 0.0f : w;
  }
  __syncwarp();
}

__device__ void choose_row(const Params& p, int row, Chosen& chosen) {
  if (p.args.experts <= 256) {
    choose<8>(p, row, chosen);
  } else {
    choose<kMoeMaxExperts / 32>(p, row, chosen);
  }
}

// The plan of one row: its pairs are in order of experts already. One warp.
__device__ void plan_row(const RouteArgs& a, const int* chosen) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool padding = a.row_sequence != nullptr && a.row_sequence[0] < 0;
  if (lane < a.top_k && !padding) {
    a.plan.groups[lane] = {chosen[lane], lane, 1, 0};
    a.plan.done[lane] = 0;
    a.plan.slot_pair[lane] = lane;
  }
  if (lane == 0) {
    *a.plan.group_count = padding ? 0 : a.top_k;
    *a.plan.arrived = 0;
  }
}

// Whether this block is the last of `blocks` to come here; what the others wrote before is then visible to it.
__device__ bool last_block(std::int32_t* ticket, int blocks, int* flag) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const bool last = atomicAdd(ticket, 1) == blocks - 1;
    if (last) *ticket = 0;
    *flag = last;
  }
  __syncthreads();
  const bool last = *flag != 0;
  if (last) __threadfence();
  return last;
}

template <ActType X, ActType W, int Cols>
__global__ void __launch_bounds__(kThreads) route_kernel(const __grid_constant__ Params p) {
  ptx::let_next_grid_start();
  const RouteArgs& a = p.args;
  union Scratch {
    float4 sums[kWarps][Cols][32];
    Chosen chosen;
    MoePlanScratch plan;
  };
  __shared__ Scratch scratch;
  __shared__ int flag;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int e0 = static_cast<int>(blockIdx.x) * kBlockExperts, row0 = static_cast<int>(blockIdx.z) * Cols * 8;
  const int col0 = static_cast<int>(blockIdx.y) * kBlockCols + warp * 64 + lane % 4 * 8;
  const auto row_of = [&](const void* base, ActType type, int row) {
    return static_cast<const std::uint8_t*>(base) +
           static_cast<std::int64_t>(row) * a.hidden * (type == ActType::kF32 ? 4 : 2);
  };
  // The router does not depend on the kernel before.
  Raw8<W> raw[2][2];
#pragma unroll
  for (int block = 0; block < 2; ++block) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int e = e0 + lane / 4 + 8 * i, c = col0 + block * 32;
      raw[block][i] = load8<W>(row_of(a.router, W, e), c, e < a.experts && c < a.hidden);
    }
  }
  ptx::wait_for_prior_grid();
  float acc[Cols][4] = {};
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const int c = col0 + block * 32;
    // mma's k index of both operands is permuted alike: a lane's eight neighbouring columns make two steps.
    std::uint32_t w[2][kParts<W>][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) split8<W>(raw[block][i], w[i]);
    Raw8<X> raw_x[Cols];
#pragma unroll
    for (int n = 0; n < Cols; ++n) {
      const int row = row0 + n * 8 + lane / 4;
      raw_x[n] = load8<X>(row_of(a.x, X, row), c, row < a.rows && c < a.hidden);
    }
#pragma unroll
    for (int n = 0; n < Cols; ++n) {
      std::uint32_t x[kParts<X>][4];
      split8<X>(raw_x[n], x);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int i = 0; i < kParts<W>; ++i) {
#pragma unroll
          for (int j = 0; j < kParts<X>; ++j) {
            if (i + j > 2) continue;  // under 2^-24 of the product
            const std::uint32_t fragment[4] = {w[0][i][2 * step], w[1][i][2 * step], w[0][i][2 * step + 1],
                                               w[1][i][2 * step + 1]};
            ptx::mma_bf16(acc[n], fragment, x[j][2 * step], x[j][2 * step + 1]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < Cols; ++n)
    scratch.sums[warp][n][lane] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
  __syncthreads();
  for (int i = tid; i < Cols * 128; i += kThreads) {
    const int e = i % 16, r = i / 16;
    // Expert e of the block is row e % 8 of the upper (0) or lower (2) accumulator pair.
    const int source = e % 8 * 4 + r % 8 / 2, part = e / 8 * 2 + r % 2;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
      sum += reinterpret_cast<const float*>(&scratch.sums[w][r / 8][source])[part];
    if (row0 + r < a.rows && e0 + e < a.experts) {
      __stcg(p.partial + (static_cast<std::int64_t>(blockIdx.y) * a.rows + row0 + r) * p.pitch + e0 + e, sum);
    }
  }
  if constexpr (Cols * 8 > kFusedRows) return;
  if (!last_block(p.tickets, static_cast<int>(gridDim.x * gridDim.y), &flag)) return;
  if (warp < a.rows) choose_row(p, warp, scratch.chosen);
  if (a.plan.groups == nullptr) return;
  if (a.rows == 1) {
    if (warp == 0) plan_row(a, scratch.chosen.id[0]);
    return;
  }
  __syncthreads();
  build_moe_plan<kThreads>({a.ids, a.rows, a.top_k, a.experts, a.group_rows, a.plan}, scratch.plan);
}

__global__ void __launch_bounds__(kThreads) choose_kernel(const __grid_constant__ Params p) {
  ptx::let_next_grid_start();
  ptx::wait_for_prior_grid();
  const RouteArgs& a = p.args;
  union Scratch {
    Chosen chosen;
    MoePlanScratch plan;
  };
  __shared__ Scratch scratch;
  __shared__ int flag;
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (row < a.rows) choose_row(p, row, scratch.chosen);
  if (a.plan.groups == nullptr || !last_block(p.tickets + 1, static_cast<int>(gridDim.x), &flag)) return;
  build_moe_plan<kThreads>({a.ids, a.rows, a.top_k, a.experts, a.group_rows, a.plan}, scratch.plan);
}

constexpr int sets_of(int rows, int size) { return (rows + size - 1) / size; }
constexpr int pitch_of(int experts) { return experts <= 256 ? 256 : kMoeMaxExperts; }
constexpr std::size_t kTicketBytes = 256;

template <ActType X, ActType W>
cudaError_t launch(const Params& p, cudaStream_t stream) {
  const RouteArgs& a = p.args;
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = a.overlap ? 1 : 0;
  config.gridDim =
      dim3(static_cast<unsigned>(sets_of(a.experts, kBlockExperts)), static_cast<unsigned>(p.splits));
  if (a.rows <= kFusedRows) return cudaLaunchKernelEx(&config, route_kernel<X, W, kFusedRows / 8>, p);
  // More rows of a block read the router less often and leave fewer blocks.
  const int block_rows = a.rows < 512 ? 32 : 64;
  config.gridDim.z = static_cast<unsigned>(sets_of(a.rows, block_rows));
  const cudaError_t code =
      cudaLaunchKernelEx(&config, block_rows == 32 ? route_kernel<X, W, 4> : route_kernel<X, W, 8>, p);
  if (code != cudaSuccess) return code;
  config.gridDim = dim3(static_cast<unsigned>(sets_of(a.rows, kWarps)));
  return cudaLaunchKernelEx(&config, choose_kernel, p);
}

}  // namespace

std::size_t route_workspace(int rows, int hidden, int experts) {
  return kTicketBytes + static_cast<std::size_t>(sets_of(hidden, kBlockCols)) *
                            static_cast<std::size_t>(rows) * static_cast<std::size_t>(pitch_of(experts)) *
                            sizeof(float);
}

cudaError_t launch_route(const RouteArgs& args, cudaStream_t stream) {
  if (args.rows <= 0) return cudaSuccess;
  const bool plans = args.plan.groups != nullptr;
  if (args.hidden <= 0 || args.hidden % 8 != 0 || args.experts <= 0 || args.experts > kMoeMaxExperts ||
      args.top_k <= 0 || args.top_k > kMoeMaxTopK || args.top_k > args.experts ||
      (plans && (args.rows * args.top_k > kRoutePlanPairs || args.group_rows <= 0))) {
    return cudaErrorInvalidValue;
  }
  Params p;
  p.args = args;
  p.pitch = pitch_of(args.experts);
  p.splits = sets_of(args.hidden, kBlockCols);
  p.tickets = static_cast<std::int32_t*>(args.workspace);
  p.partial = reinterpret_cast<float*>(static_cast<std::uint8_t*>(args.workspace) + kTicketBytes);
  constexpr ActType kF32 = ActType::kF32, kBF16 = ActType::kBF16;
  if (args.type == kBF16) {
    return args.router_type == kBF16 ? launch<kBF16, kBF16>(p, stream) : launch<kBF16, kF32>(p, stream);
  }
  return args.router_type == kBF16 ? launch<kF32, kBF16>(p, stream) : launch<kF32, kF32>(p, stream);
}

}  // namespace mimo::cuda
