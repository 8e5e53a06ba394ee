#include "api/random_id.h"

#include <random>

namespace mimo {
namespace {

constexpr std::string_view kCharacters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

std::mt19937_64 seeded_engine() {
  std::random_device device;
  std::seed_seq seed{device(), device(), device(), device(), device(), device(), device(), device()};
  return std::mt19937_64(seed);
}

}  // namespace

std::string random_id(std::string_view prefix, std::size_t characters) {
  thread_local std::mt19937_64 engine = seeded_engine();
  std::uniform_int_distribution<std::size_t> draw(0, kCharacters.size() - 1);
  std::string id(prefix);
  id.reserve(prefix.size() + characters);
  for (std::size_t i = 0; i < characters; ++i) id += kCharacters[draw(engine)];
  return id;
}

std::string tool_call_id() { return random_id("call_", 24); }

}  // namespace mimo
