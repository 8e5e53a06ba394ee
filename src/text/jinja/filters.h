// Parts shared by the two files of filters.
#pragma once

#include <string>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"

namespace mimo::jinja {

// The path "a.b.0" of the `attribute` arguments, as keys to look up one after the other.
std::vector<Value> attribute_path(Runtime& runtime, const Value& attribute);
Value follow_path(Runtime& runtime, Value value, const std::vector<Value>& path);

// Strings in lower case, everything else as it is: the key of case-insensitive sorting.
Value ignore_case(Runtime& runtime, const Value& value);

// Filters over lists and dicts (filters_sequence.cpp) and over single values (filters_scalar.cpp); null when
// unknown.
FilterFn find_sequence_filter(std::string_view name);
FilterFn find_scalar_filter(std::string_view name);

}  // namespace mimo::jinja
