#include "cli/validators.h"

#include <charconv>
#include <cstdint>
#include <string>

namespace mimo {

std::string check_unsigned_integer(const std::string& text) {
  // CLI11's own conversion wraps negative numbers.
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, ec] = std::from_chars(text.data(), end, value);
  if (ec == std::errc() && rest == end) return {};
  return "got " + text + ", expected an integer from 0 to 2^64 - 1";
}

}  // namespace mimo
