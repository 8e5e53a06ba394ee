#include "text/argument_writer.h"

namespace mimo {
namespace {

std::string quoted(std::string_view text) {
  return json::serialize(json::string_view(text.data(), text.size()));
}

}  // namespace

void ArgumentWriter::begin_value(std::string_view key, const json::value* schema, const json::value& root,
                                 std::string& json) {
  json += empty_ ? "{" : ",";
  json += quoted(key);
  json += ':';
  empty_ = false;
  at_start_ = true;
  wrapped_ = false;
  holds_break_ = false;
  text_.clear();
  types_ = declared_types(schema, root);
  if (types_.only_string()) json += '"';
}

void ArgumentWriter::add(std::string_view text, std::string& json) {
  if (text.empty()) return;
  if (unwrap_ && at_start_ && text.front() == '\n') {
    wrapped_ = true;
    text.remove_prefix(1);
  }
  at_start_ = false;
  if (!wrapped_ || text.empty()) {
    put(text, json);
    return;
  }
  if (holds_break_) put("\n", json);
  holds_break_ = text.back() == '\n';
  if (holds_break_) text.remove_suffix(1);
  put(text, json);
}

void ArgumentWriter::put(std::string_view text, std::string& json) {
  if (!types_.only_string()) {
    text_ += text;
    return;
  }
  const std::string escaped = quoted(text);  // escapes stand for one character each: pieces can be joined
  json.append(escaped, 1, escaped.size() - 2);
}

void ArgumentWriter::end_value(std::string& json) {
  json += types_.only_string() ? "\"" : typed_json(text_, types_);
}

void ArgumentWriter::end_call(std::string& json) { json += empty_ ? "{}" : "}"; }

}  // namespace mimo
