#include "core/memory_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/huge_buffer.h"
#include "core/sum_bytes.h"

namespace mimo {
namespace {

constexpr std::size_t kBlock = 1u << 20;

}  // namespace

double measure_read_bandwidth(ThreadPool& pool, int megabytes) {
  HugeBuffer buffer(static_cast<std::size_t>(megabytes) * kBlock);
  pool.for_each(megabytes, 8, [&](std::int64_t block, int) {
    std::memset(buffer.data() + static_cast<std::size_t>(block) * kBlock, static_cast<int>(block & 0x7F),
                kBlock);
  });
  double best = 0;
  std::atomic<std::uint64_t> sink{0};
  for (int pass = 0; pass < 5; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.for_each(megabytes, 4, [&](std::int64_t block, int) {
      sink.fetch_add(sum_bytes_avx2(buffer.data() + static_cast<std::size_t>(block) * kBlock, kBlock),
                     std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(buffer.size()) / seconds);
  }
  return best;
}

}  // namespace mimo
