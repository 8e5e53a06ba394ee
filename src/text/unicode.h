// What the tokenizer asks about a code point: its class for pre-tokenising, and whether it matters to NFC.
// Unicode 16.0, the version of the reference tokenizer library's regex engine (0 differing code points in L,
// N and \s).
#pragma once

#include <cstdint>

namespace mimo {

enum class CharClass : std::uint8_t { kOther, kLetter, kNumber, kSpace };

// One byte for each code point, built once per process (1.1 MB; text touches only the lines of its own
// scripts).
class UnicodeTable {
 public:
  static const UnicodeTable& get();

  // `code_point` must be below 0x110000 in all three.
  CharClass char_class(std::uint32_t code_point) const {
    return static_cast<CharClass>(flags_[code_point] & kClassMask);
  }
  // True when the character neither changes under NFC, nor composes with or moves before what stands ahead of
  // it. Text made of such characters only is NFC, and NFC can be applied to the parts between them.
  bool nfc_boundary(std::uint32_t code_point) const { return (flags_[code_point] & kNfcBoundary) != 0; }
  // True when NFC_Quick_Check is No or Maybe.
  bool nfc_may_change(std::uint32_t code_point) const { return (flags_[code_point] & kNfcMayChange) != 0; }

  const std::uint8_t* flags() const { return flags_; }

 private:
  static constexpr std::uint8_t kClassMask = 3;
  static constexpr std::uint8_t kNfcBoundary = 4;
  static constexpr std::uint8_t kNfcMayChange = 8;

  UnicodeTable();

  std::uint8_t flags_[0x110000];
};

}  // namespace mimo
