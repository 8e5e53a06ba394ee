// Compiled with the flags of its instruction set (src/ops/CMakeLists.txt); nothing here may run before the
// CPU was asked.
#include "ops/cpu/fp8_tables.h"
#include "ops/cpu/kernels.h"

#define MIMO_ISA avx512
#define MIMO_BF16_DOT
#include "ops/cpu/isa/vec_avx512.h"
//
#include "ops/cpu/isa/kernels_inl.h"

namespace mimo {

const CpuKernels& avx512_kernels() {
  static const CpuKernels kernels = {
      CpuLevel::kAvx512,        &avx512::quantize,         &avx512::gemm,      &avx512::rms_norm,
      &avx512::add_scaled,      &avx512::best_token,       &avx512::rope,      &avx512::to_bf16,
      &avx512::to_fp8,          &avx512::fp8_to_bf16,      &avx512::mask_tile, &avx512::attention_chunk,
      &avx512::attention_merge, &avx512::attention_finish,
  };
  return kernels;
}

}  // namespace mimo
