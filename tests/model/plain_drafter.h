// The equations of spec dflash 1.5 and 2.2 written out over whole sequences in double precision: no paging, no
// batching, no code of src/. What DFlashDrafter is held against.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "support/tiny_drafter.h"

namespace mimo::testing {

class PlainDrafter {
 public:
  using Row = std::vector<double>;

  explicit PlainDrafter(const TinyDrafter& drafter) : d_(drafter), s_(drafter.shape) {
    for (const auto& [name, tensor] : drafter.tensors) {
      (void)tensor;
      values_[name] = drafter.values(name);
    }
  }

  // Anchored window reading (spec 1.6, second form).
  bool per_anchor = false;
  // Absolute position of the first observed row.
  int origin = 0;

  // Adds the context of the next position, given its taps [taps * hidden].
  void observe(const float* taps) {
    const Row f(taps, taps + s_.taps.size() * static_cast<std::size_t>(s_.hidden));
    const Row c = norm(multiply("fc.weight", f), "hidden_norm.weight");
    const int position = origin + static_cast<int>(context_.size());
    std::vector<Row> layers;
    for (int i = 0; i < s_.layers; ++i) {
      Row k = keys(i, c, position);
      const Row v = vals(i, c);
      k.insert(k.end(), v.begin(), v.end());
      layers.push_back(std::move(k));
    }
    context_.push_back(std::move(layers));
  }
  int length() const { return static_cast<int>(context_.size()); }

  // Rows 1 .. block - 1 after the final norm, for the block that begins at length().
  std::vector<Row> block(const std::vector<float>& anchor) const {
    const int n = s_.block;
    const int base = origin + length();
    std::vector<Row> x(static_cast<std::size_t>(n), Row(d_.mask.begin(), d_.mask.end()));
    x[0] = Row(anchor.begin(), anchor.end());
    for (int i = 0; i < s_.layers; ++i) {
      const std::string at = "layers." + std::to_string(i) + ".";
      std::vector<Row> q, k, v;
      for (int r = 0; r < n; ++r) {
        const Row u = norm(x[static_cast<std::size_t>(r)], at + "input_layernorm.weight");
        q.push_back(
            heads(multiply(at + "self_attn.q_proj.weight", u), at + "self_attn.q_norm.weight", base + r));
        k.push_back(keys(i, u, base + r));
        v.push_back(vals(i, u));
      }
      for (int r = 0; r < n; ++r) {
        const Row o = attend(i, base, r, q[static_cast<std::size_t>(r)], k, v);
        Row& row = x[static_cast<std::size_t>(r)];
        add(row, multiply(at + "self_attn.o_proj.weight", o));
        const Row u = norm(row, at + "post_attention_layernorm.weight");
        Row gate = multiply(at + "mlp.gate_proj.weight", u);
        const Row up = multiply(at + "mlp.up_proj.weight", u);
        for (std::size_t j = 0; j < gate.size(); ++j) gate[j] = gate[j] / (1.0 + std::exp(-gate[j])) * up[j];
        add(row, multiply(at + "mlp.down_proj.weight", gate));
      }
    }
    std::vector<Row> out;
    for (int r = 1; r < n; ++r) out.push_back(norm(x[static_cast<std::size_t>(r)], "norm.weight"));
    return out;
  }

