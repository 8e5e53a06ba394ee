#include "support/checkpoint_match.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace mimo::testing {
namespace {

void expect_same(const WeightView& view, const PlainMatrix& want) {
  SCOPED_TRACE(view.name);
  ASSERT_EQ(view.rows, want.rows);
  ASSERT_EQ(view.cols, want.cols);
  std::int64_t rows = 0;
  for (const WeightSegment& segment : view.segments) rows += segment.rows;
  ASSERT_EQ(rows, view.rows);
  EXPECT_TRUE(to_matrix(view).values == want.values) << "values differ";
}

// Rows of the rank's query heads and of the KV heads that those read.
void expect_attention(const AttentionWeights& weights, const PlainCheckpoint& plain,
                      const std::string& prefix, const AttentionShape& shape, Shard shard, int chunks) {
  const PlainCheckpoint::Qkv all = plain.qkv(prefix, shape, chunks);
  const std::int64_t q_count = shape.q_heads / shard.size;
  const std::int64_t q_begin = shard.rank * q_count;
  const std::int64_t group = shape.q_heads / shape.kv_heads;
  const std::int64_t kv_begin = q_begin / group;
  const std::int64_t kv_end = (q_begin + q_count - 1) / group + 1;
  const std::int64_t kv_count = kv_end - kv_begin;
  PlainMatrix want = all.q.row_range(q_begin * shape.qk_dim, q_count * shape.qk_dim);
  want.append_rows(all.k.row_range(kv_begin * shape.qk_dim, kv_count * shape.qk_dim));
  want.append_rows(all.v.row_range(kv_begin * shape.v_dim, kv_count * shape.v_dim));
  expect_same(weights.qkv, want);
  expect_same(weights.o_proj,
              plain.matrix(prefix + "o_proj").column_range(q_begin * shape.v_dim, q_count * shape.v_dim));
  if (shape.sink) {
    const std::vector<float> sinks = plain.vector(prefix + "attention_sink_bias");
    EXPECT_EQ(weights.sinks, std::vector<float>(sinks.begin() + q_begin, sinks.begin() + q_begin + q_count));
  } else {
    EXPECT_TRUE(weights.sinks.empty());
  }
}

void expect_mlp(const MlpWeights& weights, const PlainCheckpoint& plain, const std::string& prefix,
                Shard shard) {
  const PlainMatrix gate = plain.matrix(prefix + "gate_proj");
  const std::int64_t width = gate.rows / shard.size;
  expect_same(weights.gate, gate.row_range(shard.rank * width, width));
  expect_same(weights.up, plain.matrix(prefix + "up_proj").row_range(shard.rank * width, width));
  expect_same(weights.down, plain.matrix(prefix + "down_proj").column_range(shard.rank * width, width));
}

}  // namespace

void expect_globals_match(WeightSource& source, const PlainCheckpoint& plain) {
  const Result<GlobalWeights> globals = source.globals();
  ASSERT_TRUE(globals) << globals.error().message;
  expect_same(globals->embed, plain.matrix("model.embed_tokens"));
  expect_same(globals->lm_head, plain.matrix("lm_head"));
  EXPECT_EQ(globals->final_norm, plain.vector("model.norm.weight"));
}

void expect_layer_matches(WeightSource& source, const PlainCheckpoint& plain, int layer, Shard shard,
                          int chunks) {
  SCOPED_TRACE(fmt::format("layer {} rank {} of {}", layer, shard.rank, shard.size));
  const Result<LayerWeights> weights = source.layer(layer, shard);
  ASSERT_TRUE(weights) << weights.error().message;
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  EXPECT_EQ(weights->input_norm, plain.vector(prefix + "input_layernorm.weight"));
  EXPECT_EQ(weights->post_norm, plain.vector(prefix + "post_attention_layernorm.weight"));
  expect_attention(weights->attention, plain, prefix + "self_attn.", source.config().attention(layer), shard,
                   chunks);
  ASSERT_EQ(weights->moe.has_value(), plain.has(prefix + "mlp.gate.weight"));
  ASSERT_NE(weights->moe.has_value(), weights->mlp.has_value());
  if (weights->mlp) {
    expect_mlp(*weights->mlp, plain, prefix + "mlp.", shard);
    return;
  }
  expect_same(weights->moe->router, plain.matrix(prefix + "mlp.gate"));
  EXPECT_EQ(weights->moe->router_bias, plain.vector(prefix + "mlp.gate.e_score_correction_bias"));
  ASSERT_EQ(weights->moe->experts.size(), static_cast<std::size_t>(source.config().experts));
  for (std::size_t e = 0; e < weights->moe->experts.size(); ++e) {
    expect_mlp(weights->moe->experts[e], plain, fmt::format("{}mlp.experts.{}.", prefix, e), shard);
  }
}

void expect_mtp_matches(WeightSource& source, const PlainCheckpoint& plain, int head, Shard shard,
                        int chunks) {
  SCOPED_TRACE(fmt::format("MTP head {} rank {} of {}", head, shard.rank, shard.size));
  const Result<MtpWeights> weights = source.mtp(head, shard);
  ASSERT_TRUE(weights) << weights.error().message;
  const std::string prefix = fmt::format("model.mtp.layers.{}.", head);
  EXPECT_EQ(weights->embed_norm, plain.vector(prefix + "enorm.weight"));
  EXPECT_EQ(weights->hidden_norm, plain.vector(prefix + "hnorm.weight"));
  EXPECT_EQ(weights->input_norm, plain.vector(prefix + "input_layernorm.weight"));
  EXPECT_EQ(weights->pre_mlp_norm, plain.vector(prefix + "pre_mlp_layernorm.weight"));
  EXPECT_EQ(weights->final_norm, plain.vector(prefix + "final_layernorm.weight"));
  expect_same(weights->eh_proj, plain.matrix(prefix + "eh_proj"));
  expect_attention(weights->attention, plain, prefix + "self_attn.", source.config().window, shard, chunks);
  expect_mlp(weights->mlp, plain, prefix + "mlp.", shard);
}

}  // namespace mimo::testing
