// A backend that adds up where the time of its calls went.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <utility>

#include "ops/ops.h"

namespace mimo {

class TimedOps final : public Ops {
 public:
  enum Part { kEmbed, kNorm, kHeadNorm, kLinear, kRope, kAttention, kRoute, kExperts, kMlp, kBest, kParts };
  static constexpr std::array<const char*, kParts> kNames = {
      "embed",     "rms_norm", "rms_norm_heads", "linear", "rope+store",
      "attention", "route",    "experts",        "mlp",    "best_tokens"};

  explicit TimedOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {}

  void reset() { seconds_ = {}; }
  double seconds(int part) const { return seconds_[static_cast<std::size_t>(part)]; }

  const char* name() const override { return inner_->name(); }
  std::vector<std::string> describe() const override { return inner_->describe(); }
  Result<std::unique_ptr<Matrix>> pack_matrix(const WeightView& view, MatrixUse use) override {
    return inner_->pack_matrix(view, use);
  }
  Result<std::unique_ptr<Matrix>> pack_router(const WeightView& view) override {
    return inner_->pack_router(view);
  }
  Result<std::unique_ptr<MlpBank>> pack_mlps(std::span<const MlpViews> experts, MatrixUse use) override {
    return inner_->pack_mlps(experts, use);
  }
  Result<std::unique_ptr<KvStore>> make_kv(const KvSpec& spec) override { return inner_->make_kv(spec); }

  void embed(const Matrix& table, std::span<const std::int32_t> ids, float* out) override {
    time(kEmbed, [&] { inner_->embed(table, ids, out); });
  }
  void rms_norm(const float* x, int rows, std::span<const float> weight, float eps, float* out) override {
    time(kNorm, [&] { inner_->rms_norm(x, rows, weight, eps, out); });
  }
  void rms_norm_heads(float* x, std::size_t row_width, int rows, int heads, std::span<const float> weight,
                      float eps) override {
    time(kHeadNorm, [&] { inner_->rms_norm_heads(x, row_width, rows, heads, weight, eps); });
  }
  void linear(const float* x, int rows, const Matrix& weight, float* y, Store store) override {
    time(kLinear, [&] { inner_->linear(x, rows, weight, y, store); });
  }
  void rope_and_store_kv(float* qkv, std::size_t row_width, std::span<const SequenceRows> sequences,
                         const AttentionSpec& spec, const RopeTable& rope, float value_scale,
                         KvStore& kv) override {
    time(kRope, [&] { inner_->rope_and_store_kv(qkv, row_width, sequences, spec, rope, value_scale, kv); });
  }
  void attention(const float* qkv, std::size_t row_width, std::span<const SequenceRows> sequences,
                 const AttentionSpec& spec, const KvStore& kv, float* out) override {
    time(kAttention, [&] { inner_->attention(qkv, row_width, sequences, spec, kv, out); });
  }
  void route(const float* x, int rows, const Matrix& router, const RouteSpec& spec, std::int32_t* ids,
             float* weights) override {
    time(kRoute, [&] { inner_->route(x, rows, router, spec, ids, weights); });
  }
  void experts(const float* x, int rows, const MlpBank& bank, int top_k, const std::int32_t* ids,
               const float* weights, float* y) override {
    time(kExperts, [&] { inner_->experts(x, rows, bank, top_k, ids, weights, y); });
  }
  void mlp(const float* x, int rows, const MlpBank& bank, float* y) override {
    time(kMlp, [&] { inner_->mlp(x, rows, bank, y); });
  }
  void best_tokens(const float* logits, std::size_t row_width, int rows, int count, std::int32_t* ids,
                   float* probabilities) override {
    time(kBest, [&] { inner_->best_tokens(logits, row_width, rows, count, ids, probabilities); });
  }

 private:
  template <class Call>
  void time(Part part, const Call& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    seconds_[part] += took.count();
  }

  std::unique_ptr<Ops> inner_;
  std::array<double, kParts> seconds_{};
};

}  // namespace mimo
