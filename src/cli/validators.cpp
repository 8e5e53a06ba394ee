#include "cli/validators.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
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

std::string check_not_empty(const std::string& text) {
  return text.empty() ? "got nothing, expected a value" : std::string();
}

std::string check_device(const std::string& text) {
  if (text == "auto" || text == "cpu" || text == "cuda") return {};
  const bool numbered = text.starts_with("cuda:") && text.size() > 5 && text.size() < 9 &&
                        text.find_first_not_of("0123456789", 5) == std::string::npos;
  return numbered ? std::string() : "got " + text + ", expected auto, cpu, cuda or cuda:N";
}

std::string check_not_nan(const std::string& text) {
  const bool nan = std::isnan(std::strtod(text.c_str(), nullptr));
  return nan ? "got " + text + ", expected a number" : std::string();
}

}  // namespace mimo