 private:
  static void add(Row& x, const Row& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  Row multiply(const std::string& name, const Row& x) const {
    const std::vector<float>& w = values_.at(name);
    Row y(w.size() / x.size());
    for (std::size_t r = 0; r < y.size(); ++r) {
      double sum = 0;
      for (std::size_t c = 0; c < x.size(); ++c) sum += static_cast<double>(w[r * x.size() + c]) * x[c];
      y[r] = sum;
    }
    return y;
  }
  Row norm(const Row& x, const std::string& name) const {
    const std::vector<float>& gain = values_.at(name);
    double sum = 0;
    for (const double value : x) sum += value * value;
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + 1e-6);
    Row y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * gain[i];
    return y;
  }
  // Norm of each head, then rotation of its leading dims in halves. Angles are fp32 products, as defined.
  Row heads(const Row& x, const std::string& gain, int position) const {
    const auto dim = static_cast<std::size_t>(s_.head_dim);
    const auto half = static_cast<std::size_t>(s_.head_dim * s_.rotary_factor) / 2;
    Row y;
    for (std::size_t h = 0; h < x.size() / dim; ++h) {
      Row head = norm(Row(x.begin() + static_cast<std::ptrdiff_t>(h * dim),
                          x.begin() + static_cast<std::ptrdiff_t>((h + 1) * dim)),
                      gain);
      for (std::size_t j = 0; j < half; ++j) {
        const float frequency = 1.0f / std::pow(static_cast<float>(s_.rope_theta),
                                                static_cast<float>(2 * j) / static_cast<float>(2 * half));
        const double angle = static_cast<float>(position) * frequency;
        const double a = head[j];
        const double b = head[j + half];
        head[j] = a * std::cos(angle) - b * std::sin(angle);
        head[j + half] = b * std::cos(angle) + a * std::sin(angle);
      }
      y.insert(y.end(), head.begin(), head.end());
    }
    return y;
  }
  Row keys(int layer, const Row& u, int position) const {
    const std::string at = "layers." + std::to_string(layer) + ".self_attn.";
    return heads(multiply(at + "k_proj.weight", u), at + "k_norm.weight", position);
  }
  Row vals(int layer, const Row& u) const {
    Row v = multiply("layers." + std::to_string(layer) + ".self_attn.v_proj.weight", u);
    for (double& value : v) value *= s_.value_scale;
    return v;
  }
  Row attend(int layer, int base, int r, const Row& q, const std::vector<Row>& k,
             const std::vector<Row>& v) const {
    const auto dim = static_cast<std::size_t>(s_.head_dim);
    const auto kv_width = static_cast<std::size_t>(s_.kv_heads) * dim;
    const std::string sink_name = "layers." + std::to_string(layer) + ".self_attn.attention_sink_bias";
    Row out;
    for (int h = 0; h < s_.q_heads; ++h) {
      const std::size_t kv = static_cast<std::size_t>(h / (s_.q_heads / s_.kv_heads)) * dim;
      std::vector<const double*> key;
      std::vector<const double*> value;
      const int oldest = s_.window == 0 ? 0 : per_anchor ? base - s_.window : base + r - (s_.window - 1);
      for (int j = std::max(origin, oldest); j < base; ++j) {
        const Row& row = context_[static_cast<std::size_t>(j - origin)][static_cast<std::size_t>(layer)];
        key.push_back(row.data() + kv);
        value.push_back(row.data() + kv_width + kv);
      }
      for (int j = 0; j < (s_.causal ? r + 1 : s_.block); ++j) {
        key.push_back(k[static_cast<std::size_t>(j)].data() + kv);
        value.push_back(v[static_cast<std::size_t>(j)].data() + kv);
      }
      double total =
          s_.sinks ? std::exp(static_cast<double>(values_.at(sink_name)[static_cast<std::size_t>(h)])) : 0.0;
      Row sum(dim, 0.0);
      for (std::size_t j = 0; j < key.size(); ++j) {
        double dot = 0;
        for (std::size_t d = 0; d < dim; ++d) dot += q[static_cast<std::size_t>(h) * dim + d] * key[j][d];
        const double p = std::exp(dot / std::sqrt(static_cast<double>(s_.head_dim)));
        total += p;
        for (std::size_t d = 0; d < dim; ++d) sum[d] += p * value[j][d];
      }
      for (const double value_sum : sum) out.push_back(value_sum / total);
    }
    return out;
  }

  const TinyDrafter& d_;
  const DrafterShape& s_;
  std::map<std::string, std::vector<float>> values_;
  std::vector<std::vector<Row>> context_;  // [position][layer]: K then V
};

}  // namespace mimo::testing
