#include "core/cpu_features.h"

#include <cstdlib>
#include <fstream>
#include <string_view>

#include "core/thread_pool.h"

namespace mimo {

const char* cpu_level_name(CpuLevel level) { return level == CpuLevel::kAvx512 ? "avx512" : "avx2"; }

Result<CpuLevel> detect_cpu_level() {
  // The builtins check the operating system's register support (XCR0) as well as CPUID.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
                      __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512vnni") != 0 &&
                      __builtin_cpu_supports("avx512bf16") != 0;
  const char* wanted = std::getenv("MIMO_CPU_LEVEL");
  if (!avx2) {
    return fail(ErrorCode::kUnsupported, "this CPU lacks AVX2 and FMA, the lowest instruction set mimo runs on ({})",
                cpu_description());
  }
  const CpuLevel best = avx512 ? CpuLevel::kAvx512 : CpuLevel::kAvx2;
  if (wanted == nullptr) return best;
  const std::string_view name = wanted;
  if (name == "avx2") return CpuLevel::kAvx2;
  if (name == "avx512") {
    if (avx512) return CpuLevel::kAvx512;
    return fail(ErrorCode::kUnsupported, "MIMO_CPU_LEVEL=avx512: this CPU has no AVX-512 with VBMI, VNNI and BF16 ({})",
                cpu_description());
  }
  return fail(ErrorCode::kInvalidArgument, "MIMO_CPU_LEVEL={}: expected avx2 or avx512", name);
}

std::string cpu_description() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  std::string model = "unknown CPU";
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0) {
      const std::size_t colon = line.find(": ");
      if (colon != std::string::npos) model = line.substr(colon + 2);
      break;
    }
  }
  return fmt::format("{}, {} CPUs", model, available_cpus());
}

}  // namespace mimo
