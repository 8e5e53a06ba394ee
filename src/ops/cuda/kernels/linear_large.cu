#include <cuda_bf16.h>

#include <algorithm>
#include <array>
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
// Results leave through shared memory (in the place of the last activations) while the next tile is multiplied.

namespace mimo::cuda {
namespace {

constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 128;
constexpr int kWarps = kConsumers / 32;
constexpr int kTileN = kLinearBlockRows;
constexpr int kPieceBytes = 2048;  // of results: 16 rows of 128 bytes
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
  bool y_aligned;  // rows of y are 16-byte aligned and so many bytes long: y_map describes them
  bool add;
};

template <bool kFp8, int kWaves>
struct Plan {
  static constexpr int kRows = 128 * kWaves;
  static constexpr int kStageBytes = kLinearBlockSize + kRows * kLinearBlockBytes;
  static constexpr int kScaleBytes = kFp8 ? kRows * 4 : 0;
  static constexpr int kStages = kWaves == 2 ? 4 : 6;
  static constexpr int kBytes = kStages * (kStageBytes + kScaleBytes + 16) + kWarps * kPieceBytes + 1024;
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

// Lays `piece` of a warp's results of a wave into shared memory: 16 rows of 64 BF16 or 32 fp32 columns, swizzled.
__device__ __forceinline__ void lay_bf16(std::uint8_t* to, const float (&sum)[64], int piece, int lane) {
  const int row = lane % 16;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    const float* const v = sum + (piece * 8 + j) * 4;
    ptx::store_matrices(to + row * 128 + (((j + lane / 16) ^ (row % 8)) * 16), pack_bf16(v[0], v[1]),
                        pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
  }
}

__device__ __forceinline__ void lay_f32(std::uint8_t* to, const float (&sum)[64], int piece, int lane) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + half * 8;
      const int place = (j * 2 + lane % 4 / 2) ^ (row % 8);
      const float* const v = sum + (piece * 4 + j) * 4 + half * 2;
      *reinterpret_cast<float2*>(to + row * 128 + place * 16 + lane % 2 * 8) = make_float2(v[0], v[1]);
    }
  }
}

