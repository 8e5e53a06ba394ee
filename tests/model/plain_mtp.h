// The MTP heads once more, from the formulas of spec model 4.1 to 4.3: for one anchor, everything from the
// start, row by row in double, nothing kept. Shares only the weight views with the drafter.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "checkpoint/weight_source.h"
#include "support/plain_checkpoint.h"

namespace mimo::testing {

class PlainMtp {
 public:
  using Vector = std::vector<double>;

  explicit PlainMtp(WeightSource& source) : config_(source.config()) {
    const GlobalWeights globals = source.globals().value();
    embed_ = to_matrix(globals.embed);
    lm_head_ = to_matrix(globals.lm_head);
    for (int k = 0; k < source.mtp_heads(); ++k) {
      const MtpWeights weights = source.mtp(k, {}).value();
      heads_.push_back({weights.embed_norm, weights.hidden_norm, weights.input_norm, weights.pre_mlp_norm,
                        weights.final_norm, weights.attention.sinks, to_matrix(weights.eh_proj),
                        to_matrix(weights.attention.qkv), to_matrix(weights.attention.o_proj),
                        to_matrix(weights.mlp.gate), to_matrix(weights.mlp.up), to_matrix(weights.mlp.down)});
    }
  }

  struct Draft {
    std::int32_t token = 0;
    double probability = 0;
  };

  // Drafts after the anchor tokens[n], from hidden states `g` [n] of positions `first` on (older ones are not
  // looked at) and tokens 0..n.
  std::vector<Draft> draft(const std::vector<std::vector<float>>& g, std::vector<std::int32_t> tokens,
                           std::size_t n, std::size_t first, int count) const {
    tokens.resize(n + 1);
    std::vector<Draft> drafts;
    for (int k = 0; k < count; ++k) {
      drafts.push_back(
          run_head(heads_[static_cast<std::size_t>(k)], static_cast<std::size_t>(k), g, tokens, n, first));
      tokens.push_back(drafts.back().token);
    }
    return drafts;
  }

 private:
  struct Head {
    std::vector<float> embed_norm, hidden_norm, input_norm, pre_mlp_norm, final_norm, sinks;
    PlainMatrix eh_proj, qkv, o_proj, gate, up, down;
  };

  static Vector multiply(const PlainMatrix& matrix, const Vector& x) {
    Vector y(static_cast<std::size_t>(matrix.rows), 0.0);
    for (std::size_t r = 0; r < y.size(); ++r) {
      const float* row = matrix.values.data() + r * x.size();
      for (std::size_t c = 0; c < x.size(); ++c) y[r] += static_cast<double>(row[c]) * x[c];
    }
    return y;
  }

  Vector norm(const Vector& x, const std::vector<float>& weight) const {
    double squares = 0;
    for (const double v : x) squares += v * v;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + config_.norm_eps);
    Vector y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * weight[i];
    return y;
  }

  void rotate(double* head, std::size_t position) const {
    const int half = config_.window.rotary_dims / 2;
    for (int j = 0; j < half; ++j) {
      const double angle =
          static_cast<double>(position) *
          std::pow(static_cast<double>(config_.window.rope_theta), -2.0 * j / config_.window.rotary_dims);
      const double a = head[j];
      const double b = head[j + half];
      head[j] = a * std::cos(angle) - b * std::sin(angle);
      head[j + half] = b * std::cos(angle) + a * std::sin(angle);
    }
  }

  Draft run_head(const Head& head, std::size_t shift, const std::vector<std::vector<float>>& g,
                 const std::vector<std::int32_t>& tokens, std::size_t n, std::size_t first) const {
    const AttentionShape& shape = config_.window;
    const auto hidden = static_cast<std::size_t>(config_.hidden);
    const auto q_dim = static_cast<std::size_t>(shape.qk_dim);
    const auto v_dim = static_cast<std::size_t>(shape.v_dim);
    const auto q_heads = static_cast<std::size_t>(shape.q_heads);
    const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
    const auto window = static_cast<std::size_t>(shape.window);
    const std::size_t oldest = std::max(first, n > window ? n - window : 0);
    std::vector<Vector> rows;  // q, k and v of rows oldest .. n - 1
    Vector x;                  // residual stream of the last one
    for (std::size_t i = oldest; i < n; ++i) {
      const auto token = static_cast<std::size_t>(tokens[i + 1 + shift]);
      const Vector e(embed_.values.begin() + static_cast<std::ptrdiff_t>(token * hidden),
                     embed_.values.begin() + static_cast<std::ptrdiff_t>((token + 1) * hidden));
      Vector joined = norm(e, head.embed_norm);
      const Vector state = norm(Vector(g[i].begin(), g[i].end()), head.hidden_norm);
      joined.insert(joined.end(), state.begin(), state.end());
      x = multiply(head.eh_proj, joined);
      rows.push_back(multiply(head.qkv, norm(x, head.input_norm)));
      for (std::size_t h = 0; h < q_heads + kv_heads; ++h) rotate(rows.back().data() + h * q_dim, i);
    }
    Vector attended(q_heads * v_dim, 0.0);
    for (std::size_t h = 0; h < q_heads; ++h) {
      const std::size_t group = h / (q_heads / kv_heads);
      Vector scores;
      double high = head.sinks.empty() ? -1e300 : head.sinks[h];
      for (const Vector& row : rows) {
        double dot = 0;
        for (std::size_t d = 0; d < q_dim; ++d) {
          dot += rows.back()[h * q_dim + d] * row[(q_heads + group) * q_dim + d];
        }
        scores.push_back(dot / std::sqrt(static_cast<double>(q_dim)));
        high = std::max(high, scores.back());
      }
      double total = head.sinks.empty() ? 0 : std::exp(head.sinks[h] - high);
      for (double& score : scores) total += score = std::exp(score - high);
      for (std::size_t j = 0; j < rows.size(); ++j) {
        for (std::size_t d = 0; d < v_dim; ++d) {
          attended[h * v_dim + d] += scores[j] / total * config_.value_scale *
                                     rows[j][(q_heads + kv_heads) * q_dim + group * v_dim + d];
        }
      }
    }
    const Vector projected = multiply(head.o_proj, attended);
    for (std::size_t i = 0; i < hidden; ++i) x[i] += projected[i];
    const Vector u = norm(x, head.pre_mlp_norm);
    Vector gate = multiply(head.gate, u);
    const Vector up = multiply(head.up, u);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    const Vector down = multiply(head.down, gate);
    for (std::size_t i = 0; i < hidden; ++i) x[i] += down[i];
    const Vector logits = multiply(lm_head_, norm(x, head.final_norm));
    const auto best = std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (const double logit : logits) total += std::exp(logit - *best);
    return {static_cast<std::int32_t>(best - logits.begin()), 1 / total};
  }

  ModelConfig config_;
  PlainMatrix embed_;
  PlainMatrix lm_head_;
  std::vector<Head> heads_;
};

}  // namespace mimo::testing
