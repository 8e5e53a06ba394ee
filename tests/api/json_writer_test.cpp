#include "api/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "api/random_id.h"
#include "core/json.h"
#include "text/unicode_utf8.h"

namespace mimo {
namespace {

std::string written(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(JsonWriter, StringsReadBackEqual) {
  std::string all;
  for (int byte = 0; byte < 0x80; ++byte) all += static_cast<char>(byte);
  for (const std::string& text :
       {std::string(), std::string("plain"), all, std::string("é🦙\u2028"), "a" + all + "b"}) {
    const Result<json::value> read = parse_json(written(text), "text");
    ASSERT_TRUE(read) << written(text);
    EXPECT_EQ(std::string(read->as_string()), text);
  }
  EXPECT_EQ(written("a\"\\\n\x01\x7f"), R"("a\"\\\n\u0001\u007f")");
}

TEST(JsonWriter, InvalidBytesAreReplacedAsEverywhere) {
  for (const std::string text :
       {"\xff", "a\xc3", "\xed\xa0\x80z", "\xf0\x9f\xa6", "x\xf0\x9f\xa6\"y", "\x80\x80"}) {
    const Result<json::value> read = parse_json(written(text), "text");
    ASSERT_TRUE(read) << written(text);
    EXPECT_EQ(std::string(read->as_string()), utf8_replace_invalid(text));
  }
}

TEST(JsonWriter, Floats) {
  for (const float value : {0.0F, -0.0F, 1.0F, -2.5F, 1e-30F, -1.17549435e-38F, 3.4e38F, 0.1F, -123456.79F}) {
    std::string out;
    append_json_float(out, value);
    const Result<json::value> read = parse_json(out, "number");
    ASSERT_TRUE(read) << out;
    ASSERT_TRUE(read->is_double()) << out;
    EXPECT_EQ(static_cast<float>(read->get_double()), value);
  }
  for (const auto& [value, text] :
       {std::pair{-INFINITY, "-9999.0"}, {INFINITY, "9999.0"}, {NAN, "-9999.0"}}) {
    std::string out;
    append_json_float(out, value);
    EXPECT_EQ(out, text);
  }
}

TEST(RandomIds, AreDifferent) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = tool_call_id();
    EXPECT_EQ(id.size(), 29u);
    EXPECT_TRUE(id.starts_with("call_"));
    seen.insert(id);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

}  // namespace
}  // namespace mimo
