// Ranges of code points from the Unicode Character Database, version 16.0.0; sorted, not overlapping. The
// .cpp is written by tools/unicode/make_tables.py. Use text/unicode.h, which turns them into a table with
// O(1) access.
#pragma once

#include <cstdint>
#include <span>

namespace mimo::unicode_tables {

struct CodeRange {
  std::uint32_t first;
  std::uint32_t last;  // included
};

extern const std::span<const CodeRange> kLetters;    // General_Category L*
extern const std::span<const CodeRange> kNumbers;    // General_Category N*
extern const std::span<const CodeRange> kSpaces;     // White_Space
extern const std::span<const CodeRange> kNfcNotYes;  // NFC_Quick_Check No or Maybe
extern const std::span<const CodeRange> kReordered;  // Canonical_Combining_Class not 0

}  // namespace mimo::unicode_tables
