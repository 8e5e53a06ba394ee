// dflash/config.json: the forms that are out there, and what is refused with which words.

#include "checkpoint/dflash_config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>

#include "core/json.h"
#include "support/golden.h"
#include "support/tiny_drafter.h"

namespace mimo {
namespace {

using namespace mimo::testing;

ModelConfig target() {
  static const ModelConfig config = [] {
    Result<ModelConfig> loaded = load_config(golden_directory("v26_tiny"));
    if (!loaded) throw std::runtime_error(loaded.error().message);
    return *loaded;
  }();
  return config;
}

Result<DFlashConfig> parse(const json::object& fields, const ModelConfig& of = target()) {
  return parse_dflash_config(json::serialize(fields), "dflash/config.json", of);
}

json::object mimo_config() {
  static const json::object config = TinyDrafter(DrafterShape{.layers = 2, .window = 1024}).config;
  return config;
}
json::object& nested(json::object& config) { return config["dflash_config"].as_object(); }

// The error of a changed config; empty when it was accepted.
std::string refused(const std::function<void(json::object&)>& change) {
  json::object config = mimo_config();
  change(config);
  const Result<DFlashConfig> parsed = parse(config);
  return parsed ? "" : parsed.error().message;
}

TEST(DFlashConfig, ReadsTheReleasedForm) {
  const Result<DFlashConfig> config = parse(mimo_config());
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->hidden, 256);
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->q_heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->rotary_dims, 64);
  EXPECT_EQ(config->rope_theta, 10000.0f);
  EXPECT_EQ(config->norm_eps, 1e-6f);
  EXPECT_EQ(config->value_scale, 0.612f);
  EXPECT_TRUE(config->sinks);
  EXPECT_EQ(config->block, 8);
  EXPECT_EQ(config->mask_token_id, 1023);
  EXPECT_EQ(config->target_layer_ids, (std::vector<int>{0, 3, 6}));
  ASSERT_EQ(config->attention.size(), 2u);
  for (const DFlashConfig::Layer& layer : config->attention) {
    EXPECT_EQ(layer.window, 1024);
    EXPECT_FALSE(layer.causal);
  }
  EXPECT_EQ(config->widest_window(), 1024);
  EXPECT_TRUE(config->warnings.empty()) << config->warnings.front();
}

// V2.5: no layer types, the window and the sinks in dflash_config, and the target's rotary base to be ignored.
TEST(DFlashConfig, ReadsTheOlderForm) {
  json::object config = mimo_config();
  for (const char* key :
       {"layer_types", "use_sliding_window", "is_causal", "add_swa_attention_sink_bias", "sliding_window"}) {
    config.erase(key);
  }
  nested(config)["use_swa"] = true;
  nested(config)["swa_window_size"] = 512;
  nested(config)["backbone_rotary_base"] = 5000000;
  const Result<DFlashConfig> parsed = parse(config);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->widest_window(), 512);
  EXPECT_FALSE(parsed->attention[0].causal);
  EXPECT_TRUE(parsed->sinks);
  EXPECT_EQ(parsed->rope_theta, 10000.0f);
  EXPECT_TRUE(parsed->warnings.empty());
}

// Trap 49: a released file has a trailing comma.
TEST(DFlashConfig, ReadsOverTrailingCommas) {
  std::string text = json::serialize(mimo_config());
  text.insert(text.rfind('}'), 1, ',');
  text.insert(text.find("[\"DFlash") + 1 + std::string("\"DFlashDraftModel\"").size(), 1, ',');
  const Result<DFlashConfig> parsed = parse_dflash_config(text, "config.json", target());
  EXPECT_TRUE(parsed) << parsed.error().message;
}

TEST(DFlashConfig, GoldenDrafterIsPlain) {
  const Result<DFlashConfig> config = load_dflash_config(golden_directory("v26_tiny") + "/dflash", target());
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->rotary_dims, 128);
  EXPECT_EQ(config->value_scale, 1.0f);
  EXPECT_FALSE(config->sinks);
  EXPECT_EQ(config->widest_window(), 0);
  EXPECT_EQ(config->target_layer_ids, (std::vector<int>{0, 2, 5}));
}

