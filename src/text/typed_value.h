// Text to a JSON value of the type that a JSON schema declares: how the values of tool calls, which models
// write as bare text, get their types.
#pragma once

#include <string_view>

#include "core/json.h"

namespace mimo {

// `schema` is the one of this value, null when nothing is declared; `root` is where "$ref": "#/..." starts.
// Types are gathered through type lists, anyOf, oneOf, allOf, enum, const and local $ref; of several types
// the first that fits wins, in the order null, boolean, integer, number, object or array, string.
//
//   null            exactly `null`
//   boolean         true or false, in any case
//   integer         a JSON number without fraction (5.0 is 5) that fits 64 bits
//   number          a JSON number
//   object, array   JSON text of that kind
//   string          the text itself, to the byte
//   not declared    JSON text of a number, boolean, object or array, else a string
//
// White space around the value is ignored for all types but string. A text that fits no declared type stays a
// string: it is the caller's to refuse.
json::value typed_value(std::string_view text, const json::value* schema, const json::value& root);

}  // namespace mimo
