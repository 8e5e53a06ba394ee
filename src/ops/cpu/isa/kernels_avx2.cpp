// Compiled with the flags of its instruction set (src/ops/CMakeLists.txt); nothing here may run before the
// CPU was asked.
#include "ops/cpu/fp8_tables.h"
#include "ops/cpu/kernels.h"

#define MIMO_ISA avx2
#include "ops/cpu/isa/vec_avx2.h"
//
#include "ops/cpu/isa/kernels_inl.h"

namespace mimo {

const CpuKernels& avx2_kernels() {
  static const CpuKernels kernels = {
      CpuLevel::kAvx2,        &avx2::quantize,         &avx2::gemm,      &avx2::rms_norm,
      &avx2::add_scaled,      &avx2::best_token,       &avx2::rope,      &avx2::to_bf16,
      &avx2::to_fp8,          &avx2::fp8_to_bf16,      &avx2::mask_tile, &avx2::attention_chunk,
      &avx2::attention_merge, &avx2::attention_finish,
  };
  return kernels;
}

}  // namespace mimo
