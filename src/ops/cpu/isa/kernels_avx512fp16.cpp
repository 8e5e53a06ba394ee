// Compiled with the flags of its instruction set (src/ops/CMakeLists.txt); nothing here may run before the
// CPU was asked.
#include "ops/cpu/fp8_tables.h"
#include "ops/cpu/kernels.h"

#define MIMO_ISA avx512fp16
#include "ops/cpu/isa/vec_avx512.h"
//
#include "ops/cpu/isa/kernels_inl.h"

namespace mimo {

const CpuKernels& avx512fp16_kernels() {
  static const CpuKernels kernels = {
      CpuLevel::kAvx512Fp16,
      &avx512fp16::quantize,
      &avx512fp16::gemm,
      &avx512fp16::rms_norm,
      &avx512fp16::add_scaled,
      &avx512fp16::best_token,
      &avx512fp16::rope,
      &avx512fp16::to_bf16,
      &avx512fp16::to_fp8,
      &avx512fp16::fp8_to_bf16,
      &avx512fp16::mask_tile,
      &avx512fp16::attention_chunk,
      &avx512fp16::attention_merge,
      &avx512fp16::attention_finish,
  };
  return kernels;
}

}  // namespace mimo
