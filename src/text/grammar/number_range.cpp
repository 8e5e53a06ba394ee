#include "text/grammar/number_range.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace mimo::grammar {
namespace {

// Numbers >= 0 between two bounds >= 0 (none: no upper bound). A state knows how many digits were taken and
// whether they equal those of a bound so far.
class MagnitudeEmitter {
 public:
  MagnitudeEmitter(GrammarBuilder& builder, const NumberBound& low, const std::optional<NumberBound>& high,
                   bool fractions, std::int32_t end)
      : builder_(builder), low_(low), high_(high), fractions_(fractions), end_(end) {}

  void emit(std::int32_t from) {
    const auto least = static_cast<int>(low_.value.whole.size());
    const int most = high_ ? static_cast<int>(high_->value.whole.size()) : kRangeDigits;
    for (int length = least; length <= most; ++length) {
      whole_.clear();
      length_ = length;
      const bool at_low = length == least;
      const bool at_high = high_ && length == most;
      whole_digit(from, 0, at_low, at_high);
    }
  }

 private:
  static int digit_of(const std::string& digits, int at) {
    return at < static_cast<int>(digits.size()) ? digits[static_cast<std::size_t>(at)] - '0' : 0;
  }

  // Calls `next(low, high, at_low, at_high)` for ranges of digits that may stand at `at`.
  template <class Next>
  void digits(const std::string& low, const std::string& high, int at, bool at_low, bool at_high, int first,
              Next next) {
    const int lowest = at_low ? digit_of(low, at) : 0;
    const int highest = at_high ? digit_of(high, at) : 9;
    int begin = std::max(lowest, first);
    int end = highest;
    if (begin > end) return;
    // The ends keep a bound, what lies between them is free of both.
    if (at_low && begin == lowest) {
      next(begin, begin, true, at_high && begin == highest);
      ++begin;
    }
    if (begin <= end && at_high) {
      next(end, end, false, true);
      --end;
    }
    if (begin <= end) next(begin, end, false, false);
  }

  void whole_digit(std::int32_t from, int at, bool at_low, bool at_high) {
    if (builder_.failed()) return;
    const int first = at == 0 && length_ > 1 ? 1 : 0;
    digits(low_.value.whole, high_ ? high_->value.whole : std::string(), at, at_low, at_high, first,
           [&](int low, int high, bool low_next, bool high_next) {
             const auto [state, fresh] = whole_state(at + 1, low_next, high_next);
             step(from, state, low, high);
             if (!fresh) return;
             if (at + 1 < length_) {
               whole_digit(state, at + 1, low_next, high_next);
             } else {
               whole_end(state, low_next, high_next);
             }
           });
  }

  void whole_end(std::int32_t state, bool at_low, bool at_high) {
    finish(state, 0, at_low, at_high);
    if (!fractions_) return;
    fraction_digit(builder_.literal(state, "."), 0, at_low, at_high);
  }

  void fraction_digit(std::int32_t from, int at, bool at_low, bool at_high) {
    if (at >= kRangeDigits || builder_.failed()) return;
    digits(low_.value.fraction, high_ ? high_->value.fraction : std::string(), at, at_low, at_high, 0,
           [&](int low, int high, bool low_next, bool high_next) {
             const auto [state, fresh] = fraction_state(at + 1, low_next, high_next);
             step(from, state, low, high);
             if (!fresh) return;
             finish(state, at + 1, low_next, high_next);
             fraction_digit(state, at + 1, low_next, high_next);
           });
  }

  // The number may end behind `at` decimals.
  void finish(std::int32_t state, int at, bool at_low, bool at_high) {
    const auto rest = [at](const std::string& fraction) { return static_cast<int>(fraction.size()) > at; };
    // Equal so far: smaller than a bound with more decimals (which do not end in zeros), else equal to it.
    if (at_low && (rest(low_.value.fraction) || low_.exclusive)) return;
    if (at_high && high_->exclusive && !rest(high_->value.fraction)) return;
    builder_.empty(state, end_);
  }

  void step(std::int32_t from, std::int32_t to, int low, int high) {
    builder_.bytes(from, to, static_cast<std::uint8_t>('0' + low), static_cast<std::uint8_t>('0' + high));
  }

  using Key = std::tuple<int, bool, bool>;
  std::pair<std::int32_t, bool> state_in(std::map<Key, std::int32_t>& states, const Key& key) {
    const auto [at, fresh] = states.emplace(key, 0);
    if (fresh) at->second = builder_.add_state();
    return {at->second, fresh};
  }
  std::pair<std::int32_t, bool> whole_state(int at, bool low, bool high) {
    return state_in(whole_, {at, low, high});
  }
  // Whole parts of all lengths share their fractions: what matters is whether a bound still holds.
  std::pair<std::int32_t, bool> fraction_state(int at, bool low, bool high) {
    return state_in(fraction_, {at, low, high});
  }

