#include "support/checkpoint_writer.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>

namespace mimo::testing {
namespace {

constexpr int kLayers = 3;
constexpr bool kWindowLayer[kLayers] = {false, true, false};
constexpr bool kMoeLayer[kLayers] = {false, true, true};

class Builder {
 public:
  Builder(const TinyModel& model, std::map<std::string, PlainTensor>& out)
      : model_(model), out_(out), random_(model.seed) {}

  void bf16(const std::string& name, std::vector<std::int64_t> shape) {
    PlainTensor tensor{"BF16", std::move(shape), {}};
    for (std::int64_t i = 0; i < count(tensor.shape); ++i) {
      const auto bits = static_cast<unsigned>(random_());
      tensor.bytes.push_back(static_cast<std::uint8_t>(bits));
      // Exponents 2^-5 to 2^2, either sign.
      tensor.bytes.push_back(static_cast<std::uint8_t>(0x3D + (bits >> 8) % 4 + ((bits >> 16) % 2) * 0x80));
    }
    out_[name] = std::move(tensor);
  }

  void f32(const std::string& name, std::vector<std::int64_t> shape) {
    PlainTensor tensor{"F32", std::move(shape), {}};
    std::normal_distribution<float> normal(0.0f, 0.01f);
    for (std::int64_t i = 0; i < count(tensor.shape); ++i) {
      const float value = normal(random_);
      std::uint8_t bytes[4];
      std::memcpy(bytes, &value, 4);
      tensor.bytes.insert(tensor.bytes.end(), bytes, bytes + 4);
    }
    out_[name] = std::move(tensor);
  }

  void raw(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape, unsigned low,
           unsigned high) {
    PlainTensor tensor{dtype, std::move(shape), {}};
    for (std::int64_t i = 0; i < count(tensor.shape); ++i) {
      auto byte = static_cast<std::uint8_t>(low + random_() % (high - low + 1));
      if (dtype == "F8_E4M3" && (byte & 0x7F) == 0x7F) byte ^= 1;
      tensor.bytes.push_back(byte);
    }
    out_[name] = std::move(tensor);
  }

  void matrix(const std::string& module, TinyModel::Format format, std::int64_t rows, std::int64_t cols,
              int chunks = 1) {
    switch (format) {
      case TinyModel::Format::kBF16:
        bf16(module + ".weight", {rows, cols});
        return;
      case TinyModel::Format::kFp8:
        raw(module + ".weight", "F8_E4M3", {rows, cols}, 0, 255);
        f32(module + ".weight_scale_inv", {chunks * ((rows / chunks + 127) / 128), (cols + 127) / 128});
        return;
      case TinyModel::Format::kMxfp4:
        raw(module + ".weight", "U8", {rows, cols / 2}, 0, 255);
        raw(module + ".weight_scale", "U8", {rows, cols / 32}, 0x76, 0x7D);
        return;
    }
  }

  void attention(const std::string& prefix, int kv_heads, bool sink) {
    const std::int64_t q = std::int64_t{model_.q_heads} * model_.qk_dim;
    const std::int64_t k = std::int64_t{kv_heads} * model_.qk_dim;
    const std::int64_t v = std::int64_t{kv_heads} * model_.v_dim;
    if (model_.fused) {
      matrix(prefix + "qkv_proj", model_.dense, q + k + v, model_.hidden, model_.stored_chunks);
    } else {
      matrix(prefix + "q_proj", model_.dense, q, model_.hidden);
      matrix(prefix + "k_proj", model_.dense, k, model_.hidden);
      matrix(prefix + "v_proj", model_.dense, v, model_.hidden);
    }
    bf16(prefix + "o_proj.weight", {model_.hidden, std::int64_t{model_.q_heads} * model_.v_dim});
    if (sink) bf16(prefix + "attention_sink_bias", {model_.q_heads});
  }

  void mlp(const std::string& prefix, TinyModel::Format format, std::int64_t width) {
    matrix(prefix + "gate_proj", format, width, model_.hidden);
    matrix(prefix + "up_proj", format, width, model_.hidden);
    matrix(prefix + "down_proj", format, model_.hidden, width);
  }

 private:
  static std::int64_t count(const std::vector<std::int64_t>& shape) {
    std::int64_t n = 1;
    for (const std::int64_t dim : shape) n *= dim;
    return n;
  }

