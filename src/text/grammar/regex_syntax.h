// Regular expressions as JSON schemas and clients write them: the part on which ECMAScript and Python agree
// and that describes a regular language. The rest (look-around, back references, \b, flags, \p) is refused by
// name.
#pragma once

#include <string_view>
#include <vector>

#include "core/result.h"
#include "text/grammar/expression.h"

namespace mimo::grammar {

struct Regex {
  struct Branch {
    Expression body;
    bool at_begin = false;  // ^
    bool at_end = false;    // $
  };
  std::vector<Branch> branches;  // alternatives; not empty
};

// `pattern` is valid UTF-8. Errors quote the part that is meant.
Result<Regex> parse_regex(std::string_view pattern);

// Where the pattern has to match: an unanchored search takes any text around it.
enum class RegexScope : std::uint8_t { kWhole, kSearch };

std::int32_t emit_regex(GrammarBuilder& builder, std::int32_t from, const Regex& regex, RegexScope scope,
                        Spelling spelling);

}  // namespace mimo::grammar
