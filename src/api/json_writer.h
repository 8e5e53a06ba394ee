// JSON text written by hand: answers are made of a few constant pieces and one string, thousands of times a
// second.
#pragma once

#include <string>
#include <string_view>

namespace mimo {

// Appends `text` as a JSON string with its quotes. Invalid UTF-8 becomes U+FFFD, so that what is written can
// always be read.
void append_json_string(std::string& out, std::string_view text);

// The same without quotes, for a string that is written in pieces.
void append_json_escaped(std::string& out, std::string_view text);

// The shortest digits that read back as the same float. JSON has no infinities and no NaN: -9999.0 stands for
// minus infinity and NaN, 9999.0 for plus infinity.
void append_json_float(std::string& out, float value);

}  // namespace mimo
