#include "support/tiny_drafter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <stdexcept>

#include "core/number_formats.h"
#include "support/checkpoint_writer.h"

namespace mimo::testing {
namespace {

void put(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

void put_text(std::string& out, const std::string& text) {
  out.push_back('X');
  put(out, text.size(), 4);
  out += text;
}

void put_integer(std::string& out, std::int64_t value) {
  if (value >= 0 && value < 256) {
    out.push_back('K');
    put(out, static_cast<std::uint64_t>(value), 1);
  } else if (value >= 0 && value < 65536) {
    out.push_back('M');
    put(out, static_cast<std::uint64_t>(value), 2);
  } else {
    out.push_back('J');
    put(out, static_cast<std::uint64_t>(value), 4);
  }
}

void put_tuple(std::string& out, std::size_t size) {
  out.push_back(static_cast<char>(0x84 + size));  // TUPLE1, TUPLE2
}

PlainTensor bf16_tensor(std::vector<std::int64_t> shape, const std::vector<float>& values) {
  PlainTensor tensor{"BF16", std::move(shape), std::vector<std::uint8_t>(values.size() * 2)};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits = float_to_bf16(values[i]);
    std::memcpy(tensor.bytes.data() + 2 * i, &bits, 2);
  }
  return tensor;
}

}  // namespace

std::vector<std::uint8_t> torch_archive(const std::vector<std::pair<std::string, std::string>>& entries,
                                        std::size_t padding) {
  std::string out;
  std::string directory;
  for (const auto& [name, data] : entries) {
    const std::size_t at = out.size();
    std::string shared;  // of both headers, from the version needed on
    put(shared, 20, 2);
    put(shared, 0, 2);
    put(shared, 0, 2);  // stored
    put(shared, 0, 4);  // time and date
    put(shared, 0, 4);  // CRC: not checked by readers of weights
    put(shared, data.size(), 4);
    put(shared, data.size(), 4);
    put(shared, name.size(), 2);
    out += "PK\3\4" + shared;
    put(out, padding, 2);
    out += name + std::string(padding, 'Z') + data;
    directory += "PK\1\2";
    put(directory, 20, 2);
    directory += shared;
    put(directory, 0, 2);  // extra
    put(directory, 0, 2);  // comment
    put(directory, 0, 2);  // disk
    put(directory, 0, 2);  // attributes
    put(directory, 0, 4);
    put(directory, at, 4);
    directory += name;
  }
  const std::size_t begin = out.size();
  out += directory;
  out += "PK\5\6";
  put(out, 0, 4);
  put(out, entries.size(), 2);
  put(out, entries.size(), 2);
  put(out, directory.size(), 4);
  put(out, begin, 4);
  put(out, 0, 2);
  return {out.begin(), out.end()};
}

std::string mask_pickle(int id, const std::string& storage, const std::vector<int>& shape) {
  std::string out("\x80\x02", 2);
  if (id >= 0) {
    out += "}(";
    put_text(out, "mask_token_id");
    put_integer(out, id);
    put_text(out, "embedding");
  }
  int count = 1;
  for (const int dim : shape) count *= dim;
  out += "ctorch._utils\n_rebuild_tensor_v2\n((";
  put_text(out, "storage");
  out += "ctorch\n" + storage + "\n";
  put_text(out, "0");
  put_text(out, "cpu");
  put_integer(out, count);
  out += "tQ";
  put_integer(out, 0);
  for (const int dim : shape) put_integer(out, dim);
  put_tuple(out, shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) put_integer(out, i + 1 == shape.size() ? 1 : shape.back());
  put_tuple(out, shape.size());
  out +=
      "\x89"
      "ccollections\nOrderedDict\n)RtR";
  if (id >= 0) out += "u";
  out += ".";
  return out;
}

std::vector<std::uint8_t> mask_file(int id, const std::vector<float>& values) {
  std::string data;
  for (const float value : values) put(data, float_to_bf16(value), 2);
  return torch_archive(
      {{"mask_embedding/data.pkl", mask_pickle(id, "BFloat16Storage", {static_cast<int>(values.size())})},
       {"mask_embedding/byteorder", "little"},
       {"mask_embedding/data/0", data},
       {"mask_embedding/version", "3\n"}},
      13);
}

TinyDrafter::TinyDrafter(const DrafterShape& s) : shape(s) {
  std::mt19937_64 random(s.seed);
  const auto normal = [&](std::size_t count, float mean, float deviation) {
    std::normal_distribution<float> distribution(mean, deviation);
    std::vector<float> values(count);
    for (float& value : values) value = distribution(random);
    return values;
  };
  const auto matrix = [&](const std::string& name, int rows, int cols) {
    tensors[name] =
        bf16_tensor({rows, cols}, normal(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols),
                                         0.0f, 1.0f / std::sqrt(static_cast<float>(cols))));
  };
  const auto gain = [&](const std::string& name, int size, float mean) {
    tensors[name] = bf16_tensor({size}, normal(static_cast<std::size_t>(size), mean, 0.2f));
  };
  const int q = s.q_heads * s.head_dim;
  const int kv = s.kv_heads * s.head_dim;
  matrix("fc.weight", s.hidden, static_cast<int>(s.taps.size()) * s.hidden);
  gain("hidden_norm.weight", s.hidden, 1.0f);
  gain("norm.weight", s.hidden, 1.0f);
  for (int i = 0; i < s.layers; ++i) {
    const std::string at = "layers." + std::to_string(i) + ".";
    gain(at + "input_layernorm.weight", s.hidden, 1.0f);
    gain(at + "post_attention_layernorm.weight", s.hidden, 1.0f);
    matrix(at + "self_attn.q_proj.weight", q, s.hidden);
    matrix(at + "self_attn.k_proj.weight", kv, s.hidden);
    matrix(at + "self_attn.v_proj.weight", kv, s.hidden);
    matrix(at + "self_attn.o_proj.weight", s.hidden, q);
    gain(at + "self_attn.q_norm.weight", s.head_dim, 1.5f);
    gain(at + "self_attn.k_norm.weight", s.head_dim, 1.5f);
    if (s.sinks) {
      tensors[at + "self_attn.attention_sink_bias"] =
          bf16_tensor({s.q_heads}, normal(static_cast<std::size_t>(s.q_heads), 2.0f, 1.5f));
    }
    matrix(at + "mlp.gate_proj.weight", s.intermediate, s.hidden);
    matrix(at + "mlp.up_proj.weight", s.intermediate, s.hidden);
    matrix(at + "mlp.down_proj.weight", s.hidden, s.intermediate);
  }
  mask = normal(static_cast<std::size_t>(s.hidden), 0.0f, 1.0f);
  for (float& value : mask) value = round_to_bf16(value);
  mask_bytes = mask_file(s.mask_token_id, mask);

