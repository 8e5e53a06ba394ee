// Bounds on parsing and rendering one template. A chat template may come from a checkpoint that nobody has
// read or from a request, so every resource that it can use has a ceiling with a reason.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mimo::jinja {

struct Limits {
  std::size_t max_template_bytes = 4u << 20;  // the largest released chat templates are under 40 KB
  int max_parse_depth = 100;       // nesting of tags and brackets; one level costs about 13 C++ frames
  int max_expression_depth = 200;  // height of an expression tree: bounds a chain of `a + b + c ...`
  int max_render_depth = 700;      // nested statements, expressions and macro calls while rendering
  int max_value_depth = 200;       // nesting of lists and dicts; bounds every recursive walk of a value
  std::uint64_t max_steps =
      100'000'000;  // nodes evaluated, plus items and bytes / 16 touched by one operation
  std::size_t max_output_bytes = 256u << 20;  // of the rendered text and of any one string
  std::size_t max_list_items = 4u << 20;      // of any one list or dict
  std::size_t max_alloc_bytes = std::size_t{2}
                                << 30;  // sum over all strings and lists made (not the live ones)
  int max_wall_ms = 20'000;             // a render that takes longer holds up an API thread
};

}  // namespace mimo::jinja
