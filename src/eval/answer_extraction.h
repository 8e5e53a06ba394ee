// The final answer that a worked solution states, and whether it is the right number. The order of the rules
// and the leniency are those of the evalscope form of GSM8K.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mimo {

// From the content of an answer (never its reasoning), the first of these that holds a number:
//   1. the last \boxed{...} with balanced braces;
//   2. the sentence after the last "he answer is", then "final answer is", then "ANSWER:" (the part after its
//      last '=', its first number);
//   3. the last number.
// The number as plain text: sign, digits, '.', '/' of a fraction, '%'. None: the answer states no number.
std::optional<std::string> extract_answer(std::string_view content);

// The number that `text` is once currency signs, thousands commas, \text{units}, LaTeX spaces and a final
// period are gone; of an equation the part after the last '='. \frac{a}{b} becomes a/b. Plain as above.
std::optional<std::string> normalise_number(std::string_view text);

// Digits of the last run of digits once commas are gone (the few-shot protocol). None: no digit.
std::optional<std::string> last_integer(std::string_view text);

struct NumberMatch {
  bool exact = false;    // |a - b| <= 1e-9 max(|a|, |b|)
  bool close = false;    // |a - b| <= 1e-4 max(|a|, |b|)
  bool lenient = false;  // close, or close after a factor of 100 either way (percent or share)
};

// Both plain numbers as above; a '%' divides nothing.
NumberMatch compare_numbers(std::string_view got, std::string_view reference);

}  // namespace mimo
