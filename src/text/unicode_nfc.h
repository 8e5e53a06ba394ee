// Unicode NFC for valid UTF-8. Linear apart from sorting runs of combining marks (n log n), whatever the
// text.
//
// Combining classes, decompositions and compositions are utf8proc's (Unicode 15 in its version 2.8), so what
// Unicode 16 added stays as it is: 20 compositions (Tulu-Tigalari, Kirat Rai, Gurung Khema), which the
// reference tokenizer library does not make either, and the order of new marks. That library orders marks by
// an older Unicode: sequences in non-canonical order that use marks newer than Unicode 10 differ.
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
