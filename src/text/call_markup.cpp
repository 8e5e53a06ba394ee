#include "text/call_markup.h"

#include <algorithm>

namespace mimo {

std::size_t call_name_part(std::string_view text, std::size_t held) {
  const std::size_t room = kMaxCallName - held;
  std::size_t length = std::min(text.find_first_of("<>\n"), text.size());
  if (length <= room) return length;
  length = room;
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) --length;
  return length;
}

std::string_view trimmed_call_name(std::string_view name) {
  const std::size_t begin = name.find_first_not_of(kCallSpace);
  if (begin == std::string_view::npos) return {};
  return name.substr(begin, name.find_last_not_of(kCallSpace) - begin + 1);
}

}  // namespace mimo
