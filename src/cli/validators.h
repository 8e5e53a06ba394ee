// Checks of option values that CLI11 lacks.
#pragma once

#include <string>

namespace mimo {

// Empty if `text` is a decimal integer from 0 to 2^64 - 1, else what is wrong with it.
std::string check_unsigned_integer(const std::string& text);

// Empty if `text` holds anything: "" is a shell variable that was not set, never what was meant.
std::string check_not_empty(const std::string& text);

// Empty if `text` is auto, cpu, cuda or cuda:N.
std::string check_device(const std::string& text);

// Empty unless `text` is not a number, which CLI::Range lets through.
std::string check_not_nan(const std::string& text);

}  // namespace mimo
