// JSON text as Python's json.dumps writes it.
#include <gtest/gtest.h>

#include <limits>

#include "text/python_json.h"

namespace mimo {
namespace {

TEST(PythonJson, FloatRepr) {
  const std::pair<double, const char*> cases[] = {
      {0.0, "0.0"},
      {-0.0, "-0.0"},
      {1.0, "1.0"},
      {0.1, "0.1"},
      {1e15, "1000000000000000.0"},
      {1e16, "1e+16"},
      {123456789012345680.0, "1.2345678901234568e+17"},
      {1e22, "1e+22"},
      {0.0001, "0.0001"},
      {0.00001, "1e-05"},
      {1.5e-7, "1.5e-07"},
      {5e-324, "5e-324"},
      {1.7976931348623157e308, "1.7976931348623157e+308"},
      {1.0 / 3, "0.3333333333333333"},
      {-2.5, "-2.5"},
      {9007199254740993.0, "9007199254740992.0"},
      {1e100, "1e+100"},
      {12345.678, "12345.678"},
  };
  for (const auto& [value, text] : cases) EXPECT_EQ(python_float_repr(value), text);
  EXPECT_EQ(python_float_repr(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(python_json_float(-std::numeric_limits<double>::infinity()), "-Infinity");
  EXPECT_EQ(python_json_float(std::numeric_limits<double>::quiet_NaN()), "NaN");
}

TEST(PythonJson, Strings) {
  std::string out;
  append_python_json_string(out, "a\"\\/\b\f\n\r\t\x01\x7f é 🙂", false);
  EXPECT_EQ(out, "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\x7f é 🙂\"");
  out.clear();
  append_python_json_string(out, "\x7f é 🙂", true);
  EXPECT_EQ(out, "\"\\u007f \\u00e9 \\ud83d\\ude42\"");
}

TEST(PythonJson, WholeValues) {
  const json::value value =
      parse_json(
          R"({"b": [1, -2, 18446744073709551615, 1E2, 0.5], "a": {"x": null, "é": true}, "e": [], "o": {}})",
          "t")
          .value();
  EXPECT_EQ(
      python_json(value),
      R"({"b": [1, -2, 18446744073709551615, 100.0, 0.5], "a": {"x": null, "é": true}, "e": [], "o": {}})");
  EXPECT_EQ(
      python_json(value,
                  {.ensure_ascii = true, .item_separator = ",", .key_separator = ":", .sort_keys = true}),
      R"({"a":{"x":null,"\u00e9":true},"b":[1,-2,18446744073709551615,100.0,0.5],"e":[],"o":{}})");
  EXPECT_EQ(python_json(parse_json(R"({"a": [1, {"b": 2}], "c": []})", "t").value(),
                        {.indent = 2, .item_separator = ","}),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"c\": []\n}");
}

}  // namespace
}  // namespace mimo
