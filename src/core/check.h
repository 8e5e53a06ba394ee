// MIMO_CHECK states what our own code guarantees; a failure is a bug in this program and ends it with the
// place and the values. No user input may reach one. MIMO_DCHECK is the same for hot loops and vanishes with
// NDEBUG.
#pragma once

#include <fmt/format.h>

#include <string>

namespace mimo::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}  // namespace mimo::detail

#define MIMO_CHECK(condition, ...)                                                                 \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      ::mimo::detail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

#ifdef NDEBUG
#define MIMO_DCHECK(condition, ...) \
  do {                              \
  } while (false)
#else
#define MIMO_DCHECK(condition, ...) MIMO_CHECK(condition, __VA_ARGS__)
#endif
