#include "model/target.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/requantize.h"
#include "model/attention_shape.h"

namespace mimo {
namespace {

// Steps up to so many rows come again with the same shape; launching their operations one by one would cost more than
// some of them take.
constexpr std::size_t kRecordedRows = 256;

// Rows of logits that are written at a time where only their best tokens are wanted: bounds the buffer of large batches
// (a row of logits is 600 KB in the family).
constexpr int kHeadRows = 128;

// Packs a BF16 matrix as it is, or through FP8 when asked to.
Result<std::unique_ptr<Matrix>> pack_bf16(Ops& ops, const WeightView& view, MatrixUse use, bool requantize) {
  if (!requantize || view.format != WeightFormat::kBF16) return ops.pack_matrix(view, use);
  const Fp8Matrix smaller = quantize_fp8(view);
  return ops.pack_matrix(smaller.view(), use);
}

}  // namespace

Result<ModelKv> ModelKv::make(Ops& ops, const ModelConfig& config, const Options& options) {
  ModelKv kv;
  for (int i = 0; i < config.layers; ++i) {
    const AttentionShape& shape = config.attention(i);
    KvSpec spec;
    spec.kv_heads = shape.kv_heads;
    spec.qk_dim = shape.qk_dim;
    spec.v_dim = shape.v_dim;
    spec.page_size = options.page_size;
    spec.pages = config.layer_kinds[static_cast<std::size_t>(i)] == LayerKind::kFull ? options.full_pages
                                                                                     : options.window_pages;
    spec.dtype = options.dtype;
    Result<std::unique_ptr<KvStore>> store = ops.make_kv(spec);
    if (!store) return tl::unexpected(store.error().within(fmt::format("layer {} KV cache", i)));
    kv.layers_.push_back(std::move(*store));
  }
  return kv;
}

std::size_t ModelKv::bytes() const {
  std::size_t total = 0;
  for (const auto& layer : layers_) total += layer->bytes();
  return total;
}

void ModelKv::poison(const ModelConfig& config, LayerKind kind, std::int32_t page) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (config.layer_kinds[i] == kind) layers_[i]->poison_page(page);
  }
}

std::size_t ModelKv::page_bytes(const ModelConfig& config, LayerKind kind) const {
  std::size_t total = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (config.layer_kinds[i] == kind) total += layers_[i]->page_bytes();
  }
  return total;
}

void ModelKv::read_page(const ModelConfig& config, LayerKind kind, std::int32_t page,
                        std::span<std::byte> out) const {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (config.layer_kinds[i] != kind) continue;
    const std::size_t bytes = layers_[i]->page_bytes();
    layers_[i]->read_page(page, out.first(bytes));
    out = out.subspan(bytes);
  }
}

void ModelKv::write_page(const ModelConfig& config, LayerKind kind, std::int32_t page,
                         std::span<const std::byte> in) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (config.layer_kinds[i] != kind) continue;
    const std::size_t bytes = layers_[i]->page_bytes();
    layers_[i]->write_page(page, in.first(bytes));
    in = in.subspan(bytes);
  }
}

Result<TargetModel> TargetModel::load(WeightSource& source, Ops& ops, const LoadOptions& options) {
  TargetModel model;
  model.ops_ = &ops;
  model.config_ = source.config();
  const auto report = [&] {
    if (options.progress) options.progress(model.weight_bytes());
  };

  Result<GlobalWeights> globals = source.globals();
  if (!globals) return forward_error(globals);
  Result<std::unique_ptr<Matrix>> embed = ops.pack_matrix(globals->embed, MatrixUse::kVocabulary);
  if (!embed) return forward_error(embed);
  Result<std::unique_ptr<Matrix>> head =
      pack_bf16(ops, globals->lm_head, MatrixUse::kProjection, options.requantize_bf16);
  if (!head) return forward_error(head);
  Result<Vector> norm = ops.pack_vector(globals->final_norm);
  if (!norm) return forward_error(norm);
  model.embed_ = std::move(*embed);
  model.lm_head_ = std::move(*head);
  model.final_norm_ = std::move(*norm);
  model.full_rows_ = ops.make_sequences({model.config_.full.rope_theta, model.config_.full.rotary_dims});
  model.window_rows_ =
      ops.make_sequences({model.config_.window.rope_theta, model.config_.window.rotary_dims});
  source.release_globals();
  report();

  for (int i = 0; i < model.config_.layers; ++i) {
    if (i + 1 < model.config_.layers) source.prefetch_layer(i + 1);
    if (const Status ok = model.load_layer(source, i, options); !ok) return forward_error(ok);
    source.release_layer(i);
    report();
  }
  return model;
}

