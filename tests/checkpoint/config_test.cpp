#include "checkpoint/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/file.h"
#include "core/json.h"
#include "support/checkpoint_writer.h"

namespace mimo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string fixture(const std::string& name) {
  return std::string(MIMO_SOURCE_DIR) + "/tests/checkpoint/data/configs/" + name + ".json";
}

json::object read_fixture(const std::string& name) {
  Result<json::value> value = parse_json_file(fixture(name));
  if (!value) std::abort();
  return value->as_object();
}

Result<ModelConfig> parse(const json::object& config) {
  return parse_config(json::serialize(config), "config.json");
}

struct Member {
  const char* file;
  const char* name;
  bool pro, fused;
  float theta, eps;
  WeightFormat experts, router;
  int mtp;
  std::int64_t positions;
};

class Family : public ::testing::TestWithParam<Member> {};

TEST_P(Family, EveryFieldOfTheSpecTable) {
  const Member& want = GetParam();
  const auto text = read_file(fixture(want.file), 1 << 20);
  ASSERT_TRUE(text);
  const auto config = parse_config(*text, want.file);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->member, want.name);
  EXPECT_TRUE(config->warnings.empty()) << config->warnings.front();
  EXPECT_EQ(config->hidden, want.pro ? 6144 : 4096);
  EXPECT_EQ(config->layers, want.pro ? 70 : 48);
  EXPECT_EQ(config->vocab, 152576);
  EXPECT_EQ(config->intermediate, 16384);
  EXPECT_EQ(config->moe_intermediate, 2048);
  EXPECT_EQ(config->experts, want.pro ? 384 : 256);
  EXPECT_EQ(config->top_k, 8);
  EXPECT_TRUE(config->norm_topk_prob);
  EXPECT_EQ(config->routed_scaling, 1.0f);
  EXPECT_EQ(config->full.q_heads, want.pro ? 128 : 64);
  EXPECT_EQ(config->full.kv_heads, want.pro ? 8 : 4);
  EXPECT_EQ(config->window.q_heads, want.pro ? 128 : 64);
  EXPECT_EQ(config->window.kv_heads, 8);
  for (const AttentionShape* shape : {&config->full, &config->window}) {
    EXPECT_EQ(shape->qk_dim, 192);
    EXPECT_EQ(shape->v_dim, 128);
    EXPECT_EQ(shape->rotary_dims, 64);
  }
  EXPECT_EQ(config->full.rope_theta, want.theta);
  EXPECT_EQ(config->window.rope_theta, 1e4f);
  EXPECT_EQ(config->full.window, 0);
  EXPECT_EQ(config->window.window, 128);
  EXPECT_FALSE(config->full.sink);
  EXPECT_TRUE(config->window.sink);
  EXPECT_EQ(config->value_scale, want.pro ? 0.612f : 0.707f);
  EXPECT_EQ(config->norm_eps, want.eps);
  EXPECT_EQ(config->fused_qkv, want.fused);
  EXPECT_EQ(config->qkv_chunks, !want.fused ? 1 : want.pro ? 8 : 4);
  EXPECT_EQ(config->dense_format, WeightFormat::kFp8);
  EXPECT_EQ(config->expert_format, want.experts);
  EXPECT_EQ(config->router_format, want.router);
  EXPECT_EQ(config->mtp_heads, want.mtp);
  EXPECT_EQ(config->max_positions, want.positions);
  EXPECT_EQ(config->eos_token_ids, std::vector<int>{151645});
  EXPECT_EQ(config->pad_token_id, 151643);
  EXPECT_EQ(config->unquantized.size(), static_cast<std::size_t>(config->layers + 1));
  std::vector<int> full;
  for (int i = 0; i < config->layers; ++i) {
    if (config->layer_kinds[static_cast<std::size_t>(i)] == LayerKind::kFull) full.push_back(i);
    EXPECT_EQ(config->layer_is_moe[static_cast<std::size_t>(i)], i != 0);
  }
  EXPECT_EQ(full, want.pro ? (std::vector<int>{0, 7, 15, 23, 31, 39, 47, 55, 62, 69})
                           : (std::vector<int>{0, 5, 11, 17, 23, 29, 35, 41, 47}));
}

