// The integers that stand for E4M3 weights in the FP8 kernels.
#pragma once

#include <cstdint>

namespace mimo {

// round(32 * |value|) of the 7 magnitude bits of a code, cut into low and high bytes. All values from 2^-2 up
// are exact; smaller ones are off by at most 2^-6, which is 3.5e-5 of the largest E4M3 value.
struct alignas(64) Fp8Int16Tables {
  std::uint8_t low[128];
  std::uint8_t high[128];
};
inline constexpr float kFp8IntegerScale = 1.0f / 32.0f;

const Fp8Int16Tables& fp8_int16_tables();

}  // namespace mimo
