// Scalar conversions of the stored number formats. These are the definition; kernels have faster ones that
// are tested against them. Sources: spec model 3.2 (E4M3), 3.5 (E2M1, E8M0).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace mimo {

inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Round to nearest even; NaN stays a (quiet) NaN.
inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float round_to_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

// E4M3 "fn": bias 7, no infinities, 0x7F and 0xFF are NaN, largest finite 448.
inline float e4m3_to_float(std::uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  float magnitude = 0.0f;
  if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -9);
  } else if (exponent == 15 && mantissa == 7) {
    magnitude = std::nanf("");
  } else {
    magnitude = std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  }
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Round to nearest even, saturating to +-448 (also for infinities); NaN gives 0x7F.
std::uint8_t float_to_e4m3(float value);

// E2M1 (the elements of MXFP4): code bit 3 is the sign, bits 2..0 index 0, .5, 1, 1.5, 2, 3, 4, 6.
inline float e2m1_to_float(unsigned code) {
  constexpr float kMagnitude[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kMagnitude[code & 7u];
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

// E8M0 (block scales of MXFP4): 2^(code - 127); 255 is NaN.
inline float e8m0_to_float(std::uint8_t code) {
  if (code == 255) return std::nanf("");
  return std::ldexp(1.0f, static_cast<int>(code) - 127);
}

}  // namespace mimo
