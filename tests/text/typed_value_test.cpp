#include "text/typed_value.h"

#include <gtest/gtest.h>

namespace mimo {
namespace {

// The schema and the expected value as JSON text.
struct Case {
  const char* schema;
  const char* text;
  const char* expected;
};

json::value typed_value(std::string_view text, const json::value* schema, const json::value& root) {
  return parse_json(typed_json(text, declared_types(schema, root)), text).value();
}

TEST(TypedValue, FollowsTheDeclaredType) {
  const Case cases[] = {
      {R"({"type":"string"})", "&amp;", R"("&amp;")"},
      {R"({"type":"string"})", "null", R"("null")"},
      {R"({"type":"string"})", "007", R"("007")"},
      {R"({"type":"string"})", " x\n", R"(" x\n")"},
      {R"({"type":"string"})", R"({"k":1})", R"("{\"k\":1}")"},
      {R"({"type":"string"})", "", R"("")"},
      {R"({"type":"integer"})", "-5", "-5"},
      {R"({"type":"integer"})", " 5\n", "5"},
      {R"({"type":"integer"})", "5.0", "5"},
      {R"({"type":"integer"})", "5.5", R"("5.5")"},
      {R"({"type":"integer"})", "007", R"("007")"},
      {R"({"type":"integer"})", "true", R"("true")"},
      {R"({"type":"integer"})", "18446744073709551615", "18446744073709551615"},
      {R"({"type":"integer"})", "99999999999999999999999", R"("99999999999999999999999")"},
      {R"({"type":"number"})", "1e3", "1000.0"},
      {R"({"type":"number"})", "5", "5"},
      {R"({"type":"number"})", "NaN", R"("NaN")"},
      {R"({"type":"boolean"})", "True", "true"},
      {R"({"type":"boolean"})", "false", "false"},
      {R"({"type":"boolean"})", "yes", R"("yes")"},
      {R"({"type":"object"})", R"({"k":[1]})", R"({"k":[1]})"},
      {R"({"type":"object"})", "[1]", R"("[1]")"},
      {R"({"type":"array"})", "[1, \"a\"]", R"([1,"a"])"},
      {R"({"type":"array"})", "[1,", R"("[1,")"},
      {R"({"type":"null"})", "null", "null"},
      {R"({"type":"null"})", "none", R"("none")"},
      // Several types.
      {R"({"type":["string","null"]})", "null", "null"},
      {R"({"type":["string","null"]})", "5", R"("5")"},
      {R"({"type":["string","integer"]})", "5", "5"},
      {R"({"type":["string","integer"]})", "five", R"("five")"},
      {R"({"anyOf":[{"type":"integer"},{"type":"null"}]})", "null", "null"},
      {R"({"anyOf":[{"type":"integer"},{"type":"null"}]})", "4", "4"},
      {R"({"enum":["1","2"]})", "1", R"("1")"},
      {R"({"enum":[1,2]})", "1", "1"},
      {R"({"const":true})", "true", "true"},
      {R"({"$ref":"#/$defs/count"})", "7", "7"},
      {R"({"$ref":"#/$defs/loop"})", "7", "7"},
      {R"({"$ref":"http://elsewhere"})", "x", R"("x")"},
      // Nothing declared.
      {R"({})", "7", "7"},
      {R"({})", "[1]", "[1]"},
      {R"({})", "null", R"("null")"},
      {R"({})", "\"quoted\"", R"("\"quoted\"")"},
      {R"({})", "plain words", R"("plain words")"},
      {R"({"type":7})", "7", "7"},
  };
  const json::value root =
      parse_json(R"({"$defs":{"count":{"type":"integer"},"loop":{"$ref":"#/$defs/loop"}}})", "root").value();
  for (const Case& one : cases) {
    const json::value schema = parse_json(one.schema, "schema").value();
    const json::value expected = parse_json(one.expected, "expected").value();
    const json::value got = typed_value(one.text, &schema, root);
    EXPECT_EQ(json::serialize(got), json::serialize(expected)) << one.schema << " " << one.text;
    EXPECT_EQ(got.kind(), expected.kind()) << one.schema << " " << one.text;
  }
  EXPECT_EQ(typed_value("8", nullptr, root), json::value(8));
}

TEST(TypedValue, KeepsJsonAsItWasWritten) {
  const auto written = [](const char* schema, const char* text) {
    const json::value parsed = parse_json(schema, "schema").value();
    return typed_json(text, declared_types(&parsed, parsed));
  };
  EXPECT_EQ(written(R"({"type":"number"})", " 2.50\n"), "2.50");
  EXPECT_EQ(written(R"({"type":"number"})", "1e3"), "1e3");
  EXPECT_EQ(written(R"({"type":"array"})", "[1, 2.5]"), "[1, 2.5]");
  EXPECT_EQ(written(R"({"type":"object"})", "{ \"k\" : \"\\u00e9\" }"), "{ \"k\" : \"\\u00e9\" }");
  EXPECT_EQ(written(R"({"type":"integer"})", "5.0"), "5");
  EXPECT_EQ(written(R"({"type":"boolean"})", "TRUE"), "true");
  EXPECT_EQ(written(R"({})", "3.0"), "3.0");
}

TEST(TypedValue, SaysWhenAnyTextIsAValue) {
  const auto only_string = [](const char* schema) {
    const json::value parsed = parse_json(schema, "schema").value();
    return declared_types(&parsed, parsed).only_string();
  };
  EXPECT_TRUE(only_string(R"({"type":"string"})"));
  EXPECT_TRUE(only_string(R"({"enum":["a","b"]})"));
  EXPECT_FALSE(only_string(R"({"type":["string","null"]})"));
  EXPECT_FALSE(only_string(R"({"enum":["a",1]})"));
  EXPECT_FALSE(only_string(R"({})"));
  EXPECT_FALSE(declared_types(nullptr, nullptr).only_string());
}

TEST(TypedValue, SurvivesSchemasThatMultiply) {
  // Each level refers to the next twice over.
  std::string text = R"({"$defs":{)";
  for (int i = 0; i < 40; ++i) {
    text += R"("d)" + std::to_string(i) + R"(":{"anyOf":[{"$ref":"#/$defs/d)" + std::to_string(i + 1) +
            R"("},{"$ref":"#/$defs/d)" + std::to_string(i + 1) + R"("}]},)";
  }
  text += R"("d40":{"type":"integer"}}})";
  const json::value root = parse_json(text, "root").value();
  const json::value schema = parse_json(R"({"$ref":"#/$defs/d0"})", "schema").value();
  EXPECT_EQ(typed_value("words", &schema, root), json::value("words"));
}

}  // namespace
}  // namespace mimo
