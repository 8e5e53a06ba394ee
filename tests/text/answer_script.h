// Scripted answers for the tests of the answer parser, pushed through it in pieces of any cut.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/answer_parser.h"

namespace mimo::test {

struct ScriptPiece {
  std::string text;
  AnswerMarker marker = AnswerMarker::kNone;
};

// An answer as control tokens and runs of ordinary text. The spellings of control tokens stand for the tokens; a
// byte 2 is left out, and in the middle of a spelling makes it ordinary text.
inline std::vector<ScriptPiece> script(std::string_view answer) {
  std::vector<ScriptPiece> pieces;
  std::string run;
  for (std::size_t pos = 0; pos < answer.size();) {
    const std::size_t end = answer[pos] == '<' ? answer.substr(pos, 16).find('>') : std::string_view::npos;
    const std::string_view tag = end == std::string_view::npos ? "" : answer.substr(pos, end + 1);
    const AnswerMarker marker = answer_marker(tag);
    if (marker == AnswerMarker::kNone) {
      if (answer[pos] != '\x02') run += answer[pos];
      ++pos;
      continue;
    }
    pieces.push_back({std::exchange(run, {})});
    pieces.push_back({std::string(tag), marker});
    pos += tag.size();
  }
  pieces.push_back({run});
  return pieces;
}

struct ParsedScript {
  std::vector<AnswerDelta> raw;     // as they came
  std::vector<AnswerDelta> deltas;  // neighbours of one kind joined: the same for every cut
  int calls = 0;
  bool done = false;
  std::vector<std::string> problems;
};

inline std::vector<AnswerDelta> joined(const std::vector<AnswerDelta>& deltas) {
  std::vector<AnswerDelta> out;
  for (const AnswerDelta& delta : deltas) {
    if (!out.empty() && !delta.text.empty() && out.back().kind == delta.kind &&
        out.back().index == delta.index) {
      out.back().text += delta.text;
    } else {
      out.push_back(delta);
    }
  }
  return out;
}

// next_cut(offset): where the piece that begins at that byte of the ordinary text ends (greater than offset).
template <class NextCut>
ParsedScript parse_script(const std::vector<ScriptPiece>& pieces, const AnswerParserOptions& options,
                          bool cut, NextCut next_cut) {
  AnswerParser parser(options);
  ParsedScript out;
  std::size_t offset = 0;
  for (const ScriptPiece& piece : pieces) {
    if (piece.marker != AnswerMarker::kNone) {
      parser.push(piece.text, piece.marker, out.raw);
      continue;
    }
    std::string_view rest = piece.text;
    while (!rest.empty()) {
      const std::size_t length = std::min(next_cut(offset) - offset, rest.size());
      parser.push(rest.substr(0, length), AnswerMarker::kNone, out.raw);
      rest.remove_prefix(length);
      offset += length;
    }
  }
  parser.finish(cut, out.raw);
  out.deltas = joined(out.raw);
  out.calls = parser.calls();
  out.done = parser.done();
  out.problems = parser.problems();
  return out;
}

inline ParsedScript parse_whole(std::string_view answer, const AnswerParserOptions& options,
                                bool cut = false) {
  return parse_script(script(answer), options, cut, [](std::size_t) { return std::string::npos; });
}

inline AssistantAnswer assembled(const std::vector<AnswerDelta>& deltas) {
  AnswerAssembler assembler;
  for (const AnswerDelta& delta : deltas) assembler.add(delta);
  return assembler.take();
}

}  // namespace mimo::test
