#include <cuda_bf16.h>

#include <algorithm>
#include <stdexcept>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/linear_large.h"
#include "ops/cuda/kernels/linear_ptx.cuh"
#include "ops/cuda/kernels/linear_wgmma.cuh"
#include "ops/cuda/kernels/tensor_map.h"

// A thread block stays on its SM and takes tile after tile: 128 or 256 activation rows by 128 weight rows. One warp
// keeps a ring of stages filled (128 bytes of every row of the tile each); two warpgroups multiply, each its half of
// the activation rows in waves of 64. While one of them scales the sums of a stage, the other has the tensor cores.
// The two thread blocks of a cluster have neighbouring weight rows: each fetches half of the activations for both.

namespace mimo::cuda {
namespace {

constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 128;
constexpr int kWarps = kConsumers / 32;
constexpr int kTileN = kLinearBlockRows;
constexpr int kGroupM =
    8;  // tiles of activation rows that are worked on side by side, so that L2 serves both operands

struct Params {
  const std::uint8_t* weights;
  const float* scales;
  const float* x_scales;
  std::int64_t x_scale_stride;
  int k_blocks;
  int tiles_m;
  int tiles_n;  // a multiple of the cluster
  int n_blocks;
  int tail_share;  // rows of the last tile that each block of the cluster fetches
  int n;
  int rows;
  void* y;
  std::int64_t y_stride;
  bool y_bf16;
  bool y_aligned;  // rows of y are 16-byte aligned
  bool add;
};

template <bool kFp8, int kWaves>
struct Plan {
  static constexpr int kRows = 128 * kWaves;
  static constexpr int kStageBytes = kLinearBlockSize + kRows * kLinearBlockBytes;
  static constexpr int kScaleBytes = kFp8 ? kRows * 4 : 0;
  static constexpr int kStages = kWaves == 2 ? 4 : 6;
  static constexpr int kBytes = kStages * (kStageBytes + kScaleBytes + 16) + 1024;
};

struct Tile {
  int m;
  int n;
};

// Pair `index` of the list of clusters' tiles.
__device__ Tile tile_at(int index, int tiles_m, int pairs_n) {
  const int per_group = kGroupM * pairs_n;
  const int group = index / per_group;
  const int first = group * kGroupM;
  const int height = min(kGroupM, tiles_m - first);
  const int in_group = index - group * per_group;
  return {first + in_group % height, in_group / height};
}

__device__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&two);
}

// Writes a wave: row m (+ 8) of this thread, 128 columns from n0 on.
__device__ void store_wave(const Params& params, const float (&sum)[64], int m, int n0, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = m + half * 8;
    const bool row_ok = row < params.rows;
    if (params.y_bf16 && params.y_aligned && n0 + kTileN <= params.n) {
      // Four lanes have two columns of every eight: exchanged so that each has eight columns of every 32.
      const int q = lane % 4;
#pragma unroll
      for (int j = 0; j < 16; j += 4) {
        std::uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          v[i] = pack_bf16(sum[(j + i) * 4 + half * 2], sum[(j + i) * 4 + half * 2 + 1]);
        // Transpose of 4 x 4 over the lanes: first halves of two, then neighbours.
        const std::uint32_t a0 = __shfl_xor_sync(0xffffffffU, q < 2 ? v[2] : v[0], 2);
        const std::uint32_t a1 = __shfl_xor_sync(0xffffffffU, q < 2 ? v[3] : v[1], 2);
        if (q < 2) {
          v[2] = a0;
          v[3] = a1;
        } else {
          v[0] = a0;
          v[1] = a1;
        }
        const bool even = q % 2 == 0;
        const std::uint32_t b0 = __shfl_xor_sync(0xffffffffU, even ? v[1] : v[0], 1);
        const std::uint32_t b1 = __shfl_xor_sync(0xffffffffU, even ? v[3] : v[2], 1);
        if (even) {
          v[1] = b0;
          v[3] = b1;
        } else {
          v[0] = b0;
          v[2] = b1;
        }
        if (row_ok) {
          auto* const y = static_cast<__nv_bfloat16*>(params.y) + row * params.y_stride + n0 + (j + q) * 8;
          *reinterpret_cast<uint4*>(y) = {v[0], v[1], v[2], v[3]};
        }
      }
    } else if (!row_ok) {
      continue;
    } else if (!params.y_bf16 && params.y_aligned && n0 + kTileN <= params.n) {
      auto* const y =
          reinterpret_cast<float2*>(static_cast<float*>(params.y) + row * params.y_stride + n0) + lane % 4;
      float2 v[16];
#pragma unroll
      for (int j = 0; j < 16; ++j) v[j] = params.add ? y[j * 4] : make_float2(0.0F, 0.0F);
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        y[j * 4] = make_float2(v[j].x + sum[j * 4 + half * 2], v[j].y + sum[j * 4 + half * 2 + 1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int n = n0 + i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (n >= params.n) continue;
        const std::int64_t at = row * params.y_stride + n;
        const float value = sum[i / 2 * 4 + half * 2 + i % 2];
        if (params.y_bf16) {
          static_cast<__nv_bfloat16*>(params.y)[at] = __float2bfloat16_rn(value);
        } else {
          float* const y = static_cast<float*>(params.y) + at;
          *y = params.add ? *y + value : value;
        }
      }
    }
  }
}

