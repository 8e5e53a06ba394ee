// Anything as a schema, a regular expression or a grammar, compiled for a small vocabulary and walked. Checked
// besides crashes and time: a walk never gets stuck, a mask is what accept() takes, rollback gives the mask back.
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar_constraint.h"
#include "text/grammar/spec_grammar.h"

namespace {

using mimo::grammar::CompiledGrammar;
using mimo::grammar::Vocabulary;

constexpr std::int32_t kEnd = 256 + 12;
constexpr std::int32_t kOpen = kEnd + 1;
constexpr std::int32_t kClose = kEnd + 2;

const std::shared_ptr<const Vocabulary>& vocabulary() {
  static const std::shared_ptr<const Vocabulary> all = [] {
    static std::string bytes(256, '\0');
    std::vector<std::string_view> tokens;
    for (std::size_t i = 0; i < 256; ++i) {
      bytes[i] = static_cast<char>(i);
      tokens.push_back(std::string_view(bytes).substr(i, 1));
    }
    for (const char* text :
         {"ab", "aa", "  ", "{\"", "\":", "\",\"", "\"}", "true", "12", "\xC3\xA9", "</", "\"a"}) {
      tokens.emplace_back(text);
    }
    for (const std::int32_t control : {kEnd, kOpen, kClose})
      tokens.resize(static_cast<std::size_t>(control) + 1);
    return std::make_shared<const Vocabulary>(tokens, std::vector<std::int32_t>{kEnd});
  }();
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size < 2) return 0;
  const unsigned form = data[0];
  const std::size_t steps = data[1] % 32;
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  mimo::ConstraintSpec spec;
  if (form % 4 == 0 || form % 4 == 1) {
    spec.content = mimo::ContentForm::kJsonSchema;
    const mimo::Result<mimo::json::value> schema = mimo::parse_json(text, "schema");
    if (!schema) return 0;
    spec.schema = *schema;
    if (form % 4 == 1) {
      // The same as parameters of a tool.
      spec.content = mimo::ContentForm::kFree;
      spec.calls = mimo::CallForm::kForced;
      mimo::json::object function{{"name", "f"}, {"strict", form % 8 == 1}};
      function["parameters"] = mimo::json::object{{"properties", mimo::json::object{{"p", spec.schema}}}};
      spec.tools.push_back(mimo::json::object{{"function", function}});
    }
  } else {
    spec.content = form % 4 == 2 ? mimo::ContentForm::kRegex : mimo::ContentForm::kEbnf;
    spec.text = text;
  }
  if (!mimo::grammar::check_spec_size(spec)) return 0;
  mimo::grammar::GrammarLimits limits;
  limits.lookahead = static_cast<int>(vocabulary()->tree().max_depth());
  limits.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  auto automaton = mimo::grammar::compile_spec(spec, {.open = kOpen, .close = kClose}, limits);
  if (!automaton) {
    if (automaton.error().message.empty() || automaton.error().code == mimo::ErrorCode::kInternal)
      std::abort();
    return 0;
  }
  const auto compiled = std::make_shared<const CompiledGrammar>(std::move(*automaton), vocabulary());
  const auto walk = compiled->start();
  std::vector<std::uint32_t> mask(vocabulary()->mask_words());
  std::vector<std::uint32_t> again(mask.size());
  for (std::size_t step = 0; step < steps && !walk->done(); ++step) {
    walk->fill_mask(mask);
    std::vector<std::int32_t> allowed;
    for (std::int32_t token = 0; token <= kClose; ++token) {
      const bool may = (mask[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) != 0;
      const bool taken = walk->accept(token);
      if (taken) walk->rollback(1);
      if (may != taken) std::abort();
      if (may) allowed.push_back(token);
    }
    if (allowed.empty()) std::abort();
    walk->fill_mask(again);
    if (again != mask) std::abort();
    walk->accept(allowed[(data[2 % size] + step * 7) % allowed.size()]);
  }
  return 0;
}
