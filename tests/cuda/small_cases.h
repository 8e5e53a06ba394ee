// Whether only the small cases of a test are to run: compute-sanitizer makes kernels some hundred times slower.
#pragma once

#include <cstdlib>

namespace mimo::cuda {

// MIMO_SMALL_CASES=1 in the environment (bench/run_device.sh, part sanitizer).
inline bool small_cases() {
  const char* const value = std::getenv("MIMO_SMALL_CASES");
  return value != nullptr && value[0] == '1';
}

}  // namespace mimo::cuda
