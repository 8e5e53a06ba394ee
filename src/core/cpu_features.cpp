#include "core/cpu_features.h"

#include <cpuid.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "core/thread_pool.h"

namespace mimo {

namespace {

constexpr std::array<CpuLevel, 3> kLevels = {CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Fp16};

// The builtins check the operating system's register support (XCR0) as well as CPUID.
bool has_avx2() { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512vnni") != 0 &&
         __builtin_cpu_supports("avx512bf16") != 0;
}

// GCC 12's builtin does not know this name: CPUID leaf 7, EDX bit 23.
bool has_fp16() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & (1u << 23)) != 0;
}

}  // namespace

const char* cpu_level_name(CpuLevel level) {
  switch (level) {
    case CpuLevel::kAvx2:
      return "avx2";
    case CpuLevel::kAvx512:
      return "avx512";
    case CpuLevel::kAvx512Fp16:
      return "avx512fp16";
  }
  return "?";
}

Result<CpuLevel> detect_cpu_level() {
  __builtin_cpu_init();
  if (!has_avx2()) {
    return fail(ErrorCode::kUnsupported,
                "this CPU lacks AVX2 and FMA, the lowest instruction set mimo runs on ({})",
                cpu_description());
  }
  const CpuLevel best =
      !has_avx512() ? CpuLevel::kAvx2 : (has_fp16() ? CpuLevel::kAvx512Fp16 : CpuLevel::kAvx512);
  const char* wanted = std::getenv("MIMO_CPU_LEVEL");
  if (wanted == nullptr) return best;
  for (const CpuLevel level : kLevels) {
    if (std::string_view(wanted) != cpu_level_name(level)) continue;
    if (level <= best) return level;
    return fail(ErrorCode::kUnsupported, "MIMO_CPU_LEVEL={}: the best this CPU has is {} ({})", wanted,
                cpu_level_name(best), cpu_description());
  }
  return fail(ErrorCode::kInvalidArgument, "MIMO_CPU_LEVEL={}: expected avx2, avx512 or avx512fp16", wanted);
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
