#include "checkpoint/model_size.h"

namespace mimo {

const char* kv_format_name(KvFormat format) { return format == KvFormat::kBF16 ? "bf16" : "fp8"; }

std::uint64_t kv_bytes_per_token(const AttentionShape& shape, int kv_heads, KvFormat format,
                                 bool row_scales) {
  const auto elements = static_cast<std::uint64_t>(shape.qk_dim + shape.v_dim);
  const std::uint64_t head =
      format == KvFormat::kBF16 ? 2 * elements : elements + (row_scales ? 2 * sizeof(float) : 0);
  return static_cast<std::uint64_t>(kv_heads) * head;
}

KvBytes kv_bytes(const ModelConfig& config, KvFormat format, bool row_scales) {
  KvBytes total;
  for (const LayerKind kind : config.layer_kinds) {
    if (kind == LayerKind::kFull) {
      total.full_per_token += kv_bytes_per_token(config.full, config.full.kv_heads, format, row_scales);
    } else {
      total.window_per_token += kv_bytes_per_token(config.window, config.window.kv_heads, format, row_scales);
    }
  }
  return total;
}

std::uint64_t parameters(const ExpectedTensor& tensor) {
  if (tensor.name.ends_with("_scale") || tensor.name.ends_with("_scale_inv")) return 0;
  const auto elements = static_cast<std::uint64_t>(tensor.elements());
  return tensor.dtype == DType::kU8 ? 2 * elements : elements;
}

ModelSize model_size(const ModelConfig& config, int mtp_heads) {
  const QkvLayout layout{config.fused_qkv, config.qkv_chunks};
  ModelSize size;
  const auto add = [&size](const std::vector<ExpectedTensor>& tensors) {
    for (const ExpectedTensor& tensor : tensors) {
      size.parameters[static_cast<std::size_t>(tensor.group)] += parameters(tensor);
      size.bytes[static_cast<std::size_t>(tensor.group)] += tensor.bytes();
    }
  };
  add(global_tensors(config));
  for (int i = 0; i < config.layers; ++i) add(layer_tensors(config, layout, i));
  for (int k = 0; k < mtp_heads; ++k) add(mtp_tensors(config, layout, k));
  for (int g = 0; g < kTensorGroups; ++g) {
    const auto at = static_cast<std::size_t>(g);
    size.total_bytes += size.bytes[at];
    if (static_cast<TensorGroup>(g) == TensorGroup::kMtp) continue;
    size.total_parameters += size.parameters[at];
    switch (static_cast<TensorGroup>(g)) {
      case TensorGroup::kEmbedding:
        size.active_parameters += size.parameters[at] / 2;  // the lm_head of two equal matrices
        break;
      case TensorGroup::kExperts:
        if (config.experts > 0) {
          size.active_parameters += size.parameters[at] / static_cast<std::uint64_t>(config.experts) *
                                    static_cast<std::uint64_t>(config.top_k);
        }
        break;
      default:
        size.active_parameters += size.parameters[at];
    }
  }
  return size;
}

}  // namespace mimo
