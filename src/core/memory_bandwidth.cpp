#include "core/memory_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/huge_buffer.h"

namespace mimo {
namespace {

constexpr std::size_t kBlock = 1u << 20;

// Vector type the compiler lowers to what the build targets; plain 64-bit adds would be bound by the adder.
using Lanes = std::uint64_t __attribute__((vector_size(32)));

std::uint64_t read_block(const std::uint8_t* data) {
  Lanes sum[4] = {};
  for (std::size_t i = 0; i < kBlock; i += 4 * sizeof(Lanes)) {
    for (std::size_t j = 0; j < 4; ++j) {
      Lanes value;
      std::memcpy(&value, data + i + j * sizeof(Lanes), sizeof(Lanes));
      sum[j] += value;
    }
  }
  std::uint64_t total = 0;
  for (const Lanes& lane : sum) total += lane[0] + lane[1] + lane[2] + lane[3];
  return total;
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool, int megabytes) {
  HugeBuffer buffer(static_cast<std::size_t>(megabytes) * kBlock);
  pool.for_each(megabytes, 8, [&](std::int64_t block, int) {
    std::memset(buffer.data() + static_cast<std::size_t>(block) * kBlock, static_cast<int>(block & 0x7F), kBlock);
  });
  double best = 0;
  std::atomic<std::uint64_t> sink{0};
  for (int pass = 0; pass < 5; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.for_each(megabytes, 4, [&](std::int64_t block, int) {
      sink.fetch_add(read_block(buffer.data() + static_cast<std::size_t>(block) * kBlock), std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(buffer.size()) / seconds);
  }
  return best;
}

}  // namespace mimo
