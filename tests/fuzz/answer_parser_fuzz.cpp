// Any answer through the answer parser: whole, byte by byte and cut at random, which must say the same. Checked
// besides: deltas follow their order and are valid UTF-8, arguments of complete calls are JSON objects, calls name
// declared tools, and nothing that was written disappears unless a call took it.
//
// Byte 0: bits of the options. Byte 1: seed of the random cuts. The rest is the answer (answer_script.h).
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "../text/answer_script.h"
#include "text/unicode_utf8.h"

namespace {

using mimo::AnswerDelta;
using mimo::DeltaKind;
using mimo::test::ParsedScript;

constexpr std::string_view kTools = R"([
  {"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
    "s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},
    "o":{"type":"object"},"a":{"type":"array"},"u":{"type":["string","null"]},"r":{"$ref":"#/$defs/r"},
    "e":{"enum":[1,"x",null]},"any":{}},"$defs":{"r":{"anyOf":[{"type":"integer"},{"$ref":"#/$defs/r"}]}}}}},
  {"type":"function","function":{"name":"g"}}])";

void check_equal(const ParsedScript& a, const ParsedScript& b) {
  if (a.deltas != b.deltas || a.calls != b.calls || a.problems != b.problems) std::abort();
}

void check_texts(const ParsedScript& parsed) {
  for (const AnswerDelta& delta : parsed.raw) {
    const bool has_text = delta.kind != DeltaKind::kToolStart && delta.kind != DeltaKind::kToolEnd;
    if (has_text == delta.text.empty() || !mimo::utf8_valid(delta.text)) std::abort();
  }
}

void check_order(const ParsedScript& parsed, bool forward_unknown) {
  int next = 0;
  bool open = false;
  for (const AnswerDelta& delta : parsed.deltas) {
    if (delta.kind == DeltaKind::kReasoning || delta.kind == DeltaKind::kContent) {
      if (open) std::abort();
      continue;
    }
    if (delta.kind == DeltaKind::kToolStart) {
      if (open || delta.index != next++) std::abort();
      if (!forward_unknown && delta.name != "f" && delta.name != "g") std::abort();
      open = true;
      continue;
    }
    if (!open || delta.index != next - 1) std::abort();
    open = delta.kind == DeltaKind::kToolArguments;
  }
  if (open) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size < 2) return 0;
  static const mimo::json::array tools = mimo::parse_json(kTools, "tools").value().as_array();
  const unsigned bits = data[0];
  constexpr mimo::ThinkBlock kBlocks[] = {mimo::ThinkBlock::kModelDecides, mimo::ThinkBlock::kOpen,
                                          mimo::ThinkBlock::kClosed, mimo::ThinkBlock::kModelDecides};
  const mimo::AnswerParserOptions options = {.think_block = kBlocks[bits & 3],
                                             .tools = (bits & 12) == 12 ? nullptr : &tools,
                                             .separate_reasoning = (bits & 16) == 0,
                                             .parallel_tool_calls = (bits & 32) == 0,
                                             .forward_unknown_tools = (bits & 12) == 4,
                                             .unwrap_values = (bits & 64) != 0};
  const bool cut = (bits & 128) != 0;
  const auto pieces = mimo::test::script({reinterpret_cast<const char*>(data) + 2, size - 2});
  const auto parse = [&](auto next_cut) {
    ParsedScript parsed = mimo::test::parse_script(pieces, options, cut, next_cut);
    check_texts(parsed);
    return parsed;
  };

  const ParsedScript whole = parse([](std::size_t) { return std::string::npos; });
  check_equal(whole, parse([](std::size_t offset) { return offset + 1; }));
  std::minstd_rand random(data[1]);
  check_equal(whole, parse([&](std::size_t offset) { return offset + 1 + random() % 9; }));
  check_order(whole, options.forward_unknown_tools);

  const mimo::AssistantAnswer answer = mimo::test::assembled(whole.deltas);  // refuses what is no JSON object
  if (static_cast<int>(answer.calls.size()) != whole.calls) std::abort();
  if (!options.parallel_tool_calls && whole.calls > 1) std::abort();
  if (options.tools == nullptr && whole.calls > 0) std::abort();

  std::string text;
  for (const auto& piece : pieces) text += mimo::utf8_replace_invalid(piece.text);
  if (answer.content.size() + answer.reasoning.size() > text.size()) std::abort();
  const bool all_is_content = !options.separate_reasoning || options.think_block == mimo::ThinkBlock::kClosed;
  if (whole.calls == 0 && all_is_content && answer.content != text) std::abort();
  return 0;
}
