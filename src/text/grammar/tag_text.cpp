#include "text/grammar/tag_text.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "text/grammar/code_points.h"
#include "text/grammar/json_grammar.h"

namespace mimo::grammar {
namespace {

constexpr std::array<std::string_view, 4> kTags = {kParameterEndTag, "</tool_call>", "<tool_call>",
                                                   "\n<parameter="};

// Where a search for all tags at once stands: the longest ending of the text that begins one of them.
class TagSearch {
 public:
  // Whole tags are found as kFound - their number.
  static constexpr int kFound = -1;

  static const TagSearch& get() {
    static const TagSearch search;
    return search;
  }

  std::size_t places() const { return next_.size(); }
  // The place behind one more ASCII byte, or a tag that ends there. The search begins at 0.
  int next(std::size_t place, int byte) const { return next_[place][static_cast<std::size_t>(byte)]; }

 private:
  TagSearch() {
    std::vector<std::string_view> beginnings;
    for (const std::string_view tag : kTags) {
      for (std::size_t length = 0; length < tag.size(); ++length) {
        const std::string_view beginning = tag.substr(0, length);
        if (std::find(beginnings.begin(), beginnings.end(), beginning) == beginnings.end()) {
          beginnings.push_back(beginning);
        }
      }
    }
    for (const std::string_view beginning : beginnings) {
      std::array<int, 128>& row = next_.emplace_back();
      for (int byte = 0; byte < 128; ++byte) {
        row[static_cast<std::size_t>(byte)] =
            place_of(std::string(beginning) + static_cast<char>(byte), beginnings);
      }
    }
  }

  static int place_of(const std::string& text, const std::vector<std::string_view>& beginnings) {
    // The empty ending is a beginning.
    for (std::string_view end = text;; end.remove_prefix(1)) {
      const auto* tag = std::find(kTags.begin(), kTags.end(), end);
      if (tag != kTags.end()) return kFound - static_cast<int>(tag - kTags.begin());
      const auto at = std::find(beginnings.begin(), beginnings.end(), end);
      if (at != beginnings.end()) return static_cast<int>(at - beginnings.begin());
    }
  }

  std::vector<std::array<int, 128>> next_;  // by place
};

enum class TagForm : std::uint8_t { kToTag, kText, kJsonChars };

std::int32_t emit_text(GrammarBuilder& builder, std::int32_t from, TagForm form) {
  const TagSearch& search = TagSearch::get();
  const std::size_t count = search.places();
  const std::int32_t end = builder.add_state();
  std::vector<std::int32_t> states(count);
  for (std::int32_t& state : states) state = builder.add_state();
  builder.empty(from, states[0]);
  // -1: the text must not go on with this byte.
  const auto target = [&](std::size_t at, int byte) -> std::int32_t {
    if (form == TagForm::kJsonChars && (byte < 0x20 || byte == '"' || byte == '\\')) return -1;
    const int next = search.next(at, byte);
    if (next >= 0) return states[static_cast<std::size_t>(next)];
    // The first tag is the one that ends a value.
    return form == TagForm::kToTag && next == TagSearch::kFound ? end : -1;
  };
  static const CodePointSet kNotAscii{{0x80, 0xD7FF}, {0xE000, 0x10FFFF}};
  std::int32_t escape = -1;
  if (form == TagForm::kJsonChars) {
    // An escape is no part of a tag.
    escape = builder.add_state();
    builder.empty(emit_json_escape(builder, escape), states[0]);
  }
  for (std::size_t at = 0; at < count; ++at) {
    emit_char(builder, states[at], states[0], kNotAscii, Spelling::kText);
    if (form != TagForm::kToTag) builder.empty(states[at], end);
    if (escape >= 0) builder.bytes(states[at], escape, '\\', '\\');
    for (int byte = 0; byte < 0x80;) {
      const std::int32_t to = target(at, byte);
      const int low = byte;
      while (byte < 0x80 && target(at, byte) == to) ++byte;
      if (to >= 0) {
        builder.bytes(states[at], to, static_cast<std::uint8_t>(low), static_cast<std::uint8_t>(byte - 1));
      }
    }
  }
  return end;
}

}  // namespace

std::int32_t emit_text_to_tag(GrammarBuilder& builder, std::int32_t from) {
  return emit_text(builder, from, TagForm::kToTag);
}

std::int32_t emit_text_without_tags(GrammarBuilder& builder, std::int32_t from) {
  return emit_text(builder, from, TagForm::kText);
}

std::int32_t emit_json_chars_without_tags(GrammarBuilder& builder, std::int32_t from) {
  return emit_text(builder, from, TagForm::kJsonChars);
}

}  // namespace mimo::grammar
