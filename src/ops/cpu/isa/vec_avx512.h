// Sixteen-lane vectors of the AVX-512 builds (F, BW, VL, DQ, VBMI, VNNI, BF16; one of them with FP16).
// MIMO_ISA names the namespace.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/fp8_tables.h"

namespace mimo::MIMO_ISA {

using F = __m512;
using I = __m512i;

// Rows of a register tile. Integer tiles are 8 rows x 2 panels: 16 int32 sums and the operands fit 32 registers
// (the fp32 sums are touched once a group and may spill), 16 chains cover the dots' latency, and a verified block
// of 8 rows reads each weight once. Against 6 rows: 5 to 35% faster from 7 to 512 rows.
inline constexpr int kRowsInteger = 8;
inline constexpr int kRowsFloat = 12;
inline constexpr int kRowsQk = 8;
inline constexpr int kRowsPv = 8;

inline F f_zero() { return _mm512_setzero_ps(); }
inline F f_set(float x) { return _mm512_set1_ps(x); }
inline F f_load(const float* p) { return _mm512_loadu_ps(p); }
inline void f_store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F f_add(F a, F b) { return _mm512_add_ps(a, b); }
inline F f_sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F f_mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F f_div(F a, F b) { return _mm512_div_ps(a, b); }
inline F f_max(F a, F b) { return _mm512_max_ps(a, b); }
inline F f_fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F f_abs(F a) { return _mm512_abs_ps(a); }
inline float f_hmax(F a) { return _mm512_reduce_max_ps(a); }
inline float f_hsum(F a) { return _mm512_reduce_add_ps(a); }
// Both sums at once.
inline void f_hsum_pair(F a, F b, float& sum_a, float& sum_b) {
  const auto half = [](F x) {
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  };
  __m256 h = _mm256_hadd_ps(half(a), half(b));
  h = _mm256_hadd_ps(h, h);
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  sum_a = _mm_cvtss_f32(sums);
  sum_b = _mm_cvtss_f32(_mm_movehdup_ps(sums));
}
inline F f_round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// a * 2^n for integral n; underflows to zero and overflows to infinity.
inline F f_scale2(F a, F n) { return _mm512_scalef_ps(a, n); }
inline F f_nonneg_select(F condition, F yes, F no) {  // condition >= 0 ? yes : no
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(condition, _mm512_setzero_ps(), _CMP_GE_OQ), no, yes);
}
// Lanes [first, last) of x, -inf elsewhere.
inline F f_keep(F x, int first, int last) {
  const __mmask16 below =
      last >= 16 ? static_cast<__mmask16>(0xFFFF) : static_cast<__mmask16>((1u << (last < 0 ? 0 : last)) - 1);
  const __mmask16 above =
      first <= 0 ? static_cast<__mmask16>(0xFFFF)
                 : (first >= 16 ? static_cast<__mmask16>(0) : static_cast<__mmask16>(0xFFFFu << first));
  return _mm512_mask_blend_ps(static_cast<__mmask16>(below & above), _mm512_set1_ps(-__builtin_inff()), x);
}

// Magnitudes as integers, which have the order of the numbers, with infinity and NaN on top.
inline I i_magnitude(F a) { return _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7FFFFFFF)); }
inline I i_zero() { return _mm512_setzero_si512(); }
inline I i_set(std::int32_t x) { return _mm512_set1_epi32(x); }
inline I i_add(I a, I b) { return _mm512_add_epi32(a, b); }
inline I i_sub(I a, I b) { return _mm512_sub_epi32(a, b); }
inline I i_min(I a, I b) { return _mm512_min_epi32(a, b); }
inline I i_max(I a, I b) { return _mm512_max_epi32(a, b); }
inline std::int32_t i_hmax(I a) { return _mm512_reduce_max_epi32(a); }
inline I i_and(I a, I b) { return _mm512_and_si512(a, b); }
inline I i_srl(I a, unsigned n) { return _mm512_srli_epi32(a, n); }
inline I i_sll(I a, I n) { return _mm512_sllv_epi32(a, n); }
inline I i_sra(I a, I n) { return _mm512_srav_epi32(a, n); }
inline I i_add8(I a, I b) { return _mm512_add_epi8(a, b); }
inline bool any_above(I a, std::int32_t limit) {
  return _mm512_cmpgt_epi32_mask(a, _mm512_set1_epi32(limit)) != 0;
}
inline F i_to_f(I a) { return _mm512_cvtepi32_ps(a); }

// The dots are written as assembly because GCC 12 copies the accumulator of the intrinsics before and after
// every use (24 extra moves to 12 dots in the inner loop of a tile, a third of its time).

// acc + sum of 4 (unsigned weight byte x signed activation byte).
inline I dot8(I acc, I weights, std::uint32_t act) {
  const I a = _mm512_set1_epi32(static_cast<std::int32_t>(act));
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(weights), "v"(a));
  return acc;
}
// acc + sum of 2 (int16 weight x int16 activation).
inline I dot16(I acc, I weights, std::uint32_t act) {
  const I a = _mm512_set1_epi32(static_cast<std::int32_t>(act));
  asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(weights), "v"(a));
  return acc;
}
// The same with the activation where it lies: the dot's own broadcast saves an instruction where an activation
// serves one dot.
inline I dot8_at(I acc, I weights, const std::uint32_t* act) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(weights), "m"(*act));
  return acc;
}
inline I dot16_at(I acc, I weights, const std::uint32_t* act) {
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(weights), "m"(*act));
  return acc;
}
// acc + sum of 2 (bf16 x bf16).
inline F dot_bf16(F acc, I weights, std::uint32_t act) {
  const I a = _mm512_set1_epi32(static_cast<std::int32_t>(act));
  asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(weights), "v"(a));
  return acc;
}

