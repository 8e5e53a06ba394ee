// The template engine as the rest of the program sees it: the part of Jinja2 that chat templates use, with
// the settings under which they are written (trim_blocks, lstrip_blocks, immutable sandbox, break/continue,
// generation tags, raise_exception, strftime_now, and a tojson that keeps order and non-ASCII characters).
//
// Known differences from Python's jinja2 3.1, all of which end in an error unless said otherwise: integers
// beyond 128 bits, string formatting (%, format), encode and other methods that templates do not use,
// comparing dict views as sets, printing an iterator, method or function (Python prints a memory address).
// Unknown filters, tests and functions are refused even in branches that never run. A variable of the input
// that a block assigns only further down can be read before that (Jinja takes it for undefined). Methods of a
// string marked `safe` return plain strings. Upper and lower case map one character to one, except for sharp
// s. Integers of 65 bits and more in the input arrive as floats, as the JSON reader delivers them.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/result.h"
#include "text/jinja/limits.h"

namespace mimo::jinja {

struct Program;

// A stretch of rendered bytes written by the template itself (trusted) or taken from its input.
struct TrustRun {
  std::size_t bytes = 0;
  bool trusted = false;
};

struct Rendered {
  std::string text;
  std::vector<TrustRun> runs;  // in order; neighbours differ in trust; the sum of bytes is text.size()
};

struct RenderInput {
  const json::object* variables = nullptr;  // message data; its strings are untrusted
  const json::object* trusted = nullptr;  // from the checkpoint (bos_token, ...); `variables` win over these
  std::optional<std::time_t> now = {};    // what strftime_now shows; the current time when absent
};

class Template {
 public:
  // `name` stands in front of every message. Tags, filters, tests and functions that the engine does not have
  // are refused here with kUnsupported and their line.
  static Result<Template> parse(std::string_view source, std::string name, const Limits& limits = {});

  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // May be called by several threads at once. A raise_exception of the template gives kInvalidArgument with
  // exactly the template's message; a limit gives kLimit.
  Result<Rendered> render(const RenderInput& input) const;

  // Whether the template mentions a variable of this name.
  bool uses(std::string_view variable) const;

 private:
  Template(std::string name, const Limits& limits, std::unique_ptr<const Program> program);

  std::string name_;
  Limits limits_;
  std::unique_ptr<const Program> program_;
};

}  // namespace mimo::jinja
