// Unicode NFC for valid UTF-8. Linear apart from sorting runs of combining marks (n log n), whatever the
// text.
//
// Combining classes are those of Unicode 16; decomposition and composition come from utf8proc (Unicode 15 in
// its version 2.8). The 20 compositions that Unicode 16 added (Tulu-Tigalari, Kirat Rai, Gurung Khema) are
// therefore left as they are, as the reference tokenizer library does too. That library orders marks by an
// older Unicode: mark sequences in non-canonical order that use marks newer than Unicode 10 differ.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/unicode_utf8.h"

namespace mimo {

// False when the text is certainly NFC already (the usual case); linear, no allocation.
bool nfc_may_change(std::string_view text);

// NFC of the text. If `edits` is given, the rewritten parts are added to it, in order.
std::string to_nfc(std::string_view text, std::vector<TextEdit>* edits = nullptr);

}  // namespace mimo
