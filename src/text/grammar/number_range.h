// Numbers between bounds, as automata over their decimal digits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/result.h"
#include "text/grammar/automaton.h"
#include "text/grammar/grammar_builder.h"

namespace mimo::grammar {

// A finite number in decimal: (-1)^negative * whole.fraction.
struct Decimal {
  bool negative = false;
  std::string whole = "0";  // without leading zeros
  std::string fraction;     // without trailing zeros
  bool zero() const { return whole == "0" && fraction.empty(); }
};

// kUnsupported: more digits than kRangeDigits before or behind the point.
Result<Decimal> to_decimal(double value);
Decimal to_decimal(std::int64_t value);

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};

struct NumberRange {
  std::optional<NumberBound> low;
  std::optional<NumberBound> high;
  bool fractions = false;        // may have decimals
  std::int64_t multiple_of = 1;  // > 1: only without fractions

  bool bounded() const { return low || high || multiple_of > 1; }
};

// Digits before the point, and behind it, of bounds and of the numbers that are written.
inline constexpr int kRangeDigits = 15;
// Each remainder is a state.
inline constexpr std::int64_t kMaxMultiple = 4096;

// The texts of the numbers in the range, without exponents; none at all if the range is empty.
std::int32_t emit_number_range(GrammarBuilder& builder, std::int32_t from, const NumberRange& range);

}  // namespace mimo::grammar
