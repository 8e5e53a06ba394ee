// Sixteen-lane vectors of the AVX2 build: two 256-bit halves.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace mimo::avx2 {

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};

// Rows of a register tile: 16 registers of 8 lanes hold little.
inline constexpr int kRowsInteger = 2;
inline constexpr int kRowsFloat = 2;
inline constexpr int kRowsQk = 4;
inline constexpr int kRowsPv = 2;

inline F f_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F f_set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F f_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void f_store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F f_add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F f_sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F f_mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F f_div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F f_max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F f_fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F f_abs(F x) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  return {_mm256_and_ps(x.a, mask), _mm256_and_ps(x.b, mask)};
}
inline float f_hmax(F x) {
  __m256 m = _mm256_max_ps(x.a, x.b);
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  h = _mm_max_ss(h, _mm_movehdup_ps(h));
  return _mm_cvtss_f32(h);
}
inline float f_hsum(F x) {
  __m256 m = _mm256_add_ps(x.a, x.b);
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  h = _mm_add_ss(h, _mm_movehdup_ps(h));
  return _mm_cvtss_f32(h);
}
// Both sums at once.
inline void f_hsum_pair(F x, F y, float& sum_x, float& sum_y) {
  __m256 h = _mm256_hadd_ps(_mm256_add_ps(x.a, x.b), _mm256_add_ps(y.a, y.b));
  h = _mm256_hadd_ps(h, h);
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  sum_x = _mm_cvtss_f32(sums);
  sum_y = _mm_cvtss_f32(_mm_movehdup_ps(sums));
}
inline F f_round(F x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
inline __m256 scale2_half(__m256 x, __m256 n) {
  // 2^n in two steps, so that results below 2^-126 fade to zero instead of wrapping.
  const __m256 low = _mm256_set1_ps(-252.0f);
  const __m256 high = _mm256_set1_ps(252.0f);
  // The operand order keeps NaN.
  n = _mm256_min_ps(high, _mm256_max_ps(low, n));
  const __m256i half = _mm256_cvtps_epi32(_mm256_mul_ps(n, _mm256_set1_ps(0.5f)));
  const __m256i rest = _mm256_sub_epi32(_mm256_cvtps_epi32(n), half);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 p = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 q = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(x, p), q);
}
inline F f_scale2(F x, F n) { return {scale2_half(x.a, n.a), scale2_half(x.b, n.b)}; }
inline F f_nonneg_select(F c, F yes, F no) {
  const __m256 zero = _mm256_setzero_ps();
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(c.a, zero, _CMP_GE_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(c.b, zero, _CMP_GE_OQ))};
}
inline F f_keep(F x, int first, int last) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 minus = _mm256_set1_ps(-__builtin_inff());
  const auto keep = [&](__m256 part, int offset) {
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(last - offset), lanes);
    const __m256i above = _mm256_cmpgt_epi32(lanes, _mm256_set1_epi32(first - offset - 1));
    return _mm256_blendv_ps(minus, part, _mm256_castsi256_ps(_mm256_and_si256(below, above)));
  };
  return {keep(x.a, 0), keep(x.b, 8)};
}

inline I i_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I i_set(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I i_add(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I i_sub(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline I i_min(I x, I y) { return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)}; }
inline I i_max(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
inline std::int32_t i_hmax(I x) {
  const __m256i m = _mm256_max_epi32(x.a, x.b);
  __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4E));
  h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xB1));
  return _mm_cvtsi128_si32(h);
}
// Magnitudes as integers, which have the order of the numbers, with infinity and NaN on top.
inline I i_magnitude(F x) {
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
  return {_mm256_and_si256(_mm256_castps_si256(x.a), mask), _mm256_and_si256(_mm256_castps_si256(x.b), mask)};
}
inline I i_and(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline I i_srl(I x, int n) { return {_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)}; }
inline I i_sll(I x, I n) { return {_mm256_sllv_epi32(x.a, n.a), _mm256_sllv_epi32(x.b, n.b)}; }
inline I i_sra(I x, I n) { return {_mm256_srav_epi32(x.a, n.a), _mm256_srav_epi32(x.b, n.b)}; }
inline I i_add8(I x, I y) { return {_mm256_add_epi8(x.a, y.a), _mm256_add_epi8(x.b, y.b)}; }
inline bool any_above(I x, std::int32_t limit) {
  const __m256i l = _mm256_set1_epi32(limit);
  const __m256i m = _mm256_or_si256(_mm256_cmpgt_epi32(x.a, l), _mm256_cmpgt_epi32(x.b, l));
  return _mm256_testz_si256(m, m) == 0;
}
inline F i_to_f(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

inline I dot8(I acc, I w, std::uint32_t act) {
  const __m256i a = _mm256_set1_epi32(static_cast<std::int32_t>(act));
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i even = _mm256_set1_epi16(0xFF);
  // Weights with offset 96 reach 192, and a pair sum of vpmaddubsw would saturate (2 * 192 * 127 > 32767):
  // even and odd bytes are multiplied apart.
  const auto half = [&](__m256i sum, __m256i x) {
    const __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(x, even), a);
    const __m256i high = _mm256_maddubs_epi16(_mm256_andnot_si256(even, x), a);
    return _mm256_add_epi32(sum,
                            _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones)));
  };
  return {half(acc.a, w.a), half(acc.b, w.b)};
}
inline I dot16(I acc, I w, std::uint32_t act) {
  const __m256i a = _mm256_set1_epi32(static_cast<std::int32_t>(act));
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(w.a, a)),
          _mm256_add_epi32(acc.b, _mm256_madd_epi16(w.b, a))};
}
inline I dot8_at(I acc, I weights, const std::uint32_t* act) { return dot8(acc, weights, *act); }
inline I dot16_at(I acc, I weights, const std::uint32_t* act) { return dot16(acc, weights, *act); }
inline F dot_bf16(F acc, I w, std::uint32_t act) {
  const __m256 even = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<std::int32_t>(act << 16)));
  const __m256 odd = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<std::int32_t>(act & 0xFFFF0000u)));
  const __m256i high = _mm256_set1_epi32(static_cast<std::int32_t>(0xFFFF0000u));
  const auto half = [&](__m256 sum, __m256i x) {
    sum = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(x, high)), odd, sum);
    return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), even, sum);
  };
  return {half(acc.a, w.a), half(acc.b, w.b)};
}

