// Operations of any backend on arrays of the CPU's memory.
#pragma once

#include <algorithm>
#include <span>
#include <stdexcept>
#include <vector>

#include "core/number_formats.h"
#include "ops/backend_array.h"
#include "ops/ops.h"

namespace mimo::testing {

class HostCalls {
 public:
  explicit HostCalls(Ops& ops) : ops_(ops) {}

  Vector vector(std::span<const float> values) const {
    Result<Vector> packed = ops_.pack_vector(values);
    if (!packed) throw std::runtime_error(packed.error().message);
    return std::move(*packed);
  }

  void embed(const Matrix& table, std::span<const std::int32_t> ids, float* out) const {
    BackendArray<std::int32_t> index;
    BackendArray<float> rows;
    const std::size_t count = ids.size() * static_cast<std::size_t>(table.cols());
    rows.reserve(ops_, count);
    ops_.embed(table, index.upload(ops_, ids), static_cast<int>(ids.size()), rows.data());
    ops_.download(out, rows.data(), count * sizeof(float));
  }

  void rms_norm(const float* x, int rows, std::span<const float> weight, float eps, float* out) const {
    const std::size_t count = static_cast<std::size_t>(rows) * weight.size();
    BackendArray<float> data;
    const Vector gain = vector(weight);
    data.upload(ops_, {x, count});
    ops_.rms_norm(data.data(), rows, gain, eps, data.data());
    ops_.download(out, data.data(), count * sizeof(float));
  }

  void rms_norm_heads(float* x, std::size_t row_width, int rows, int heads, std::span<const float> weight,
                      float eps) const {
    const Vector gain = vector(weight);
    const std::size_t count =
        static_cast<std::size_t>(rows - 1) * row_width + static_cast<std::size_t>(heads) * weight.size();
    in_place(x, count, [&](Act* data) { ops_.rms_norm_heads(data, row_width, rows, heads, gain, eps); });
  }

  void linear(const float* x, int rows, const Matrix& weight, float* y, Store store) const {
    const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(weight.rows());
    BackendArray<Act> input;
    BackendArray<float> output;
    act(x, static_cast<std::size_t>(rows) * static_cast<std::size_t>(weight.cols()), input);
    output.upload(ops_, {y, count});
    ops_.linear(input.data(), rows, weight, output.data(), store);
    ops_.download(y, output.data(), count * sizeof(float));
  }

  void rope_and_store_kv(float* qkv, std::size_t row_width, std::span<const SequenceRows> sequences,
                         const AttentionSpec& spec, const RopeSpec& rope, float value_scale,
                         KvStore& kv) const {
    const std::unique_ptr<SequenceBatch> batch = ops_.make_sequences(rope);
    batch->set(sequences);
    const std::size_t used =
        static_cast<std::size_t>((spec.q_heads + spec.kv_heads) * spec.qk_dim + spec.kv_heads * spec.v_dim);
    const std::size_t count = (row_count(sequences) - 1) * row_width + used;
    in_place(qkv, count,
             [&](Act* data) { ops_.rope_and_store_kv(data, row_width, *batch, spec, value_scale, kv); });
  }

  void attention(const float* qkv, std::size_t row_width, std::span<const SequenceRows> sequences,
                 const AttentionSpec& spec, std::span<const float> sinks, const KvStore& kv,
                 float* out) const {
    const Vector packed = vector(sinks);
    AttentionSpec with_sinks = spec;
    if (!sinks.empty()) with_sinks.sinks = &packed;
    const std::unique_ptr<SequenceBatch> batch = ops_.make_sequences({});
    batch->set(sequences);
    const std::size_t rows = row_count(sequences);
    const std::size_t count = rows * static_cast<std::size_t>(spec.q_heads * spec.v_dim);
    BackendArray<Act> input;
    BackendArray<Act> output;
    act(qkv, rows * row_width, input);
    act(out, count, output);
    ops_.attention(input.data(), row_width, *batch, with_sinks, kv, output.data());
    from_act(output.data(), count, out);
  }