Status TargetModel::load_layer(WeightSource& source, int index, const LoadOptions& options) {
  Result<LayerWeights> weights = source.layer(index, {});
  if (!weights) return forward_error(weights);
  Layer layer;
  std::vector<float> no_bias;
  for (const auto& [from, to] :
       {std::pair{&weights->input_norm, &layer.input_norm}, std::pair{&weights->post_norm, &layer.post_norm},
        std::pair{&weights->attention.sinks, &layer.sinks},
        std::pair{weights->moe ? &weights->moe->router_bias : &no_bias, &layer.router_bias}}) {
    Result<Vector> packed = ops_->pack_vector(*from);
    if (!packed) return forward_error(packed);
    *to = std::move(*packed);
  }
  Result<std::unique_ptr<Matrix>> qkv = ops_->pack_matrix(weights->attention.qkv, MatrixUse::kProjection);
  if (!qkv) return forward_error(qkv);
  layer.qkv = std::move(*qkv);
  Result<std::unique_ptr<Matrix>> o_proj =
      pack_bf16(*ops_, weights->attention.o_proj, MatrixUse::kProjection, options.requantize_bf16);
  if (!o_proj) return forward_error(o_proj);
  layer.o_proj = std::move(*o_proj);

  std::vector<MlpViews> views;
  if (weights->moe) {
    Result<std::unique_ptr<Matrix>> router = ops_->pack_router(weights->moe->router);
    if (!router) return forward_error(router);
    layer.router = std::move(*router);
    for (const MlpWeights& expert : weights->moe->experts)
      views.push_back({&expert.gate, &expert.up, &expert.down});
  } else {
    views.push_back({&weights->mlp->gate, &weights->mlp->up, &weights->mlp->down});
  }
  Result<std::unique_ptr<MlpBank>> mlp = ops_->pack_mlps(views);
  if (!mlp) return forward_error(mlp);
  layer.mlp = std::move(*mlp);
  layers_.push_back(std::move(layer));
  return {};
}

void TargetModel::embed(const std::int32_t* ids, int count, float* out) const {
  ops_->embed(*embed_, ids, count, out);
}

void TargetModel::lm_head(const Act* normed, int rows, float* logits) const {
  ops_->linear(normed, rows, *lm_head_, logits, Store::kOverwrite);
}

void TargetModel::best_of_head(const Act* normed, int rows, int count, BackendArray<float>& logits,
                               std::int32_t* ids, float* probabilities) const {
  if (rows == 0 || ops_->best_linear(normed, rows, *lm_head_, count, ids, probabilities)) return;
  const auto vocab = static_cast<std::size_t>(config_.vocab);
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  for (int first = 0; first < rows; first += kHeadRows) {
    const int part = std::min(kHeadRows, rows - first);
    float* some = logits.reserve(*ops_, static_cast<std::size_t>(part) * vocab);
    lm_head(act_at(*ops_, normed, static_cast<std::size_t>(first) * hidden), part, some);
    ops_->best_tokens(some, vocab, part, count, ids + first,
                      probabilities == nullptr ? nullptr : probabilities + first);
  }
}

// Copies the wanted rows of `state` [rows of the step, hidden] to every place where `index` is asked for.
void TargetModel::tap(const TapRows& taps, int index, const float* state, std::size_t rows) const {
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  const std::size_t count = taps.indices.size();
  const auto first = static_cast<std::size_t>(taps.row_begin);
  const std::size_t end = taps.rows > 0 ? first + static_cast<std::size_t>(taps.rows) : rows;
  for (std::size_t t = 0; t < count; ++t) {
    if (taps.indices[t] != index) continue;
    MIMO_CHECK(end <= rows && taps.out.size() >= end * count * hidden, "tap buffer");
    ops_->copy_rows(taps.out.data() + (first * count + t) * hidden, count * hidden * sizeof(float),
                    state + first * hidden, hidden * sizeof(float), hidden * sizeof(float), end - first);
  }
}

