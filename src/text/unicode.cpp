#include "text/unicode.h"

#include <cstring>
#include <memory>
#include <span>

#include "text/unicode_tables.h"

namespace mimo {

using unicode_tables::CodeRange;

UnicodeTable::UnicodeTable() {
  std::memset(flags_, kNfcBoundary, sizeof flags_);
  const auto set_class = [this](std::span<const CodeRange> ranges, CharClass char_class) {
    for (const CodeRange& range : ranges) {
      for (std::uint32_t c = range.first; c <= range.last; ++c)
        flags_[c] |= static_cast<std::uint8_t>(char_class);
    }
  };
  set_class(unicode_tables::kLetters, CharClass::kLetter);
  set_class(unicode_tables::kNumbers, CharClass::kNumber);
  set_class(unicode_tables::kSpaces, CharClass::kSpace);
  constexpr auto kNotBoundary = static_cast<std::uint8_t>(~kNfcBoundary);
  for (const CodeRange& range : unicode_tables::kReordered) {
    for (std::uint32_t c = range.first; c <= range.last; ++c) flags_[c] &= kNotBoundary;
  }
  for (const CodeRange& range : unicode_tables::kNfcNotYes) {
    for (std::uint32_t c = range.first; c <= range.last; ++c) {
      flags_[c] &= kNotBoundary;
      flags_[c] |= kNfcMayChange;
    }
  }
}

const UnicodeTable& UnicodeTable::get() {
  static const std::unique_ptr<const UnicodeTable> table(new UnicodeTable);
  return *table;
}

}  // namespace mimo
