// JSON schemas as grammars. What is written always satisfies the schema; what a schema allows may often be
// written in one way only (keys in the order of `properties`, none that are not declared unless
// additionalProperties asks for them, no escapes that are not needed). A keyword that this cannot enforce is an
// error that names it and its place, wherever it stands.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "text/grammar/grammar_builder.h"
#include "text/grammar/json_grammar.h"

namespace mimo::grammar {

// Levels of arrays and objects in a schema: everything here recurses over them.
inline constexpr std::size_t kMaxSchemaDepth = 64;
// Objects, arrays and scalars of a schema.
inline constexpr std::size_t kMaxSchemaValues = 50'000;
inline constexpr std::int64_t kMaxStringLength = 10'000;
inline constexpr std::int64_t kMaxArrayItems = 10'000;

// kLimit: too deep or too big. Before anything recurses over a value from outside; `what` names it.
Status check_json_size(const json::value& value, std::string_view what);

// One schema document, whose "$ref"s point into itself. `root` must outlive it.
class SchemaGrammar {
 public:
  // `name` stands for the document in error messages ("schema", "tool get_weather").
  SchemaGrammar(GrammarBuilder& builder, JsonGrammar& json, const json::value& root, std::string name)
      : builder_(builder), json_(json), root_(root), name_(std::move(name)) {}

  // JSON text of `schema`, the part of the document at the pointer `path` ("" for the whole).
  std::int32_t emit(std::int32_t from, const json::value& schema, const std::string& path);

  // The value of a parameter of a tool call: strings are bare text, other types JSON. The closing tag comes
  // with it, as it decides where free text ends.
  std::int32_t emit_parameter(std::int32_t from, const json::value& schema, const std::string& path);

  // Writes the rules that were called so far. Last.
  void finish();

 private:
  enum class Form : std::uint8_t { kJson, kParameter };

  std::int32_t emit_as(Form form, std::int32_t from, const json::value& schema, const std::string& path,
                       int refs);
  std::int32_t emit_ref(Form form, std::int32_t from, const json::value& ref, const std::string& path,
                        int refs);
  std::int32_t emit_alternatives(Form form, std::int32_t from, const json::object& schema,
                                 const char* keyword, const std::string& path, int refs);
  std::int32_t emit_values(Form form, std::int32_t from, const json::object& schema, const std::string& path);
  std::int32_t emit_type(Form form, std::int32_t from, std::string_view type, const json::object& schema,
                         const std::string& path);
  std::int32_t emit_string(Form form, std::int32_t from, const json::object& schema, const std::string& path);
  std::int32_t emit_number(std::int32_t from, const json::object& schema, const std::string& path,
                           bool fractions);
  std::int32_t emit_object(std::int32_t from, const json::object& schema, const std::string& path);
  std::int32_t emit_array(std::int32_t from, const json::object& schema, const std::string& path);

  // A rule for `schema`, made once.
  std::int32_t rule_for(const json::value& schema, const std::string& path);

  // The first message sticks (GrammarBuilder).
  void refuse(ErrorCode code, const std::string& path, std::string_view what);
  void check_keywords(const json::object& schema, const std::string& path);
  // Refuses constraints next to `keyword`, which would have to hold as well.
  void check_alone(const json::object& schema, const std::string& path, std::string_view keyword,
                   bool allow_type);
  std::optional<std::int64_t> count(const json::object& schema, const char* keyword, const std::string& path,
                                    std::int64_t limit);

  struct Pending {
    std::int32_t rule;
    const json::value* schema;
    std::string path;
  };

  GrammarBuilder& builder_;
  JsonGrammar& json_;
  const json::value& root_;
  std::string name_;
  std::map<const json::value*, std::int32_t> rules_;
  std::map<std::string, std::int32_t, std::less<>>
      scalars_;  // rules of strings and numbers, by their keywords
  std::deque<Pending> pending_;
};

}  // namespace mimo::grammar