void TargetModel::forward(const ForwardBatch& batch, ModelKv& kv, std::span<float> logits,
                          std::span<std::int32_t> best) {
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  const auto vocab = static_cast<std::size_t>(config_.vocab);
  const std::size_t head_rows = batch.logit_rows.size() + batch.best_rows.size();
  MIMO_CHECK(logits.size() >= batch.logit_rows.size() * vocab && best.size() >= batch.best_rows.size(),
             "buffers for {} and {} rows", batch.logit_rows.size(), batch.best_rows.size());
  const std::size_t values = batch.tokens.size() * hidden;
  hidden_.reserve(*ops_, values);
  normed_.reserve(*ops_, std::max(values, head_rows * hidden));
  full_rows_->set(batch.full);
  window_rows_->set(batch.window);
  tokens_.upload(*ops_, batch.tokens);
  // Only rows that are sampled pay for the head.
  head_index_.reserve(*ops_, head_rows);
  if (!batch.logit_rows.empty()) {
    ops_->upload(head_index_.data(), batch.logit_rows.data(), batch.logit_rows.size_bytes());
  }
  if (!batch.best_rows.empty()) {
    ops_->upload(head_index_.data() + batch.logit_rows.size(), batch.best_rows.data(),
                 batch.best_rows.size_bytes());
  }
  head_rows_.reserve(*ops_, head_rows * hidden);
  best_.reserve(*ops_, batch.best_rows.size());
  MIMO_CHECK(batch.draws.empty() || batch.draws.size() == batch.best_rows.size(), "{} draws for {} rows",
             batch.draws.size(), batch.best_rows.size());
  if (!batch.draws.empty()) draws_.upload(*ops_, batch.draws);
  const bool in_place = ops_->host_memory() && batch.best_rows.empty();
  const bool best_only = batch.logit_rows.empty() && batch.draws.empty();
  float* all_logits = in_place ? logits.data() : logits_.reserve(*ops_, best_only ? 0 : head_rows * vocab);

  key_ = {std::ssize(batch.tokens), std::ssize(batch.logit_rows), std::ssize(batch.best_rows),
          batch.best_vocab,         std::ssize(batch.draws),      batch.taps.row_begin,
          batch.taps.rows};
  key_.push_back(reinterpret_cast<std::intptr_t>(&kv));
  key_.push_back(reinterpret_cast<std::intptr_t>(this));
  key_.push_back(batch.taps.indices.empty() ? 0 : reinterpret_cast<std::intptr_t>(batch.taps.out.data()));
  for (const int index : batch.taps.indices) key_.push_back(index);
  full_rows_->add_key(key_);
  window_rows_->add_key(key_);
  const auto body = [&] {
    run_layers(batch, kv);
    if (head_rows > 0) run_head(batch, all_logits);
  };
  if (batch.tokens.size() <= kRecordedRows) {
    ops_->run(key_, body);
  } else {
    body();
  }

  if (!in_place && !batch.logit_rows.empty()) {
    ops_->download(logits.data(), all_logits, batch.logit_rows.size() * vocab * sizeof(float));
  }
  if (!batch.best_rows.empty()) ops_->download(best.data(), best_.data(), batch.best_rows.size_bytes());
}

void TargetModel::run_layers(const ForwardBatch& batch, ModelKv& kv) {
  const auto rows = static_cast<int>(batch.tokens.size());
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  float* state = hidden_.data();
  ops_->embed(*embed_, tokens_.data(), rows, state);
  tap(batch.taps, 0, state, batch.tokens.size());
  for (int i = 0; i < config_.layers; ++i) {
    attend(i, rows, kv);
    feed_forward(i, rows);
    tap(batch.taps, i + 1, state, batch.tokens.size());
  }

  const auto& wanted_taps = batch.taps.indices;
  const int normed_tap = config_.layers + 1;
  if (std::find(wanted_taps.begin(), wanted_taps.end(), normed_tap) == wanted_taps.end()) return;
  const auto first = static_cast<std::size_t>(batch.taps.row_begin) * hidden;
  const int count = batch.taps.rows > 0 ? batch.taps.rows : rows - batch.taps.row_begin;
  float* normed = normed_tap_.reserve(*ops_, batch.tokens.size() * hidden);
  ops_->rms_norm(state + first, count, final_norm_, config_.norm_eps, normed + first);
  tap(batch.taps, normed_tap, normed, batch.tokens.size());
}

