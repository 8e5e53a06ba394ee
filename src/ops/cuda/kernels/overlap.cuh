// Launches that overlap with the end of the kernel before them in the stream (programmatic dependent launch, compute
// capability 9.0 and later; elsewhere ordinary launches).
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/cuda_check.h"

namespace mimo::cuda {

// First thing in a kernel that is launched with launch_overlapped, by all of its threads: up to here it may read only
// what was there before the stream's last steps (weights). Then the next kernel may start. In this order, at most two
// kernels of a stream are under way at a time: all before those have ended.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

inline bool launches_overlap() {
  static const bool can = [] {
    int device = 0;
    int major = 0;
    MIMO_CUDA(cudaGetDevice(&device));
    MIMO_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9;
  }();
  return can;
}

template <class... Parameters, class... Arguments>
void launch_overlapped(void (*kernel)(Parameters...), dim3 grid, int threads, cudaStream_t stream,
                       Arguments... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = launches_overlap() ? 1 : 0;
  MIMO_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

}  // namespace mimo::cuda