template <bool kFp8, int kWaves, int kCluster>
__global__ void __launch_bounds__(kThreads, 1)
    linear_large(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap x_tail,
                 const Params params) {
  using P = Plan<kFp8, kWaves>;
  constexpr int kRows = P::kRows;
  extern __shared__ std::uint8_t shared_raw[];
  std::uint8_t* const shared = shared_raw + (1024 - ptx::shared_address(shared_raw) % 1024) % 1024;
  float* const x_scales = reinterpret_cast<float*>(shared + P::kStages * P::kStageBytes);
  auto* const full =
      reinterpret_cast<std::uint64_t*>(shared + P::kStages * (P::kStageBytes + P::kScaleBytes));
  std::uint64_t* const empty = full + P::kStages;

  const int thread = threadIdx.x;
  const int k_blocks = params.k_blocks;
  const int rank = kCluster == 1 ? 0 : static_cast<int>(ptx::cluster_rank());
  const int pairs_n = params.tiles_n / kCluster;
  const int total = params.tiles_m * pairs_n;
  const int clusters = gridDim.x / kCluster;
  const int cluster = blockIdx.x / kCluster;

  if (thread == 0) {
    for (int s = 0; s < P::kStages; ++s) {
      ptx::barrier_init(full + s, 1);
      ptx::barrier_init(empty + s, kWarps * kCluster);
    }
    ptx::barrier_init_fence();
  }
  if constexpr (kCluster == 1) {
    __syncthreads();
  } else {
    ptx::cluster_sync();
  }
  ptx::wait_for_previous_kernel();

  if (thread >= kConsumers) {
    ptx::fewer_registers<40>();
    if (thread == kConsumers) {
      ptx::prefetch_map(&x_map);
      const std::uint64_t again = ptx::evict_last_policy();
      const std::uint64_t weights_policy = params.tiles_m <= kGroupM ? ptx::evict_first_policy() : again;
      int s = 0;
      std::uint32_t phase = 1;  // the stages are empty at first
      for (int index = cluster; index < total; index += clusters) {
        const Tile tile = tile_at(index, params.tiles_m, pairs_n);
        const int m0 = tile.m * kRows;
        const int n_block = min(tile.n * kCluster + rank, params.n_blocks - 1);
        const std::uint8_t* weights =
            params.weights + static_cast<std::size_t>(n_block) * k_blocks * kLinearBlockSize;
        const std::uint32_t scale_bytes =
            kFp8 ? static_cast<std::uint32_t>(
                       min(static_cast<std::int64_t>(kRows), params.x_scale_stride - m0)) *
                       4
                 : 0;
        // Rows that do not exist are not fetched: nothing but their own sums depends on what shared memory held.
        const bool tail = tile.m == params.tiles_m - 1;
        const CUtensorMap* const map = tail ? &x_tail : &x_map;
        const int share = tail ? params.tail_share : kRows / kCluster;  // rows that this block fetches
        const std::uint32_t bytes = kLinearBlockSize + share * kCluster * kLinearBlockBytes + scale_bytes;
        for (int k = 0; k < k_blocks; ++k) {
          ptx::barrier_wait(empty + s, phase);
          std::uint8_t* const stage = shared + s * P::kStageBytes;
          ptx::barrier_expect(full + s, bytes);
          std::uint8_t* const to = stage + kLinearBlockSize + rank * share * kLinearBlockBytes;
          const int column = k * (kFp8 ? 128 : 64);
          if constexpr (kCluster == 1) {
            ptx::copy_tile(to, map, column, m0, full + s, again);
          } else {
            ptx::copy_tile_to(3, to, map, column, m0 + rank * share, full + s, again);
          }
          ptx::copy_bulk(stage, weights, kLinearBlockSize, full + s, weights_policy);
          weights += kLinearBlockSize;
          if constexpr (kFp8) {
            ptx::copy_bulk(x_scales + s * kRows, params.x_scales + k * params.x_scale_stride + m0,
                           scale_bytes, full + s, again);
          }
          if (++s == P::kStages) {
            s = 0;
            phase ^= 1;
          }
        }
      }
    }
  } else {
    ptx::more_registers<232>();
    const int lane = thread % 32;
    const int warp = thread / 32 % 4;
    const int group = thread / 128;
    const int local_row = group * 64 * kWaves + warp * 16 + lane / 4;  // in the tile; wave w: 64 w further on
    const auto release = [&](int s) {
      __syncwarp();
      if constexpr (kCluster == 1) {
        if (lane == 0) ptx::barrier_arrive(empty + s);
      } else {
        if (lane < kCluster) ptx::barrier_arrive_at(static_cast<std::uint32_t>(lane), empty + s);
      }
    };
    int s = 0;
    std::uint32_t phase = 0;
    for (int index = cluster; index < total; index += clusters) {
      const Tile tile = tile_at(index, params.tiles_m, pairs_n);
      const int n_block = tile.n * kCluster + rank;
      float sum[kWaves][64];
#pragma unroll
      for (int w = 0; w < kWaves; ++w) {
#pragma unroll
        for (int i = 0; i < 64; ++i) sum[w][i] = 0;
      }
      if constexpr (kFp8) {
        // Scales of the tile's two groups of 64 weight rows: lane i has those of block (base + i).
        const float* const scales =
            params.scales + static_cast<std::size_t>(min(n_block, params.n_blocks - 1)) * 2 * k_blocks;
        float lane_scale[2] = {0, 0};
        float lane_next[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) lane_next[h] = lane < k_blocks ? scales[h * k_blocks + lane] : 0.0F;
        // Factors of a block: for each of the thread's two rows (of a wave) and groups of weight rows.
        struct Factors {
          float f[2][2];
        };
        const auto next_scales = [&](int k) {
          if (k % 32 == 0) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              lane_scale[h] = lane_next[h];
              lane_next[h] = k + 32 + lane < k_blocks ? scales[h * k_blocks + k + 32 + lane] : 0.0F;
            }
          }
        };
        const auto factors_of = [&](int k, int stage, int w) {
          Factors factors;
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float scale = __shfl_sync(0xffffffffU, lane_scale[h], k % 32);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              factors.f[r][h] = x_scales[stage * kRows + local_row + w * 64 + r * 8] * scale;
            }
          }
          return factors;
        };
        const auto start = [&](float(&part)[64], int stage, int w) {
          const std::uint8_t* const at = shared + stage * P::kStageBytes;
          const std::uint64_t b = wgmma::descriptor(at);
          const std::uint64_t a =
              wgmma::descriptor(at + kLinearBlockSize + (group * kWaves + w) * 64 * kLinearBlockBytes);
          wgmma::hold(part);
          wgmma::fence();
#pragma unroll
          for (int i = 0; i < 4; ++i)
            wgmma::multiply_fp8(part, a + i * wgmma::kStep, b + i * wgmma::kStep, i > 0);
          wgmma::commit();
        };
        const auto promote = [&](float(&to)[64], const float(&part)[64], const Factors& factors) {
#pragma unroll
          for (int i = 0; i < 64; ++i) to[i] = fmaf(factors.f[i / 2 % 2][i / 32], part[i], to[i]);
        };
        const auto advance = [&] {
          if (++s == P::kStages) {
            s = 0;
            phase ^= 1;
          }
        };
        if constexpr (kWaves == 1) {
          // The products of a block are under way while those of the block before are scaled.
          float even[64];
          float odd[64];
          Factors even_factors;
          Factors odd_factors;
          int even_stage = 0;
          int odd_stage = 0;
          const auto begin = [&](int k, float(&part)[64], Factors& factors, int& stage) {
            next_scales(k);
            ptx::barrier_wait(full + s, phase);
            factors = factors_of(k, s, 0);
            stage = s;
            start(part, s, 0);
            advance();
          };
          const auto finish = [&](float(&part)[64], const Factors& factors, int stage) {
            wgmma::hold(part);
            release(stage);
            promote(sum[0], part, factors);
          };
          begin(0, even, even_factors, even_stage);
          int k = 0;
          for (; k + 2 < k_blocks; k += 2) {
            begin(k + 1, odd, odd_factors, odd_stage);
            wgmma::wait<1>();
            finish(even, even_factors, even_stage);
            begin(k + 2, even, even_factors, even_stage);
            wgmma::wait<1>();
            finish(odd, odd_factors, odd_stage);
          }
          if (k + 1 < k_blocks) {
            begin(k + 1, odd, odd_factors, odd_stage);
            wgmma::wait<1>();
            finish(even, even_factors, even_stage);
            wgmma::wait<0>();
            finish(odd, odd_factors, odd_stage);
          } else {
            wgmma::wait<0>();
            finish(even, even_factors, even_stage);
          }
        } else {
          for (int k = 0; k < k_blocks; ++k) {
            next_scales(k);
            ptx::barrier_wait(full + s, phase);
            const Factors factors[2] = {factors_of(k, s, 0), factors_of(k, s, kWaves - 1)};
#pragma unroll
            for (int w = 0; w < kWaves; ++w) {
              float part[64];
              start(part, s, w);
              wgmma::wait<0>();
              wgmma::hold(part);
              if (w == kWaves - 1) release(s);
              promote(sum[w], part, factors[w]);
            }
            advance();
          }
        }
      } else {
        int before = -1;
        for (int k = 0; k < k_blocks; ++k) {
          ptx::barrier_wait(full + s, phase);
          const std::uint8_t* const stage = shared + s * P::kStageBytes;
          const std::uint64_t b = wgmma::descriptor(stage);
#pragma unroll
          for (int w = 0; w < kWaves; ++w) wgmma::hold(sum[w]);
          wgmma::fence();
#pragma unroll
          for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int w = 0; w < kWaves; ++w) {
              const std::uint64_t a =
                  wgmma::descriptor(stage + kLinearBlockSize + (group * kWaves + w) * 64 * kLinearBlockBytes);
              wgmma::multiply_bf16(sum[w], a + i * wgmma::kStep, b + i * wgmma::kStep, 1);
            }
          }
          wgmma::commit();
          // The products of the stage before are done when at most this one's are in flight.
          wgmma::wait<1>();
          if (before >= 0) release(before);
          before = s;
          if (++s == P::kStages) {
            s = 0;
            phase ^= 1;
          }
        }
        wgmma::wait<0>();
