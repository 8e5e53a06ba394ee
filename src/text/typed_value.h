// Text to a JSON value of the type that a JSON schema declares: how the values of tool calls, which models
// write as bare text, get their types.
#pragma once

#include <string>
#include <string_view>

#include "core/json.h"

namespace mimo {

// The JSON types that a schema allows.
struct DeclaredTypes {
  unsigned bits = 0;  // 0: nothing is declared

  // Any text is a value as it stands.
  bool only_string() const;
};

// `schema` is the one of the value, null when nothing is declared; `root` is where "$ref": "#/..." starts. Types
// are gathered through type lists, anyOf, oneOf, allOf, enum, const and local $ref.
DeclaredTypes declared_types(const json::value* schema, const json::value& root);

// JSON text of the value that `text` stands for. Of several types the first that fits wins, in the order null,
// boolean, integer, number, object or array, string.
//
//   null            exactly `null`
//   boolean         true or false, in any case
//   integer         a JSON number without fraction (5.0 is 5) that fits 64 bits
//   number          a JSON number
//   object, array   JSON text of that kind
//   string          the text itself, to the byte
//   not declared    JSON text of a number, boolean, object or array, else a string
//
// White space around the value is ignored for all types but string; what is JSON already stays as it was
// written. A text that fits no declared type stays a string: it is the caller's to refuse. `text` is valid UTF-8.
std::string typed_json(std::string_view text, DeclaredTypes types);

}  // namespace mimo
