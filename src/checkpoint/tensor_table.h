// Every tensor a text checkpoint of a config must hold, with dtype and shape (spec model 3.1). One table
// serves the check of real checkpoints, the random source and the byte counts of plans.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/qkv_layout.h"
#include "core/dtype.h"

namespace mimo {

enum class TensorGroup : std::uint8_t { kEmbedding, kAttention, kDenseMlp, kRouter, kExperts, kNorm, kMtp };
inline constexpr int kTensorGroups = 7;
const char* tensor_group_name(TensorGroup group);

struct ExpectedTensor {
  std::string name;
  DType dtype = DType::kBF16;
  DType also = DType::kBF16;  // a second dtype that is accepted (equal to dtype: none)
  std::array<std::int64_t, 2> dims{};
  int rank = 2;
  TensorGroup group = TensorGroup::kNorm;

  std::span<const std::int64_t> shape() const { return {dims.data(), static_cast<std::size_t>(rank)}; }
  std::int64_t elements() const { return rank == 2 ? dims[0] * dims[1] : dims[0]; }
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(elements()) * dtype_size(dtype); }
};

// "model.layers.3.self_attn.o_proj"
std::string layer_module(int layer, std::string_view suffix);
std::string mtp_module(int head, std::string_view suffix);

// Stored format of a linear module outside the experts: the dense format unless ignored_layers names it.
WeightFormat module_format(const ModelConfig& config, std::string_view module);
// The same for an MTP module, which ignored_layers may call "model.decoder.*".
WeightFormat mtp_module_format(const ModelConfig& config, int head, std::string_view suffix);

std::vector<ExpectedTensor> global_tensors(const ModelConfig& config);
std::vector<ExpectedTensor> layer_tensors(const ModelConfig& config, const QkvLayout& layout, int layer);
std::vector<ExpectedTensor> mtp_tensors(const ModelConfig& config, const QkvLayout& layout, int head);

}  // namespace mimo
