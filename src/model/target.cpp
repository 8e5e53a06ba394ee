#include "model/target.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/requantize.h"
#include "model/attention_shape.h"
#include "model/rotation.h"

namespace mimo {
namespace {

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
  model.embed_ = std::move(*embed);
  model.lm_head_ = std::move(*head);
  model.final_norm_ = std::move(globals->final_norm);
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
  layer.input_norm = std::move(weights->input_norm);
  layer.post_norm = std::move(weights->post_norm);
  layer.sinks = std::move(weights->attention.sinks);
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
    layer.router_bias = std::move(weights->moe->router_bias);
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

void TargetModel::embed(std::span<const std::int32_t> ids, float* out) const {
  ops_->embed(*embed_, ids, out);
}

void TargetModel::lm_head(const float* normed, int rows, float* logits) const {
  ops_->linear(normed, rows, *lm_head_, logits, Store::kOverwrite);
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
    for (std::size_t row = first; row < end; ++row) {
      std::memcpy(taps.out.data() + (row * count + t) * hidden, state + row * hidden, hidden * sizeof(float));
    }
  }
}

void TargetModel::forward(const ForwardBatch& batch, ModelKv& kv, std::span<float> logits) {
  const auto rows = static_cast<int>(batch.tokens.size());
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  const std::size_t values = batch.tokens.size() * hidden;
  hidden_.resize(values);
  normed_.resize(values);
  fill_rotation(batch.full, config_.full.rope_theta, config_.full.rotary_dims, rotate_full_.cos,
                rotate_full_.sin);
  fill_rotation(batch.window, config_.window.rope_theta, config_.window.rotary_dims, rotate_window_.cos,
                rotate_window_.sin);

  ops_->embed(*embed_, batch.tokens, hidden_.data());
  tap(batch.taps, 0, hidden_.data(), batch.tokens.size());
  for (int i = 0; i < config_.layers; ++i) {
    attend(i, batch, kv);
    feed_forward(i, rows);
    tap(batch.taps, i + 1, hidden_.data(), batch.tokens.size());
  }

  const auto& wanted_taps = batch.taps.indices;
  const int normed_tap = config_.layers + 1;
  if (std::find(wanted_taps.begin(), wanted_taps.end(), normed_tap) != wanted_taps.end()) {
    const auto first = static_cast<std::size_t>(batch.taps.row_begin) * hidden;
    const int count = batch.taps.rows > 0 ? batch.taps.rows : rows - batch.taps.row_begin;
    ops_->rms_norm(hidden_.data() + first, count, final_norm_, config_.norm_eps, normed_.data() + first);
    tap(batch.taps, normed_tap, normed_.data(), batch.tokens.size());
  }
  if (batch.logit_rows.empty()) return;
  MIMO_CHECK(logits.size() >= batch.logit_rows.size() * static_cast<std::size_t>(config_.vocab),
             "logits buffer");
  // Only rows that are sampled pay for the head; they are gathered to the front.
  for (std::size_t i = 0; i < batch.logit_rows.size(); ++i) {
    std::memmove(hidden_.data() + i * hidden,
                 hidden_.data() + static_cast<std::size_t>(batch.logit_rows[i]) * hidden,
                 hidden * sizeof(float));
  }
  const auto wanted = static_cast<int>(batch.logit_rows.size());
  ops_->rms_norm(hidden_.data(), wanted, final_norm_, config_.norm_eps, normed_.data());
  lm_head(normed_.data(), wanted, logits.data());
}

// h += o_proj(attention(rmsnorm(h)))
void TargetModel::attend(int index, const ForwardBatch& batch, ModelKv& kv) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const AttentionShape& shape = config_.attention(index);
  const bool full = config_.layer_kinds[static_cast<std::size_t>(index)] == LayerKind::kFull;
  const std::span<const SequenceRows> sequences = full ? batch.full : batch.window;
  const RotationTable& rotation = full ? rotate_full_ : rotate_window_;
  const AttentionSpec spec = attention_spec(shape, layer.sinks);
  const auto rows = static_cast<int>(batch.tokens.size());
  const std::size_t width = qkv_width(shape);
  qkv_.resize(batch.tokens.size() * width);
  attended_.resize(batch.tokens.size() * static_cast<std::size_t>(shape.q_heads * shape.v_dim));

  ops_->rms_norm(hidden_.data(), rows, layer.input_norm, config_.norm_eps, normed_.data());
  ops_->linear(normed_.data(), rows, *layer.qkv, qkv_.data(), Store::kOverwrite);
  ops_->rope_and_store_kv(qkv_.data(), width, sequences, spec,
                          {shape.rotary_dims, rotation.cos, rotation.sin}, config_.value_scale,
                          kv.layer(index));
  ops_->attention(qkv_.data(), width, sequences, spec, kv.layer(index), attended_.data());
  ops_->linear(attended_.data(), rows, *layer.o_proj, hidden_.data(), Store::kAdd);
}

// h += mlp(rmsnorm(h)), dense or routed
void TargetModel::feed_forward(int index, int rows) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  ops_->rms_norm(hidden_.data(), rows, layer.post_norm, config_.norm_eps, normed_.data());
  if (!layer.router) {
    ops_->mlp(normed_.data(), rows, *layer.mlp, hidden_.data());
    return;
  }
  RouteSpec route;
  route.experts = config_.experts;
  route.top_k = config_.top_k;
  route.bias = layer.router_bias;
  route.normalize = config_.norm_topk_prob;
  route.scale = config_.routed_scaling;
  const auto slots = static_cast<std::size_t>(rows) * static_cast<std::size_t>(config_.top_k);
  expert_ids_.resize(slots);
  expert_weights_.resize(slots);
  ops_->route(normed_.data(), rows, *layer.router, route, expert_ids_.data(), expert_weights_.data());
  ops_->experts(normed_.data(), rows, *layer.mlp, config_.top_k, expert_ids_.data(), expert_weights_.data(),
                hidden_.data());
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
  std::size_t total = lm_head_->bytes();
  for (const Layer& layer : layers_) {
    total += layer.qkv->bytes() + layer.o_proj->bytes();
    if (layer.router) {
      total += layer.router->bytes() + layer.mlp->expert_bytes() * static_cast<std::size_t>(config_.top_k);
    } else {
      total += layer.mlp->bytes();
    }
  }
  return total;
}

}  // namespace mimo
