#include "cli/byte_size.h"

#include <charconv>
#include <cmath>
#include <string>

namespace mimo {

Result<std::uint64_t> parse_byte_size(std::string_view text, std::string_view what) {
  const auto bad = [&] {
    return fail(ErrorCode::kInvalidArgument,
                "{} {}: expected bytes, or a number with K, M, G, T, KiB, MB, GB, ...", what, text);
  };
  double number = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (ec != std::errc() || !std::isfinite(number) || number < 0) return bad();
  std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (!suffix.empty() && suffix.front() == ' ') suffix.remove_prefix(1);
  double unit = 1;
  if (!suffix.empty() && suffix != "B") {
    constexpr std::string_view kLetters = "KMGT";
    const std::size_t power = kLetters.find(static_cast<char>(std::toupper(suffix.front())));
    if (power == std::string_view::npos) return bad();
    const std::string_view rest = suffix.substr(1);
    if (!rest.empty() && rest != "iB" && rest != "B") return bad();
    unit = std::pow(rest == "B" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * unit;
  constexpr double kLargest = 1e18;  // an exabyte; keeps the conversion defined
  if (bytes > kLargest) return bad();
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace mimo