  const TinyModel& model_;
  std::map<std::string, PlainTensor>& out_;
  std::mt19937_64 random_;
};

json::object tiny_config(const TinyModel& model) {
  json::object config = {
      {"architectures", json::array({"MiMoV2ForCausalLM"})},
      {"model_type", "mimo_v2"},
      {"vocab_size", model.vocab},
      {"hidden_size", model.hidden},
      {"intermediate_size", model.intermediate},
      {"num_hidden_layers", kLayers},
      {"num_attention_heads", model.q_heads},
      {"swa_num_attention_heads", model.q_heads},
      {"num_key_value_heads", model.full_kv_heads},
      {"swa_num_key_value_heads", model.window_kv_heads},
      {"head_dim", model.qk_dim},
      {"swa_head_dim", model.qk_dim},
      {"v_head_dim", model.v_dim},
      {"swa_v_head_dim", model.v_dim},
      {"partial_rotary_factor", 0.334},
      {"rope_theta", 10000000},
      {"swa_rope_theta", 10000},
      {"rope_scaling", nullptr},
      {"sliding_window", 16},
      {"sliding_window_size", 16},
      {"attention_chunk_size", 16},
      {"attention_value_scale", 0.707},
      {"add_swa_attention_sink_bias", true},
      {"add_full_attention_sink_bias", false},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"hybrid_layer_pattern", json::array({0, 1, 0})},
      {"moe_layer_freq", json::array({0, 1, 1})},
      {"moe_intermediate_size", model.moe_intermediate},
      {"n_routed_experts", model.expert_count},
      {"num_experts_per_tok", 2},
      {"n_shared_experts", nullptr},
      {"scoring_func", "sigmoid"},
      {"topk_method", "noaux_tc"},
      {"n_group", 1},
      {"topk_group", 1},
      {"norm_topk_prob", true},
      {"routed_scaling_factor", nullptr},
      {"layernorm_epsilon", 1e-6},
      {"hidden_act", "silu"},
      {"tie_word_embeddings", false},
      {"max_position_embeddings", 4096},
      {"eos_token_id", 2},
  };
  if (model.fused) config["attention_projection_layout"] = "fused_qkv";
  if (!model.router_f32) config["moe_router_dtype"] = "bfloat16";
  if (model.dense == TinyModel::Format::kFp8) {
    json::array ignored;
    for (int i = 0; i < kLayers; ++i) {
      ignored.emplace_back(json::string(fmt::format("model.layers.{}.self_attn.o_proj", i)));
    }
    ignored.emplace_back("model.decoder.self_attn.o_proj");
    json::object quantization = {{"quant_method", "fp8"},
                                 {"fmt", "e4m3"},
                                 {"activation_scheme", "dynamic"},
                                 {"weight_block_size", json::array({128, 128})},
                                 {"ignored_layers", ignored}};
    if (model.experts == TinyModel::Format::kMxfp4) {
      quantization["store_dtype"] = "mxfp4";
      quantization["mxfp4_block_size"] = 32;
    }
    config["quantization_config"] = quantization;
  }
  return config;
}

}  // namespace

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "mimo_test_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ec;
  std::filesystem::remove_all(path_, ec);
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!out) throw std::runtime_error("cannot write " + path);
}

void write_safetensors(const std::string& path, const std::map<std::string, PlainTensor>& tensors,
                       int misalign) {
  json::object header;
  header["__metadata__"] = json::object{{"format", "pt"}};
  std::size_t offset = 0;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = json::object{{"dtype", tensor.dtype},
                                {"shape", json::value_from(tensor.shape)},
                                {"data_offsets", json::array({offset, offset + tensor.bytes.size()})}};
    offset += tensor.bytes.size();
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  std::string text = json::serialize(header);
  while (text.size() % 8 != static_cast<std::size_t>(misalign)) text += ' ';
  std::string file(8, '\0');
  const std::uint64_t length = text.size();
  std::memcpy(file.data(), &length, 8);
  write_text(path, file + text + data);
}

TinyCheckpoint::TinyCheckpoint(const TinyModel& model) : config(tiny_config(model)) {
  Builder build(model, tensors);
  build.bf16("model.embed_tokens.weight", {model.vocab, model.hidden});
  build.bf16("lm_head.weight", {model.vocab, model.hidden});
  build.bf16("model.norm.weight", {model.hidden});
  for (int i = 0; i < kLayers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    build.bf16(prefix + "input_layernorm.weight", {model.hidden});
    build.bf16(prefix + "post_attention_layernorm.weight", {model.hidden});
    build.attention(prefix + "self_attn.", kWindowLayer[i] ? model.window_kv_heads : model.full_kv_heads,
                    kWindowLayer[i]);
    if (!kMoeLayer[i]) {
      build.mlp(prefix + "mlp.", model.dense, model.intermediate);
      continue;
    }
    if (model.router_f32) {
      build.f32(prefix + "mlp.gate.weight", {model.expert_count, model.hidden});
    } else {
      build.bf16(prefix + "mlp.gate.weight", {model.expert_count, model.hidden});
    }
    build.f32(prefix + "mlp.gate.e_score_correction_bias", {model.expert_count});
    for (int e = 0; e < model.expert_count; ++e) {
      build.mlp(fmt::format("{}mlp.experts.{}.", prefix, e), model.experts, model.moe_intermediate);
    }
  }
  for (int k = 0; k < model.mtp_heads; ++k) {
    const std::string prefix = fmt::format("model.mtp.layers.{}.", k);
    for (const char* norm : {"enorm", "hnorm", "input_layernorm", "pre_mlp_layernorm", "final_layernorm"}) {
      build.bf16(prefix + norm + ".weight", {model.hidden});
    }
    build.bf16(prefix + "eh_proj.weight", {model.hidden, 2 * model.hidden});
    build.attention(prefix + "self_attn.", model.window_kv_heads, true);
    build.mlp(prefix + "mlp.", model.dense, model.intermediate);
  }
}

void TinyCheckpoint::write(const std::string& directory, int shards) const {
  write_text(directory + "/config.json", json::serialize(config));
  if (shards == 0) {
    write_safetensors(directory + "/model.safetensors", tensors);
    return;
  }
  std::vector<std::map<std::string, PlainTensor>> parts(static_cast<std::size_t>(shards));
  json::object map;
  std::size_t next = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t shard = next++ % parts.size();  // a weight and its scale often land in different files
    parts[shard][name] = tensor;
    map[name] = fmt::format("model_part{}.safetensors", shard);
  }
  for (const auto& [name, file] : weight_map) map[name] = file;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    write_safetensors(fmt::format("{}/model_part{}.safetensors", directory, i), parts[i]);
  }
  json::object metadata;
  if (index_tp_size) metadata["tp_size"] = *index_tp_size;
  write_text(directory + "/model.safetensors.index.json",
             json::serialize(json::object{{"metadata", metadata}, {"weight_map", map}}));
}

}  // namespace mimo::testing
