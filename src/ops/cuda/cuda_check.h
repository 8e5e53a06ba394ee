// Failing CUDA calls: a step that meets one throws, and the engine ends the requests that were in it.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>

namespace mimo::cuda {

// A CUDA call failed. Most such errors are sticky: no later call of the process succeeds either.
class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const char* call, const char* file, int line);
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

inline void check(cudaError_t code, const char* call, const char* file, int line) {
  if (code != cudaSuccess) throw CudaError(code, call, file, line);
}

}  // namespace mimo::cuda

// Throws CudaError unless the call succeeds.
#define MIMO_CUDA(call) ::mimo::cuda::check((call), #call, __FILE__, __LINE__)
// After a kernel launch: what was wrong with its configuration.
#define MIMO_CUDA_LAUNCHED() ::mimo::cuda::check(cudaGetLastError(), "kernel launch", __FILE__, __LINE__)