  void route(const float* x, int rows, const Matrix& router, const RouteSpec& spec,
             std::span<const float> bias, std::int32_t* ids, float* weights) const {
    const Vector packed = vector(bias);
    RouteSpec with_bias = spec;
    with_bias.bias = &packed;
    const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(spec.top_k);
    BackendArray<Act> input;
    BackendArray<std::int32_t> chosen;
    BackendArray<float> shares;
    act(x, static_cast<std::size_t>(rows) * static_cast<std::size_t>(router.cols()), input);
    ops_.route(input.data(), rows, router, with_bias, chosen.reserve(ops_, count),
               shares.reserve(ops_, count));
    ops_.download(ids, chosen.data(), count * sizeof(std::int32_t));
    ops_.download(weights, shares.data(), count * sizeof(float));
  }

  // `hidden`: width of x and y.
  void experts(const float* x, int rows, std::size_t hidden, const MlpBank& bank, int top_k,
               const std::int32_t* ids, const float* weights, float* y) const {
    const std::size_t count = static_cast<std::size_t>(rows) * hidden;
    const std::size_t slots = static_cast<std::size_t>(rows) * static_cast<std::size_t>(top_k);
    BackendArray<Act> input;
    BackendArray<float> output;
    BackendArray<std::int32_t> chosen;
    BackendArray<float> shares;
    act(x, count, input);
    output.upload(ops_, {y, count});
    ops_.experts(input.data(), rows, bank, top_k, chosen.upload(ops_, {ids, slots}),
                 shares.upload(ops_, {weights, slots}), output.data());
    ops_.download(y, output.data(), count * sizeof(float));
  }

  void mlp(const float* x, int rows, std::size_t hidden, const MlpBank& bank, float* y) const {
    const std::size_t count = static_cast<std::size_t>(rows) * hidden;
    BackendArray<Act> input;
    BackendArray<float> output;
    act(x, count, input);
    output.upload(ops_, {y, count});
    ops_.mlp(input.data(), rows, bank, output.data());
    ops_.download(y, output.data(), count * sizeof(float));
  }

  void best_tokens(const float* logits, std::size_t row_width, int rows, int count, std::int32_t* ids,
                   float* probabilities) const {
    BackendArray<float> data;
    data.upload(ops_,
                {logits, static_cast<std::size_t>(rows - 1) * row_width + static_cast<std::size_t>(count)});
    const auto n = static_cast<std::size_t>(rows);
    BackendArray<std::int32_t> best;
    BackendArray<float> shares;
    ops_.best_tokens(data.data(), row_width, rows, count, best.reserve(ops_, n), shares.reserve(ops_, n));
    ops_.download(ids, best.data(), n * sizeof(std::int32_t));
    ops_.download(probabilities, shares.data(), n * sizeof(float));
    // Without probabilities the choice is the same.
    BackendArray<std::int32_t> again;
    std::vector<std::int32_t> same(n);
    ops_.best_tokens(data.data(), row_width, rows, count, again.reserve(ops_, n), nullptr);
    ops_.download(same.data(), again.data(), n * sizeof(std::int32_t));
    if (!std::equal(same.begin(), same.end(), ids))
      throw std::runtime_error("best_tokens without probabilities");
  }

 private:
  static std::size_t row_count(std::span<const SequenceRows> sequences) {
    std::size_t rows = 0;
    for (const SequenceRows& sequence : sequences) rows += static_cast<std::size_t>(sequence.rows);
    return rows;
  }
  void act(const float* x, std::size_t count, BackendArray<Act>& to) const {
    BackendArray<float> floats;
    to.reserve(ops_, count);
    ops_.to_act(floats.upload(ops_, {x, count}), count, to.data());
  }
  // Activations are fp32 or bf16.
  void from_act(const Act* x, std::size_t count, float* out) const {
    if (ops_.act_bytes() == sizeof(float)) {
      ops_.download(out, x, count * sizeof(float));
      return;
    }
    std::vector<std::uint16_t> bits(count);
    ops_.download(bits.data(), x, count * sizeof(std::uint16_t));
    std::transform(bits.begin(), bits.end(), out, bf16_to_float);
  }
  template <class Call>
  void in_place(float* x, std::size_t count, const Call& call) const {
    BackendArray<Act> data;
    act(x, count, data);
    call(data.data());
    from_act(data.data(), count, x);
  }

  Ops& ops_;
};

}  // namespace mimo::testing
