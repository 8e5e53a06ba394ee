#include "text/tool_call_parser.h"

#include <algorithm>
#include <utility>

#include "core/result.h"
#include "text/call_markup.h"

namespace mimo {
namespace {

constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::size_t kMaxProblems = 100;

std::size_t leading_space(std::string_view text) {
  return std::min(text.find_first_not_of(kCallSpace), text.size());
}

}  // namespace

ToolCallParser::ToolCallParser(const ToolCallParserOptions& options)
    : options_(options), only_blank_(!off()), writer_(options.unwrap_values) {}

void ToolCallParser::text(std::string_view text, DeltaSink& out) {
  while (!text.empty() && !done()) {
    switch (state_) {
      case State::kOutside:
        offset_ += text.size();
        content(text, out);
        return;
      case State::kOpened:
      case State::kBody:
        read_tag(text, out);
        break;
      case State::kFunctionName:
      case State::kKey:
        read_name(text, out);
        break;
      case State::kValue:
        read_value(text, out);
        break;
      case State::kFunctionEnded:
        take(text, leading_space(text), out);
        if (!text.empty()) malformed("expected </tool_call>", 0, out);
        break;
    }
  }
}

void ToolCallParser::marker(AnswerMarker marker, std::string_view spelling, DeltaSink& out) {
  if (done()) return;
  if (state_ == State::kValue && marker != AnswerMarker::kToolClose) {
    scanner_.literal(spelling, value_);
    record(spelling, out);
    pass_value(out);
    return;
  }
  if (marker == AnswerMarker::kToolClose) {
    if (state_ == State::kValue) {
      scanner_.close(value_);
      end_value(out);
      return complete(spelling, out);
    }
    // A missing </function> is implied.
    if (state_ == State::kFunctionEnded || (state_ == State::kBody && tag_.empty())) {
      return complete(spelling, out);
    }
  }
  switch (state_) {
    case State::kOutside:
    case State::kValue:
      break;
    case State::kOpened:
      malformed("expected <function=NAME>", tag_.size(), out);
      break;
    case State::kFunctionName:
      malformed("the function has no name", tag_.size(), out);
      break;
    case State::kBody:
      malformed("expected <parameter=KEY> or </function>", tag_.size(), out);
      break;
    case State::kKey:
      malformed("a parameter has no name", tag_.size(), out);
      break;
    case State::kFunctionEnded:
      malformed("expected </tool_call>", 0, out);
      break;
  }
  if (marker == AnswerMarker::kToolOpen && !off()) return open(spelling);
  text(spelling, out);
}

void ToolCallParser::finish(bool cut, DeltaSink& out) {
  if (done()) return;
  if (state_ != State::kOutside) {
    if (!cut && (fate_ == Fate::kOpen || fate_ == Fate::kLive)) {
      note(fmt::format("cut off at byte {}", offset_));
    }
    abandon(out);
  }
  if (calls_ == 0) out.text(DeltaKind::kContent, blank_);
  blank_.clear();
}

// <function=, <parameter= or </function>, white space before it.
void ToolCallParser::read_tag(std::string_view& text, DeltaSink& out) {
  if (tag_.empty()) take(text, leading_space(text), out);
  if (text.empty()) return;
  tag_ += text.front();
  const bool opened = state_ == State::kOpened;
  if (opened ? !kFunction.starts_with(tag_)
             : !kParameter.starts_with(tag_) && !kFunctionEnd.starts_with(tag_)) {
    return malformed(opened ? "expected <function=NAME>" : "expected <parameter=KEY> or </function>",
                     tag_.size() - 1, out);
  }
  take(text, 1, out);
  if (tag_ == kFunction) {
    state_ = State::kFunctionName;
  } else if (tag_ == kParameter) {
    state_ = State::kKey;
  } else if (tag_ == kFunctionEnd) {
    state_ = State::kFunctionEnded;
  } else {
    return;
  }
  tag_.clear();
}

// Up to the next '>'; malformed if that name is empty, too long or holds markup.
void ToolCallParser::read_name(std::string_view& text, DeltaSink& out) {
  const std::size_t length = call_name_part(text, tag_.size());
  tag_ += text.substr(0, length);
  take(text, length, out);
  if (text.empty()) return;
  const std::string name(trimmed_call_name(tag_));
  const bool function = state_ == State::kFunctionName;
  if (text.front() != '>' || name.empty()) {
    return malformed(function ? "the function has no name" : "a parameter has no name", tag_.size(), out);
  }
  take(text, 1, out);
  tag_.clear();
  if (function) {
    begin_function(name, out);
  } else {
    begin_value(name, out);
  }
}

void ToolCallParser::begin_function(std::string_view name, DeltaSink& out) {
  schema_ = find_tool(*options_.tools, name);
  state_ = State::kBody;
  given_.clear();
  if (!schema_.declared && !options_.forward_unknown) {
    note(fmt::format("no tool is called \"{}\"", name));
    fate_ = Fate::kContent;
    content(written_, out);
    written_.clear();
    return;
  }
  fate_ = Fate::kLive;
  out.tool_start(begun_++, name);
  writer_.begin_call();
}

void ToolCallParser::begin_value(std::string_view key, DeltaSink& out) {
  static const json::value kNoRoot;
  const bool repeated = !given_.emplace(key).second;
  if (fate_ == Fate::kLive && repeated) {
    note(fmt::format("parameter \"{}\" is given twice", key));
    fate_ = Fate::kRefused;
  }
  if (fate_ == Fate::kLive) {
    writer_.begin_value(key, schema_.property(key),
                        schema_.parameters == nullptr ? kNoRoot : *schema_.parameters, arguments_);
    send_arguments(out);
  }
  scanner_.start();
  state_ = State::kValue;
}

void ToolCallParser::read_value(std::string_view& text, DeltaSink& out) {
  const std::string_view before = text;
  ValueScanner::Found found = scanner_.scan(text, value_);
  record(before.substr(0, before.size() - text.size()), out);
  switch (found) {
    case ValueScanner::Found::kNothing:
      return pass_value(out);
    case ValueScanner::Found::kParameter:
      end_value(out);
      state_ = State::kKey;
      return;
    case ValueScanner::Found::kFunctionEnd:
      end_value(out);
      state_ = State::kFunctionEnded;
      return;
    case ValueScanner::Found::kLineParameter:
      break;
  }
  const std::string key(scanner_.key());
  if (schema_.property(key) == nullptr || given_.contains(key)) {
    scanner_.keep(value_);
    return pass_value(out);
  }
  end_value(out);
  begin_value(key, out);
}

void ToolCallParser::pass_value(DeltaSink& out) {
  if (fate_ == Fate::kLive) {
    writer_.add(value_, arguments_);
    send_arguments(out);
  }
  value_.clear();
}

void ToolCallParser::end_value(DeltaSink& out) {
  pass_value(out);
  if (fate_ != Fate::kLive) return;
  writer_.end_value(arguments_);
  send_arguments(out);
}

void ToolCallParser::open(std::string_view spelling) {
  offset_ += spelling.size();
  state_ = State::kOpened;
  fate_ = Fate::kOpen;
  written_ = spelling;
  tag_.clear();
}

void ToolCallParser::complete(std::string_view spelling, DeltaSink& out) {
  record(spelling, out);
  if (fate_ != Fate::kLive) return abandon(out);
  writer_.end_call(arguments_);
  send_arguments(out);
  out.tool_end(begun_ - 1);
  ++calls_;
  blank_.clear();
  only_blank_ = true;
  written_.clear();
  state_ = State::kOutside;
}

// The call ends here, `bytes_back` behind where it stopped to be one.
void ToolCallParser::malformed(std::string_view what, std::size_t bytes_back, DeltaSink& out) {
  if (fate_ == Fate::kOpen || fate_ == Fate::kLive) {
    note(fmt::format("{} at byte {}", what, offset_ - bytes_back));
  }
  abandon(out);
}

void ToolCallParser::note(std::string problem) {
  if (problems_.size() < kMaxProblems) problems_.push_back("tool call: " + std::move(problem));
}

void ToolCallParser::abandon(DeltaSink& out) {
  state_ = State::kOutside;
  if (fate_ == Fate::kLive || fate_ == Fate::kRefused) {
    out.text(DeltaKind::kToolBroken, blank_ + written_, begun_ - 1);
    blank_.clear();
    only_blank_ = false;
  } else {
    content(written_, out);
  }
  written_.clear();
}

void ToolCallParser::record(std::string_view text, DeltaSink& out) {
  offset_ += text.size();
  if (fate_ == Fate::kContent) {
    content(text, out);
  } else {
    written_ += text;
  }
}

void ToolCallParser::take(std::string_view& text, std::size_t bytes, DeltaSink& out) {
  record(text.substr(0, bytes), out);
  text.remove_prefix(bytes);
}

void ToolCallParser::content(std::string_view text, DeltaSink& out) {
  if (only_blank_) {
    if (leading_space(text) == text.size()) {
      blank_ += text;
      return;
    }
    only_blank_ = false;
    out.text(DeltaKind::kContent, blank_);
    blank_.clear();
  }
  out.text(DeltaKind::kContent, text);
}

void ToolCallParser::send_arguments(DeltaSink& out) {
  out.text(DeltaKind::kToolArguments, arguments_, begun_ - 1);
  arguments_.clear();
}

}  // namespace mimo