// Writes a wave where rows of y are not aligned: row m (+ 8) of this thread, 128 columns from n0 on.
__device__ void store_wave(const Params& params, const float (&sum)[64], int m, int n0, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = m + half * 8;
    if (row >= params.rows) continue;
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

template <bool kFp8, int kWaves, int kCluster>
__global__ void __launch_bounds__(kThreads, 1)
    linear_large(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap x_tail,
                 const __grid_constant__ CUtensorMap y_map, const Params params) {
  using P = Plan<kFp8, kWaves>;
  constexpr int kRows = P::kRows;
  extern __shared__ std::uint8_t shared_raw[];
  std::uint8_t* const shared = shared_raw + (1024 - ptx::shared_address(shared_raw) % 1024) % 1024;
  std::uint8_t* const pieces = shared + P::kStages * P::kStageBytes;
  float* const x_scales = reinterpret_cast<float*>(pieces + kWarps * kPieceBytes);
  auto* const full = reinterpret_cast<std::uint64_t*>(x_scales + P::kStages * P::kScaleBytes / 4);
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
  ptx::let_next_kernel_start();

  if (thread >= kConsumers) {
    ptx::fewer_registers<40>();
    if (thread == kConsumers) {
      ptx::prefetch_map(&x_map);
      ptx::prefetch_map(&x_tail);
      const std::uint64_t again = ptx::evict_last_policy();
      const std::uint64_t weights_policy = params.tiles_m <= kGroupM ? ptx::evict_first_policy() : again;
      int s = 0;
      std::uint32_t phase = 1;  // the stages are empty at first
      // Weights do not depend on the kernel before: those of the first stages are asked for at once.
      int ahead = 0;
      if (cluster < total) {
        const int n_block =
            min(tile_at(cluster, params.tiles_m, pairs_n).n * kCluster + rank, params.n_blocks - 1);
        const std::uint8_t* const weights =
            params.weights + static_cast<std::size_t>(n_block) * k_blocks * kLinearBlockSize;
        for (; ahead < P::kStages && ahead < k_blocks; ++ahead) {
          ptx::copy_bulk(shared + ahead * P::kStageBytes,
                         weights + static_cast<std::size_t>(ahead) * kLinearBlockSize, kLinearBlockSize,
                         full + ahead, weights_policy);
        }
      }
      ptx::wait_for_previous_kernel();
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
          if (ahead > 0) {
            --ahead;
          } else {
            ptx::copy_bulk(stage, weights, kLinearBlockSize, full + s, weights_policy);
          }
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
    // Lane i has the scales of block (base + i) of the tile's two groups of 64 weight rows, and those 32 further on, which
    // may be the next tile's.
    float lane_scale[2] = {0, 0};
    float lane_next[2] = {0, 0};
    const auto scales_of = [&](int index) {
      const int n_block =
          min(tile_at(index, params.tiles_m, pairs_n).n * kCluster + rank, params.n_blocks - 1);
      return params.scales + static_cast<std::size_t>(n_block) * 2 * k_blocks + lane;
    };
    const float* scales = nullptr;
    const float* scales_after = nullptr;  // of the next tile
    if (kFp8 && cluster < total) {
      scales = scales_of(cluster);
#pragma unroll
      for (int h = 0; h < 2; ++h) lane_next[h] = lane < k_blocks ? scales[h * k_blocks] : 0.0F;
    }
    ptx::wait_for_previous_kernel();
    int s = 0;
    std::uint32_t phase = 0;
    for (int index = cluster; index < total; index += clusters) {
      const Tile tile = tile_at(index, params.tiles_m, pairs_n);
      const int n_block = tile.n * kCluster + rank;
      int last_stage = 0;  // which the results may use, and which is released after that
      float sum[kWaves][64];
#pragma unroll
      for (int w = 0; w < kWaves; ++w) {
#pragma unroll
        for (int i = 0; i < 64; ++i) sum[w][i] = 0;
      }
      if constexpr (kFp8) {
        scales_after = index + clusters < total ? scales_of(index + clusters) : scales;
        // Factors of a block: for each of the thread's two rows (of a wave) and groups of weight rows.
        struct Factors {
          float f[2][2];
        };
        const auto next_scales = [&](int k) {
          if (k % 32 == 0) {
            const int next = k + 32 < k_blocks ? k + 32 : 0;
            const float* const from = next > 0 ? scales + next : scales_after;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              lane_scale[h] = lane_next[h];
              lane_next[h] = next + lane < k_blocks ? from[h * k_blocks] : 0.0F;
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
          const auto finish = [&](float(&part)[64], const Factors& factors, int stage, bool last) {
            wgmma::hold(part);
            if (last) {
              last_stage = stage;
            } else {
              release(stage);
            }
            promote(sum[0], part, factors);
          };
          begin(0, even, even_factors, even_stage);
          int k = 0;
          for (; k + 2 < k_blocks; k += 2) {
            begin(k + 1, odd, odd_factors, odd_stage);
            wgmma::wait<1>();
            finish(even, even_factors, even_stage, false);
            begin(k + 2, even, even_factors, even_stage);
            wgmma::wait<1>();
            finish(odd, odd_factors, odd_stage, false);
          }
          if (k + 1 < k_blocks) {
            begin(k + 1, odd, odd_factors, odd_stage);
            wgmma::wait<1>();
            finish(even, even_factors, even_stage, false);
            wgmma::wait<0>();
            finish(odd, odd_factors, odd_stage, true);
          } else {
            wgmma::wait<0>();
            finish(even, even_factors, even_stage, true);
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
              if (w == kWaves - 1) {
                if (k + 1 < k_blocks) {
                  release(s);
                } else {
                  last_stage = s;
                }
              }
              promote(sum[w], part, factors[w]);
            }
            advance();
          }
        }
        scales = scales_after;
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
        last_stage = before;
      }
      if (!params.y_aligned || n_block >= params.n_blocks) {
        release(last_stage);
        if (n_block >= params.n_blocks) continue;
#pragma unroll
        for (int w = 0; w < kWaves; ++w) {
          store_wave(params, sum[w], tile.m * kRows + local_row + w * 64, n_block * kTileN, lane);
        }
        continue;
      }
      // The warpgroup's own activations of the last stage have been read.
      ptx::named_barrier(1 + group, 128);
      std::uint8_t* const stage_pieces =
          shared + last_stage * P::kStageBytes + kLinearBlockSize + (group * 4 + warp) * kWaves * kPieceBytes;
      std::uint8_t* const own_piece = pieces + (group * 4 + warp) * kPieceBytes;
      const int m = tile.m * kRows + group * 64 * kWaves + warp * 16;
      // Places for pieces: one of the warp's own, kWaves in the stage; in turn, such that the last piece is in the former.
      constexpr int kPlaces = kWaves + 1;
      int place = (kPlaces * 4 + 1 - kWaves * (params.y_bf16 ? 2 : 4)) % kPlaces;
      const auto next_place = [&] {
        // Free when the store before the last kPlaces - 1 has been read.
        if (lane == 0) ptx::wait_stores_read<kPlaces - 1>();
        __syncwarp();
        return place == 0 ? own_piece : stage_pieces + (place - 1) * kPieceBytes;
      };
      const auto send = [&](const std::uint8_t* from, int column, int row) {
        ptx::writes_done();
        __syncwarp();
        if (lane == 0) {
          if (row < params.rows && column < params.n) {
            params.add ? ptx::add_tile(&y_map, column, row, from)
                       : ptx::store_tile(&y_map, column, row, from);
          }
          ptx::commit_stores();
        }
        place = place + 1 == kPlaces ? 0 : place + 1;
      };
      if (lane == 0) ptx::wait_stores_read<0>();
      if (params.y_bf16) {
#pragma unroll
        for (int w = 0; w < kWaves; ++w) {
#pragma unroll
          for (int piece = 0; piece < 2; ++piece) {
            std::uint8_t* const to = next_place();
            lay_bf16(to, sum[w], piece, lane);
            send(to, n_block * kTileN + piece * 64, m + w * 64);
          }
        }
      } else {
#pragma unroll
        for (int w = 0; w < kWaves; ++w) {
#pragma unroll
          for (int piece = 0; piece < 4; ++piece) {
            std::uint8_t* const to = next_place();
            lay_f32(to, sum[w], piece, lane);
            send(to, n_block * kTileN + piece * 32, m + w * 64);
          }
        }
      }
      if (lane == 0) ptx::wait_stores_read<1>();
      release(last_stage);
    }
    if (lane == 0) ptx::wait_stores_read<0>();
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
void launch_tiles(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight, bool overlap,
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
  params.y_aligned = reinterpret_cast<std::uintptr_t>(args.y) % 16 == 0 &&
                     args.y_stride * y_bytes % 16 == 0 && weight.rows * y_bytes % 16 == 0;
  params.add = args.add;
  const CUtensorMap y_map = params.y_aligned ? tensor_map_rows(args.y, static_cast<int>(y_bytes), args.rows,
                                                               weight.rows, args.y_stride * y_bytes, 16)
                                             : x_map;
  cudaLaunchConfig_t config = {};
  const int clusters = std::min(device_blocks() / kCluster, params.tiles_m * (params.tiles_n / kCluster));
  config.gridDim = dim3(static_cast<unsigned>(clusters * kCluster));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = P::kBytes;
  config.stream = stream;
  std::array<cudaLaunchAttribute, 2> attributes = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kCluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes.data();
  config.numAttrs = overlap ? 2 : 1;
  MIMO_CUDA(cudaLaunchKernelEx(&config, linear_large<kFp8, kWaves, kCluster>, x_map, x_tail, y_map, params));
}

template <bool kFp8>
void launch_format(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight, int waves,
                   int cluster, bool overlap, cudaStream_t stream) {
  if (waves == 2) {
    cluster == 2 ? launch_tiles<kFp8, 2, 2>(args, quant, weight, overlap, stream)
                 : launch_tiles<kFp8, 2, 1>(args, quant, weight, overlap, stream);
  } else {
    cluster == 2 ? launch_tiles<kFp8, 1, 2>(args, quant, weight, overlap, stream)
                 : launch_tiles<kFp8, 1, 1>(args, quant, weight, overlap, stream);
  }
}

// Relative time in tiles of `waves` times 128 rows. (Measured: a stage of 256 rows takes less than two of 128.)
double cost(const LinearArgs& args, const LinearWeight& weight, int waves) {
  const int tiles = (args.rows + 128 * waves - 1) / (128 * waves) * linear_row_blocks(weight.rows);
  const int rounds = (tiles + device_blocks() - 1) / device_blocks();
  const double slower = weight.format == LinearFormat::kFp8 ? 1.06 : 1.2;
  return rounds * waves * (waves == 1 ? slower : 1.0);
}

}  // namespace

void launch_linear_large(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                         const LinearLargeTuning& tuning, bool overlap, cudaStream_t stream) {
  if (args.rows == 0 || weight.rows == 0) return;
  const bool fp8 = weight.format == LinearFormat::kFp8;
  if (weight.format == LinearFormat::kF32 || (fp8 && (quant == nullptr || weight.scale_rows != 64)) ||
      (!fp8 && args.x_type != ActType::kBF16)) {
    throw std::invalid_argument("linear_large: formats it does not take");
  }
  const int chosen = cost(args, weight, 1) < cost(args, weight, 2) ? 1 : 2;
  const int waves = tuning.waves != 0 ? tuning.waves : chosen;
  // Measured: sharing activations in a cluster pays only where stages are short of products for their bytes.
  const bool shared = !fp8 && waves == 1 && linear_row_blocks(weight.rows) > 1;
  const int cluster = tuning.cluster != 0 ? tuning.cluster : shared ? 2 : 1;
  fp8 ? launch_format<true>(args, quant, weight, waves, cluster, overlap, stream)
      : launch_format<false>(args, quant, weight, waves, cluster, overlap, stream);
}

void launch_linear_large(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                         bool overlap, cudaStream_t stream) {
  launch_linear_large(args, quant, weight, {}, overlap, stream);
}

}  // namespace mimo::cuda
