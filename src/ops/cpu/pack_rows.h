// Inner loops of packing: one row's bytes to its places in a panel of 16 rows (packed_matrix.h has the
// layouts).
#pragma once

#include <cstddef>
#include <cstdint>

namespace mimo {

// Needs BMI2. `units` 4-byte units (8 stored nibbles each) to every 64th byte of `out`: byte t of a packed
// unit is column t in the low and t + 4 in the high nibble.
void pack_mxfp4_row(const std::uint8_t* in, std::size_t units, std::uint8_t* out);

// `units` 4-byte units (4 codes each): columns 0, 1 to out, 2, 3 to out + 8, every 64 bytes. Returns whether
// a code was NaN (0x7F or 0xFF).
bool pack_fp8_row(const std::uint8_t* in, std::size_t units, std::uint8_t* out);

// `units` 4-byte units, every 64 bytes.
void pack_plain_row(const std::uint8_t* in, std::size_t units, std::uint8_t* out);

// Largest magnitude of `count` bf16 values (a multiple of 16), as fp32; NaN when one is NaN. Needs AVX2.
float largest_bf16(const std::uint8_t* in, std::size_t count);

// round(value * inverse) of `count` bf16 values (a multiple of 16) as int16 pairs, every 64 bytes. Needs
// AVX2.
void pack_int16_row(const std::uint8_t* in, std::size_t count, float inverse, std::uint8_t* out);

}  // namespace mimo
