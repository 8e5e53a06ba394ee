// When the requests of an open load are sent.
#pragma once

#include <cstdint>
#include <vector>

namespace mimo {

// Seconds from the start, ascending: `count` arrivals with gamma-distributed gaps (shape `burstiness`: 1 is a
// Poisson process, less is burstier, more is steadier), scaled so that the last one is at exactly count / rate.
// An infinite rate: all at 0.
std::vector<double> arrival_times(std::int64_t count, double rate, double burstiness, std::uint64_t seed);

}  // namespace mimo
