// String operations that keep track of trust, shared by filters and methods.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/runtime.h"
#include "text/jinja/text.h"
#include "text/jinja/unicode_text.h"

namespace mimo::jinja {

enum class Side { kLeft, kRight, kBoth };

// str.strip and its one-sided forms; null `chars` strips white space.
Text strip(Runtime& runtime, const Text& text, const Text* chars, Side side);

// Applies `change(code, appended_to)` to every character; what it appends has the trust of the character.
Text map_characters(Runtime& runtime, const Text& text,
                    const std::function<void(char32_t, std::string&)>& change);

Text upper(Runtime& runtime, const Text& text);
Text lower(Runtime& runtime, const Text& text);
Text capitalize(Runtime& runtime, const Text& text);
// The filter `title`: words start after white space and - ( { [ <. The method: after any character without
// case.
Text title_filter(Runtime& runtime, const Text& text);
Text title_method(Runtime& runtime, const Text& text);

// str.replace; a negative count means all.
Text replace(Runtime& runtime, const Text& text, const Text& from, const Text& to, Int count);

// str.splitlines, without line ends unless `keep_ends`.
std::vector<Text> split_lines(Runtime& runtime, const Text& text, bool keep_ends);

Text join(Runtime& runtime, const Text& separator, const std::vector<TextPtr>& parts);

// str.isupper / str.islower: at least one character has case, and all that have it have `wanted`.
bool all_cased(Runtime& runtime, const Text& text, Letter wanted);

// & < > ' " as entities.
Text escape_html(Runtime& runtime, const Text& text);

}  // namespace mimo::jinja
