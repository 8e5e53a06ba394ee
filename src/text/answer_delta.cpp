#include "text/answer_delta.h"

#include <utility>

namespace mimo {

AnswerMarker answer_marker(std::string_view spelling) {
  if (spelling == "<think>") return AnswerMarker::kThinkOpen;
  if (spelling == "</think>") return AnswerMarker::kThinkClose;
  if (spelling == "<tool_call>") return AnswerMarker::kToolOpen;
  if (spelling == "</tool_call>") return AnswerMarker::kToolClose;
  return AnswerMarker::kNone;
}

void DeltaSink::text(DeltaKind kind, std::string_view text, int index) {
  if (text.empty()) return;
  if (out_.size() > first_ && out_.back().kind == kind && out_.back().index == index) {
    out_.back().text += text;
  } else {
    out_.push_back({.kind = kind, .index = index, .text = std::string(text), .name = {}});
  }
}

void DeltaSink::tool_start(int index, std::string_view name) {
  out_.push_back({.kind = DeltaKind::kToolStart, .index = index, .text = {}, .name = std::string(name)});
}

void DeltaSink::tool_end(int index) {
  out_.push_back({.kind = DeltaKind::kToolEnd, .index = index, .text = {}, .name = {}});
}

void DeltaSink::add(AnswerDelta&& delta) { out_.push_back(std::move(delta)); }

}  // namespace mimo