INSTANTIATE_TEST_SUITE_P(Spec, Family,
                         ::testing::Values(Member{"v2_flash", "V2-Flash", false, false, 5e6f, 1e-5f,
                                                  WeightFormat::kFp8, WeightFormat::kF32, -1, 262144},
                                           Member{"v2_5", "V2.5", false, true, 1e7f, 1e-5f,
                                                  WeightFormat::kFp8, WeightFormat::kF32, -1, 1048576},
                                           Member{"v2_6_flash", "V2.6-Flash", false, true, 1e7f, 1e-6f,
                                                  WeightFormat::kMxfp4, WeightFormat::kBF16, 3, 1048576},
                                           Member{"v2_5_pro", "V2.5-Pro", true, true, 1e7f, 1e-5f,
                                                  WeightFormat::kFp8, WeightFormat::kF32, -1, 1048576},
                                           Member{"v2_6_pro", "V2.6-Pro", true, true, 1e7f, 1e-5f,
                                                  WeightFormat::kMxfp4, WeightFormat::kBF16, 3, 1048576}),
                         [](const auto& param) { return std::string(param.param.file); });

// One changed field of a good config, and what the refusal must say.
struct Refusal {
  const char* key;
  const char* value;  // JSON; "" removes the key
  const char* mentions;
};

class Refused : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refused, NamesTheField) {
  json::object config = read_fixture("v2_6_flash");
  const Refusal& change = GetParam();
  if (*change.value == '\0') {
    config.erase(change.key);
  } else {
    config[change.key] = json::parse(change.value);
  }
  const auto result = parse(config);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message,
              AllOf(HasSubstr("config.json"), HasSubstr(change.key), HasSubstr(change.mentions)));
}

