#include <algorithm>

#include "text/jinja/runtime.h"

namespace mimo::jinja {

Bound::Bound(Runtime& runtime, const char* what, CallArgs& args, std::initializer_list<const char*> params,
             std::size_t required)
    : runtime_(runtime), values_(params.size()), given_(params.size(), false) {
  if (args.positional.size() > params.size()) {
    runtime.type_error("{} takes at most {} argument(s), got {}", what, params.size(),
                       args.positional.size());
  }
  for (std::size_t i = 0; i < args.positional.size(); ++i) {
    values_[i] = std::move(args.positional[i]);
    given_[i] = true;
  }
  for (auto& named : args.named) {
    const std::string& name = named.first;
    const auto* at =
        std::find_if(params.begin(), params.end(), [&](const char* param) { return name == param; });
    if (name.empty() || at == params.end()) runtime.type_error("{} has no argument '{}'", what, name);
    const auto i = static_cast<std::size_t>(at - params.begin());
    if (given_[i]) runtime.type_error("{} got two values for argument '{}'", what, name);
    values_[i] = std::move(named.second);
    given_[i] = true;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!given_[i]) runtime.type_error("{} needs {} argument(s)", what, required);
  }
}

Int require_int(Runtime& runtime, const Value& value, const char* what) {
  if (!value.is_integral()) runtime.type_error("{} must be an integer, not {}", what, type_name(value));
  return value.integral();
}

const Text& require_text(Runtime& runtime, const Value& value, const char* what) {
  if (!value.is_string()) runtime.type_error("{} must be a string, not {}", what, type_name(value));
  return value.text();
}

}  // namespace mimo::jinja
