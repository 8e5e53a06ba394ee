// Names and white space in the markup of tool calls.
#pragma once

#include <cstddef>
#include <string_view>

namespace mimo {

inline constexpr std::string_view kCallSpace = " \t\r\n";
// Longest name of a function or parameter, in bytes; bounds what is held back for one.
inline constexpr std::size_t kMaxCallName = 256;

// Bytes at the front of `text` that go on with a name of which `held` bytes have been read: up to '<', '>', a
// line break or the longest name, whole characters. A name has ended well only if '>' comes next.
std::size_t call_name_part(std::string_view text, std::size_t held);

// `name` without white space around it.
std::string_view trimmed_call_name(std::string_view name);

}  // namespace mimo
