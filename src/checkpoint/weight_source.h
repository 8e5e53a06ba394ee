// Where weights come from: a checkpoint directory or a random generator, with one face. Views are in
// checkpoint precision and canonical row order; each rank asks for its own shard and touches only those
// bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "core/result.h"
#include "core/weight_view.h"

namespace mimo {

// Tensor-parallel part: query heads, expert and MLP width are cut evenly; KV heads are cut when size <=
// kv_heads and replicated by rule above that (rank r of `size` takes KV head r * kv_heads / size).
struct Shard {
  int rank = 0;
  int size = 1;
};

struct AttentionWeights {
  WeightView qkv;     // rows [Q | K | V] of this shard, heads in order: q_heads*qk + kv_heads*qk + kv_heads*v
  WeightView o_proj;  // [hidden, q_heads * v_dim]
  std::vector<float> sinks;  // [q_heads]; empty when the layer kind has none
};

struct MlpWeights {
  WeightView gate;  // [intermediate, hidden]
  WeightView up;    // [intermediate, hidden]
  WeightView down;  // [hidden, intermediate]
};

struct MoeWeights {
  WeightView router;               // [experts, hidden], kBF16 or kF32
  std::vector<float> router_bias;  // [experts], fp32 as stored
  std::vector<MlpWeights> experts;
};

struct LayerWeights {
  std::vector<float> input_norm;  // [hidden]
  std::vector<float> post_norm;   // [hidden]
  AttentionWeights attention;
  std::optional<MlpWeights> mlp;  // exactly one of mlp and moe
  std::optional<MoeWeights> moe;
};

struct MtpWeights {
  std::vector<float> embed_norm, hidden_norm, input_norm, pre_mlp_norm, final_norm;  // [hidden] each
  WeightView eh_proj;                                                                // [hidden, 2 * hidden]
  AttentionWeights attention;
  MlpWeights mlp;
};

struct GlobalWeights {
  WeightView embed;               // [vocab, hidden]
  WeightView lm_head;             // [vocab, hidden]
  std::vector<float> final_norm;  // [hidden]
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const ModelConfig& config() const = 0;
  virtual int mtp_heads() const = 0;  // how many can be asked for with mtp()

  // Views stay valid until the matching release call or the end of the source's life. One caller at a time.
  virtual Result<GlobalWeights> globals() = 0;
  virtual Result<LayerWeights> layer(int index, Shard shard) = 0;
  virtual Result<MtpWeights> mtp(int head, Shard shard) = 0;

  // Gives back the memory behind the views of a layer (pages of a map, a generated buffer).
  virtual void release_layer(int index) = 0;
  virtual void release_mtp(int /*head*/) {}
  virtual void release_globals() = 0;

  // Starts reading a layer ahead, all ranks' parts of it. A hint: may do nothing.
  virtual void prefetch_layer(int /*index*/) {}

  // Bytes of all tensors the text model reads, for progress and the summary line.
  virtual std::uint64_t total_bytes() const = 0;

  // One line for each group of tensors that the files hold and the text model does not read ("visual.*: 351
  // tensors, 1200000 bytes").
  virtual std::vector<std::string> skipped() const { return {}; }
};

struct OpenOptions {
  bool mtp = false;  // load and check the MTP heads
  enum class QkvLayout { kAuto, kChunked, kPlain } qkv_layout = QkvLayout::kAuto;  // override for re-exports
};

// A checkpoint directory in Hugging Face layout. Checks every header before any weight byte is read: all
// tensors present with the expected dtype and shape, nothing unexplained left over. Values that would poison
// the model (an MXFP4 scale byte of 255, scales and small vectors that are not finite) are refused when their
// layer is handed out, since that needs the bytes.
Result<std::unique_ptr<WeightSource>> open_checkpoint(const std::string& directory,
                                                      const OpenOptions& options);

// Random weights of the right statistics in the formats the config declares (--load-format random).
Result<std::unique_ptr<WeightSource>> open_random(const ModelConfig& config, std::uint64_t seed);

}  // namespace mimo
