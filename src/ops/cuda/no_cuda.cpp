#include "ops/cuda/cuda_ops.h"

namespace mimo {

Result<std::unique_ptr<Ops>> make_cuda_ops(const CudaOptions& /*options*/) {
  return fail(ErrorCode::kUnsupported,
              "--device cuda: this mimo was built without CUDA (nvcc was not found); build it where the CUDA "
              "toolkit is installed, or use --device cpu");
}

int count_cuda_devices() { return 0; }

}  // namespace mimo
