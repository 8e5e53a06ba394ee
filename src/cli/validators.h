// Checks of option values that CLI11 lacks.
#pragma once

#include <CLI/CLI.hpp>

namespace mimo {

// A decimal integer from 0 to 2^64 - 1.
CLI::Validator unsigned_integer();

}  // namespace mimo
