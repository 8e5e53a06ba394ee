#include "ops/cuda/kernels/attention_decode_kernel.cuh"

namespace mimo::cuda::decode {

void launch_bf16(const Params& p, int grid, cudaStream_t stream) { launch_all<false>(p, grid, stream); }

}  // namespace mimo::cuda::decode
