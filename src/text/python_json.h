// Writes JSON as Python's json.dumps does, byte for byte: tool definitions become prompt text, and a model
// has seen them in exactly that form.
#pragma once

#include <string>
#include <string_view>

#include "core/json.h"

namespace mimo {

struct PythonJsonOptions {
  bool ensure_ascii = false;          // chat templates switch Python's default off
  int indent = -1;                    // spaces per level; negative: everything on one line
  std::string item_separator = ", ";  // Python uses "," when it indents
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// `repr(float)`: shortest digits that read back equal, exponent form below 1e-4 and from 1e16; "nan", "inf",
// "-inf".
std::string python_float_repr(double value);

// A number as json.dumps writes it: as repr, but "NaN", "Infinity", "-Infinity".
std::string python_json_float(double value);

// Appends `text` (UTF-8) as a quoted JSON string.
void append_python_json_string(std::string& out, std::string_view text, bool ensure_ascii);

// Whole value. Key order is kept unless sort_keys.
std::string python_json(const json::value& value, const PythonJsonOptions& options = {});

}  // namespace mimo
