// The multi-token-prediction heads of the checkpoint as a drafter (spec model 4): head k predicts the token k + 2
// places after a row's hidden state. Row i of head k reads the target's state g[i] (always the target's, after
// its final norm), the token t[i + 1 + k] and position i; the last row of a head gives one draft, which is the
// token of the next head's last row.
//
// A head is one layer, so the keys and values of a row follow from g[i] and its token alone. Rows are kept
// until the next draft and then only projected to K and V; attention, MLP and output head run for the last
// row of every head. Rows whose token was a draft are run again once the real token is known (the newest k
// rows of head k), which repairs what a rejected draft left behind.
//
// K and V live in a private ring of pages: position p is in page p / P of the request, and a page is taken over
// by the position that comes ring pages later, when no row sees the old one any more.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/weight_source.h"
#include "core/result.h"
#include "model/drafter.h"
#include "model/target.h"
#include "ops/backend_array.h"
#include "ops/ops.h"

namespace mimo {

class MtpDrafter final : public Drafter {
 public:
  struct Options {
    int heads = 0;         // heads in use, which is also the longest block; 0: all that there are
    int max_requests = 1;  // states that may be open at a time
    int page_size = 16;
    KvDType kv = KvDType::kBF16;
    int vocab = 0;        // only ids below it are drafted (the table has padding rows); 0: all
    bool poison = false;  // NaN in every page before a request uses it: shows what is read too early
  };

  // Reads the heads of `source`, which must have been opened with them. Embedding and head are the target's;
  // `target` and `ops` (the one the target was loaded with) must outlive the drafter, and the drafter its
  // states.
  static Result<std::unique_ptr<MtpDrafter>> load(WeightSource& source, const TargetModel& target, Ops& ops,
                                                  const Options& options);
  ~MtpDrafter() override;

  const char* name() const override { return "MTP"; }
  int max_drafts() const override { return static_cast<int>(heads_.size()); }
  std::size_t weight_bytes() const override;
  std::size_t state_bytes() const override;
  std::span<const int> taps() const override { return {&tap_, 1}; }
  std::int64_t first_needed(std::int64_t prompt_tokens) const override;
  Result<std::unique_ptr<DraftState>> open(std::int64_t max_tokens) override;
  std::shared_ptr<const DraftTail> save(const DraftState& state, std::int64_t position) const override;
  void restore(DraftState& state, const DraftTail& tail) override;
  std::size_t tail_bytes() const override;
  void observe(std::span<const DraftObservation> observations, std::span<const float> taps) override;
  void draft(std::span<DraftRequest> requests) override;

 private:
  class State;
  class Tail;
  struct Head {
    Vector embed_norm;
    Vector hidden_norm;
    Vector input_norm;
    Vector pre_mlp_norm;
    Vector final_norm;
    Vector sinks;
    std::unique_ptr<Matrix> eh_proj;
    std::unique_ptr<Matrix> qkv;
    std::unique_ptr<Matrix> o_proj;
    std::unique_ptr<MlpBank> mlp;
    std::unique_ptr<KvStore> kv;
  };

  MtpDrafter(const TargetModel& target, Ops& ops, const Options& options);
  Status load_head(WeightSource& source, int index);
  Status make_pages();
  void run_head(int index, std::span<DraftRequest* const> requests);
  void gather_rows(int index, std::span<DraftRequest* const> requests);
  void keep_last_rows(std::size_t width);

  const TargetModel& target_;
  Ops& ops_;
  Options options_;
  int tap_;
  int window_;
  std::unique_ptr<SequenceBatch> batch_;
  std::vector<Head> heads_;

  std::int64_t ring_pages_ = 0;           // of one request
  std::vector<std::int32_t> free_pages_;  // the same page number in every head

  // Buffers of the call in flight.
  std::vector<DraftRequest*> active_;
  std::vector<SequenceRows> sequences_;
  std::vector<std::int32_t> ids_;
  std::vector<std::int32_t> last_rows_;
  BackendArray<std::int32_t> token_ids_;
  BackendArray<std::int32_t> last_index_;
  BackendArray<float> embedded_;    // [rows, hidden]
  BackendArray<float> states_;      // [rows, hidden]
  BackendArray<Act> joined_;        // [rows, 2 * hidden]
  BackendArray<float> all_hidden_;  // [rows, hidden]
  BackendArray<Act> all_qkv_;       // [rows, q + k + v]
  BackendArray<float> hidden_;      // [requests, hidden] residual stream
  BackendArray<Act> qkv_;           // [requests, q + k + v]
  BackendArray<Act> normed_;        // [rows, hidden]
  BackendArray<Act> attended_;      // [requests, q_heads * v_dim]
  BackendArray<float> logits_;      // [requests, vocab]
  BackendArray<std::int32_t> best_ids_;
  BackendArray<float> shares_;
  std::vector<std::int32_t> best_;
  std::vector<float> probabilities_;
};

}  // namespace mimo
