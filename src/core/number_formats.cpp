#include "core/number_formats.h"

namespace mimo {

std::uint8_t float_to_e4m3(float value) {
  if (std::isnan(value)) return 0x7F;
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0x00;
  const float magnitude = std::fabs(value);
  constexpr float kLargest = 448.0f;
  if (magnitude >= kLargest) return static_cast<std::uint8_t>(sign | 0x7E);
  constexpr float kSmallestNormal = 0.015625f;  // 2^-6
  if (magnitude < kSmallestNormal) {
    // Multiples of 2^-9; 8 of them are the smallest normal, whose code follows on seamlessly.
    const auto steps = static_cast<std::uint8_t>(std::nearbyint(std::ldexp(magnitude, 9)));
    return static_cast<std::uint8_t>(sign | steps);
  }
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);                       // [0.5, 1)
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(fraction, 4)));  // 8..16
  // 16 steps carry into the exponent: (exponent + 6) * 8 + 8 is the next binade's first code.
  const int code = (exponent + 6) * 8 + (steps - 8);
  return static_cast<std::uint8_t>(sign | (code > 0x7E ? 0x7E : code));
}

}  // namespace mimo