  json::array types;
  for (int i = 0; i < s.layers; ++i)
    types.emplace_back(s.window > 0 ? "sliding_attention" : "full_attention");
  json::array ids;
  for (const int id : s.taps) ids.emplace_back(id);
  config = {{"architectures", json::array{"DFlashDraftModel"}},
            {"model_type", "qwen3"},
            {"hidden_size", s.hidden},
            {"intermediate_size", s.intermediate},
            {"num_hidden_layers", s.layers},
            {"num_attention_heads", s.q_heads},
            {"num_key_value_heads", s.kv_heads},
            {"head_dim", s.head_dim},
            {"partial_rotary_factor", s.rotary_factor},
            {"rope_theta", s.rope_theta},
            {"rms_norm_eps", 1e-6},
            {"block_size", s.block},
            {"num_target_layers", s.target_layers},
            {"target_hidden_size", s.hidden},
            {"vocab_size", s.vocab},
            {"max_position_embeddings", 1048576},
            {"hidden_act", "silu"},
            {"attention_bias", false},
            {"tie_word_embeddings", false},
            {"is_causal", s.causal},
            {"layer_types", types},
            {"use_sliding_window", s.window > 0},
            {"add_swa_attention_sink_bias", s.sinks},
            {"dflash_config", json::object{{"target_layer_ids", ids},
                                           {"mask_token_id", s.mask_token_id},
                                           {"block_size", s.block},
                                           {"attention_value_scale", s.value_scale},
                                           {"attention_sink_bias", s.sinks},
                                           {"num_anchors", 4096},
                                           {"loss_decay_gamma", 7.0}}}};
  if (s.window > 0) config["sliding_window"] = s.window;
}

std::vector<float> TinyDrafter::values(const std::string& name) const {
  const PlainTensor& tensor = tensors.at(name);
  if (tensor.dtype != "BF16") throw std::runtime_error(name + " is not BF16");
  std::vector<float> out(tensor.bytes.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + 2 * i, 2);
    out[i] = bf16_to_float(bits);
  }
  return out;
}

void TinyDrafter::set(const std::string& name, const std::vector<float>& values) {
  tensors[name] = bf16_tensor(tensors.at(name).shape, values);
}

void TinyDrafter::write(const std::string& directory, const std::string& file) const {
  write_text(directory + "/config.json", json::serialize(config));
  write_safetensors(directory + "/" + file, tensors);
  if (mask_bytes.empty()) return;
  std::ofstream out(directory + "/mask_embedding.pt", std::ios::binary);
  out.write(reinterpret_cast<const char*>(mask_bytes.data()),
            static_cast<std::streamsize>(mask_bytes.size()));
}

}  // namespace mimo::testing
