// Cuts a template into data and tag tokens, with the whitespace rules that chat templates are written for:
// `-` strips, trim_blocks drops the newline after a block tag, lstrip_blocks the blanks before one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace mimo::jinja {

enum class Tok : unsigned char {
  kData,
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInt,
  kFloat,
  kOp,
  kEnd
};

struct Token {
  Tok type;
  int line;
  std::string_view
      text;  // kString: between the quotes, escapes not resolved; views into the normalised source
};

// Line ends become "\n" and one at the end of the text is dropped.
std::string normalise_source(std::string_view source);

// `source` must be normalised and outlive the tokens; the last token is kEnd.
Result<std::vector<Token>> tokenize(std::string_view source);

// Resolves the escapes of a string literal as Python does. Lone surrogates and \N{...} are refused.
Result<std::string> unescape(std::string_view literal, int line);

}  // namespace mimo::jinja
