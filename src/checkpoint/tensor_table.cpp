#include "checkpoint/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace mimo {
namespace {

class TableBuilder {
 public:
  TableBuilder(const ModelConfig& config, const QkvLayout& layout) : config_(config), layout_(layout) {}

  void vector(std::string name, std::int64_t size, TensorGroup group, DType dtype = DType::kBF16) {
    // Small vectors are read into fp32, so either float type will do.
    add(std::move(name), dtype, dtype == DType::kBF16 ? DType::kF32 : DType::kBF16, {size, 0}, 1, group);
  }

  void matrix(const std::string& module, WeightFormat format, std::int64_t rows, std::int64_t cols,
              TensorGroup group, std::int64_t fp8_scale_rows = 0) {
    switch (format) {
      case WeightFormat::kF32:
      case WeightFormat::kBF16: {
        const DType dtype = format == WeightFormat::kF32 ? DType::kF32 : DType::kBF16;
        add(module + ".weight", dtype, dtype, {rows, cols}, 2, group);
        return;
      }
      case WeightFormat::kFp8:
        if (fp8_scale_rows == 0) fp8_scale_rows = fp8_blocks(rows);
        add(module + ".weight", DType::kF8E4M3, DType::kF8E4M3, {rows, cols}, 2, group);
        add(module + ".weight_scale_inv", DType::kF32, DType::kF32, {fp8_scale_rows, fp8_blocks(cols)}, 2,
            group);
        return;
      case WeightFormat::kMxfp4:
        // The E8M0 bytes are declared U8 in the releases; the dtype of that name holds the same bytes.
        add(module + ".weight", DType::kU8, DType::kU8, {rows, cols / 2}, 2, group);
        add(module + ".weight_scale", DType::kU8, DType::kF8E8M0, {rows, cols / kMxfp4Block}, 2, group);
        return;
    }
  }

  // `format_of` gives the stored format of a module of this block.
  template <class FormatOf>
  void attention(const std::string& prefix, const AttentionShape& shape, TensorGroup group,
                 FormatOf format_of) {
    const std::string base = prefix + "self_attn.";
    const std::int64_t hidden = config_.hidden;
    if (layout_.fused) {
      const QkvChunk chunk = qkv_chunk(shape, layout_.chunks);
      matrix(base + "qkv_proj", format_of("self_attn.qkv_proj"), chunk.rows() * layout_.chunks, hidden, group,
             fp8_blocks(chunk.rows()) * layout_.chunks);
    } else {
      matrix(base + "q_proj", format_of("self_attn.q_proj"), std::int64_t{shape.q_heads} * shape.qk_dim,
             hidden, group);
      matrix(base + "k_proj", format_of("self_attn.k_proj"), std::int64_t{shape.kv_heads} * shape.qk_dim,
             hidden, group);
      matrix(base + "v_proj", format_of("self_attn.v_proj"), std::int64_t{shape.kv_heads} * shape.v_dim,
             hidden, group);
    }
    matrix(base + "o_proj", format_of("self_attn.o_proj"), hidden, std::int64_t{shape.q_heads} * shape.v_dim,
           group);
    if (shape.sink) vector(base + "attention_sink_bias", shape.q_heads, group);
  }

  template <class FormatOf>
  void mlp(const std::string& prefix, std::int64_t width, TensorGroup group, FormatOf format_of) {
    const std::string base = prefix + "mlp.";
    matrix(base + "gate_proj", format_of("mlp.gate_proj"), width, config_.hidden, group);
    matrix(base + "up_proj", format_of("mlp.up_proj"), width, config_.hidden, group);
    matrix(base + "down_proj", format_of("mlp.down_proj"), config_.hidden, width, group);
  }

  void experts(const std::string& prefix) {
    const DType router = config_.router_format == WeightFormat::kF32 ? DType::kF32 : DType::kBF16;
    add(prefix + "mlp.gate.weight", router, router == DType::kF32 ? DType::kBF16 : DType::kF32,
        {config_.experts, config_.hidden}, 2, TensorGroup::kRouter);
    vector(prefix + "mlp.gate.e_score_correction_bias", config_.experts, TensorGroup::kRouter, DType::kF32);
    table_.reserve(table_.size() + 6 * static_cast<std::size_t>(config_.experts));
    for (int e = 0; e < config_.experts; ++e) {
      const std::string base = fmt::format("{}mlp.experts.{}.", prefix, e);
      const std::int64_t width = config_.moe_intermediate;
      matrix(base + "gate_proj", config_.expert_format, width, config_.hidden, TensorGroup::kExperts);
      matrix(base + "up_proj", config_.expert_format, width, config_.hidden, TensorGroup::kExperts);
      matrix(base + "down_proj", config_.expert_format, config_.hidden, width, TensorGroup::kExperts);
    }
  }

