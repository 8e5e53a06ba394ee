#include "server/http/request_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <random>

namespace mimo::http {
namespace {

constexpr std::size_t kMaxLength = 128;

bool harmless(char c) { return c > 0x20 && c < 0x7f && c != '"' && c != '\\'; }

std::mt19937_64& generator() {
  thread_local std::mt19937_64 engine = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return engine;
}

}  // namespace

std::string choose_request_id(std::string_view offered) {
  if (!offered.empty() && offered.size() <= kMaxLength &&
      std::all_of(offered.begin(), offered.end(), harmless))
    return std::string(offered);
  std::mt19937_64& engine = generator();
  const std::uint64_t high = engine();
  const std::uint64_t low = engine();
  return fmt::format("req-{:016x}{:016x}", high, low);
}

}  // namespace mimo::http
