// The DFlash drafter (spec dflash 1 to 3): a few dense layers that read a whole block [anchor, mask, mask, ...]
// at once, both ways, over keys and values made from the target's own hidden states.
//
// Where those keys and values live: each request has a private ring of pages; position p is in page p / P, and
// a page is taken over by the position that comes ring pages later. The alternative, a row beside every slot of
// the target's full-attention cache, gets prefix reuse for free but costs as much memory a token as the target's
// own full layers (20,480 bytes a token against 23,040 of V2.6-Flash in BF16) for positions that no draft reads
// again: with a window of 1,024 a ring is 21 MiB a request and does not grow, while the aliased rows of one
// 128K-token request are 2.5 GiB. What the ring gives up is that a request admitted on a cached prefix starts
// without context, unless the tail of it was kept beside the reuse point (save, restore); it drafts from the
// positions it has seen (SequenceRows::first_key) until the window is full.
//
// The block's own keys and values are written behind the context, at positions L .. L + B - 1, and overwritten
// when those positions are committed or drafted again: no row reads at or past the committed length but in the
// draft that wrote it. So a rejected draft needs no rollback, and one attention call covers context and block.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/dflash_config.h"
#include "checkpoint/dflash_weights.h"
#include "core/result.h"
#include "model/drafter.h"
#include "model/target.h"
#include "ops/backend_array.h"
#include "ops/ops.h"

namespace mimo {

class DFlashDrafter final : public Drafter {
 public:
  // Which state of the last target layer a tap of it means (spec dflash 2.1).
  enum class FinalTap : std::uint8_t { kPreNorm, kPostNorm };

  struct Options {
    int max_requests = 1;         // states that may be open at a time
    std::int64_t max_tokens = 0;  // positions of the longest request; 0: what the target's config allows
    int page_size = 16;
    KvDType kv = KvDType::kBF16;
    FinalTap final_tap = FinalTap::kPreNorm;
    WindowStart window_start = WindowStart::kRow;
    int vocab = 0;        // only ids below it are drafted (the table has padding rows); 0: all
    bool poison = false;  // NaN in every page before a request uses it: shows what is read too early
  };

  // Reads `directory` (the checkpoint's dflash/) completely. Embedding and head are the target's; `target` and
  // `ops` (the one the target was loaded with) must outlive the drafter, and the drafter its states.
  static Result<std::unique_ptr<DFlashDrafter>> load(const std::string& directory, const TargetModel& target,
                                                     Ops& ops, const Options& options);
  // The same with random weights, which draft at the same speed and nothing of use.
  static Result<std::unique_ptr<DFlashDrafter>> load_random(DFlashConfig config, std::uint64_t seed,
                                                            const TargetModel& target, Ops& ops,
                                                            const Options& options);
  ~DFlashDrafter() override;

  const DFlashConfig& config() const { return config_; }

  const char* name() const override { return "DFLASH"; }
  int max_drafts() const override { return config_.block - 1; }
  std::size_t weight_bytes() const override;
  std::size_t state_bytes() const override;
  std::span<const int> taps() const override { return taps_; }
  std::int64_t first_needed(std::int64_t prompt_tokens) const override;
  Result<std::unique_ptr<DraftState>> open(std::int64_t max_tokens) override;
  std::shared_ptr<const DraftTail> save(const DraftState& state, std::int64_t position) const override;
  void restore(DraftState& state, const DraftTail& tail) override;
  std::size_t tail_bytes() const override;
  void observe(std::span<const DraftObservation> observations, std::span<const float> taps) override;
  void draft(std::span<DraftRequest> requests) override;

  // What draft() gives to the target's head: block rows 1 .. drafts.size() of every request after the final
  // norm, one after another, [sum of drafts.size(), hidden], in the backend's memory. Valid until the next call.
  const Act* run_blocks(std::span<const DraftRequest> requests);

 private:
  class Ring;
  class Tail;
  struct Layer {
    Vector input_norm;
    Vector post_norm;
    Vector q_norm;
    Vector k_norm;
    Vector sinks;
    std::unique_ptr<Matrix> qkv;
    std::unique_ptr<Matrix> o_proj;
    std::unique_ptr<MlpBank> mlp;
    std::unique_ptr<KvStore> kv;
  };
  // Observed rows of one request on their way into its ring.
  struct ContextRows {
    Ring* ring = nullptr;
    int tap_row = 0;
    int rows = 0;
    std::int64_t position = 0;
  };

  DFlashDrafter(const TargetModel& target, Ops& ops, DFlashConfig config, const Options& options);
  static Result<std::unique_ptr<DFlashDrafter>> make(DFlashConfig config, std::span<const float> mask,
                                                     DFlashWeights& weights, const TargetModel& target,
                                                     Ops& ops, const Options& options);
  Status pack(DFlashWeights& weights);
  Status make_pages();
  AttentionSpec attention_spec(int layer) const;
  void store_context(std::span<const ContextRows> parts, std::span<const float> taps);
  void store_rows(const float* taps, std::size_t tap_width, int rows);
  void lay_out(std::span<const DraftRequest> requests);
  void run_rows(int requests);
  void run_layer(int index, int rows);

  const TargetModel& target_;
  Ops& ops_;
  DFlashConfig config_;
  Options options_;
  std::vector<int> taps_;
  Vector mask_;  // [hidden]
  std::unique_ptr<SequenceBatch> batch_;
  std::unique_ptr<Matrix> fc_;
  std::unique_ptr<Matrix> context_kv_;  // [layers][K | V]
  Vector hidden_norm_;
  Vector final_norm_;
  std::vector<Layer> layers_;

  std::int64_t ring_pages_ = 0;           // of one request, at most
  std::vector<std::int32_t> free_pages_;  // the same page number in every layer

  // Buffers of the call in flight.
  std::vector<SequenceRows> sequences_;
  std::vector<ContextRows> parts_;
  std::vector<std::int32_t> anchors_;
  std::vector<std::int32_t> index_;
  std::vector<std::int32_t> wanted_rows_;
  std::vector<std::int64_t> key_;
  BackendArray<std::int32_t> anchor_ids_;
  BackendArray<std::int32_t> block_index_;
  BackendArray<std::int32_t> wanted_index_;
  BackendArray<std::int32_t> tap_index_;
  BackendArray<float> gathered_;  // [rows, taps * hidden]
  BackendArray<Act> tap_input_;   // the same, rounded
  BackendArray<float> context_;   // [rows, hidden]
  BackendArray<Act> keys_;        // [rows, layers * 2 * kv_heads * head_dim]
  BackendArray<float> inputs_;    // [1 + requests, hidden]: the mask vector, then the anchors' embeddings
  BackendArray<float> hidden_;    // [rows, hidden] residual stream
  BackendArray<float> wanted_;    // [drafts, hidden]
  BackendArray<Act> normed_;      // [rows, hidden]
  BackendArray<Act> qkv_;
  BackendArray<Act> attended_;
  BackendArray<float> logits_;
  BackendArray<std::uint32_t> chosen_;  // [drafts] ids, [drafts] probabilities (fp32)
  std::vector<std::uint32_t> answers_;  // the same
};

}  // namespace mimo
