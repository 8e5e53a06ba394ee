#include <cmath>
#include <type_traits>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/activation.cuh"
#include "ops/cuda/kernels/route_plain.h"

namespace mimo::cuda {
namespace {

constexpr int kThreads = 256;

// A block a row: a warp a logit, then one warp chooses.
template <class X, class W>
__global__ void route_kernel(PlainRouteArgs args) {
  __shared__ float score[kRouteMaxExperts];
  __shared__ float choice[kRouteMaxExperts];
  const int lane = threadIdx.x % 32;
  const auto* x = static_cast<const X*>(args.x) + static_cast<std::size_t>(blockIdx.x) * args.hidden;
  const auto* router = static_cast<const W*>(args.router);
  for (int e = threadIdx.x / 32; e < args.experts; e += kThreads / 32) {
    const W* row = router + static_cast<std::size_t>(e) * args.hidden;
    float sum = 0;
    for (int i = lane; i < args.hidden; i += 32) sum += load_act(x + i) * load_act(row + i);
    sum = warp_sum(sum);
    if (lane == 0) {
      score[e] = 1.0f / (1.0f + expf(-sum));
      const float biased = score[e] + (args.bias == nullptr ? 0.0f : args.bias[e]);
      choice[e] = isfinite(biased) ? biased : -INFINITY;
    }
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  // The best of what is left, top_k times; a NaN marks what was taken, the lower id wins ties.
  for (int k = 0; k < args.top_k; ++k) {
    float best = -INFINITY;
    int at = args.experts;
    for (int e = lane; e < args.experts; e += 32) {
      const float value = choice[e];
      if (!isnan(value) && (at == args.experts || value > best)) {
        best = value;
        at = e;
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, step);
      const int other_at = __shfl_xor_sync(0xffffffffu, at, step);
      const bool wins =
          other_at < args.experts && (at == args.experts || other > best || (other == best && other_at < at));
      if (wins) {
        best = other;
        at = other_at;
      }
    }
    if (lane == 0) choice[at] = NAN;
    __syncwarp();
  }
  if (lane != 0) return;
  std::int32_t* ids = args.ids + static_cast<std::size_t>(blockIdx.x) * args.top_k;
  float* weights = args.weights + static_cast<std::size_t>(blockIdx.x) * args.top_k;
  int k = 0;
  float sum = 0;
  for (int e = 0; e < args.experts && k < args.top_k; ++e) {
    if (!isnan(choice[e])) continue;
    ids[k] = e;
    weights[k++] = score[e];
    sum += score[e];
  }
  for (int i = 0; i < k; ++i) {
    if (args.normalize) weights[i] /= sum + 1e-20f;
    weights[i] *= args.scale;
  }
}

}  // namespace

void route_plain(const PlainRouteArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  with_act(args.type, [&](auto* x) {
    using X = std::remove_pointer_t<decltype(x)>;
    if (args.router_bf16) {
      route_kernel<X, __nv_bfloat16><<<args.rows, kThreads, 0, stream>>>(args);
    } else {
      route_kernel<X, float><<<args.rows, kThreads, 0, stream>>>(args);
    }
  });
  MIMO_CUDA_LAUNCHED();
}

}  // namespace mimo::cuda
