// Template text to Program. Whatever the engine does not know (tag, filter, test, function) is refused here,
// by name and line, so that a checkpoint with such a template fails when it is loaded and not in the middle
// of a request.
#pragma once

#include <string_view>

#include "core/result.h"
#include "text/jinja/ast.h"
#include "text/jinja/limits.h"

namespace mimo::jinja {

Result<Program> parse_program(std::string_view source, const Limits& limits);

}  // namespace mimo::jinja
