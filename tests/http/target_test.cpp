#include "server/http/target.h"

#include <gtest/gtest.h>

namespace mimo::http {
namespace {

TEST(Target, OriginForm) {
  const auto target = parse_target("/v1/models?limit=3&x=%20");
  ASSERT_TRUE(target);
  EXPECT_EQ(target->path, "/v1/models");
  EXPECT_EQ(target->query, "limit=3&x=%20");
}

TEST(Target, DecodesOnce) {
  EXPECT_EQ(parse_target("/a%20b%2Fc%2f")->path, "/a b/c/");
  EXPECT_EQ(parse_target("/%252f")->path, "/%2f");
  EXPECT_EQ(parse_target("/m%C3%BC")->path, "/m\xc3\xbc");
  EXPECT_EQ(parse_target("/a+b")->path, "/a+b");
}

TEST(Target, AbsoluteFormAndStar) {
  EXPECT_EQ(parse_target("http://host:80/v1/models?q")->path, "/v1/models");
  EXPECT_EQ(parse_target("HTTPS://host/x")->path, "/x");
  EXPECT_EQ(parse_target("http://host")->path, "/");
  EXPECT_EQ(parse_target("http://host?q")->query, "q");
  EXPECT_EQ(parse_target("*")->path, "*");
}

TEST(Target, KeepsDotsAndSlashes) {
  EXPECT_EQ(parse_target("//v1/models")->path, "//v1/models");
  EXPECT_EQ(parse_target("/v1/../health")->path, "/v1/../health");
  EXPECT_EQ(parse_target("/%2e%2e/health")->path, "/../health");
}

TEST(Target, Refused) {
  for (const char* raw : {"",           "v1/models",     "?q",      "host:80", "/%",
                          "/%2",        "/%2g",          "/%g2",    "/a#b",    "/%00",
                          "/%0a",       "/%7f",          "/\x01",   "/%ff",    "/%c0%af",
                          "/%ed%a0%80", "/%f4%90%80%80", "/%e2%82", "http://", "http:///x",
                          "http://?q",  "/\xff"}) {
    const auto target = parse_target(raw);
    EXPECT_FALSE(target) << raw;
    EXPECT_TRUE(target || !target.error().message.empty());
  }
}

TEST(Target, Utf8) {
  EXPECT_TRUE(valid_utf8(""));
  EXPECT_TRUE(valid_utf8("a\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"));
  for (const char* text : {"\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xf5\x80\x80\x80", "\xc3",
                           "\xe2\x82", "\xc3\x28", "\xed\xbf\xbf"})
    EXPECT_FALSE(valid_utf8(text)) << text;
}

}  // namespace
}  // namespace mimo::http
