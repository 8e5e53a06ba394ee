// Checks of option values that CLI11 lacks.
#pragma once

#include <string>

namespace mimo {

// Empty if `text` is a decimal integer from 0 to 2^64 - 1, else what is wrong with it.
std::string check_unsigned_integer(const std::string& text);

}  // namespace mimo
