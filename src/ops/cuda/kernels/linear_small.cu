#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/linear_ptx.cuh"
#include "ops/cuda/kernels/linear_small.h"
#include "ops/cuda/kernels/linear_wgmma.cuh"
#include "ops/cuda/kernels/tensor_map.h"

// Weights are the 64-row operand of the tensor cores and activation rows the narrow one. The blocks of the weight are
// one long list (all blocks along the columns of the first 128 rows, then those of the next 128), of which every
// thread block takes an equal share, so that every SM reads as many bytes. A thread block whose share cuts through 128
// rows leaves partial sums in the workspace; the last one to arrive adds them up in the order of the columns.

namespace mimo::cuda {
namespace {

constexpr int kConsumers = 256;  // two warpgroups, 64 weight rows each
constexpr int kThreads = kConsumers + 32;
constexpr int kWarps = kConsumers / 32;

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
  int n;  // weight rows
  int rows;
  void* y;
  std::int64_t y_stride;
  bool y_bf16;
  bool add;
  std::int32_t* counters;  // [tiles]
  float4* partial;         // [2 * grid][kRegs / 4][kConsumers]
  Best* best;              // [tiles][rows]
  int count;
};

template <bool kFp8, int kRows>
struct Plan {
  static constexpr int kStageBytes = kLinearBlockSize + kRows * kLinearBlockBytes;
  static constexpr int kScaleBytes = kFp8 ? kRows * 4 : 0;
  static constexpr int kStages = std::min(12, 222 * 1024 / (kStageBytes + kScaleBytes));
  static constexpr int kBytes = kStages * (kStageBytes + kScaleBytes + 16) + 1024;
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

__device__ Best one_output(float value, int id, int count) {
  if (id >= count) return {-INFINITY, 0x7fffffff, 0.0F};
  if (!isfinite(value)) return {-INFINITY, id, __int_as_float(0x7fffffff)};
  return {value, id, 1.0F};
}

template <bool kFp8, int kRows, bool kBest>
__global__ void __launch_bounds__(kThreads, 1)
    linear_small(const __grid_constant__ CUtensorMap x_map, const Params params) {
  using P = Plan<kFp8, kRows>;
  constexpr int kRegs = kRows / 2;
  extern __shared__ std::uint8_t shared_raw[];
  __shared__ std::int32_t last_flag;
  __shared__ Best warp_best[kBest ? kWarps : 1][kBest ? kRows : 1];
  std::uint8_t* const shared = shared_raw + (1024 - ptx::shared_address(shared_raw) % 1024) % 1024;
  float* const x_scales = reinterpret_cast<float*>(shared + P::kStages * P::kStageBytes);
  auto* const full =
      reinterpret_cast<std::uint64_t*>(shared + P::kStages * (P::kStageBytes + P::kScaleBytes));
  std::uint64_t* const empty = full + P::kStages;

  const int thread = threadIdx.x;
  const int k_blocks = params.k_blocks;
  const std::int64_t total = static_cast<std::int64_t>(params.tiles) * k_blocks;
  const std::int64_t grid = gridDim.x;
  const int begin = static_cast<int>(total * blockIdx.x / grid);
  const int end = static_cast<int>(total * (blockIdx.x + 1) / grid);

  if (thread == 0) {
    for (int s = 0; s < P::kStages; ++s) {
      ptx::barrier_init(full + s, 1);
      ptx::barrier_init(empty + s, kWarps);
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();
  ptx::let_next_kernel_start();

  if (thread >= kConsumers) {
    if (thread != kConsumers) return;
    ptx::prefetch_map(&x_map);
    const std::uint64_t once = ptx::evict_first_policy();
    const std::uint64_t again = ptx::evict_last_policy();
    const auto load_weights = [&](int unit, int s) {
      ptx::barrier_expect(full + s, P::kStageBytes + P::kScaleBytes);
      ptx::copy_bulk(shared + s * P::kStageBytes,
                     params.weights + static_cast<std::size_t>(unit) * kLinearBlockSize, kLinearBlockSize,
                     full + s, once);
    };
    const auto load_activations = [&](int unit, int s) {
      const int k = unit % k_blocks;
      ptx::copy_tile(shared + s * P::kStageBytes + kLinearBlockSize, &x_map, k * (kFp8 ? 128 : 64), 0,
                     full + s, again);
      if constexpr (kFp8) {
        ptx::copy_bulk(x_scales + s * kRows, params.x_scales + k * params.x_scale_stride, kRows * 4, full + s,
                       again);
      }
    };
    // Weights do not depend on the kernel before.
    const int ahead = min(P::kStages, end - begin);
    for (int i = 0; i < ahead; ++i) load_weights(begin + i, i);
    ptx::wait_for_previous_kernel();
    for (int i = 0; i < ahead; ++i) load_activations(begin + i, i);
    int s = 0;
    std::uint32_t phase = 0;
    for (int unit = begin + ahead; unit < end; ++unit) {
      ptx::barrier_wait(empty + s, phase);
      load_weights(unit, s);
      load_activations(unit, s);
      if (++s == P::kStages) {
        s = 0;
        phase ^= 1;
      }
    }
    return;
  }

  const int lane = thread % 32;
  const int warp = thread / 32;
  const int group = thread / 128;
  ptx::wait_for_previous_kernel();

  int s = 0;
  std::uint32_t phase = 0;
  for (int unit = begin; unit < end;) {
    const int tile = unit / k_blocks;
    const int k_begin = unit % k_blocks;
    const int k_end = min(k_blocks, k_begin + end - unit);
    float sum[kRegs];
#pragma unroll
    for (int i = 0; i < kRegs; ++i) sum[i] = 0;
    const int n0 =
        tile * kLinearBlockRows + warp * 16 + lane / 4;  // this thread's weight rows: n0 and n0 + 8
    // Scales of 64 rows: lane i has that of block (base + i).
    const float* const group_scales =
        kFp8 ? params.scales + static_cast<std::size_t>(tile * 2 + group) * k_blocks : nullptr;
    float lane_scale = 0;
    float lane_next = 0;
    if (kFp8 && params.scale_rows == 64)
      lane_next = k_begin + lane < k_end ? group_scales[k_begin + lane] : 0.0F;

    for (int k = k_begin; k < k_end; ++k, ++unit) {
      float scale0 = 0;
      float scale1 = 0;
      if constexpr (kFp8) {
        if (params.scale_rows == 64) {
          const int i = (k - k_begin) % 32;
          if (i == 0) {
            lane_scale = lane_next;
            lane_next = k + 32 + lane < k_end ? group_scales[k + 32 + lane] : 0.0F;
          }
          scale0 = scale1 = __shfl_sync(0xffffffffU, lane_scale, i);
        } else {
          scale0 = params.scales[static_cast<std::size_t>(n0) * k_blocks + k];
          scale1 = params.scales[static_cast<std::size_t>(n0 + 8) * k_blocks + k];
        }
      }
      ptx::barrier_wait(full + s, phase);
      const std::uint8_t* const stage = shared + s * P::kStageBytes;
      const std::uint64_t a = wgmma::descriptor(stage + group * 64 * kLinearBlockBytes);
      const std::uint64_t b = wgmma::descriptor(stage + kLinearBlockSize);
      if constexpr (kFp8) {
        float part[kRegs];
        wgmma::hold(part);
        wgmma::fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          wgmma::multiply_fp8(part, a + i * wgmma::kStep, b + i * wgmma::kStep, i > 0);
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
        for (int i = 0; i < 4; ++i) wgmma::multiply_bf16(sum, a + i * wgmma::kStep, b + i * wgmma::kStep, 1);
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

    if (k_begin != 0 || k_end != k_blocks) {
      // The thread blocks that share these rows, in the order of the columns: the first one's sums are its slot 1,
      // the others' their slot 0.
      const auto owner = [&](std::int64_t u) { return static_cast<int>(((u + 1) * grid - 1) / total); };
      const std::int64_t tile_begin = static_cast<std::int64_t>(tile) * k_blocks;
      const int first = owner(tile_begin);
      const int last = owner(tile_begin + k_blocks - 1);
      const auto slot = [&](int block) {
        return params.partial +
               (static_cast<std::size_t>(block) * 2 + (block == first ? 1 : 0)) * (kRegs / 4 * kConsumers) +
               thread;
      };
      const int me = static_cast<int>(blockIdx.x);
      float4* const mine = slot(me);
#pragma unroll
      for (int i = 0; i < kRegs / 4; ++i) {
        __stcg(mine + i * kConsumers,
               make_float4(sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]));
      }
      __threadfence();
      ptx::named_barrier(1, kConsumers);
      if (thread == 0) {
        const int arrived = atomicAdd(params.counters + tile, 1);
        const bool is_last = arrived == last - first;
        if (is_last) params.counters[tile] = 0;
        last_flag = is_last ? 1 : 0;
        __threadfence();
      }
      ptx::named_barrier(1, kConsumers);
      if (last_flag == 0) continue;
      float total_sum[kRegs];
#pragma unroll
      for (int i = 0; i < kRegs; ++i) total_sum[i] = 0;
      for (int block = first; block <= last; ++block) {
        const float4* const theirs = slot(block);
#pragma unroll
        for (int i = 0; i < kRegs / 4; ++i) {
          const float4 v = __ldcg(theirs + i * kConsumers);
          total_sum[i * 4] += v.x;
          total_sum[i * 4 + 1] += v.y;
          total_sum[i * 4 + 2] += v.z;
          total_sum[i * 4 + 3] += v.w;
        }
      }
#pragma unroll
      for (int i = 0; i < kRegs; ++i) sum[i] = total_sum[i];
    }

    if constexpr (kBest) {
      ptx::named_barrier(1, kConsumers);  // the readers of the tile before are done
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          Best b = better(one_output(sum[j * 4 + e], n0, params.count),
                          one_output(sum[j * 4 + 2 + e], n0 + 8, params.count));
#pragma unroll
          for (int step = 4; step < 32; step *= 2) {
            const Best other = {__shfl_xor_sync(0xffffffffU, b.value, step),
                                __shfl_xor_sync(0xffffffffU, b.id, step),
                                __shfl_xor_sync(0xffffffffU, b.sum, step)};
            b = better(b, other);
          }
          if (lane < 4) warp_best[warp][j * 8 + lane * 2 + e] = b;
        }
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
      for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int m = j * 8 + lane % 4 * 2 + e % 2;
          const int n = n0 + e / 2 * 8;
          if (m >= params.rows || n >= params.n) continue;
          const std::int64_t at = m * params.y_stride + n;
          if (params.y_bf16) {
            static_cast<__nv_bfloat16*>(params.y)[at] = __float2bfloat16_rn(sum[j * 4 + e]);
          } else {
            float* const y = static_cast<float*>(params.y) + at;
            *y = params.add ? *y + sum[j * 4 + e] : sum[j * 4 + e];
          }
        }
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
    const Best other = {__shfl_xor_sync(0xffffffffU, b.value, step), __shfl_xor_sync(0xffffffffU, b.id, step),
                        __shfl_xor_sync(0xffffffffU, b.sum, step)};
    b = better(b, other);
  }
  if (thread % 32 == 0) warps[thread / 32] = b;
  __syncthreads();
  if (thread != 0) return;
  for (int w = 1; w < kPickThreads / 32; ++w) b = better(b, warps[w]);
  const bool finite = b.sum == b.sum;
  ids[row] = finite ? b.id : 0;
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

int grid_size(const LinearWeight& weight) {
  const std::int64_t units =
      static_cast<std::int64_t>(linear_row_blocks(weight.rows)) * linear_k_blocks(weight.format, weight.cols);
  return static_cast<int>(std::min<std::int64_t>(units, device_blocks()));
}

std::size_t partial_bytes(const LinearWeight& weight) {
  return static_cast<std::size_t>(grid_size(weight)) * 2 * kLinearBlockRows * kLinearSmallRows *
         sizeof(float);
}

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), int grid, int threads, std::size_t shared, bool overlap,
            cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  MIMO_CUDA(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

template <bool kFp8, int kRows, bool kBest>
void launch_rows(const CUtensorMap& x_map, const Params& params, int grid, bool overlap,
                 cudaStream_t stream) {
  constexpr int kBytes = Plan<kFp8, kRows>::kBytes;
  static const bool raised = [] {
    MIMO_CUDA(cudaFuncSetAttribute(linear_small<kFp8, kRows, kBest>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    return true;
  }();
  static_cast<void>(raised);
  launch(linear_small<kFp8, kRows, kBest>, grid, kThreads, kBytes, overlap, stream, x_map, params);
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
      fp8 ? tensor_map_rows(quant->values, 1, args.rows, weight.cols, quant->stride, width)
          : tensor_map_rows(args.x, 2, args.rows, weight.cols, args.x_stride * 2, width);
  Params params = {};
  params.weights = static_cast<const std::uint8_t*>(weight.data);
  params.scales = weight.scales;
  params.scale_rows = weight.scale_rows;
  params.x_scales = fp8 ? quant->scales : nullptr;
  params.x_scale_stride = fp8 ? quant->scale_stride : 0;
  params.k_blocks = linear_k_blocks(weight.format, weight.cols);
  params.tiles = linear_row_blocks(weight.rows);
  params.n = weight.rows;
  params.rows = args.rows;
  params.y = args.y;
  params.y_stride = args.y_stride;
  params.y_bf16 = args.y_type == ActType::kBF16;
  params.add = args.add;
  auto* bytes = static_cast<std::uint8_t*>(workspace);
  params.counters = reinterpret_cast<std::int32_t*>(bytes);
  bytes += linear_small_counter_bytes(weight);
  params.partial = reinterpret_cast<float4*>(bytes);
  params.best = reinterpret_cast<Best*>(bytes + partial_bytes(weight));
  params.count = best != nullptr ? best->count : 0;
  const int grid = grid_size(weight);
  const auto launch_width = [&]<bool kFp8, bool kBest>() {
    switch (width) {
      case 8:
        return launch_rows<kFp8, 8, kBest>(x_map, params, grid, overlap, stream);
      case 16:
        return launch_rows<kFp8, 16, kBest>(x_map, params, grid, overlap, stream);
      case 32:
        return launch_rows<kFp8, 32, kBest>(x_map, params, grid, overlap, stream);
      case 64:
        return launch_rows<kFp8, 64, kBest>(x_map, params, grid, overlap, stream);
      default:
        return launch_rows<kFp8, 128, kBest>(x_map, params, grid, overlap, stream);
    }
  };
  if (best == nullptr) {
    fp8 ? launch_width.template operator()<true, false>() : launch_width.template operator()<false, false>();
    return;
  }
  if (fp8) throw std::invalid_argument("linear_best: BF16 weights only");
  launch_width.template operator()<false, true>();
  launch(pick_best, args.rows, kPickThreads, 0, false, stream, static_cast<const Best*>(params.best),
         params.tiles, args.rows, best->ids, best->probabilities);
}

}  // namespace

std::size_t linear_small_counter_bytes(const LinearWeight& weight) {
  return (static_cast<std::size_t>(linear_row_blocks(weight.rows)) * sizeof(std::int32_t) + 255) / 256 * 256;
}

std::size_t linear_small_workspace(const LinearWeight& weight, bool best) {
  const std::size_t tiles = static_cast<std::size_t>(linear_row_blocks(weight.rows));
  return linear_small_counter_bytes(weight) + partial_bytes(weight) +
         (best ? tiles * kLinearSmallRows * sizeof(Best) : 0);
}

void launch_linear_small(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                         void* workspace, bool overlap, cudaStream_t stream) {
  run(args, quant, weight, nullptr, workspace, overlap, stream);
}

void launch_linear_best(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                        const BestArgs& best, void* workspace, bool overlap, cudaStream_t stream) {
  run(args, quant, weight, &best, workspace, overlap, stream);
}

}  // namespace mimo::cuda
