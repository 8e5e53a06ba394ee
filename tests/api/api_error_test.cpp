#include "api/api_error.h"

#include <gmock/gmock.h>

#include "api/answer_writer.h"
#include "core/json.h"

namespace mimo {
namespace {

using testing::HasSubstr;

TEST(ApiErrors, EachCodeHasItsStatus) {
  struct Case {
    ErrorCode code;
    int status;
    const char* type;
    const char* anthropic;
    int retry_after;
  };
  for (const Case& c : std::vector<Case>{
           {ErrorCode::kInvalidArgument, 400, "invalid_request_error", "invalid_request_error", 0},
           {ErrorCode::kCorrupt, 400, "invalid_request_error", "invalid_request_error", 0},
           {ErrorCode::kUnsupported, 400, "invalid_request_error", "invalid_request_error", 0},
           {ErrorCode::kLimit, 400, "invalid_request_error", "invalid_request_error", 0},
           {ErrorCode::kNotFound, 404, "not_found_error", "not_found_error", 0},
           {ErrorCode::kBusy, 429, "rate_limit_error", "rate_limit_error", 1},
           {ErrorCode::kCancelled, 499, "request_cancelled", "invalid_request_error", 0},
           {ErrorCode::kInternal, 500, "internal_error", "api_error", 0},
           {ErrorCode::kUnavailable, 503, "unavailable_error", "overloaded_error", 1},
       }) {
    const ApiError error = api_error(Error{c.code, "some text"});
    EXPECT_EQ(error.status, c.status);
    EXPECT_EQ(error.type, c.type);
    EXPECT_EQ(error.retry_after_seconds, c.retry_after);
    const json::value openai = parse_json(openai_error_body(error), "body").value();
    EXPECT_EQ(openai.at("error").at("type"), c.type);
    EXPECT_EQ(openai.at("error").at("code"), c.status);
    EXPECT_TRUE(openai.at("error").at("param").is_null());
    const json::value anthropic = parse_json(anthropic_error_body(error), "body").value();
    EXPECT_EQ(anthropic.at("type"), "error");
    EXPECT_EQ(anthropic.at("error").at("type"), c.anthropic);
    EXPECT_EQ(anthropic.at("error").at("message"), json::string_view(error.message));
  }
  // What went wrong inside stays inside.
  EXPECT_THAT(api_error(Error{ErrorCode::kInternal, "/home/me/model: row 7"}).message,
              testing::Not(HasSubstr("/home")));
}

TEST(ApiErrors, OtherStatuses) {
  EXPECT_EQ(api_error(401, "x").type, "authentication_error");
  EXPECT_EQ(api_error(405, "x").type, "invalid_request_error");
  EXPECT_EQ(api_error(413, "x").type, "request_too_large");
  EXPECT_EQ(api_error(501, "x").type, "not_implemented");
}

TEST(ApiErrors, ContextLength) {
  const ApiError error = api_error(Error{ErrorCode::kLimit, "maximum context length is 7 tokens"});
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_EQ(parse_json(openai_error_body(error), "body").value().at("error").at("code"),
            "context_length_exceeded");
  EXPECT_EQ(api_error(Error{ErrorCode::kLimit, "grammar too large"}).code, "");
}

TEST(ApiErrors, MessagesAreShortValidText) {
  const ApiError error = field_error("a\xff", std::string(700, 'x') + std::string(700, '\xc3') + "\xb6");
  EXPECT_LT(error.message.size(), 1100u);
  const json::value body = parse_json(openai_error_body(error), "body").value();
  EXPECT_EQ(body.at("error").at("param"), "a\xEF\xBF\xBD");
  std::string umlauts;
  for (int i = 0; i < 2000; ++i) umlauts += "ö";
  EXPECT_TRUE(parse_json(openai_error_body(api_error(400, umlauts)), "body"));
  EXPECT_TRUE(parse_json(openai_error_body(api_error(400, "a" + umlauts)), "body"));
}

TEST(ApiErrors, DialectOfTheRoute) {
  const ApiError error = model_not_found("a\"b");
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error_body(ApiRoute::kChat, error), openai_error_body(error));
  EXPECT_EQ(error_body(ApiRoute::kCompletion, error), openai_error_body(error));
  EXPECT_EQ(error_body(ApiRoute::kMessages, error), anthropic_error_body(error));
}

}  // namespace
}  // namespace mimo
