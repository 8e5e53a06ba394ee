// What can be read off a JSON schema without compiling it.
#pragma once

#include <string_view>
#include <vector>

#include "core/json.h"

namespace mimo::grammar {

// The part of `root` that a "$ref" names; null when it does not point into the document.
const json::value* resolve_ref(const json::value& root, const json::value& ref);

// The types that a schema names, or else those that its keywords are about; none: it says nothing of the type.
std::vector<std::string_view> schema_types(const json::object& schema);

// The name of the JSON type of a value ("integer" also for 5.0).
std::string_view type_name(const json::value& value);
bool has_type(const json::value& value, std::string_view type);

// No text that is written for one of them satisfies the other. False when that cannot be told.
bool schemas_disjoint(const json::value& root, const json::value& a, const json::value& b);

// A regular expression for the whole text of a "format"; empty: not known.
std::string_view format_pattern(std::string_view format);

// An object's member, or null.
const json::value* member(const json::object& object, std::string_view key);

std::string_view text_of(const json::string& text);

}  // namespace mimo::grammar
