// The drafter's tensors: every one needed, no other accepted, and the views hold the stored values.

#include "checkpoint/dflash_weights.h"

#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/mask_embedding.h"
#include "support/checkpoint_writer.h"
#include "support/golden.h"
#include "support/tiny_drafter.h"

namespace mimo {
namespace {

using namespace mimo::testing;

class DFlashWeightsTest : public ::testing::Test {
 protected:
  DFlashWeightsTest() : drafter_(DrafterShape{.intermediate = 48, .layers = 2}) {}

  Result<DFlashWeights> open() {
    drafter_.write(dir_.path());
    Result<ModelConfig> target = load_config(golden_directory("v26_tiny"));
    if (!target) return forward_error(target);
    Result<DFlashConfig> config = load_dflash_config(dir_.path(), *target);
    if (!config) return forward_error(config);
    return DFlashWeights::open(dir_.path(), *config);
  }
  void expect_refusal(const std::string& words) {
    const Result<DFlashWeights> weights = open();
    ASSERT_FALSE(weights) << words;
    EXPECT_NE(weights.error().message.find(words), std::string::npos) << weights.error().message;
    EXPECT_NE(weights.error().message.find("dflash_draft_model.safetensors"), std::string::npos)
        << weights.error().message;
  }
  void expect_matrix(const WeightView& view, std::vector<std::string> names) {
    std::vector<float> expected;
    for (const std::string& name : names) {
      const std::vector<float> part = drafter_.values(name);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_EQ(to_matrix(view).values, expected) << names.front();
  }

  TempDir dir_;
  TinyDrafter drafter_;
};

TEST_F(DFlashWeightsTest, ViewsHoldTheStoredValues) {
  const Result<DFlashWeights> weights = open();
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_EQ(drafter_.tensors.size(), 3u + 2 * 12);
  expect_matrix(weights->fc, {"fc.weight"});
  EXPECT_EQ(weights->fc.cols, 3 * 256);
  EXPECT_EQ(weights->hidden_norm, drafter_.values("hidden_norm.weight"));
  EXPECT_EQ(weights->norm, drafter_.values("norm.weight"));
  expect_matrix(weights->context_kv,
                {"layers.0.self_attn.k_proj.weight", "layers.0.self_attn.v_proj.weight",
                 "layers.1.self_attn.k_proj.weight", "layers.1.self_attn.v_proj.weight"});
  ASSERT_EQ(weights->layers.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const DFlashLayerWeights& layer = weights->layers[static_cast<std::size_t>(i)];
    const std::string at = "layers." + std::to_string(i) + ".";
    EXPECT_EQ(layer.input_norm, drafter_.values(at + "input_layernorm.weight"));
    EXPECT_EQ(layer.post_norm, drafter_.values(at + "post_attention_layernorm.weight"));
    EXPECT_EQ(layer.q_norm, drafter_.values(at + "self_attn.q_norm.weight"));
    EXPECT_EQ(layer.k_norm, drafter_.values(at + "self_attn.k_norm.weight"));
    EXPECT_EQ(layer.sinks, drafter_.values(at + "self_attn.attention_sink_bias"));
    expect_matrix(layer.qkv, {at + "self_attn.q_proj.weight", at + "self_attn.k_proj.weight",
                              at + "self_attn.v_proj.weight"});
    expect_matrix(layer.o_proj, {at + "self_attn.o_proj.weight"});
    expect_matrix(layer.gate, {at + "mlp.gate_proj.weight"});
    expect_matrix(layer.up, {at + "mlp.up_proj.weight"});
    expect_matrix(layer.down, {at + "mlp.down_proj.weight"});
  }
}

// C47: sinks are needed when the config says so, and only then; the error names the tensor.
TEST_F(DFlashWeightsTest, OneMissingSink) {
  drafter_.tensors.erase("layers.1.self_attn.attention_sink_bias");
  expect_refusal("tensor layers.1.self_attn.attention_sink_bias is missing");
}
TEST_F(DFlashWeightsTest, SinksThatNoConfigExplains) {
  drafter_.config["add_swa_attention_sink_bias"] = false;
  drafter_.config["dflash_config"].as_object()["attention_sink_bias"] = false;
  expect_refusal(
      "2 unexpected tensors for this config: layers.0.self_attn.attention_sink_bias, "
      "layers.1.self_attn.attention_sink_bias");
}

TEST_F(DFlashWeightsTest, EveryTensorIsNeeded) {
  const std::map<std::string, PlainTensor> all = drafter_.tensors;
  for (const auto& [name, tensor] : all) {
    drafter_.tensors = all;
    drafter_.tensors.erase(name);
    expect_refusal("tensor " + name + " is missing");
    drafter_.tensors = all;
    drafter_.tensors[name].shape.back() -= 1;
    const auto lost = tensor.shape.size() == 1 ? 2 : 2 * static_cast<std::size_t>(tensor.shape[0]);
    drafter_.tensors[name].bytes.resize(tensor.bytes.size() - lost);
    expect_refusal("tensor " + name + " has shape");
  }
}

TEST_F(DFlashWeightsTest, RefusesOtherTypesAndNames) {
  const std::map<std::string, PlainTensor> all = drafter_.tensors;
  drafter_.tensors["norm.weight"].dtype = "F16";
  expect_refusal("tensor norm.weight is F16, expected BF16");
  drafter_.tensors = all;
  drafter_.tensors["embed_tokens.weight"] = all.at("norm.weight");
  expect_refusal("1 unexpected tensor for this config: embed_tokens.weight");
  drafter_.tensors = all;
  drafter_.tensors["model.norm.weight"] = all.at("norm.weight");
  expect_refusal("tensor norm.weight is there twice");
  drafter_.tensors = all;
  drafter_.tensors["layers.0.self_attn.q_norm.weight"].bytes[1] = 0x7F;
  drafter_.tensors["layers.0.self_attn.q_norm.weight"].bytes[0] = 0xC0;
  expect_refusal("tensor layers.0.self_attn.q_norm.weight has a value that is not finite");
}

TEST_F(DFlashWeightsTest, PrefixAndFileNamesOfOtherPublishers) {
  std::map<std::string, PlainTensor> prefixed;
  for (const auto& [name, tensor] : drafter_.tensors) prefixed["model." + name] = tensor;
  const std::vector<float> norm = drafter_.values("norm.weight");
  drafter_.tensors = prefixed;
  {
    const Result<DFlashWeights> weights = open();
    ASSERT_TRUE(weights) << weights.error().message;
    EXPECT_EQ(weights->norm, norm);
  }
  // The index names the file.
  write_text(dir_.file("model.safetensors.index.json"), [&] {
    json::object map;
    for (const auto& [name, tensor] : prefixed) map[name] = "dflash_draft_model.safetensors";
    return json::serialize(json::object{{"weight_map", map}});
  }());
  const Result<DFlashWeights> indexed = open();
  ASSERT_TRUE(indexed) << indexed.error().message;
  EXPECT_EQ(indexed->norm, norm);
}

TEST_F(DFlashWeightsTest, PlainModelFileAndNoFile) {
  drafter_.write(dir_.path(), "model.safetensors");
  Result<ModelConfig> target = load_config(golden_directory("v26_tiny"));
  const Result<DFlashConfig> config = load_dflash_config(dir_.path(), *target);
  ASSERT_TRUE(DFlashWeights::open(dir_.path(), *config));
  const TempDir empty;
  const Result<DFlashWeights> none = DFlashWeights::open(empty.path(), *config);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("dflash_draft_model.safetensors"), std::string::npos);
}

TEST_F(DFlashWeightsTest, TruncatedFile) {
  drafter_.write(dir_.path());
  std::ifstream in(dir_.file("dflash_draft_model.safetensors"), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  write_text(dir_.file("dflash_draft_model.safetensors"), bytes.substr(0, bytes.size() / 2));
  Result<ModelConfig> target = load_config(golden_directory("v26_tiny"));
  const Result<DFlashConfig> config = load_dflash_config(dir_.path(), *target);
  EXPECT_FALSE(DFlashWeights::open(dir_.path(), *config));
}

TEST_F(DFlashWeightsTest, RandomOnesHaveEveryTensorOfTheConfig) {
  drafter_.write(dir_.path());
  const Result<ModelConfig> target = load_config(golden_directory("v26_tiny"));
  ASSERT_TRUE(target);
  const Result<DFlashConfig> config = load_dflash_config(dir_.path(), *target);
  ASSERT_TRUE(config) << config.error().message;
  const Result<DFlashWeights> stored = DFlashWeights::open(dir_.path(), *config);
  const Result<DFlashWeights> made = DFlashWeights::random(*config, 7);
  const Result<DFlashWeights> again = DFlashWeights::random(*config, 7);
  const Result<DFlashWeights> other = DFlashWeights::random(*config, 8);
  ASSERT_TRUE(stored && made && again && other);
  const auto expect_like = [&](const WeightView& view, const WeightView& like) {
    EXPECT_EQ(view.rows, like.rows) << view.name;
    EXPECT_EQ(view.cols, like.cols) << view.name;
    EXPECT_EQ(view.segments.size(), like.segments.size()) << view.name;
    double squares = 0;
    for (const float x : to_matrix(view).values) squares += static_cast<double>(x) * x;
    EXPECT_NEAR(squares / static_cast<double>(view.rows), 1.0, 0.1) << view.name;  // a row keeps the norm
  };
  expect_like(made->fc, stored->fc);
  expect_like(made->context_kv, stored->context_kv);
  EXPECT_EQ(made->norm.size(), stored->norm.size());
  ASSERT_EQ(made->layers.size(), stored->layers.size());
  for (std::size_t i = 0; i < made->layers.size(); ++i) {
    const DFlashLayerWeights& layer = made->layers[i];
    expect_like(layer.qkv, stored->layers[i].qkv);
    expect_like(layer.o_proj, stored->layers[i].o_proj);
    expect_like(layer.gate, stored->layers[i].gate);
    expect_like(layer.up, stored->layers[i].up);
    expect_like(layer.down, stored->layers[i].down);
    EXPECT_EQ(layer.sinks.size(), stored->layers[i].sinks.size());
    EXPECT_EQ(layer.q_norm.size(), stored->layers[i].q_norm.size());
    for (const float gain : layer.input_norm) EXPECT_NEAR(gain, 1.0f, 0.3f);
  }
  EXPECT_EQ(to_matrix(made->fc).values, to_matrix(again->fc).values);
  EXPECT_NE(to_matrix(made->fc).values, to_matrix(other->fc).values);
  // The context's keys are those of the layers.
  const PlainMatrix qkv = to_matrix(made->layers[0].qkv);
  EXPECT_EQ(to_matrix(made->context_kv).values[0], qkv.values[static_cast<std::size_t>(4 * 128 * 256)]);
}

TEST(RandomMaskEmbedding, IsAUnitNormal) {
  const std::vector<float> mask = random_mask_embedding(4096, 1);
  double sum = 0;
  double squares = 0;
  for (const float x : mask) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  EXPECT_NEAR(sum / 4096, 0, 0.08);
  EXPECT_NEAR(squares / 4096, 1, 0.1);
  EXPECT_EQ(mask, random_mask_embedding(4096, 1));
}

}  // namespace
}  // namespace mimo
