// How the outcome of speculation is told.
#pragma once

#include <string>

#include "core/json.h"
#include "engine/speculation_stats.h"

namespace mimo {

json::object speculation_json(const SpeculationStats& stats);

// One line: accept length, steps, and which part of the steps accepted the first, second, ... draft.
std::string speculation_line(const SpeculationStats& stats);

}  // namespace mimo
