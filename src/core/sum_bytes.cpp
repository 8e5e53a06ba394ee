// Compiled with -mavx2 (src/core/CMakeLists.txt): with 16-byte loads one core would not reach the memory's
// rate.
#include "core/sum_bytes.h"

#include <immintrin.h>

namespace mimo {

std::uint64_t sum_bytes_avx2(const std::uint8_t* data, std::size_t bytes) {
  __m256i sum[4] = {};
  for (std::size_t i = 0; i < bytes; i += 128) {
    for (std::size_t j = 0; j < 4; ++j) {
      sum[j] =
          _mm256_add_epi64(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
    }
  }
  const __m256i total = _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3]));
  alignas(32) std::uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), total);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

}  // namespace mimo
