// The arguments of a tool call as JSON text, written piece by piece while their values arrive.
#pragma once

#include <string>
#include <string_view>

#include "core/json.h"
#include "text/typed_value.h"

namespace mimo {

// All pieces of a call together are one JSON object. Values that are strings by declaration are written as they
// come; others, whose type their text decides, at their end (typed_value.h). Texts are valid UTF-8.
class ArgumentWriter {
 public:
  // unwrap: of a value that begins with a line break, that one and one at the end belong to the tags. Otherwise
  // values are taken to the byte.
  explicit ArgumentWriter(bool unwrap) : unwrap_(unwrap) {}

  void begin_call() { empty_ = true; }
  // `schema` and `root` as in declared_types(). What there is to write is added to `json`, here and below.
  void begin_value(std::string_view key, const json::value* schema, const json::value& root,
                   std::string& json);
  void add(std::string_view text, std::string& json);
  void end_value(std::string& json);
  void end_call(std::string& json);

 private:
  void put(std::string_view text, std::string& json);

  bool unwrap_;
  bool empty_ = true;         // no value yet
  bool at_start_ = false;     // of a value
  bool wrapped_ = false;      // the value began with a line break that was taken off
  bool holds_break_ = false;  // a line break that is taken off if the value ends here
  DeclaredTypes types_;
  std::string text_;  // of a value whose type is not decided yet
};

}  // namespace mimo
