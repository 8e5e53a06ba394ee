#include "text/unicode_nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/check.h"
#include "text/unicode.h"

namespace mimo {
namespace {

// Longest canonical decomposition of one code point, by the standard's own bound.
constexpr int kMaxDecomposition = 8;

// Of the same Unicode version as the composition below, which depends on it.
std::uint8_t combining_class(std::int32_t code_point) {
  return static_cast<std::uint8_t>(utf8proc_get_property(code_point)->combining_class);
}

// NFC of one stretch between boundaries.
void normalize_part(std::string_view part, std::string& out) {
  struct Mark {
    std::int32_t code_point;
    std::uint8_t combining_class;
  };
  std::vector<Mark> marks;
  for (std::size_t pos = 0; pos < part.size();) {
    const Utf8Char c = utf8_read_valid(part.data() + pos);
    pos += c.length;
    utf8proc_int32_t pieces[kMaxDecomposition];
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code_point),
                                                           pieces, kMaxDecomposition, options, nullptr);
    MIMO_CHECK(count >= 0 && count <= kMaxDecomposition, "U+{:04X} decomposes into {}", c.code_point, count);
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      marks.push_back({pieces[i], combining_class(pieces[i])});
    }
  }
  // Canonical ordering. utf8proc's own is an insertion sort, quadratic in the length of a run of marks.
  const auto is_mark = [](const Mark& mark) { return mark.combining_class != 0; };
  for (auto first = marks.begin(); first != marks.end();) {
    first = std::find_if(first, marks.end(), is_mark);
    const auto last = std::find_if_not(first, marks.end(), is_mark);
    std::stable_sort(first, last,
                     [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
    first = last;
  }
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(marks.size());
  for (const Mark& mark : marks) code_points.push_back(mark.code_point);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t length = utf8proc_normalize_utf32(
      code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), options);
  MIMO_CHECK(length >= 0 && std::cmp_less_equal(length, code_points.size()), "composed length {}", length);
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    utf8_append(static_cast<std::uint32_t>(code_points[static_cast<std::size_t>(i)]), out);
  }
}

// The quick check of Unicode's annex 15 on one stretch: no character that may change, marks in order.
bool part_is_nfc(std::string_view part, const UnicodeTable& table) {
  std::uint8_t previous = 0;
  for (std::size_t pos = 0; pos < part.size();) {
    const Utf8Char c = utf8_read_valid(part.data() + pos);
    pos += c.length;
    if (table.nfc_may_change(c.code_point)) return false;
    const std::uint8_t current =
        table.nfc_boundary(c.code_point) ? 0 : combining_class(static_cast<std::int32_t>(c.code_point));
    if (current != 0 && current < previous) return false;
    previous = current;
  }
  return true;
}

// Calls visit(begin, end) for each maximal stretch [begin, end) that holds a character which is no boundary,
// with the boundary character ahead of it. Stops when visit returns false.
template <class Visit>
void for_each_part(std::string_view text, const UnicodeTable& table, Visit&& visit) {
  std::size_t last_boundary = 0;
  std::size_t pos = 0;
  while (pos < text.size()) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      pos = skip_ascii(text, pos);
      last_boundary = pos - 1;
      continue;
    }
    Utf8Char c = utf8_read_valid(text.data() + pos);
    if (table.nfc_boundary(c.code_point)) {
      last_boundary = pos;
      pos += c.length;
      continue;
    }
    while (!table.nfc_boundary(c.code_point)) {
      pos += c.length;
      if (pos == text.size()) break;
      c = utf8_read_valid(text.data() + pos);
    }
    if (!visit(last_boundary, pos)) return;
    last_boundary = pos;
  }
}

}  // namespace

bool nfc_may_change(std::string_view text) {
  if (skip_ascii(text, 0) == text.size()) return false;
  const UnicodeTable& table = UnicodeTable::get();
  bool may_change = false;
  for_each_part(text, table, [&](std::size_t begin, std::size_t end) {
    may_change = !part_is_nfc(text.substr(begin, end - begin), table);
    return !may_change;
  });
  return may_change;
}

std::string to_nfc(std::string_view text, std::vector<TextEdit>* edits) {
  const UnicodeTable& table = UnicodeTable::get();
  std::string out;
  out.reserve(text.size());
  std::size_t copied = 0;
  for_each_part(text, table, [&](std::size_t begin, std::size_t end) {
    const std::string_view part = text.substr(begin, end - begin);
    if (part_is_nfc(part, table)) return true;
    out.append(text.substr(copied, begin - copied));
    const std::size_t to_begin = out.size();
    normalize_part(part, out);
    if (edits != nullptr) edits->push_back({begin, end, to_begin, out.size()});
    copied = end;
    return true;
  });
  out.append(text.substr(copied));
  return out;
}

}  // namespace mimo
