// How a stream of packed panels is cut into tasks when few rows are multiplied and reading weights is the work.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace mimo {

// Up to this many rows (a verified block of drafts) weights are a stream that should not be cut short; more rows
// are bound by arithmetic.
inline constexpr int kStreamRows = 8;

// Bytes of packed weights that a task takes: long enough to stream, short enough to balance.
inline constexpr std::size_t kStreamTaskBytes = 128u << 10;

// Units (panels, or pairs of them) a task takes of `count`, given how many are wanted: as many tasks for every
// thread, of equal size.
inline std::int64_t even_span(std::int64_t count, std::int64_t wanted, std::int64_t threads) {
  const std::int64_t span = std::max<std::int64_t>(1, wanted);
  const std::int64_t tasks = (count + span - 1) / span;
  const std::int64_t even = (tasks + threads - 1) / threads * threads;
  return std::max<std::int64_t>(1, (count + even - 1) / even);
}

inline std::int64_t stream_span(std::int64_t count, std::size_t unit_bytes, std::int64_t threads) {
  return even_span(count, static_cast<std::int64_t>(kStreamTaskBytes / unit_bytes), threads);
}

}  // namespace mimo