void TargetModel::run_head(const ForwardBatch& batch, float* logits) {
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  const auto vocab = static_cast<std::size_t>(config_.vocab);
  const auto best = static_cast<int>(batch.best_rows.size());
  const int rows = static_cast<int>(batch.logit_rows.size()) + best;
  ops_->gather_rows(head_rows_.data(), hidden_.data(), hidden * sizeof(float), head_index_.data(), rows);
  ops_->rms_norm(head_rows_.data(), rows, final_norm_, config_.norm_eps, normed_.data(), hidden);
  if (rows == best && batch.draws.empty()) {
    best_of_head(normed_.data(), best, batch.best_vocab, logits_, best_.data(), nullptr);
    return;
  }
  lm_head(normed_.data(), rows, logits);
  if (best == 0) return;
  const float* chosen_from = logits + batch.logit_rows.size() * vocab;
  if (batch.draws.empty()) {
    ops_->best_tokens(chosen_from, vocab, best, batch.best_vocab, best_.data(), nullptr);
  } else {
    ops_->draw_tokens(chosen_from, vocab, best, batch.best_vocab, draws_.data(), best_.data());
  }
}

// h += o_proj(attention(rmsnorm(h)))
void TargetModel::attend(int index, int rows, ModelKv& kv) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const AttentionShape& shape = config_.attention(index);
  const bool full = config_.layer_kinds[static_cast<std::size_t>(index)] == LayerKind::kFull;
  const SequenceBatch& sequences = full ? *full_rows_ : *window_rows_;
  const AttentionSpec spec = attention_spec(shape, layer.sinks);
  const std::size_t width = qkv_width(shape);
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  Act* qkv = qkv_.reserve(*ops_, static_cast<std::size_t>(rows) * width);
  Act* attended = attended_.reserve(
      *ops_, static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape.q_heads * shape.v_dim));

  ops_->rms_norm(hidden_.data(), rows, layer.input_norm, config_.norm_eps, normed_.data(), hidden);
  ops_->linear(normed_.data(), rows, *layer.qkv, qkv);
  ops_->rope_and_store_kv(qkv, width, sequences, spec, config_.value_scale, kv.layer(index));
  ops_->attention(qkv, width, sequences, spec, kv.layer(index), attended);
  ops_->linear(attended, rows, *layer.o_proj, hidden_.data(), Store::kAdd);
}

// h += mlp(rmsnorm(h)), dense or routed
void TargetModel::feed_forward(int index, int rows) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  ops_->rms_norm(hidden_.data(), rows, layer.post_norm, config_.norm_eps, normed_.data(),
                 static_cast<std::size_t>(config_.hidden));
  if (!layer.router) {
    ops_->mlp(normed_.data(), rows, *layer.mlp, hidden_.data());
    return;
  }
  RouteSpec route;
  route.experts = config_.experts;
  route.top_k = config_.top_k;
  route.bias = &layer.router_bias;
  route.normalize = config_.norm_topk_prob;
  route.scale = config_.routed_scaling;
  const auto slots = static_cast<std::size_t>(rows) * static_cast<std::size_t>(config_.top_k);
  std::int32_t* ids = expert_ids_.reserve(*ops_, slots);
  float* weights = expert_weights_.reserve(*ops_, slots);
  ops_->route(normed_.data(), rows, *layer.router, route, ids, weights);
  ops_->experts(normed_.data(), rows, *layer.mlp, config_.top_k, ids, weights, hidden_.data());
}

std::size_t TargetModel::weight_bytes() const {
  std::size_t total = (embed_ ? embed_->bytes() : 0) + (lm_head_ ? lm_head_->bytes() : 0);
  for (const Layer& layer : layers_) {
    total += layer.qkv->bytes() + layer.o_proj->bytes() + layer.mlp->bytes();
    if (layer.router) total += layer.router->bytes();
  }
  return total;
}

std::size_t TargetModel::bytes_per_token() const {
  return static_cast<std::size_t>(std::llround(bytes_per_step(1)));
}

double TargetModel::bytes_per_step(int rows) const {
  auto total = static_cast<double>(lm_head_->bytes());
  for (const Layer& layer : layers_) {
    total += static_cast<double>(layer.qkv->bytes() + layer.o_proj->bytes());
    if (layer.router) {
      const double experts = config_.experts;
      const double chosen = experts * (1 - std::pow(1 - config_.top_k / experts, rows));
      total += static_cast<double>(layer.router->bytes()) +
               static_cast<double>(layer.mlp->expert_bytes()) * chosen;
    } else {
      total += static_cast<double>(layer.mlp->bytes());
    }
  }
  return total;
}

}  // namespace mimo
