#include "eval/answer_extraction.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

namespace mimo {
namespace {

constexpr std::string_view kMinusSign = "\xE2\x88\x92";
constexpr std::string_view kEuroSign = "\xE2\x82\xAC";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The bytes of "{...}" at `open`: at most some dozens, without further markup; none if it is anything else.
std::optional<std::string_view> short_braced(std::string_view text, std::size_t open) {
  constexpr std::size_t kMax = 40;
  if (open >= text.size() || text[open] != '{') return {};
  const std::size_t length = text.substr(open + 1, kMax).find_first_of("{}\\");
  if (length == std::string_view::npos || text[open + 1 + length] != '}') return {};
  return text.substr(open + 1, length);
}

// The content of the last complete \boxed{...}.
std::optional<std::string_view> last_boxed(std::string_view text) {
  constexpr std::string_view kBoxed = "\\boxed{";
  std::vector<std::size_t> open;  // braces without a partner yet
  std::optional<std::string_view> best;
  std::size_t best_begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{') open.push_back(i);
    if (text[i] != '}' || open.empty()) continue;
    const std::size_t begin = open.back();
    open.pop_back();
    if (begin + 1 < kBoxed.size() || text.substr(begin + 1 - kBoxed.size(), kBoxed.size()) != kBoxed)
      continue;
    if (!best || begin > best_begin) {
      best = text.substr(begin + 1, i - begin - 1);
      best_begin = begin;
    }
  }
  return best;
}

// Replaces LaTeX commands: fractions of two plain numbers become a/b, spacing and \$ vanish, other names
// become a space while their argument stays.
std::string without_latex(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    std::size_t end = i + 1;
    while (end < text.size() && is_letter(text[end])) ++end;
    const std::string_view name = text.substr(i + 1, end - i - 1);
    if (name == "frac" || name == "dfrac" || name == "tfrac") {
      const std::optional<std::string_view> top = short_braced(text, end);
      const std::size_t second = top ? end + top->size() + 2 : end;
      const std::optional<std::string_view> bottom = top ? short_braced(text, second) : top;
      if (bottom) {
        out.append(*top).append("/").append(*bottom);
        i = second + bottom->size() + 1;
        continue;
      }
    }
    if (!name.empty()) {
      out += ' ';
    } else if (end < text.size()) {
      if (text[end] == '%') out += '%';  // the others are spacing or a currency sign
      ++end;
    }
    i = end - 1;
  }
  return out;
}

// Numbers as next_number reads them: no LaTeX, currency signs, emphasis or thousands commas.
std::string cleaned(std::string_view original) {
  const std::string text = without_latex(original);
  const auto digit_at = [&](std::size_t i) { return i < text.size() && is_digit(text[i]); };
  const auto three_digits_at = [&](std::size_t i) {
    return digit_at(i) && digit_at(i + 1) && digit_at(i + 2) && !digit_at(i + 3);
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = std::string_view(text).substr(i);
    const bool after_digit = i > 0 && is_digit(text[i - 1]);
    if (rest.starts_with(kMinusSign)) {
      out += '-';
      i += kMinusSign.size() - 1;
    } else if (rest.starts_with(kEuroSign)) {
      i += kEuroSign.size() - 1;
    } else if (after_digit && text[i] == ',' && three_digits_at(i + 1)) {
      continue;
    } else if (after_digit && rest.starts_with("{,}") && three_digits_at(i + 3)) {
      i += 2;
    } else if (text[i] == '$') {
      if (after_digit) out += ' ';  // "-$5" is a number, "5$6" is two
    } else if (text[i] == '*' || text[i] == '{' || text[i] == '}') {
      out += ' ';
    } else {
      out += text[i];
    }
  }
  return out;
}

struct NumberSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// The number at or after `from` in cleaned text: -?digits[.digits][/digits][%], or .digits.
std::optional<NumberSpan> next_number(std::string_view text, std::size_t from) {
  for (std::size_t i = from; i < text.size(); ++i) {
    const bool fraction_only = text[i] == '.' && i + 1 < text.size() && is_digit(text[i + 1]);
    if (!is_digit(text[i]) && !fraction_only) continue;
    NumberSpan span{i, i};
    if (i > from && text[i - 1] == '-') {
      // A minus sign, unless it joins two things ("5-3", "day-2").
      const bool joins = i >= 2 && (is_digit(text[i - 2]) || is_letter(text[i - 2]) || text[i - 2] == ')');
      if (!joins) span.begin = i - 1;
    }
    std::size_t end = i;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end + 1 < text.size() && text[end] == '.' && is_digit(text[end + 1])) {
      ++end;
      while (end < text.size() && is_digit(text[end])) ++end;
    }
    if (end + 1 < text.size() && text[end] == '/' && is_digit(text[end + 1])) {
      ++end;
      while (end < text.size() && is_digit(text[end])) ++end;
    }
    if (end < text.size() && text[end] == '%') ++end;
    span.end = end;
    return span;
  }
  return {};
}

