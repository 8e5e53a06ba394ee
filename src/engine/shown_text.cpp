#include "engine/shown_text.h"

#include <algorithm>

namespace mimo {
namespace {

// Neighbouring pieces of ordinary text are one piece.
void append_text(std::string_view text, std::vector<AnswerPiece>& out) {
  if (text.empty()) return;
  if (!out.empty() && out.back().marker < 0) {
    out.back().text += text;
  } else {
    out.push_back({std::string(text), -1});
  }
}

}  // namespace

void ShownText::mark(std::int32_t id, std::size_t bytes) {
  if (bytes > 0) marks_.push_back({id, fed_, fed_ + bytes});
  fed_ += bytes;
}

void ShownText::show(std::string_view text, std::vector<AnswerPiece>& out) {
  pending_ += text;
  while (!pending_.empty()) {
    if (marks_.empty() || shown_ + pending_.size() <= marks_.front().begin) {
      append_text(pending_, out);
      shown_ += pending_.size();
      pending_.clear();
      return;
    }
    const Mark& mark = marks_.front();
    const auto before = static_cast<std::size_t>(mark.begin - shown_);
    append_text(std::string_view(pending_).substr(0, before), out);
    pending_.erase(0, before);
    shown_ += before;
    const auto length = static_cast<std::size_t>(mark.end - mark.begin);
    if (pending_.size() < length) return;
    out.push_back({pending_.substr(0, length), mark.id});
    pending_.erase(0, length);
    shown_ += length;
    marks_.pop_front();
  }
}

void ShownText::finish(std::vector<AnswerPiece>& out) {
  append_text(pending_, out);
  pending_.clear();
  marks_.clear();
}

}  // namespace mimo
