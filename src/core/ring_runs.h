// Walks a ring of rows, where position p is in row p % size.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mimo {

// Calls run(position, count) for parts of the positions [begin, end), in order, whose rows follow each other in memory.
template <class Run>
void for_ring_runs(std::int64_t begin, std::int64_t end, std::int64_t size, Run&& run) {
  while (begin < end) {
    const std::int64_t count = std::min(end - begin, size - begin % size);
    run(begin, count);
    begin += count;
  }
}

}  // namespace mimo
