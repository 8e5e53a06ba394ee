// The target model: the forward pass of spec model 2.1, written once over Ops.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/weight_source.h"
#include "core/result.h"
#include "ops/ops.h"

namespace mimo {

// Keys and values of all layers.
class ModelKv {
 public:
  struct Options {
    KvDType dtype = KvDType::kBF16;
    int page_size = 16;
    std::int64_t full_pages = 0;    // of every full-attention layer
    std::int64_t window_pages = 0;  // of every window layer
  };
  static Result<ModelKv> make(Ops& ops, const ModelConfig& config, const Options& options);

  KvStore& layer(int index) { return *layers_[static_cast<std::size_t>(index)]; }
  std::size_t bytes() const;
  // Fills a freed page with NaN in every layer of its kind.
  void poison(const ModelConfig& config, LayerKind kind, std::int32_t page);

 private:
  std::vector<std::unique_ptr<KvStore>> layers_;
};

// One ragged step. Rows of a sequence are consecutive; `full` and `window` describe the same rows with the
// page tables of the two kinds of layer.
struct ForwardBatch {
  std::span<const std::int32_t> tokens;      // [rows], ids in [0, vocab)
  std::span<const SequenceRows> full;        // [sequences]
  std::span<const SequenceRows> window;      // [sequences]
  std::span<const std::int32_t> logit_rows;  // rows whose logits are wanted, ascending
};

class TargetModel {
 public:
  struct LoadOptions {
    bool requantize_bf16 = false;  // BF16 o_proj and lm_head to FP8 block-128: fewer bytes, other numerics
    std::function<void(std::uint64_t loaded_bytes)> progress;
  };
  // `ops` must outlive the model. Releases each layer of the source once it is packed.
  static Result<TargetModel> load(WeightSource& source, Ops& ops, const LoadOptions& options);

  const ModelConfig& config() const { return config_; }

  // Runs the rows, appending their keys and values to `kv`; logits [logit_rows, vocab]. `tap`, when given,
  // sees the hidden state [rows, hidden] after the embedding (index 0), after every layer (1..layers-1) and
  // after the final norm (layers), as transformers numbers them.
  using Tap = std::function<void(int index, std::span<const float> hidden)>;
  void forward(const ForwardBatch& batch, ModelKv& kv, std::span<float> logits, const Tap& tap = nullptr);

  std::size_t weight_bytes() const;
  // Bytes of weights that decoding one token reads: everything but the embedding table and the experts not
  // chosen.
  std::size_t bytes_per_token() const;

 private:
  struct Layer {
    std::vector<float> input_norm;
    std::vector<float> post_norm;
    std::unique_ptr<Matrix> qkv;
    std::unique_ptr<Matrix> o_proj;
    std::vector<float> sinks;
    std::unique_ptr<MlpBank> mlp;  // dense MLP or the experts
    std::unique_ptr<Matrix> router;
    std::vector<float> router_bias;
  };

  Status load_layer(WeightSource& source, int index, const LoadOptions& options);
  void attend(int index, const ForwardBatch& batch, ModelKv& kv);
  void feed_forward(int index, int rows);

  Ops* ops_ = nullptr;
  ModelConfig config_;
  std::unique_ptr<Matrix> embed_;
  std::unique_ptr<Matrix> lm_head_;
  std::vector<float> final_norm_;
  std::vector<Layer> layers_;

  // Activations of the step in flight, reused from step to step.
  struct RotationTable {
    std::vector<float> cos;
    std::vector<float> sin;
  };
  RotationTable rotate_full_;
  RotationTable rotate_window_;
  std::vector<float> hidden_;             // [rows, hidden] residual stream
  std::vector<float> normed_;             // [rows, hidden]
  std::vector<float> qkv_;                // [rows, q + k + v]
  std::vector<float> attended_;           // [rows, q_heads * v_dim]
  std::vector<std::int32_t> expert_ids_;  // [rows, top_k]
  std::vector<float> expert_weights_;     // [rows, top_k]
};

}  // namespace mimo