INSTANTIATE_TEST_SUITE_P(
    Values, Refused,
    ::testing::Values(
        Refusal{"architectures", R"(["LlamaForCausalLM"])", "MiMoV2ForCausalLM"},
        Refusal{"architectures", "[]", "one"}, Refusal{"architectures", "", "missing"},
        Refusal{"model_type", "\"llama\"", "mimo_v2"},
        Refusal{"model_type", "\"mimo_v2_flash\"", "contradicts"}, Refusal{"model_type", "", "missing"},
        Refusal{"hidden_size", "", "missing"}, Refusal{"hidden_size", "0", "0"},
        Refusal{"hidden_size", "-4096", "-4096"}, Refusal{"hidden_size", "\"4096\"", "4096"},
        Refusal{"hidden_size", "4096.5", "integer"}, Refusal{"hidden_size", "4100", "32"},
        Refusal{"hidden_size", "99999999999999999999", "integer"},
        Refusal{"moe_intermediate_size", "2050", "32"}, Refusal{"moe_intermediate_size", "", "missing"},
        Refusal{"num_hidden_layers", "47", "47"}, Refusal{"vocab_size", "null", "missing"},
        Refusal{"swa_num_attention_heads", "32", "contradicts"},
        Refusal{"swa_head_dim", "128", "contradicts"}, Refusal{"swa_v_head_dim", "64", "contradicts"},
        Refusal{"head_dim", "", "missing"}, Refusal{"num_key_value_heads", "3", "multiple"},
        Refusal{"swa_num_key_value_heads", "6", "multiple"},
        Refusal{"swa_num_key_value_heads", "2", "chunks"}, Refusal{"swa_num_key_value_heads", "", "missing"},
        Refusal{"sliding_window", "64", "contradicts"}, Refusal{"sliding_window", "0", "0"},
        Refusal{"attention_value_scale", "", "missing"}, Refusal{"attention_value_scale", "\"x\"", "number"},
        Refusal{"add_swa_attention_sink_bias", "", "missing"},
        Refusal{"add_swa_attention_sink_bias", "1", "true"}, Refusal{"attention_bias", "true", "false"},
        Refusal{"attention_projection_layout", "\"qkv\"", "fused_qkv"},
        Refusal{"partial_rotary_factor", "0.5", "contradicts"}, Refusal{"rope_theta", "10000", "contradicts"},
        Refusal{"rope_theta", "-1", "number"}, Refusal{"swa_rope_theta", "", "missing"},
        Refusal{"rope_scaling", R"({"type":"yarn","factor":4})", "default"},
        Refusal{"rope_scaling", R"({"rope_type":"default","factor":2.0})", "factor"},
        Refusal{"rope_parameters", R"({"rope_type":"linear"})", "linear"},
        Refusal{"rope_parameters", R"({"full_attention":{"rope_type":"default"}})", "sliding_attention"},
        Refusal{"rope_parameters", R"({"full_attention":{"rope_theta":5e6},"sliding_attention":{}})",
                "contradicts"},
        Refusal{"hybrid_layer_pattern", "[0,1]", "2 entries"}, Refusal{"hybrid_layer_pattern", "", "missing"},
        Refusal{"hybrid_layer_pattern", "1", "array"}, Refusal{"moe_layer_freq", "1", "array"},
        Refusal{"n_routed_experts", "4", "at most"}, Refusal{"num_experts_per_tok", "0", "integer"},
        Refusal{"n_shared_experts", "1", "0"}, Refusal{"scoring_func", "\"softmax\"", "sigmoid"},
        Refusal{"topk_method", "\"greedy\"", "noaux_tc"}, Refusal{"n_group", "8", "1"},
        Refusal{"topk_group", "4", "1"}, Refusal{"norm_topk_prob", "", "missing"},
        Refusal{"routed_scaling_factor", "\"2.5\"", "number"},
        Refusal{"moe_router_dtype", "\"float16\"", "bfloat16"}, Refusal{"layernorm_epsilon", "", "missing"},
        Refusal{"layernorm_epsilon", "0", "number"}, Refusal{"rms_norm_eps", "1e-5", "contradicts"},
        Refusal{"hidden_act", "\"gelu\"", "silu"}, Refusal{"tie_word_embeddings", "true", "false"},
        Refusal{"max_position_embeddings", "", "missing"},
        Refusal{"num_nextn_predict_layers", "-1", "integer"}, Refusal{"eos_token_id", "\"</s>\"", "token id"},
        Refusal{"eos_token_id", "[1,-2]", "token id"}, Refusal{"quantization_config", "[]", "object"},
        Refusal{"quantization_config", R"({"weight_block_size":[128,128]})", "quant_method is missing"},
        Refusal{"quantization_config", R"({"quant_method":"awq","weight_block_size":[128,128]})", "awq"},
        Refusal{"quantization_config", R"({"quant_method":"fp8","weight_block_size":[64,64]})", "[128,128]"},
        Refusal{"quantization_config", R"({"quant_method":"fp8"})", "weight_block_size"},
        Refusal{"quantization_config", R"({"quant_method":"fp8","weight_block_size":[128,128],"fmt":"e5m2"})",
                "e4m3"},
        Refusal{"quantization_config",
                R"({"quant_method":"fp8","weight_block_size":[128,128],"store_dtype":"nvfp4"})", "nvfp4"},
        Refusal{
            "quantization_config",
            R"({"quant_method":"fp8","weight_block_size":[128,128],"store_dtype":"mxfp4","mxfp4_block_size":16})",
            "mxfp4_block_size"},
        Refusal{"quantization_config",
                R"({"quant_method":"fp8","weight_block_size":[128,128],"mxfp4_block_size":32})",
                "store_dtype"},
        Refusal{"quantization_config",
                R"({"quant_method":"fp8","weight_block_size":[128,128],"activation_scheme":"static"})",
                "dynamic"},
        Refusal{
            "quantization_config",
            R"({"quant_method":"fp8","weight_block_size":[128,128],"ignored_layers":["model.layers.1.mlp.experts.0.up_proj"]})",
            "experts"}));

TEST(Config, HeadDimsMustSuitTheKernels) {
  json::object config = read_fixture("v2_6_flash");
  config["head_dim"] = 200;
  config["swa_head_dim"] = 200;
  const auto result = parse(config);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("head_dim 200"));
}

TEST(Config, BothPatternNamesMayStandTogetherWhenTheyAgree) {
  json::object config = read_fixture("v2_6_flash");
  json::array types;
  for (const json::value& entry : config["hybrid_layer_pattern"].as_array()) {
    types.emplace_back(entry.as_int64() == 0 ? "full_attention" : "sliding_attention");
  }
  config["layer_types"] = types;
  EXPECT_TRUE(parse(config));
  config["layer_types"].as_array()[3] = "full_attention";
  const auto result = parse(config);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, AllOf(HasSubstr("hybrid_layer_pattern"), HasSubstr("layer_types")));
}

