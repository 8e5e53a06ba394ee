// The checkpoint that comes with the program.
#pragma once

#include <string>

#include "core/result.h"

namespace mimo {

// $MIMO_MODEL if it is set; otherwise models/nano beside, one or two folders above the executable, or under
// ../share/mimo: the first that has a config.json. The error says how to name a checkpoint.
Result<std::string> bundled_model();

}  // namespace mimo