inline I v_load(const void* p) { return _mm512_loadu_si512(p); }
inline void v_store(void* p, I x) { _mm512_storeu_si512(p, x); }

// 16 pairs of bf16 (low half first) to two vectors of floats.
inline void bf16_pairs(const void* p, F& low, F& high) {
  const I v = _mm512_loadu_si512(p);
  low = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
  high = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(static_cast<std::int32_t>(0xFFFF0000u))));
}

// 16 bytes to 32-bit lanes.
inline I load_bytes(const std::uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// 2^(code - 127) of e8m0 codes in 32-bit lanes.
inline F exponent_factor(I codes) { return _mm512_castsi512_ps(_mm512_slli_epi32(codes, 23)); }
// The low byte of every 32-bit lane in all four bytes of the lane.
inline I repeat_byte(I x) {
  const I order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  return _mm512_shuffle_epi8(x, order);
}

// E2M1 codes to 2 * value + 12, by nibble. The byte permutation looks at six index bits: with the table four times
// over, whatever lies above a nibble needs no mask.
inline void unpack_mxfp4(const std::uint8_t* p, I& low, I& high) {
  const I table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const I bytes = _mm512_loadu_si512(p);
  low = _mm512_permutexvar_epi8(bytes, table);
  high = _mm512_permutexvar_epi8(_mm512_srli_epi16(bytes, 4), table);
}

#ifdef __AVX512FP16__
// round(32 * value) through fp16: the code's bits, one place down, are value * 2^-8 as fp16 (subnormals
// included), so one multiplication and one conversion do it. Half the work of the byte tables, and the same
// integers.
struct Fp8Unpacker {
  static I words(I high_bytes) {
    // The arithmetic shift leaves two copies of the sign; the lower one is the exponent's top bit, always zero.
    const I bits =
        _mm512_and_si512(_mm512_srai_epi16(high_bytes, 1), _mm512_set1_epi16(static_cast<short>(0xBFFF)));
    const __m512h value =
        _mm512_mul_ph(_mm512_castsi512_ph(bits), _mm512_set1_ph(static_cast<_Float16>(8192.0f)));
    return _mm512_cvtph_epi16(value);
  }
  // One packed vector to int16 pairs: `first` columns (4j, 4j+1) of 16 rows, `second` (4j+2, 4j+3).
  void unpack(const std::uint8_t* p, I& first, I& second) const {
    const I codes = _mm512_loadu_si512(p);
    first = words(_mm512_unpacklo_epi8(_mm512_setzero_si512(), codes));
    second = words(_mm512_unpackhi_epi8(_mm512_setzero_si512(), codes));
  }
};
#else
struct Fp8Unpacker {
  I low0, low1, high0, high1;
  Fp8Unpacker() {
    const Fp8Int16Tables& tables = fp8_int16_tables();
    low0 = _mm512_loadu_si512(tables.low);
    low1 = _mm512_loadu_si512(tables.low + 64);
    high0 = _mm512_loadu_si512(tables.high);
    high1 = _mm512_loadu_si512(tables.high + 64);
  }
  // One packed vector to int16 pairs: `first` columns (4j, 4j+1) of 16 rows, `second` (4j+2, 4j+3).
  void unpack(const std::uint8_t* p, I& first, I& second) const {
    const I codes = _mm512_loadu_si512(p);
    // vpermi2b looks at the 7 low index bits: the sign bit needs no mask.
    const I low = _mm512_permutex2var_epi8(low0, codes, low1);
    const I high = _mm512_permutex2var_epi8(high0, codes, high1);
    const I sign = _mm512_movm_epi8(_mm512_movepi8_mask(codes));
    const I s0 = _mm512_unpacklo_epi8(sign, sign);
    const I s1 = _mm512_unpackhi_epi8(sign, sign);
    first = _mm512_sub_epi16(_mm512_xor_si512(_mm512_unpacklo_epi8(low, high), s0), s0);
    second = _mm512_sub_epi16(_mm512_xor_si512(_mm512_unpackhi_epi8(low, high), s1), s1);
  }
};
#endif

// 16 floats to bf16, nearest even; NaN stays NaN.
inline void store_bf16(std::uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x));
}
// 16 floats (already integral, in range) to int8 or int16.
inline void store_i8(std::uint8_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}
inline void store_i16(std::uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
}

// 16 E4M3 codes to bf16. Exact: codes below 2^-6 become normal bf16 numbers.
inline void fp8_to_bf16_16(const std::uint8_t* p, std::uint16_t* out) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  // As fp16 the magnitude bits, shifted by 7, are value * 2^-8, subnormals included; 480 stands for the NaN
  // code.
  const __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7F)), 7);
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
  F value = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(magnitude, sign)), _mm512_set1_ps(256.0f));
  const __mmask16 nan =
      _mm256_cmpeq_epi16_mask(_mm256_and_si256(wide, _mm256_set1_epi16(0x7F)), _mm256_set1_epi16(0x7F));
  value = _mm512_mask_blend_ps(nan, value, _mm512_set1_ps(__builtin_nanf("")));
  store_bf16(out, value);
}

}  // namespace mimo::MIMO_ISA
