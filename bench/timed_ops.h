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
  enum Part {
    kCopy,
    kEmbed,
    kNorm,
    kHeadNorm,
    kLinear,
    kRope,
    kAttention,
    kRoute,
    kExperts,
    kMlp,
    kBest,
    kParts
  };
  static constexpr std::array<const char*, kParts> kNames = {
      "copies", "embed",   "rms_norm", "rms_norm_heads", "linear", "rope+store", "attention",
      "route",  "experts", "mlp",      "best_tokens"};

  explicit TimedOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {}

  void reset() { seconds_ = {}; }
  double seconds(int part) const { return seconds_[static_cast<std::size_t>(part)]; }

  const char* name() const override { return inner_->name(); }
  std::vector<std::string> describe() const override { return inner_->describe(); }
  Result<std::unique_ptr<Buffer>> allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  std::size_t act_bytes() const override { return inner_->act_bytes(); }
  bool host_memory() const override { return inner_->host_memory(); }
  std::uint64_t free_memory() const override { return inner_->free_memory(); }
  void upload(void* to, const void* from, std::size_t bytes) override { inner_->upload(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { inner_->download(to, from, bytes); }
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                 std::size_t bytes, std::size_t count) override {
    time(kCopy, [&] { inner_->copy_rows(to, to_stride, from, from_stride, bytes, count); });
  }
  void gather_rows(void* to, const void* from, std::size_t bytes, const std::int32_t* index,
                   int count) override {
    time(kCopy, [&] { inner_->gather_rows(to, from, bytes, index, count); });
  }
  void to_act(const float* x, std::size_t count, Act* out) override {
    time(kCopy, [&] { inner_->to_act(x, count, out); });
  }
  std::unique_ptr<SequenceBatch> make_sequences(const RopeSpec& rope) override {
    return inner_->make_sequences(rope);
  }
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

  void embed(const Matrix& table, const std::int32_t* ids, int count, float* out) override {
    time(kEmbed, [&] { inner_->embed(table, ids, count, out); });
  }
  void rms_norm(const float* x, int rows, const Vector& weight, float eps, float* out) override {
    time(kNorm, [&] { inner_->rms_norm(x, rows, weight, eps, out); });
  }
  void rms_norm(const float* x, int rows, const Vector& weight, float eps, Act* out,
                std::size_t out_width) override {
    time(kNorm, [&] { inner_->rms_norm(x, rows, weight, eps, out, out_width); });
  }
  void rms_norm_heads(Act* x, std::size_t row_width, int rows, int heads, const Vector& weight,
                      float eps) override {
    time(kHeadNorm, [&] { inner_->rms_norm_heads(x, row_width, rows, heads, weight, eps); });
  }
  void linear(const Act* x, int rows, const Matrix& weight, float* y, Store store) override {
    time(kLinear, [&] { inner_->linear(x, rows, weight, y, store); });
  }
  void linear(const Act* x, int rows, const Matrix& weight, Act* y) override {
    time(kLinear, [&] { inner_->linear(x, rows, weight, y); });
  }
  void rope_and_store_kv(Act* qkv, std::size_t row_width, const SequenceBatch& sequences,
                         const AttentionSpec& spec, float value_scale, KvStore& kv) override {
    time(kRope, [&] { inner_->rope_and_store_kv(qkv, row_width, sequences, spec, value_scale, kv); });
  }
  void attention(const Act* qkv, std::size_t row_width, const SequenceBatch& sequences,
                 const AttentionSpec& spec, const KvStore& kv, Act* out) override {
    time(kAttention, [&] { inner_->attention(qkv, row_width, sequences, spec, kv, out); });
  }
  void route(const Act* x, int rows, const Matrix& router, const RouteSpec& spec, std::int32_t* ids,
             float* weights) override {
    time(kRoute, [&] { inner_->route(x, rows, router, spec, ids, weights); });
  }
  void experts(const Act* x, int rows, const MlpBank& bank, int top_k, const std::int32_t* ids,
               const float* weights, float* y) override {
    time(kExperts, [&] { inner_->experts(x, rows, bank, top_k, ids, weights, y); });
  }
  void mlp(const Act* x, int rows, const MlpBank& bank, float* y) override {
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