  GrammarBuilder& builder_;
  const NumberBound& low_;
  const std::optional<NumberBound>& high_;
  bool fractions_;
  std::int32_t end_;
  int length_ = 0;
  std::map<Key, std::int32_t> whole_;
  std::map<Key, std::int32_t> fraction_;
};

NumberBound magnitude(NumberBound bound) {
  bound.value.negative = false;
  return bound;
}

std::int32_t emit_range(GrammarBuilder& builder, std::int32_t from, const NumberRange& range) {
  const std::int32_t end = builder.add_state();
  const NumberBound zero;
  // Zero is written without a sign.
  if (!range.high || !range.high->value.negative) {
    const bool from_zero = !range.low || range.low->value.negative;
    MagnitudeEmitter(builder, from_zero ? zero : *range.low, range.high, range.fractions, end).emit(from);
  }
  if (!range.low || (range.low->value.negative && !range.low->value.zero())) {
    std::optional<NumberBound> most;
    if (range.low) most = magnitude(*range.low);
    NumberBound least{.value = {}, .exclusive = true};
    if (range.high && range.high->value.negative) least = magnitude(*range.high);
    MagnitudeEmitter(builder, least, most, range.fractions, end).emit(builder.literal(from, "-"));
  }
  return end;
}

// Integers whose remainder by `divisor` is 0, with an optional sign.
std::int32_t emit_multiples(GrammarBuilder& builder, std::int32_t from, std::int64_t divisor) {
  const std::int32_t end = builder.add_state();
  std::vector<std::int32_t> states(static_cast<std::size_t>(divisor));
  for (std::int32_t& state : states) state = builder.add_state();
  const std::int32_t begin = builder.optional_literal(from, "-");
  for (std::int64_t digit = 0; digit < 10; ++digit) {
    const auto byte = static_cast<std::uint8_t>('0' + digit);
    builder.bytes(begin, states[static_cast<std::size_t>(digit % divisor)], byte, byte);
    for (std::int64_t r = 0; r < divisor && !builder.failed(); ++r) {
      builder.bytes(states[static_cast<std::size_t>(r)],
                    states[static_cast<std::size_t>((r * 10 + digit) % divisor)], byte, byte);
    }
  }
  builder.empty(states[0], end);
  return end;
}

void trim(Decimal& decimal) {
  while (!decimal.fraction.empty() && decimal.fraction.back() == '0') decimal.fraction.pop_back();
  const std::size_t first = decimal.whole.find_first_not_of('0');
  decimal.whole = first == std::string::npos ? "0" : decimal.whole.substr(first);
  if (decimal.zero()) decimal.negative = false;
}

}  // namespace

Decimal to_decimal(std::int64_t value) {
  Decimal out;
  out.negative = value < 0;
  out.whole = fmt::format("{}", value);
  if (out.negative) out.whole.erase(0, 1);
  return out;
}

Result<Decimal> to_decimal(double value) {
  // Shortest digits that read back equal, as d.ddde+XX.
  std::string text = fmt::format("{:e}", value);
  for (int precision = 0; precision < 17; ++precision) {
    text = fmt::format("{:.{}e}", value, precision);
    if (std::stod(text) == value) break;
  }
  Decimal out;
  out.negative = text[0] == '-';
  if (out.negative) text.erase(0, 1);
  const std::size_t mark = text.find('e');
  const int exponent = std::stoi(text.substr(mark + 1));
  std::string digits = text.substr(0, 1);
  if (mark > 2) digits += text.substr(2, mark - 2);
  if (std::abs(exponent) > 2 * kRangeDigits) {
    return fail(ErrorCode::kUnsupported, "{} has more than {} digits before or behind the point", value,
                kRangeDigits);
  }
  if (exponent < 0) {
    out.fraction = std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  } else {
    const auto whole = static_cast<std::size_t>(exponent) + 1;
    if (digits.size() < whole) digits.append(whole - digits.size(), '0');
    out.whole = digits.substr(0, whole);
    out.fraction = digits.substr(whole);
  }
  trim(out);
  if (out.whole.size() > kRangeDigits || out.fraction.size() > kRangeDigits) {
    return fail(ErrorCode::kUnsupported, "{} has more than {} digits before or behind the point", value,
                kRangeDigits);
  }
  return out;
}

std::int32_t emit_number_range(GrammarBuilder& builder, std::int32_t from, const NumberRange& range) {
  if (range.multiple_of <= 1) return emit_range(builder, from, range);
  const auto in_range = byte_automaton(builder.limits(), [&](GrammarBuilder& part, std::int32_t start) {
    return emit_range(part, start, range);
  });
  const auto multiples = byte_automaton(builder.limits(), [&](GrammarBuilder& part, std::int32_t start) {
    return emit_multiples(part, start, range.multiple_of);
  });
  if (!in_range || !multiples) {
    const Error& error = in_range ? multiples.error() : in_range.error();
    builder.fail(error.code, "{}", error.message);
    return from;
  }
  return emit_intersection(builder, from, *in_range, *multiples);
}

}  // namespace mimo::grammar