  std::vector<ExpectedTensor> take() { return std::move(table_); }

 private:
  void add(std::string name, DType dtype, DType also, std::array<std::int64_t, 2> dims, int rank,
           TensorGroup group) {
    table_.push_back({std::move(name), dtype, also, dims, rank, group});
  }

  const ModelConfig& config_;
  const QkvLayout& layout_;
  std::vector<ExpectedTensor> table_;
};

}  // namespace

const char* tensor_group_name(TensorGroup group) {
  switch (group) {
    case TensorGroup::kEmbedding:
      return "embedding and lm_head";
    case TensorGroup::kAttention:
      return "attention";
    case TensorGroup::kDenseMlp:
      return "dense MLP";
    case TensorGroup::kRouter:
      return "router";
    case TensorGroup::kExperts:
      return "experts";
    case TensorGroup::kNorm:
      return "norms";
    case TensorGroup::kMtp:
      return "MTP heads";
  }
  return "";
}

std::string layer_module(int layer, std::string_view suffix) {
  return fmt::format("model.layers.{}.{}", layer, suffix);
}

std::string mtp_module(int head, std::string_view suffix) {
  return fmt::format("model.mtp.layers.{}.{}", head, suffix);
}

WeightFormat module_format(const ModelConfig& config, std::string_view module) {
  const auto& names = config.unquantized;
  return std::find(names.begin(), names.end(), module) != names.end() ? WeightFormat::kBF16
                                                                      : config.dense_format;
}

WeightFormat mtp_module_format(const ModelConfig& config, int head, std::string_view suffix) {
  const WeightFormat alias = module_format(config, fmt::format("model.decoder.{}", suffix));
  return alias == WeightFormat::kBF16 ? alias : module_format(config, mtp_module(head, suffix));
}

std::vector<ExpectedTensor> global_tensors(const ModelConfig& config) {
  const QkvLayout none;
  TableBuilder table(config, none);
  table.matrix("model.embed_tokens", WeightFormat::kBF16, config.vocab, config.hidden,
               TensorGroup::kEmbedding);
  table.matrix("lm_head", WeightFormat::kBF16, config.vocab, config.hidden, TensorGroup::kEmbedding);
  table.vector("model.norm.weight", config.hidden, TensorGroup::kNorm);
  return table.take();
}

std::vector<ExpectedTensor> layer_tensors(const ModelConfig& config, const QkvLayout& layout, int layer) {
  TableBuilder table(config, layout);
  const std::string prefix = layer_module(layer, "");
  const auto format_of = [&](std::string_view suffix) {
    return module_format(config, layer_module(layer, suffix));
  };
  table.vector(prefix + "input_layernorm.weight", config.hidden, TensorGroup::kNorm);
  table.vector(prefix + "post_attention_layernorm.weight", config.hidden, TensorGroup::kNorm);
  table.attention(prefix, config.attention(layer), TensorGroup::kAttention, format_of);
  if (config.layer_is_moe[static_cast<std::size_t>(layer)]) {
    table.experts(prefix);
  } else {
    table.mlp(prefix, config.intermediate, TensorGroup::kDenseMlp, format_of);
  }
  return table.take();
}

std::vector<ExpectedTensor> mtp_tensors(const ModelConfig& config, const QkvLayout& layout, int head) {
  TableBuilder table(config, layout);
  const std::string prefix = mtp_module(head, "");
  const auto format_of = [&](std::string_view suffix) { return mtp_module_format(config, head, suffix); };
  for (const char* norm : {"enorm", "hnorm", "input_layernorm", "pre_mlp_layernorm", "final_layernorm"}) {
    table.vector(fmt::format("{}{}.weight", prefix, norm), config.hidden, TensorGroup::kMtp);
  }
  table.matrix(prefix + "eh_proj", WeightFormat::kBF16, config.hidden, std::int64_t{2} * config.hidden,
               TensorGroup::kMtp);
  table.attention(prefix, config.window, TensorGroup::kMtp, format_of);
  table.mlp(prefix, config.intermediate, TensorGroup::kMtp, format_of);
  return table.take();
}

}  // namespace mimo
