// The parts of JSON that schemas are made of. White space is allowed where people and models put it, and only
// in short runs: a model that likes line breaks would otherwise write them until it is cut off. Numbers are
// bounded so that each fits the types it will be read into.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar_builder.h"

namespace mimo::grammar {

// Rules are made when they are first asked for.
class JsonGrammar {
 public:
  // Levels of arrays and objects in a value that no schema describes.
  static constexpr int kFreeDepth = 24;

  // inside_call: the values are parameters of tool calls, whose strings must not hold what ends them.
  JsonGrammar(GrammarBuilder& builder, bool inside_call) : builder_(builder), inside_call_(inside_call) {}

  bool inside_call() const { return inside_call_; }

  std::int32_t space();    // nothing, one space, or a line break with indentation
  std::int32_t string();   // with quotes
  std::int32_t number();   // at most 18 digits, as many decimals, 2 digits of exponent
  std::int32_t integer();  // at most 18 digits
  std::int32_t value() { return value(kFreeDepth); }
  std::int32_t object() { return object(kFreeDepth); }
  std::int32_t array() { return array(kFreeDepth); }

  // A string of least..most characters (most -1: no limit), with quotes. Each
  // character has one spelling, with the shortest escape. Not inside calls.
  std::int32_t string_of_length(std::int64_t least, std::int64_t most);

  // A key of an object, with quotes, that is not one of `names`.
  std::int32_t key_except(const std::vector<std::string>& names);

  // Bare text of a tool call with the tag that ends it (tag_text.h).
  std::int32_t text_to_tag();

 private:
  std::int32_t value(int depth);
  std::int32_t object(int depth);
  std::int32_t array(int depth);

  GrammarBuilder& builder_;
  bool inside_call_;
  std::int32_t space_ = -1;
  std::int32_t string_ = -1;
  std::int32_t number_ = -1;
  std::int32_t integer_ = -1;
  std::int32_t text_to_tag_ = -1;
  std::vector<std::int32_t> values_ = std::vector<std::int32_t>(kFreeDepth + 1, -1);
  std::vector<std::int32_t> objects_ = values_;
  std::vector<std::int32_t> arrays_ = values_;
};

// What may follow a backslash in a JSON string.
std::int32_t emit_json_escape(GrammarBuilder& builder, std::int32_t from);

// least..most digits (most >= 1) behind `from`.
std::int32_t emit_digits(GrammarBuilder& builder, std::int32_t from, int least, int most);

}  // namespace mimo::grammar
