// Any answer text through the reasoning split and the tool-call parser. Checked besides crashes: nothing that
// was written disappears unless a call took it, and a call names a declared tool.
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/assistant_answer.h"

namespace {

constexpr std::string_view kTools = R"([
  {"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
    "s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},
    "o":{"type":"object"},"a":{"type":"array"},"u":{"type":["string","null"]},"r":{"$ref":"#/$defs/r"},
    "e":{"enum":[1,"x",null]},"any":{}},"$defs":{"r":{"anyOf":[{"type":"integer"},{"$ref":"#/$defs/r"}]}}}}},
  {"type":"function","function":{"name":"g"}}])";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static const mimo::json::array tools = mimo::parse_json(kTools, "tools").value().as_array();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const mimo::ToolCallText parsed = mimo::parse_tool_calls(text, tools);
  if (parsed.content.size() > size) std::abort();
  if (parsed.calls.empty() && parsed.content != text) std::abort();
  for (const mimo::ToolCall& call : parsed.calls) {
    if (call.name != "f" && call.name != "g") std::abort();
  }
  for (const auto block :
       {mimo::ThinkBlock::kModelDecides, mimo::ThinkBlock::kOpen, mimo::ThinkBlock::kClosed}) {
    const mimo::ReasoningSplit split = mimo::split_reasoning(text, block);
    if (split.reasoning.size() + split.content.size() > size) std::abort();
    const mimo::AssistantAnswer answer = mimo::parse_answer(text, block, tools);
    if (answer.content.size() > size || answer.reasoning.size() > size) std::abort();
  }
  return 0;
}
