// Counter-based random numbers: Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (2011). A number is a pure function of (seed, position, stream); no state is kept, so it depends neither on
// what shares a batch nor on the order in which positions are computed.
#pragma once

#include <array>
#include <cstdint>

namespace mimo {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// The ten-round block function: 128 random bits for a counter and a key.
PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key);

// A uniform number in [0, 1) with 53 random bits. `stream` separates independent draws at one position (0
// picks the token; a verifier that needs a second draw there takes another stream).
double philox_uniform(std::uint64_t seed, std::int64_t position, std::uint64_t stream = 0);

// The seed of choice `index` of a request with several choices. Choice 0 has the request's own seed, so it is
// the same text as a request for one choice.
std::uint64_t philox_choice_seed(std::uint64_t seed, std::uint32_t index);

}  // namespace mimo
