#include "text/tool_schema.h"

namespace mimo {

const json::value* ToolSchema::property(std::string_view key) const {
  const json::object* object = parameters == nullptr ? nullptr : parameters->if_object();
  const json::value* properties = object == nullptr ? nullptr : object->if_contains("properties");
  if (properties == nullptr || !properties->is_object()) return nullptr;
  return properties->get_object().if_contains(key);
}

ToolSchema find_tool(const json::array& tools, std::string_view name) {
  for (const json::value& tool : tools) {
    const json::object* object = tool.if_object();
    const json::value* function = object == nullptr ? nullptr : object->if_contains("function");
    if (function == nullptr || !function->is_object()) continue;
    const json::value* own = function->get_object().if_contains("name");
    if (own == nullptr || !own->is_string() || std::string_view(own->get_string()) != name) continue;
    return {.declared = true, .parameters = function->get_object().if_contains("parameters")};
  }
  return {};
}

}  // namespace mimo
