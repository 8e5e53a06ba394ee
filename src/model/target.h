// The target model: the forward pass of spec model 2.1, written once over Ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/weight_source.h"
#include "core/result.h"
#include "ops/backend_array.h"
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

  // A page of all layers of a kind, one layer behind the other: what KvStore says of one. [page_bytes(kind)]
  std::size_t page_bytes(const ModelConfig& config, LayerKind kind) const;
  void read_page(const ModelConfig& config, LayerKind kind, std::int32_t page,
                 std::span<std::byte> out) const;
  void write_page(const ModelConfig& config, LayerKind kind, std::int32_t page,
                  std::span<const std::byte> in);

 private:
  std::vector<std::unique_ptr<KvStore>> layers_;
};

// Hidden states of a step that a drafter learns from. Numbered 0: the embedding; i in 1 .. layers: the residual
// stream after layer i - 1, so `layers` is the last one BEFORE the final norm; layers + 1: after the final norm,
// what lm_head reads.
struct TapRows {
  std::span<const int> indices;  // any order; empty: nothing is tapped
  // [rows of the step, indices.size() * hidden]: of each row the states side by side. Only wanted rows are
  // written. Backend memory.
  std::span<float> out;
  // The rows wanted: [row_begin, row_begin + rows) of the step; 0 rows: all of them.
  int row_begin = 0;
  int rows = 0;
};

// One ragged step. Rows of a sequence are consecutive; `full` and `window` describe the same rows with the
// page tables of the two kinds of layer.
struct ForwardBatch {
  std::span<const std::int32_t> tokens;      // [rows], ids in [0, vocab)
  std::span<const SequenceRows> full;        // [sequences]
  std::span<const SequenceRows> window;      // [sequences]
  std::span<const std::int32_t> logit_rows;  // rows whose logits are wanted, ascending
  TapRows taps = {};
  // Rows of which only a token is wanted, ascending, among ids below `best_vocab`: the best one, or, where `draws` is
  // not empty and Ops::draws_tokens(best_vocab), the one that draws[i] says.
  std::span<const std::int32_t> best_rows = {};
  int best_vocab = 0;
  std::span<const TokenDraw> draws = {};
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

  // Runs the rows, appending their keys and values to `kv`; logits [logit_rows, vocab] and tokens best [best_rows] (-1
  // where a logit is not finite), in the CPU's memory.
  void forward(const ForwardBatch& batch, ModelKv& kv, std::span<float> logits,
               std::span<std::int32_t> best = {});

  // The embedding rows of `count` ids in [0, vocab); out [count, hidden]. Backend memory, as in lm_head.
  void embed(const std::int32_t* ids, int count, float* out) const;
  // The output head on rows that are normed already: logits [rows, vocab]. A drafter shares both matrices
  // with its target.
  void lm_head(const Act* normed, int rows, float* logits) const;
  // Of each of these rows the best of the first `count` tokens, and, unless that is null, its probability among them,
  // as Ops::best_tokens; `logits` is room that is used where the backend must write them.
  void best_of_head(const Act* normed, int rows, int count, BackendArray<float>& logits, std::int32_t* ids,
                    float* probabilities) const;

  std::size_t weight_bytes() const;
  // Bytes of weights that decoding one token reads: everything but the embedding table and the experts not
  // chosen.
  std::size_t bytes_per_token() const;
  // The same of a step of `rows` tokens that choose their experts independently: the expected number of experts is
  // E (1 - (1 - k/E)^rows) (spec model 6.4).
  double bytes_per_step(int rows) const;

 private:
  struct Layer {
    Vector input_norm;
    Vector post_norm;
    std::unique_ptr<Matrix> qkv;
    std::unique_ptr<Matrix> o_proj;
    Vector sinks;
    std::unique_ptr<MlpBank> mlp;  // dense MLP or the experts
    std::unique_ptr<Matrix> router;
    Vector router_bias;
  };

  void run_layers(const ForwardBatch& batch, ModelKv& kv);
  void run_head(const ForwardBatch& batch, float* logits);
  void tap(const TapRows& taps, int index, const float* state, std::size_t rows) const;
  Status load_layer(WeightSource& source, int index, const LoadOptions& options);
  void attend(int index, int rows, ModelKv& kv);
  void feed_forward(int index, int rows);

  Ops* ops_ = nullptr;
  ModelConfig config_;
  std::unique_ptr<Matrix> embed_;
  std::unique_ptr<Matrix> lm_head_;
  Vector final_norm_;
  std::vector<Layer> layers_;

  // Activations of the step in flight, reused from step to step.
  std::unique_ptr<SequenceBatch> full_rows_;
  std::unique_ptr<SequenceBatch> window_rows_;
  BackendArray<std::int32_t> tokens_;
  BackendArray<std::int32_t> head_index_;
  BackendArray<float> hidden_;             // [rows, hidden] residual stream
  BackendArray<float> head_rows_;          // [logit rows, hidden]
  BackendArray<Act> normed_;               // [rows, hidden]
  BackendArray<float> normed_tap_;         // [rows, hidden]
  BackendArray<Act> qkv_;                  // [rows, q + k + v]
  BackendArray<Act> attended_;             // [rows, q_heads * v_dim]
  BackendArray<std::int32_t> expert_ids_;  // [rows, top_k]
  BackendArray<float> expert_weights_;     // [rows, top_k]
  BackendArray<float> logits_;             // [logit rows, vocab], then [best rows, vocab]
  BackendArray<std::int32_t> best_;        // [best rows]
  BackendArray<TokenDraw> draws_;          // [best rows]
  std::vector<std::int64_t> key_;
};

}  // namespace mimo
