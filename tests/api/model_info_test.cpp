#include "api/model_info.h"

#include <gtest/gtest.h>

#include "core/json.h"

namespace mimo {
namespace {

const ServedModels kModels{.names = {"mimo", "xiaomi/mimo \"x\""}, .accept_any = false};
const ModelCard kCard{.created = 5, .root = "models/nano", .max_model_len = 4096};

// C101
TEST(ModelInfo, C101ModelsListEachName) {
  const json::value body = parse_json(models_body(kModels, kCard), "body").value();
  EXPECT_EQ(body.at("object"), "list");
  ASSERT_EQ(body.at("data").as_array().size(), 2u);
  EXPECT_EQ(
      json::serialize(body.at("data").at(0)),
      R"({"id":"mimo","object":"model","created":5,"owned_by":"mimo.cpp","root":"models/nano","parent":null,)"
      R"("max_model_len":4096})");
  EXPECT_EQ(body.at("data").at(1).at("id"), "xiaomi/mimo \"x\"");

  const std::optional<std::string> one = model_body(kModels, kCard, "xiaomi/mimo \"x\"");
  ASSERT_TRUE(one);
  EXPECT_EQ(parse_json(*one, "body").value(), body.at("data").at(1));
  EXPECT_FALSE(model_body(kModels, kCard, "xiaomi"));
}

TEST(ModelInfo, Tokens) {
  EXPECT_EQ(tokenize_body({.tokens = {1, 2}, .token_strs = {}, .max_model_len = 9}),
            R"({"count":2,"max_model_len":9,"tokens":[1,2],"token_strs":null})");
  EXPECT_EQ(tokenize_body({.tokens = {1}, .token_strs = {{"a\""}}, .max_model_len = 9}),
            R"({"count":1,"max_model_len":9,"tokens":[1],"token_strs":["a\""]})");
  EXPECT_EQ(tokenize_body({}), R"({"count":0,"max_model_len":0,"tokens":[],"token_strs":null})");
  EXPECT_EQ(detokenize_body("a\n"), R"({"prompt":"a\n","content":"a\n"})");
  EXPECT_EQ(count_tokens_body(7), R"({"input_tokens":7})");
}

TEST(ModelInfo, Server) {
  ServerInfo info;
  info.version = "1";
  info.models = kModels.names;
  info.model = {.model_path = "m", .tokenizer_path = "t", .max_model_len = 8, .vocab = 100};
  info.arguments = {{"page_size", 16}};
  info.state = {{"running", 2}};
  const json::value body = parse_json(server_info_body(info), "body").value();
  EXPECT_EQ(body.at("served_model_names").as_array().size(), 2u);
  EXPECT_EQ(body.at("arguments").at("page_size"), 16);
  EXPECT_EQ(body.at("state").at("running"), 2);
  EXPECT_EQ(body.at("model"), parse_json(model_info_body(info.model), "body").value());
}

}  // namespace
}  // namespace mimo
