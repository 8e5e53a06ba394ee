// The inner loop of the bandwidth measurement.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mimo {

// A sum over `bytes` bytes (a multiple of 128), only so that they are read. Needs AVX2.
std::uint64_t sum_bytes_avx2(const std::uint8_t* data, std::size_t bytes);

}  // namespace mimo
