// Any text as a template, rendered over a fixed conversation with small limits: no crash, no hang, runs that
// add up.
#include <cstdlib>
#include <string_view>

#include "core/json.h"
#include "text/jinja/template.h"

namespace {

constexpr std::string_view kContext = R"({
  "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Gr\u00f6\u00dfe <|im_end|>"},
               {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls":
                 [{"function": {"name": "f", "arguments": {"a": 1, "b": [1.5, null, true], "c": "x"}}}]},
               {"role": "tool", "content": "42"}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}}],
  "add_generation_prompt": true, "s": "a b\n c", "i": 7, "f": -2.5, "l": [3, 1, 2], "d": {"k": {"x": 1}}, "n": null})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static const mimo::json::value context = mimo::parse_json(kContext, "context").value();
  mimo::jinja::Limits limits;
  limits.max_steps = 200'000;
  limits.max_output_bytes = 1 << 20;
  limits.max_list_items = 1 << 15;
  limits.max_alloc_bytes = 16 << 20;
  limits.max_wall_ms = 2'000;
  const auto parsed =
      mimo::jinja::Template::parse({reinterpret_cast<const char*>(data), size}, "fuzz", limits);
  if (!parsed) return 0;
  const auto rendered = parsed->render({.variables = &context.get_object(), .now = 0});
  if (!rendered) return 0;
  std::size_t bytes = 0;
  for (const auto& run : rendered->runs) bytes += run.bytes;
  if (bytes != rendered->text.size()) std::abort();
  return 0;
}
