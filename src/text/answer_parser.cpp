#include "text/answer_parser.h"

#include <utility>

#include "text/call_markup.h"

namespace mimo {
namespace {

ToolCallParserOptions call_options(const AnswerParserOptions& options) {
  return {.tools = options.tools,
          .forward_unknown = options.forward_unknown_tools,
          .unwrap_values = options.unwrap_values,
          .stop_after_first = !options.parallel_tool_calls};
}

}  // namespace

AnswerParser::AnswerParser(const AnswerParserOptions& options)
    : options_(options),
      state_(options.think_block == ThinkBlock::kClosed ? State::kContent : State::kStart),
      content_(call_options(options)) {}

void AnswerParser::push(std::string_view text, Marker marker, std::vector<AnswerDelta>& out) {
  DeltaSink sink(out);
  if (marker == Marker::kNone) return take_text(utf8_.push(text), sink);
  take_text(utf8_.finish(), sink);
  take_marker(marker, text, sink);
}

void AnswerParser::finish(bool cut, std::vector<AnswerDelta>& out) {
  DeltaSink sink(out);
  take_text(utf8_.finish(), sink);
  if (state_ == State::kStart) leave_start(sink);
  if (state_ == State::kReasoning && quotation_) {
    if (!cut && deliver_quotation(sink)) {
      state_ = State::kFinished;
      return;
    }
    release_quotation(sink);
  }
  if (state_ == State::kReasoning && holds_break_) sink.text(DeltaKind::kReasoning, "\n");
  if (state_ != State::kFinished) content_.finish(cut, sink);
  state_ = State::kFinished;
}

void AnswerParser::take_text(std::string_view text, DeltaSink& out) {
  if (text.empty()) return;
  if (state_ == State::kStart) {
    if (text.find_first_not_of(kCallSpace) == std::string_view::npos) {
      start_ += text;
      return;
    }
    leave_start(out);
  }
  if (state_ == State::kReasoning) {
    reasoning(text, Marker::kNone, out);
  } else if (state_ == State::kContent) {
    content(text, out);
  }
}

void AnswerParser::take_marker(Marker marker, std::string_view spelling, DeltaSink& out) {
  if (state_ == State::kStart) {
    if (marker == Marker::kThinkOpen) {
      if (!options_.separate_reasoning) {
        content_.text(start_, out);
        content_.text(spelling, out);
      }
      state_ = State::kReasoning;
      return;
    }
    leave_start(out);
  }
  if (state_ == State::kReasoning) {
    if (marker == Marker::kThinkClose) return end_reasoning(spelling, out);
    reasoning(spelling, marker, out);
  } else if (state_ == State::kContent) {
    breaks_to_drop_ = 0;
    content_.marker(marker, spelling, out);
  }
}

// The answer does not begin with <think>.
void AnswerParser::leave_start(DeltaSink& out) {
  if (options_.think_block == ThinkBlock::kOpen) {
    state_ = State::kReasoning;
    reasoning_text(start_, out);
  } else {
    state_ = State::kContent;
    content(start_, out);
  }
}

void AnswerParser::end_reasoning(std::string_view spelling, DeltaSink& out) {
  release_quotation(out);
  state_ = State::kContent;
  if (options_.separate_reasoning) {
    breaks_to_drop_ = 2;
  } else {
    content_.text(spelling, out);
  }
}

void AnswerParser::content(std::string_view text, DeltaSink& out) {
  for (; breaks_to_drop_ > 0 && !text.empty(); --breaks_to_drop_) {
    if (text.front() != '\n') {
      breaks_to_drop_ = 0;
      break;
    }
    text.remove_prefix(1);
  }
  content_.text(text, out);
}

void AnswerParser::reasoning(std::string_view text, Marker marker, DeltaSink& out) {
  if (!quotation_) {
    const bool tools = options_.tools != nullptr && !options_.tools->empty();
    if (marker != Marker::kToolOpen || !tools || only_quotations_) return reasoning_text(text, out);
    ToolCallParserOptions options = call_options(options_);
    options.forward_unknown = false;
    quotation_.emplace(Quotation{.parser = ToolCallParser(options), .deltas = {}, .written = {}});
  }
  quotation_->written += text;
  DeltaSink sink(quotation_->deltas);
  if (marker == Marker::kNone) {
    quotation_->parser.text(text, sink);
  } else {
    quotation_->parser.marker(marker, text, sink);
  }
  if (!quotation_->parser.problems().empty()) {
    only_quotations_ = true;
    release_quotation(out);
  }
}

void AnswerParser::reasoning_text(std::string_view text, DeltaSink& out) {
  if (!options_.separate_reasoning) return content_.text(text, out);
  if (text.empty()) return;
  if (at_think_ && text.front() == '\n') text.remove_prefix(1);
  at_think_ = false;
  if (text.empty()) return;
  if (holds_break_) out.text(DeltaKind::kReasoning, "\n");
  holds_break_ = text.back() == '\n';
  if (holds_break_) text.remove_suffix(1);
  out.text(DeltaKind::kReasoning, text);
}

void AnswerParser::release_quotation(DeltaSink& out) {
  if (!quotation_) return;
  reasoning_text(quotation_->written, out);
  quotation_.reset();
}

// False: they are quotations.
bool AnswerParser::deliver_quotation(DeltaSink& out) {
  DeltaSink sink(quotation_->deltas);
  quotation_->parser.finish(false, sink);
  if (!quotation_->parser.problems().empty() || quotation_->parser.calls() == 0) return false;
  if (holds_break_) out.text(DeltaKind::kReasoning, "\n");
  for (AnswerDelta& delta : quotation_->deltas) {
    if (delta.kind == DeltaKind::kContent && options_.separate_reasoning) delta.kind = DeltaKind::kReasoning;
    out.add(std::move(delta));
  }
  calls_in_reasoning_ = quotation_->parser.calls();
  return true;
}

}  // namespace mimo