TEST(DFlashConfig, KeysMayStandAtTheTop) {
  json::object config = mimo_config();
  for (const char* key : {"target_layer_ids", "mask_token_id", "block_size", "attention_value_scale"}) {
    config[key] = nested(config)[key];
  }
  config.erase("dflash_config");
  config["block_size"] = 16;
  const Result<DFlashConfig> parsed = parse(config);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->block, 16);
  EXPECT_EQ(parsed->value_scale, 0.612f);
  // Nested wins.
  json::object both = mimo_config();
  both["block_size"] = 16;
  both["mask_token_id"] = 5;
  EXPECT_EQ(parse(both)->block, 8);
  EXPECT_EQ(parse(both)->mask_token_id, 1023);
  EXPECT_TRUE(parse(both)->warnings.empty());
}

TEST(DFlashConfig, CausalityRule) {
  const auto causal = [](const std::function<void(json::object&)>& change) {
    json::object config = mimo_config();
    config.erase("is_causal");
    change(config);
    const Result<DFlashConfig> parsed = parse(config);
    EXPECT_TRUE(parsed) << parsed.error().message;
    return std::vector<bool>{parsed->attention[0].causal, parsed->attention[1].causal};
  };
  using Layers = std::vector<bool>;
  const json::array mixed = {"sliding_attention", "full_attention"};
  EXPECT_EQ(causal([](json::object&) {}), (Layers{true, true}));  // the legacy reading of sliding layers
  EXPECT_EQ(causal([&](json::object& c) { c["layer_types"] = mixed; }), (Layers{true, false}));
  EXPECT_EQ(causal([](json::object& c) { nested(c)["causal"] = false; }), (Layers{false, false}));
  EXPECT_EQ(causal([](json::object& c) {
              c["is_causal"] = true;
              nested(c)["causal"] = false;
            }),
            (Layers{true, true}));
  json::object config = mimo_config();
  config["layer_types"] = mixed;
  const Result<DFlashConfig> parsed = parse(config);
  EXPECT_EQ(parsed->attention[0].window, 1024);
  EXPECT_EQ(parsed->attention[1].window, 0);
  EXPECT_EQ(parsed->widest_window(), 0);
  // use_swa forces a window on every layer.
  nested(config)["use_swa"] = true;
  EXPECT_EQ(parse(config)->attention[1].window, 1024);
}

TEST(DFlashConfig, DefaultTaps) {
  const auto taps = [](int draft_layers, int target_layers) {
    json::object config = TinyDrafter(DrafterShape{.layers = draft_layers}).config;
    nested(config).erase("target_layer_ids");
    config.erase("num_target_layers");
    ModelConfig of = target();
    of.layers = target_layers;
    const Result<DFlashConfig> parsed = parse(config, of);
    return parsed ? parsed->target_layer_ids : std::vector<int>{-1};
  };
  EXPECT_EQ(taps(5, 36), (std::vector<int>{1, 9, 17, 25, 33}));
  EXPECT_EQ(taps(1, 36), (std::vector<int>{18}));
  EXPECT_EQ(taps(3, 7), (std::vector<int>{1, 2, 4}));  // 2.5 rounds to even
  EXPECT_EQ(taps(2, 3), (std::vector<int>{-1}));
}

TEST(DFlashConfig, Transformers5RopeForm) {
  json::object config = mimo_config();
  config.erase("rope_theta");
  config.erase("partial_rotary_factor");
  config["rope_parameters"] =
      json::object{{"rope_theta", 20000.0}, {"rope_type", "default"}, {"partial_rotary_factor", 0.25}};
  const Result<DFlashConfig> parsed = parse(config);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->rope_theta, 20000.0f);
  EXPECT_EQ(parsed->rotary_dims, 32);
}