std::optional<std::string> first_number(std::string_view text) {
  const std::string plain = cleaned(text);
  const std::size_t equals = plain.rfind('=');
  // "= 6" or "7 + 3 = 10": what stands after the sign, if a number does.
  if (equals != std::string::npos) {
    if (const std::optional<NumberSpan> span = next_number(plain, equals + 1))
      return plain.substr(span->begin, span->end - span->begin);
  }
  const std::optional<NumberSpan> span = next_number(plain, 0);
  if (!span) return {};
  return plain.substr(span->begin, span->end - span->begin);
}

std::optional<std::string> last_number(std::string_view text) {
  const std::string plain = cleaned(text);
  std::optional<std::string> last;
  std::size_t from = 0;
  while (const std::optional<NumberSpan> span = next_number(plain, from)) {
    last = plain.substr(span->begin, span->end - span->begin);
    from = span->end;
  }
  return last;
}

// Up to the first line break, or period that ends a sentence.
std::string_view first_sentence(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n:*");
  if (begin == std::string_view::npos) return {};
  text.remove_prefix(begin);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') return text.substr(0, i);
    if (text[i] == '.' && (i + 1 == text.size() || text[i + 1] == ' ' || text[i + 1] == '\n'))
      return text.substr(0, i);
  }
  return text;
}

std::optional<double> value_of(std::string_view plain) {
  if (plain.ends_with('%')) plain.remove_suffix(1);
  double denominator = 1;
  const std::size_t slash = plain.find('/');
  if (slash != std::string_view::npos) {
    const std::string_view below = plain.substr(slash + 1);
    const auto [end, error] = std::from_chars(below.data(), below.data() + below.size(), denominator);
    if (error != std::errc() || end != below.data() + below.size() || denominator == 0) return {};
    plain = plain.substr(0, slash);
  }
  double number = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), number);
  if (error != std::errc() || end != plain.data() + plain.size() || !std::isfinite(number)) return {};
  return number / denominator;
}

bool within(double a, double b, double relative) {
  return std::abs(a - b) <= relative * std::max(std::abs(a), std::abs(b));
}

}  // namespace

std::optional<std::string> normalise_number(std::string_view text) { return first_number(text); }

std::optional<std::string> extract_answer(std::string_view content) {
  if (const std::optional<std::string_view> boxed = last_boxed(content)) {
    if (std::optional<std::string> number = normalise_number(*boxed)) return number;
  }
  for (const std::string_view marker : {"he answer is", "final answer is", "ANSWER:"}) {
    const std::size_t found = content.rfind(marker);
    if (found == std::string_view::npos) continue;
    if (std::optional<std::string> number =
            first_number(first_sentence(content.substr(found + marker.size()))))
      return number;
  }
  return last_number(content);
}

std::optional<std::string> last_integer(std::string_view text) {
  std::string digits;
  std::string current;
  for (const char c : text) {
    if (is_digit(c)) {
      current += c;
    } else if (c != ',') {
      if (!current.empty()) digits = current;
      current.clear();
    }
  }
  if (!current.empty()) digits = current;
  if (digits.empty()) return {};
  return digits;
}

NumberMatch compare_numbers(std::string_view got, std::string_view reference) {
  const std::optional<double> a = value_of(got);
  const std::optional<double> b = value_of(reference);
  if (!a || !b) return {};
  NumberMatch match;
  match.exact = within(*a, *b, 1e-9);
  match.close = within(*a, *b, 1e-4);
  match.lenient = match.close || within(*a * 100, *b, 1e-4) || within(*a, *b * 100, 1e-4);
  return match;
}

}  // namespace mimo