TEST(Config, TransformersFormRefusesItsOwnContradictions) {
  const auto text =
      read_file(std::string(MIMO_SOURCE_DIR) + "/tests/golden/v2flash_tiny/config.json", 1 << 20);
  ASSERT_TRUE(text);
  const json::object good = json::parse(*text).as_object();
  ASSERT_TRUE(parse(good));
  json::object config = good;
  config["mlp_layer_types"].as_array()[1] = "moe";
  auto result = parse(config);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("mlp_layer_types[1]"));
  config = good;
  config["rope_theta"] = 1e7;
  result = parse(config);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message,
              AllOf(HasSubstr("rope_theta"), HasSubstr("rope_parameters.full_attention")));
  config = good;
  config.erase("rope_parameters");
  EXPECT_FALSE(parse(config));
}

TEST(Config, UnknownKeysAreWarningsAndKnownOnesAreNot) {
  json::object config = read_fixture("v2_6_flash");
  config["swiglu_limit"] = 7.0;
  config["vision_tower_anything"] = 1;
  config["quantization_config"].as_object()["group_size"] = 64;
  const auto result = parse(config);
  ASSERT_TRUE(result) << result.error().message;
  ASSERT_EQ(result->warnings.size(), 2u);
  EXPECT_THAT(result->warnings, ::testing::Contains(HasSubstr("swiglu_limit")));
  EXPECT_THAT(result->warnings, ::testing::Contains(HasSubstr("group_size")));
}

TEST(Config, NullMeansAbsent) {
  json::object config = read_fixture("v2_6_flash");
  for (const char* key :
       {"n_group", "quantization_config", "pad_token_id", "eos_token_id", "moe_router_dtype",
        "rope_parameters", "num_nextn_predict_layers", "attention_projection_layout"}) {
    config[key] = nullptr;
  }
  const auto result = parse(config);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->dense_format, WeightFormat::kBF16);
  EXPECT_EQ(result->expert_format, WeightFormat::kBF16);
  EXPECT_FALSE(result->fused_qkv);
  EXPECT_EQ(result->mtp_heads, -1);
  EXPECT_TRUE(result->eos_token_ids.empty());
}

TEST(Config, NoMoeLayerNeedsNoExpertFields) {
  json::object config = read_fixture("v2_6_flash");
  for (json::value& entry : config["moe_layer_freq"].as_array()) entry = 0;
  for (const char* key : {"n_routed_experts", "moe_intermediate_size", "num_experts_per_tok"})
    config.erase(key);
  const auto result = parse(config);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->experts, 0);
}

TEST(Config, NotJsonOrNotAnObject) {
  EXPECT_FALSE(parse_config("", "config.json"));
  EXPECT_FALSE(parse_config("[]", "config.json"));
  EXPECT_FALSE(parse_config("{\"hidden_size\": 1, \"hidden_size\": 2}", "config.json"));
}

TEST(LoadConfig, StopIdsOfBothFilesTogether) {
  testing::TempDir dir;
  const json::object config = read_fixture("v2_6_flash");
  testing::write_text(dir.file("config.json"), json::serialize(config));
  testing::write_text(dir.file("generation_config.json"),
                      R"({"eos_token_id": [151643, 151645, 151672], "top_p": 0.95})");
  const auto both = load_config(dir.path());
  ASSERT_TRUE(both) << both.error().message;
  EXPECT_EQ(both->eos_token_ids, (std::vector<int>{151645, 151643, 151672}));
  testing::write_text(dir.file("generation_config.json"), R"({"eos_token_id": "x"})");
  const auto bad = load_config(dir.path());
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().message, AllOf(HasSubstr("generation_config.json"), HasSubstr("eos_token_id")));
}

TEST(LoadConfig, MissingFileIsNamed) {
  testing::TempDir dir;
  const auto result = load_config(dir.path());
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(result.error().message, HasSubstr("config.json"));
}

}  // namespace
}  // namespace mimo