TEST(DFlashConfig, RefusesByName) {
  const auto expect = [](const std::function<void(json::object&)>& change, const std::string& words) {
    const std::string message = refused(change);
    EXPECT_NE(message.find(words), std::string::npos)
        << "\"" << message << "\" should say \"" << words << "\"";
    EXPECT_NE(message.find("dflash/config.json"), std::string::npos) << message;
  };
  expect([](json::object& c) { c["v_head_dim"] = 64; }, "v_head_dim is 64, expected 128");
  expect(
      [](json::object& c) {
        c["rope_scaling"] = json::object{{"type", "yarn"}, {"factor", 4.0}};
      },
      "rope_scaling is");
  expect([](json::object& c) { c.erase("rope_theta"); }, "rope_theta is missing");
  expect([](json::object& c) { c["hidden_act"] = "gelu"; }, "hidden_act is \"gelu\", expected \"silu\"");
  expect([](json::object& c) { c["sliding_window"] = 7; },
         "sliding_window is 7, expected at least block_size 8");
  expect([](json::object& c) { c.erase("sliding_window"); }, "sliding_window is missing");
  expect(
      [](json::object& c) {
        nested(c)["target_layer_ids"] = json::array{0, 7};
      },
      "target_layer_ids is [0,7], expected layer numbers from 0 to 6");
  expect([](json::object& c) { nested(c)["target_layer_ids"] = json::array{-1}; },
         "target_layer_ids is [-1]");
  expect([](json::object& c) { nested(c)["target_layer_ids"] = json::array{}; }, "target_layer_ids is []");
  expect([](json::object& c) { c["target_hidden_size"] = 512; }, "target_hidden_size is 512, expected 256");
  expect([](json::object& c) { c["hidden_size"] = 512; },
         "hidden_size is 512, expected 256, as in the target");
  expect([](json::object& c) { c["vocab_size"] = 2048; }, "vocab_size is 2048, expected 1024");
  expect([](json::object& c) { c["num_target_layers"] = 8; }, "num_target_layers is 8, expected 7");
  expect([](json::object& c) { c["architectures"] = json::array{"DFlash2DraftModel"}; }, "architectures is");
  expect([](json::object& c) { c.erase("architectures"); }, "architectures is missing");
  expect([](json::object& c) { c["attention_bias"] = true; }, "attention_bias is true, expected false");
  expect([](json::object& c) { c["num_key_value_heads"] = 3; },
         "num_key_value_heads is 3, expected a divisor");
  expect([](json::object& c) { c["layer_types"] = json::array{"full_attention"}; }, "layer_types");
  expect(
      [](json::object& c) {
        c["layer_types"] = json::array{"sliding_attention", "linear"};
      },
      "layer_types");
  expect([](json::object& c) { c.erase("layer_types"); }, "use_sliding_window is true, but neither");
  expect([](json::object& c) { nested(c).erase("mask_token_id"); }, "mask_token_id is missing");
  expect([](json::object& c) { nested(c)["mask_token_id"] = 1024; }, "mask_token_id is 1024");
  expect(
      [](json::object& c) {
        nested(c).erase("block_size");
        c.erase("block_size");
      },
      "block_size is missing");
  expect([](json::object& c) { nested(c)["block_size"] = 1; }, "block_size is 1");
  expect([](json::object& c) { c["add_swa_attention_sink_bias"] = false; }, "contradicts");
  expect([](json::object& c) { c["dflash_config"] = 3; }, "dflash_config is 3, expected an object");
  expect([](json::object& c) { c["partial_rotary_factor"] = 0.001; }, "partial_rotary_factor");
  EXPECT_EQ(refused([](json::object& c) { c["rope_scaling"] = nullptr; }), "");
  EXPECT_EQ(refused([](json::object& c) { c["rope_scaling"] = json::object{{"rope_type", "default"}}; }), "");
  EXPECT_EQ(refused([](json::object& c) { c["v_head_dim"] = 128; }), "");
  EXPECT_EQ(refused([](json::object& c) { c["sliding_window"] = 8; }), "");
}

TEST(DFlashConfig, UnknownKeysAreMentioned) {
  json::object config = mimo_config();
  config["something_new"] = 1;
  nested(config)["conv_kernel_size"] = 2;
  const Result<DFlashConfig> parsed = parse(config);
  ASSERT_TRUE(parsed);
  ASSERT_EQ(parsed->warnings.size(), 2u);
  EXPECT_NE(parsed->warnings[0].find("something_new"), std::string::npos);
  EXPECT_NE(parsed->warnings[1].find("conv_kernel_size"), std::string::npos);
}

TEST(DFlashConfig, TheBenchmarksDrafterHasTheReleasedSize) {
  const std::string configs = MIMO_SOURCE_DIR "/bench/configs/";
  const auto text = [&](const char* name) {
    std::ifstream file(configs + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const Result<ModelConfig> flash = parse_config(text("v26-flash-12.json"), "v26-flash-12.json");
  ASSERT_TRUE(flash) << flash.error().message;
  const Result<DFlashConfig> parsed =
      parse_dflash_config(text("v26-flash-12-dflash.json"), "v26-flash-12-dflash.json", *flash);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_TRUE(parsed->warnings.empty());
  EXPECT_EQ(parsed->parameters(), 1468057152u);  // of V2.6-Flash's, vectors included
  EXPECT_EQ(parsed->block, 8);
  EXPECT_EQ(parsed->widest_window(), 1024);
}

TEST(DFlashConfig, MissingFileIsNamed) {
  const Result<DFlashConfig> parsed = load_dflash_config("/nonexistent/dflash", target());
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message.find("/nonexistent/dflash/config.json"), std::string::npos);
}

}  // namespace
}  // namespace mimo