inline I v_load(const void* p) {
  const auto* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
inline void v_store(void* p, I x) {
  auto* v = static_cast<__m256i*>(p);
  _mm256_storeu_si256(v, x.a);
  _mm256_storeu_si256(v + 1, x.b);
}

// 16 pairs of bf16 (low half first) to two vectors of floats.
inline void bf16_pairs(const void* p, F& low, F& high) {
  const I v = v_load(p);
  const __m256i mask = _mm256_set1_epi32(static_cast<std::int32_t>(0xFFFF0000u));
  low = {_mm256_castsi256_ps(_mm256_slli_epi32(v.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(v.b, 16))};
  high = {_mm256_castsi256_ps(_mm256_and_si256(v.a, mask)), _mm256_castsi256_ps(_mm256_and_si256(v.b, mask))};
}

inline I load_bytes(const std::uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
inline F exponent_factor(I codes) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(codes.a, 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(codes.b, 23))};
}
inline I repeat_byte(I x) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  return {_mm256_shuffle_epi8(x.a, order), _mm256_shuffle_epi8(x.b, order)};
}

inline void unpack_mxfp4(const std::uint8_t* p, I& low, I& high) {
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m256i mask = _mm256_set1_epi8(15);
  const I bytes = v_load(p);
  low = {_mm256_shuffle_epi8(table, _mm256_and_si256(bytes.a, mask)),
         _mm256_shuffle_epi8(table, _mm256_and_si256(bytes.b, mask))};
  high = {_mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes.a, 4), mask)),
          _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes.b, 4), mask))};
}

// 8 words holding E4M3 codes to fp32 values. As fp16 the magnitude bits, shifted by 7, are value * 2^-8.
inline __m256 fp8_words_to_float(__m128i words) {
  const __m128i magnitude = _mm_slli_epi16(_mm_and_si128(words, _mm_set1_epi16(0x7F)), 7);
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(words, _mm_set1_epi16(0x80)), 8);
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(magnitude, sign)), _mm256_set1_ps(256.0f));
}

struct Fp8Unpacker {
  // round(32 * value) of 8 codes (bytes 0..7 of x) as words.
  static __m128i eight(__m128i x) {
    const __m256 value = _mm256_mul_ps(fp8_words_to_float(_mm_cvtepu8_epi16(x)), _mm256_set1_ps(32.0f));
    const __m256i rounded = _mm256_cvtps_epi32(value);
    return _mm_packs_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
  }
  void unpack(const std::uint8_t* p, I& first, I& second) const {
    __m128i lo[4];
    __m128i hi[4];
    for (int lane = 0; lane < 4; ++lane) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * lane));
      lo[lane] = eight(x);
      hi[lane] = eight(_mm_srli_si128(x, 8));
    }
    first = {_mm256_set_m128i(lo[1], lo[0]), _mm256_set_m128i(lo[3], lo[2])};
    second = {_mm256_set_m128i(hi[1], hi[0]), _mm256_set_m128i(hi[3], hi[2])};
  }
};

inline __m128i bf16_half(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  rounded = _mm256_srli_epi32(rounded, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
inline void store_bf16(std::uint16_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bf16_half(x.a));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), bf16_half(x.b));
}
inline __m128i words_half(__m256 x) {
  const __m256i v = _mm256_cvtps_epi32(x);
  return _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}
inline void store_i16(std::uint16_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), words_half(x.a));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), words_half(x.b));
}
inline void store_i8(std::uint8_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words_half(x.a), words_half(x.b)));
}

inline void fp8_to_bf16_16(const std::uint8_t* p, std::uint16_t* out) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const auto half = [](__m128i words) {
    const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(words, _mm_set1_epi16(0x7F)), _mm_set1_epi16(0x7F));
    return _mm_or_si128(bf16_half(fp8_words_to_float(words)), _mm_and_si128(nan, _mm_set1_epi16(0x7FC0)));
  };
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), half(_mm_cvtepu8_epi16(x)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 8), half(_mm_cvtepu8_epi16(_mm_srli_si128(x, 8))));
}

}  // namespace mimo::avx2
