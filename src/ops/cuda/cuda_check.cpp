#include "ops/cuda/cuda_check.h"

#include <string>

namespace mimo::cuda {

CudaError::CudaError(cudaError_t code, const char* call, const char* file, int line)
    : std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) +
                         ") in " + call + " at " + file + ":" + std::to_string(line)),
      code_(code) {}

}  // namespace mimo::cuda
