// Loads and stores of activations in kernels.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/kernels/views.h"

namespace mimo::cuda {

__device__ inline float load_act(const float* p) { return *p; }
__device__ inline float load_act(const __nv_bfloat16* p) { return __bfloat162float(*p); }
__device__ inline void store_act(float* p, float x) { *p = x; }
__device__ inline void store_act(__nv_bfloat16* p, float x) { *p = __float2bfloat16_rn(x); }

// Calls with a null pointer of the element type, so that a generic lambda can name it.
template <class Call>
void with_act(ActType type, const Call& call) {
  if (type == ActType::kF32) {
    call(static_cast<float*>(nullptr));
  } else {
    call(static_cast<__nv_bfloat16*>(nullptr));
  }
}

__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

}  // namespace mimo::cuda
