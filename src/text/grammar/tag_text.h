// Bare text inside the tags of a tool call.
#pragma once

#include <cstdint>
#include <string_view>

#include "text/grammar/grammar_builder.h"

namespace mimo::grammar {

inline constexpr std::string_view kParameterEndTag = "</parameter>";

// Any text up to the first </parameter>, which is taken as well. The text holds nothing that readers of calls
// could take for another end of the value: no spelled </tool_call> or <tool_call>, no line that begins with
// <parameter=.
std::int32_t emit_text_to_tag(GrammarBuilder& builder, std::int32_t from);

// The same text alone, for intersections.
std::int32_t emit_text_without_tags(GrammarBuilder& builder, std::int32_t from);

// What stands between the quotes of a JSON string that is part of such a value, so that the value is not cut
// short inside it. Escapes may be any that JSON has.
std::int32_t emit_json_chars_without_tags(GrammarBuilder& builder, std::int32_t from);

}  // namespace mimo::grammar
