#include "text/value_scanner.h"

#include <algorithm>

#include "text/call_markup.h"

namespace mimo {
namespace {

constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";
constexpr std::string_view kFunctionEnd = "</function>";

}  // namespace

void ValueScanner::start() {
  state_ = State::kPlain;
  candidate_ = Candidate::kNone;
  held_.clear();
}

ValueScanner::Found ValueScanner::scan(std::string_view& text, std::string& value) {
  while (!text.empty()) {
    Found found = Found::kNothing;
    switch (state_) {
      case State::kPlain: {
        const std::size_t plain = std::min(text.find_first_of("<\n"), text.size());
        value += text.substr(0, plain);
        text.remove_prefix(plain);
        if (text.empty()) break;
        state_ = text.front() == '<' ? State::kTag : State::kNewline;
        tag_ = 0;
        held_ = text.front();
        text.remove_prefix(1);
        break;
      }
      case State::kNewline:
        if (text.front() != '<') {
          release(value);
          break;
        }
        state_ = State::kTag;
        tag_ = held_.size();
        held_ += '<';
        text.remove_prefix(1);
        break;
      case State::kTag:
        found = scan_tag(text, value);
        break;
      case State::kSpace:
        scan_space(text, value);
        break;
      case State::kKey:
        found = scan_key(text, value);
        break;
    }
    if (found != Found::kNothing) return found;
  }
  return Found::kNothing;
}

ValueScanner::Found ValueScanner::scan_tag(std::string_view& text, std::string& value) {
  held_ += text.front();
  const std::string_view tag = std::string_view(held_).substr(tag_);
  const bool may_open = candidate_ == Candidate::kParameterEnd || (tag_ > 0 && held_[tag_ - 1] == '\n');
  const bool begins = kParameterEnd.starts_with(tag) || kFunctionEnd.starts_with(tag) ||
                      (may_open && kParameter.starts_with(tag));
  if (!begins) {  // what was held has no other '<' or line break at its end, so nothing in it is looked at again
    held_.pop_back();
    release(value);
    return Found::kNothing;
  }
  text.remove_prefix(1);
  if (tag == kParameterEnd) {
    hold_candidate(Candidate::kParameterEnd, value);
  } else if (tag == kFunctionEnd) {
    if (candidate_ == Candidate::kParameterEnd) return Found::kFunctionEnd;
    hold_candidate(Candidate::kFunctionEnd, value);
  } else if (tag == kParameter) {
    if (candidate_ == Candidate::kParameterEnd) return Found::kParameter;
    state_ = State::kKey;
  }
  return Found::kNothing;
}

void ValueScanner::scan_space(std::string_view& text, std::string& value) {
  const std::size_t space = std::min(text.find_first_not_of(kCallSpace), text.size());
  held_ += text.substr(0, space);
  text.remove_prefix(space);
  if (text.empty()) return;
  if (text.front() != '<') {
    release(value);
    return;
  }
  if (candidate_ == Candidate::kFunctionEnd) {
    // Only the end of the call would have made it one. A line break before the '<' is still open.
    const std::size_t data = held_.size() - (held_.back() == '\n' ? 1 : 0);
    value.append(held_, 0, data);
    held_.erase(0, data);
    candidate_ = Candidate::kNone;
  }
  state_ = State::kTag;
  tag_ = held_.size();
  held_ += '<';
  text.remove_prefix(1);
}

ValueScanner::Found ValueScanner::scan_key(std::string_view& text, std::string& value) {
  const std::size_t length = call_name_part(text, held_.size() - tag_ - kParameter.size());
  held_ += text.substr(0, length);
  text.remove_prefix(length);
  if (text.empty()) return Found::kNothing;
  if (text.front() == '>') {
    held_ += '>';
    text.remove_prefix(1);
    if (!key().empty()) return Found::kLineParameter;
  }
  release(value);
  return Found::kNothing;
}

std::string_view ValueScanner::key() const {
  std::string_view name = std::string_view(held_).substr(tag_ + kParameter.size());
  name.remove_suffix(1);
  return trimmed_call_name(name);
}

void ValueScanner::hold_candidate(Candidate candidate, std::string& value) {
  value.append(held_, 0, tag_);
  held_.erase(0, tag_);
  candidate_ = candidate;
  state_ = State::kSpace;
}

void ValueScanner::literal(std::string_view text, std::string& value) {
  release(value);
  value += text;
}

void ValueScanner::close(std::string& value) {
  if (state_ == State::kSpace) held_.clear();
  release(value);
}

void ValueScanner::release(std::string& value) {
  value += held_;
  start();
}

}  // namespace mimo