#pragma unroll
        for (int w = 0; w < kWaves; ++w) wgmma::hold(sum[w]);
        release(before);
      }
      if (n_block < params.n_blocks) {
#pragma unroll
        for (int w = 0; w < kWaves; ++w) {
          store_wave(params, sum[w], tile.m * kRows + local_row + w * 64, n_block * kTileN, lane);
        }
      }
    }
  }
  // No block of a cluster leaves while the other may still write into it.
  if constexpr (kCluster > 1) ptx::cluster_sync();
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

template <bool kFp8, int kWaves, int kCluster>
void launch_tiles(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                  cudaStream_t stream) {
  using P = Plan<kFp8, kWaves>;
  static const bool raised = [] {
    MIMO_CUDA(cudaFuncSetAttribute(linear_large<kFp8, kWaves, kCluster>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, P::kBytes));
    return true;
  }();
  static_cast<void>(raised);
  const int tiles_m = (args.rows + P::kRows - 1) / P::kRows;
  const int tail_rows = args.rows - (tiles_m - 1) * P::kRows;
  const int tail_share = kCluster == 1 ? tail_rows : (tail_rows + 15) / 16 * 8;
  const auto map_of = [&](int tile_rows) {
    return kFp8 ? tensor_map_rows(quant->values, 1, args.rows, weight.cols, quant->stride, tile_rows)
                : tensor_map_rows(args.x, 2, args.rows, weight.cols, args.x_stride * 2, tile_rows);
  };
  const CUtensorMap x_map = map_of(P::kRows / kCluster);
  const CUtensorMap x_tail = map_of(tail_share);
  Params params = {};
  params.weights = static_cast<const std::uint8_t*>(weight.data);
  params.scales = weight.scales;
  params.x_scales = kFp8 ? quant->scales : nullptr;
  params.x_scale_stride = kFp8 ? quant->scale_stride : 0;
  params.k_blocks = linear_k_blocks(weight.format, weight.cols);
  params.tiles_m = tiles_m;
  params.tail_share = tail_share;
  params.n_blocks = linear_row_blocks(weight.rows);
  params.tiles_n = (params.n_blocks + kCluster - 1) / kCluster * kCluster;
  params.n = weight.rows;
  params.rows = args.rows;
  params.y = args.y;
  params.y_stride = args.y_stride;
  params.y_bf16 = args.y_type == ActType::kBF16;
  const std::int64_t y_bytes = params.y_bf16 ? 2 : 4;
  params.y_aligned = reinterpret_cast<std::uintptr_t>(args.y) % 16 == 0 && args.y_stride * y_bytes % 16 == 0;
  params.add = args.add;
  cudaLaunchConfig_t config = {};
  const int clusters = std::min(device_blocks() / kCluster, params.tiles_m * (params.tiles_n / kCluster));
  config.gridDim = dim3(static_cast<unsigned>(clusters * kCluster));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = P::kBytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kCluster;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  MIMO_CUDA(cudaLaunchKernelEx(&config, linear_large<kFp8, kWaves, kCluster>, x_map, x_tail, params));
}

