#include "text/jinja/template.h"

#include <utility>

#include "text/jinja/parser.h"
#include "text/jinja/runtime.h"

namespace mimo::jinja {

Template::Template(std::string name, const Limits& limits, std::unique_ptr<const Program> program)
    : name_(std::move(name)), limits_(limits), program_(std::move(program)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Result<Template> Template::parse(std::string_view source, std::string name, const Limits& limits) {
  Result<Program> program = parse_program(source, limits);
  if (!program) return tl::unexpected<Error>(program.error().within(name));
  return Template(std::move(name), limits, std::make_unique<const Program>(std::move(*program)));
}

bool Template::uses(std::string_view variable) const {
  return program_->symbols.contains(std::string(variable));
}

Result<Rendered> Template::render(const RenderInput& input) const {
  Runtime runtime(*program_, limits_, input.now);
  const auto define = [&](const json::object* variables, bool trusted) {
    if (variables == nullptr) return;
    for (const auto& [key, value] : *variables) {
      const std::string_view variable(key.data(), key.size());
      if (runtime.uses(variable)) runtime.define(variable, from_json(value, trusted));
    }
  };
  define(input.trusted, true);
  define(input.variables, false);
  try {
    const Text text = runtime.run();
    Rendered rendered{text.bytes(), {}};
    std::size_t begin = 0;
    for (const Text::Span& span : text.spans()) {
      rendered.runs.push_back({span.end - begin, span.trusted});
      begin = span.end;
    }
    return rendered;
  } catch (const RenderError& problem) {
    return tl::unexpected<Error>(problem.own_words ? problem.error : problem.error.within(name_));
  }
}

}  // namespace mimo::jinja
