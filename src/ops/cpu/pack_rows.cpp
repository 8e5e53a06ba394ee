// Compiled with AVX2 and BMI2 (src/ops/CMakeLists.txt). Includes nothing whose inline functions other files
// share.
#include "ops/cpu/pack_rows.h"

#include <immintrin.h>

namespace mimo {
namespace {

constexpr std::size_t kStride = 64;

inline __m256 widen(const std::uint8_t* in) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

}  // namespace

void pack_mxfp4_row(const std::uint8_t* in, std::size_t units, std::uint8_t* out) {
  for (std::size_t u = 0; u < units; ++u) {
    std::uint32_t stored;
    __builtin_memcpy(&stored, in + 4 * u, sizeof(stored));
    const std::uint32_t packed =
        _pdep_u32(stored & 0xFFFFu, 0x0F0F0F0Fu) | _pdep_u32(stored >> 16, 0xF0F0F0F0u);
    __builtin_memcpy(out + kStride * u, &packed, sizeof(packed));
  }
}

bool pack_fp8_row(const std::uint8_t* in, std::size_t units, std::uint8_t* out) {
  // A code is NaN when its low seven bits are all set: adding one to them then reaches bit 7.
  std::uint32_t carries = 0;
  for (std::size_t u = 0; u < units; ++u) {
    std::uint32_t codes;
    __builtin_memcpy(&codes, in + 4 * u, sizeof(codes));
    carries |= (codes & 0x7F7F7F7Fu) + 0x01010101u;
    const auto low = static_cast<std::uint16_t>(codes);
    const auto high = static_cast<std::uint16_t>(codes >> 16);
    __builtin_memcpy(out + kStride * u, &low, sizeof(low));
    __builtin_memcpy(out + kStride * u + 8, &high, sizeof(high));
  }
  return (carries & 0x80808080u) != 0;
}

void pack_plain_row(const std::uint8_t* in, std::size_t units, std::uint8_t* out) {
  for (std::size_t u = 0; u < units; ++u) __builtin_memcpy(out + kStride * u, in + 4 * u, 4);
}

float largest_bf16(const std::uint8_t* in, std::size_t count) {
  // As integers magnitudes have the same order, and NaN comes out on top instead of getting lost.
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i top = _mm256_setzero_si256();
  for (std::size_t i = 0; i < count; i += 8)
    top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(widen(in + 2 * i)), magnitude));
  alignas(32) std::int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), top);
  std::int32_t largest = 0;
  for (const std::int32_t lane : lanes) largest = lane > largest ? lane : largest;
  float value;
  __builtin_memcpy(&value, &largest, sizeof(value));
  return value;
}

void pack_int16_row(const std::uint8_t* in, std::size_t count, float inverse, std::uint8_t* out) {
  const __m256 scale = _mm256_set1_ps(inverse);
  for (std::size_t i = 0; i < count; i += 16) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(widen(in + 2 * i), scale));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(widen(in + 2 * i + 16), scale));
    // packs works in 128-bit lanes; the permutation puts the quarters back in order.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
    alignas(32) std::uint32_t pairs[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), words);
    for (std::size_t p = 0; p < 8; ++p) __builtin_memcpy(out + kStride * (i / 2 + p), pairs + p, 4);
  }
}

}  // namespace mimo
