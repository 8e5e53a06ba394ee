#include "text/jinja/text.h"

#include <algorithm>
#include <utility>

namespace mimo::jinja {

Text::Text(std::string bytes, bool trusted) : bytes_(std::move(bytes)) {
  if (!bytes_.empty()) spans_.push_back({bytes_.size(), trusted});
}

void Text::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  bytes_.append(bytes);
  if (!spans_.empty() && spans_.back().trusted == trusted) {
    spans_.back().end = bytes_.size();
  } else {
    spans_.push_back({bytes_.size(), trusted});
  }
}

void Text::append_slice(const Text& other, std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  auto span = std::partition_point(other.spans_.begin(), other.spans_.end(),
                                   [&](const Span& s) { return s.end <= begin; });
  const std::string_view bytes = other.bytes_;
  while (begin < end) {
    const std::size_t stop = std::min(end, span->end);
    append(bytes.substr(begin, stop - begin), span->trusted);
    begin = stop;
    ++span;
  }
}

Text Text::slice(std::size_t begin, std::size_t end) const {
  Text part;
  part.append_slice(*this, begin, end);
  return part;
}

}  // namespace mimo::jinja
