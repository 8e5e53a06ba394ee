#include "ops/cuda/kernels/attention_decode_kernel.cuh"

namespace mimo::cuda::decode {

void launch_fp8(const Params& p, int grid, cudaStream_t stream) { launch_all<true>(p, grid, stream); }

}  // namespace mimo::cuda::decode
