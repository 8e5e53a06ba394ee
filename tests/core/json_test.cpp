#include "core/json.h"

#include <gtest/gtest.h>

namespace mimo {
namespace {

TEST(Json, KeepsKeyOrderAndTypes) {
  const auto value = parse_json(R"({"b": 1, "a": [1.5, true, null, "x"], "c": 18446744073709551615})", "t");
  ASSERT_TRUE(value) << value.error().message;
  EXPECT_EQ(value->as_object().begin()->key(), "b");
  EXPECT_EQ(value->at("c").as_uint64(), 18446744073709551615ull);
}

TEST(Json, RefusesWhatTwoReadersWouldReadDifferently) {
  for (const char* text : {R"({"a":1,"a":2})", R"({"a":{"b":1,"b":1}})"}) {
    const auto value = parse_json(text, "file.json");
    ASSERT_FALSE(value);
    EXPECT_NE(value.error().message.find("duplicate key"), std::string::npos) << value.error().message;
  }
}

TEST(Json, RefusesBadTexts) {
  for (const char* text : {"", "{", "[1,]", "{} x", "nul", "[1e999]", "\"\xff\"", "{\"a\" 1}", "NaN"}) {
    const auto value = parse_json(text, "file.json");
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.error().message.rfind("file.json: ", 0), 0u) << value.error().message;
  }
  EXPECT_FALSE(parse_json(std::string(100000, '['), "deep"));
  EXPECT_FALSE(parse_json("[1, 2]", "long", {.max_bytes = 3}));
}

TEST(Json, LenientModeTakesCommentsAndTrailingCommas) {
  EXPECT_TRUE(parse_json("{\"a\": [1, 2,], // note\n}", "t", {.allow_comments_and_commas = true}));
  EXPECT_FALSE(parse_json("{\"a\": [1, 2,]}", "t"));
}

TEST(Json, NamesLineAndColumn) {
  const auto value = parse_json("{\n \"a\": x}", "t");
  ASSERT_FALSE(value);
  EXPECT_NE(value.error().message.find("line 2"), std::string::npos) << value.error().message;
}

}  // namespace
}  // namespace mimo