template <bool kFp8>
void launch_format(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight, int waves,
                   int cluster, cudaStream_t stream) {
  if (waves == 2) {
    cluster == 2 ? launch_tiles<kFp8, 2, 2>(args, quant, weight, stream)
                 : launch_tiles<kFp8, 2, 1>(args, quant, weight, stream);
  } else {
    cluster == 2 ? launch_tiles<kFp8, 1, 2>(args, quant, weight, stream)
                 : launch_tiles<kFp8, 1, 1>(args, quant, weight, stream);
  }
}

// Relative time in tiles of `waves` times 128 rows.
double cost(const LinearArgs& args, const LinearWeight& weight, int waves) {
  const int tiles = (args.rows + 128 * waves - 1) / (128 * waves) * linear_row_blocks(weight.rows);
  const int rounds = (tiles + device_blocks() - 1) / device_blocks();
  return rounds * waves * (waves == 1 ? 1.2 : 1.0);
}

}  // namespace

void launch_linear_large(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                         const LinearLargeTuning& tuning, cudaStream_t stream) {
  if (args.rows == 0 || weight.rows == 0) return;
  const bool fp8 = weight.format == LinearFormat::kFp8;
  if (weight.format == LinearFormat::kF32 || (fp8 && (quant == nullptr || weight.scale_rows != 64)) ||
      (!fp8 && args.x_type != ActType::kBF16)) {
    throw std::invalid_argument("linear_large: formats it does not take");
  }
  const int chosen = cost(args, weight, 1) < cost(args, weight, 2) ? 1 : 2;
  const int waves = tuning.waves != 0 ? tuning.waves : chosen;
  const int cluster = tuning.cluster != 0 ? tuning.cluster : linear_row_blocks(weight.rows) > 1 ? 2 : 1;
  fp8 ? launch_format<true>(args, quant, weight, waves, cluster, stream)
      : launch_format<false>(args, quant, weight, waves, cluster, stream);
}

void launch_linear_large(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                         cudaStream_t stream) {
  launch_linear_large(args, quant, weight, {}, stream);
}

}  // namespace mimo::cuda
