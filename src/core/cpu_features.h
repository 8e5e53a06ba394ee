// Which instruction sets this CPU and operating system offer, found at run time.
#pragma once

#include <string>

#include "core/result.h"

namespace mimo {

enum class CpuLevel {
  kAvx2,        // AVX2, FMA, F16C: the lowest this program runs on
  kAvx512,      // AVX-512 F/BW/VL/DQ/VBMI with VNNI and BF16
  kAvx512Fp16,  // the same with FP16
};

const char* cpu_level_name(CpuLevel level);

// The best level of this machine, or an error naming the missing instructions. MIMO_CPU_LEVEL=avx2 or avx512
// lowers it (for tests and for machines whose AVX-512 is slow); a value that is unknown or not available is
// an error.
Result<CpuLevel> detect_cpu_level();

// "Intel(R) Xeon(R) Processor (2 CPUs)" as the system reports it.
std::string cpu_description();

}  // namespace mimo
