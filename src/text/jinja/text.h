// A byte string that remembers which of its parts were written by the template (trusted) and which came from
// message data (untrusted). Only trusted bytes may become control tokens, so an operation that cannot tell
// must answer "untrusted", never the other way.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace mimo::jinja {

class Text {
 public:
  // A stretch of bytes of equal trust; it starts where the one before ends.
  struct Span {
    std::size_t end = 0;
    bool trusted = false;
  };

  Text() = default;
  Text(std::string bytes, bool trusted);

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  // Neighbouring spans differ in trust; the last one ends at size(); none for an empty text.
  const std::vector<Span>& spans() const { return spans_; }
  bool all_trusted() const { return spans_.empty() || (spans_.size() == 1 && spans_[0].trusted); }

  // Result of the filters `safe` and `escape`: adding it to an ordinary string with + escapes that string, as
  // Python's Markup does.
  bool markup() const { return markup_; }
  void set_markup(bool markup) { markup_ = markup; }

  void append(std::string_view bytes, bool trusted);
  void append(const Text& other) { append_slice(other, 0, other.size()); }
  // Bytes [begin, end) of `other` with their trust. Requires begin <= end <= other.size().
  void append_slice(const Text& other, std::size_t begin, std::size_t end);
  Text slice(std::size_t begin, std::size_t end) const;
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }

 private:
  std::string bytes_;
  std::vector<Span> spans_;
  bool markup_ = false;
};

}  // namespace mimo::jinja
