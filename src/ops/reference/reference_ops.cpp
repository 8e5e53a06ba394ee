#include "ops/reference/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "core/number_formats.h"
#include "ops/host_ops.h"
#include "ops/reference/reference_kv.h"

namespace mimo {
namespace {

// A matrix in its stored precision, bytes owned.
class ReferenceMatrix final : public Matrix {
 public:
  explicit ReferenceMatrix(const WeightView& view) : view_(view) {
    std::size_t total = 0;
    for (const WeightSegment& segment : view.segments) total += segment_bytes(segment);
    bytes_.reserve(total);
    scales_f32_.resize(view.segments.size());
    scales_u8_.resize(view.segments.size());
    const std::size_t row_bytes = weight_row_bytes(view.format, view.cols);
    std::vector<std::size_t> offsets;
    for (std::size_t s = 0; s < view.segments.size(); ++s) {
      const WeightSegment& segment = view.segments[s];
      offsets.push_back(bytes_.size());
      for (std::int64_t r = 0; r < segment.rows; ++r) {
        const std::uint8_t* row = segment.data + static_cast<std::size_t>(r) * segment.row_stride;
        bytes_.insert(bytes_.end(), row, row + row_bytes);
      }
      copy_scales(s);
    }
    for (std::size_t s = 0; s < view.segments.size(); ++s) {
      WeightSegment& segment = view_.segments[s];
      segment.data = bytes_.data() + offsets[s];
      segment.row_stride = row_bytes;
      segment.scales_f32 = scales_f32_[s].data();
      segment.scales_u8 = scales_u8_[s].data();
    }
  }

  std::int64_t rows() const override { return view_.rows; }
  std::int64_t cols() const override { return view_.cols; }
  std::size_t bytes() const override {
    std::size_t total = bytes_.size();
    for (const auto& scales : scales_f32_) total += scales.size() * sizeof(float);
    for (const auto& scales : scales_u8_) total += scales.size();
    return total;
  }
  void row(std::int64_t index, float* out) const { dequantize_row(view_, index, out); }

 private:
  std::size_t segment_bytes(const WeightSegment& segment) const {
    return static_cast<std::size_t>(segment.rows) * weight_row_bytes(view_.format, view_.cols);
  }

  // Copies the scale rows that segment s uses and rebases its grid on them.
  void copy_scales(std::size_t s) {
    WeightSegment& segment = view_.segments[s];
    if (view_.format == WeightFormat::kFp8) {
      const std::int64_t first = segment.grid_row / kFp8Block;
      const std::int64_t last = (segment.grid_row + segment.rows - 1) / kFp8Block;
      const auto width = static_cast<std::size_t>((view_.cols + kFp8Block - 1) / kFp8Block);
      for (std::int64_t row = first; row <= last; ++row) {
        const float* scales = segment.scales_f32 + static_cast<std::size_t>(row) * segment.scale_stride;
        scales_f32_[s].insert(scales_f32_[s].end(), scales, scales + width);
      }
      segment.grid_row -= first * kFp8Block;
      segment.scale_stride = width;
    } else if (view_.format == WeightFormat::kMxfp4) {
      const auto width = static_cast<std::size_t>(view_.cols / kMxfp4Block);
      for (std::int64_t row = 0; row < segment.rows; ++row) {
        const std::uint8_t* scales = segment.scales_u8 + static_cast<std::size_t>(row) * segment.scale_stride;
        scales_u8_[s].insert(scales_u8_[s].end(), scales, scales + width);
      }
      segment.scale_stride = width;
    }
  }

  WeightView view_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::vector<float>> scales_f32_;
  std::vector<std::vector<std::uint8_t>> scales_u8_;
};

class ReferenceMlpBank final : public MlpBank {
 public:
  struct Mlp {
    ReferenceMatrix gate, up, down;
    std::size_t bytes() const { return gate.bytes() + up.bytes() + down.bytes(); }
  };

  int experts() const override { return static_cast<int>(mlps.size()); }
  std::size_t bytes() const override {
    std::size_t total = 0;
    for (const Mlp& mlp : mlps) total += mlp.bytes();
    return total;
  }
  std::size_t expert_bytes() const override { return mlps.empty() ? 0 : mlps.front().bytes(); }

  std::vector<Mlp> mlps;
};

const ReferenceMatrix& own(const Matrix& matrix) { return dynamic_cast<const ReferenceMatrix&>(matrix); }

// y[rows, m.rows] = x m^T. The dot product is summed in double, so that the oracle's own rounding is
// negligible.
void multiply(const float* x, int rows, const ReferenceMatrix& m, float* y) {
  std::vector<float> row(static_cast<std::size_t>(m.cols()));
  for (std::int64_t n = 0; n < m.rows(); ++n) {
    m.row(n, row.data());
    for (int r = 0; r < rows; ++r) {
      const float* input = x + static_cast<std::int64_t>(r) * m.cols();
      double sum = 0;
      for (std::int64_t k = 0; k < m.cols(); ++k) {
        sum += static_cast<double>(input[k]) * static_cast<double>(row[static_cast<std::size_t>(k)]);
      }
      y[static_cast<std::int64_t>(r) * m.rows() + n] = static_cast<float>(sum);
    }
  }
}

void norm(const float* x, int rows, std::span<const float> weight, float eps, float* out,
          std::size_t out_width) {
  const std::size_t width = weight.size();
  for (int r = 0; r < rows; ++r) {
    const float* in = x + static_cast<std::size_t>(r) * width;
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) sum += static_cast<double>(in[i]) * in[i];
    const float scale = 1.0f / std::sqrt(static_cast<float>(sum / static_cast<double>(width)) + eps);
    for (std::size_t i = 0; i < width; ++i)
      out[static_cast<std::size_t>(r) * out_width + i] = in[i] * scale * weight[i];
  }
}

float silu(float x) { return x / (1.0f + std::exp(-x)); }

// y += weight * down(silu(gate(x)) * up(x)) for one row.
void add_mlp(const float* x, const ReferenceMlpBank::Mlp& mlp, float weight, float* y) {
  const auto width = static_cast<std::size_t>(mlp.gate.rows());
  const auto hidden = static_cast<std::size_t>(mlp.down.rows());
  std::vector<float> gate(width);
  std::vector<float> up(width);
  std::vector<float> out(hidden);
  multiply(x, 1, mlp.gate, gate.data());
  multiply(x, 1, mlp.up, up.data());
  for (std::size_t i = 0; i < width; ++i) gate[i] = silu(gate[i]) * up[i];
  multiply(gate.data(), 1, mlp.down, out.data());
  for (std::size_t i = 0; i < hidden; ++i) y[i] += weight * out[i];
}

void rotate(float* head, const float* cos, const float* sin, int dims) {
  const int half = dims / 2;
  for (int i = 0; i < half; ++i) {
    const float a = head[i];
    const float b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

class ReferenceOps final : public HostOps {
 public:
  const char* name() const override { return "reference"; }
  std::vector<std::string> describe() const override {
    return {"all operations: plain fp32 loops (the oracle; slow on purpose)"};
  }

  Result<std::unique_ptr<Matrix>> pack_matrix(const WeightView& view, MatrixUse /*use*/) override {
    return std::make_unique<ReferenceMatrix>(view);
  }
  Result<std::unique_ptr<Matrix>> pack_router(const WeightView& view) override {
    return pack_matrix(view, MatrixUse::kProjection);
  }
  Result<std::unique_ptr<MlpBank>> pack_mlps(std::span<const MlpViews> experts, MatrixUse /*use*/) override {
    auto bank = std::make_unique<ReferenceMlpBank>();
    for (const MlpViews& views : experts) {
      bank->mlps.push_back(
          {ReferenceMatrix(*views.gate), ReferenceMatrix(*views.up), ReferenceMatrix(*views.down)});
    }
    return bank;
  }
  Result<std::unique_ptr<KvStore>> make_kv(const KvSpec& spec) override {
    return std::make_unique<ReferenceKv>(spec);
  }

  void embed(const Matrix& table, const std::int32_t* ids, int count, float* out) override {
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      own(table).row(ids[i], out + i * static_cast<std::size_t>(table.cols()));
    }
  }

  void rms_norm(const float* x, int rows, const Vector& weight, float eps, float* out) override {
    norm(x, rows, values(weight), eps, out, weight.size());
  }
  void rms_norm(const float* x, int rows, const Vector& weight, float eps, Act* out,
                std::size_t out_width) override {
    norm(x, rows, values(weight), eps, f32(out), out_width);
  }

  void rms_norm_heads(Act* x, std::size_t row_width, int rows, int heads, const Vector& weight,
                      float eps) override {
    for (int r = 0; r < rows; ++r) {
      float* row = f32(x) + static_cast<std::size_t>(r) * row_width;
      norm(row, heads, values(weight), eps, row, weight.size());
    }
  }

  void linear(const Act* x, int rows, const Matrix& weight, Act* y) override {
    multiply(f32(x), rows, own(weight), f32(y));
  }

  void linear(const Act* x, int rows, const Matrix& weight, float* y, Store store) override {
    if (store == Store::kOverwrite) {
      multiply(f32(x), rows, own(weight), y);
      return;
    }
    std::vector<float> product(static_cast<std::size_t>(rows) * static_cast<std::size_t>(weight.rows()));
    multiply(f32(x), rows, own(weight), product.data());
    for (std::size_t i = 0; i < product.size(); ++i) y[i] += product[i];
  }

  void rope_and_store_kv(Act* qkv, std::size_t row_width, const SequenceBatch& batch,
                         const AttentionSpec& spec, float value_scale, KvStore& kv) override {
    auto& store = dynamic_cast<ReferenceKv&>(kv);
    const HostSequences& rotated = host(batch);
    std::vector<float> value(static_cast<std::size_t>(spec.v_dim));
    for (const SequenceRows& sequence : rotated.sequences()) {
      for (int r = 0; r < sequence.rows; ++r) {
        const auto row = static_cast<std::size_t>(sequence.row_begin + r);
        float* q = f32(qkv) + row * row_width;
        for (int h = 0; h < spec.q_heads + spec.kv_heads; ++h)
          rotate(q + h * spec.qk_dim, rotated.cos(row), rotated.sin(row), rotated.rope().dims);
        const float* k = q + spec.q_heads * spec.qk_dim;
        const float* v = k + spec.kv_heads * spec.qk_dim;
        const std::int64_t position = sequence.position + r;
        for (int h = 0; h < spec.kv_heads; ++h) {
          for (int d = 0; d < spec.v_dim; ++d)
            value[static_cast<std::size_t>(d)] = v[h * spec.v_dim + d] * value_scale;
          store.write(sequence.pages, position, h, k + h * spec.qk_dim, value.data());
        }
      }
    }
  }

  void attention(const Act* qkv, std::size_t row_width, const SequenceBatch& batch, const AttentionSpec& spec,
                 const KvStore& kv, Act* out) override {
    const auto& store = dynamic_cast<const ReferenceKv&>(kv);
    const int group = spec.q_heads / spec.kv_heads;
    std::vector<double> scores;
    std::vector<double> sum(static_cast<std::size_t>(spec.v_dim));
    const std::span<const float> sinks = values(spec.sinks);
    for (const SequenceRows& sequence : host(batch).sequences()) {
      for (int r = 0; r < sequence.rows; ++r) {
        const auto row = static_cast<std::size_t>(sequence.row_begin + r);
        const KeyRange keys = visible_keys(spec, sequence, r);
        for (int h = 0; h < spec.q_heads; ++h) {
          const float* q = f32(qkv) + row * row_width + static_cast<std::size_t>(h * spec.qk_dim);
          const bool sink = !sinks.empty();
          scores.clear();
          double top = sink ? sinks[static_cast<std::size_t>(h)] : -std::numeric_limits<double>::infinity();
          for (std::int64_t j = keys.first; j < keys.last; ++j) {
            const float* k = store.key(sequence.pages, j, h / group);
            double dot = 0;
            for (int d = 0; d < spec.qk_dim; ++d) dot += static_cast<double>(q[d]) * k[d];
            scores.push_back(dot * spec.scale);
            top = std::max(top, scores.back());
          }
          double total = sink ? std::exp(static_cast<double>(sinks[static_cast<std::size_t>(h)]) - top) : 0.0;
          std::fill(sum.begin(), sum.end(), 0.0);
          for (std::int64_t j = keys.first; j < keys.last; ++j) {
            const double p = std::exp(scores[static_cast<std::size_t>(j - keys.first)] - top);
            total += p;
            const float* v = store.value(sequence.pages, j, h / group);
            for (int d = 0; d < spec.v_dim; ++d) sum[static_cast<std::size_t>(d)] += p * v[d];
          }
          float* o = f32(out) + (row * static_cast<std::size_t>(spec.q_heads) + static_cast<std::size_t>(h)) *
                                    static_cast<std::size_t>(spec.v_dim);
          for (int d = 0; d < spec.v_dim; ++d)
            o[d] = static_cast<float>(sum[static_cast<std::size_t>(d)] / total);
        }
      }
    }
  }

  void route(const Act* x, int rows, const Matrix& router, const RouteSpec& spec, std::int32_t* ids,
             float* weights) override {
    const auto experts = static_cast<std::size_t>(spec.experts);
    const auto top_k = static_cast<std::size_t>(spec.top_k);
    std::vector<float> logits(static_cast<std::size_t>(rows) * experts);
    multiply(f32(x), rows, own(router), logits.data());
    for (int r = 0; r < rows; ++r) {
      choose_experts({logits.data() + static_cast<std::size_t>(r) * experts, experts}, spec,
                     values(spec.bias), {ids + static_cast<std::size_t>(r) * top_k, top_k},
                     {weights + static_cast<std::size_t>(r) * top_k, top_k});
    }
  }

  void experts(const Act* x, int rows, const MlpBank& bank, int top_k, const std::int32_t* ids,
               const float* weights, float* y) override {
    const auto& own_bank = dynamic_cast<const ReferenceMlpBank&>(bank);
    const std::int64_t hidden = own_bank.mlps.front().down.rows();
    for (int r = 0; r < rows; ++r) {
      for (int k = 0; k < top_k; ++k) {
        const std::int64_t slot = static_cast<std::int64_t>(r) * top_k + k;
        add_mlp(f32(x) + r * hidden, own_bank.mlps[static_cast<std::size_t>(ids[slot])], weights[slot],
                y + r * hidden);
      }
    }
  }

  void mlp(const Act* x, int rows, const MlpBank& bank, float* y) override {
    const auto& own_bank = dynamic_cast<const ReferenceMlpBank&>(bank);
    const std::int64_t hidden = own_bank.mlps.front().down.rows();
    for (int r = 0; r < rows; ++r) add_mlp(f32(x) + r * hidden, own_bank.mlps.front(), 1.0f, y + r * hidden);
  }

  void best_tokens(const float* logits, std::size_t row_width, int rows, int count, std::int32_t* ids,
                   float* probabilities) override {
    for (int r = 0; r < rows; ++r) {
      const float* row = logits + static_cast<std::size_t>(r) * row_width;
      const float* best = std::max_element(row, row + count);
      double total = 0;
      bool finite = true;
      for (int i = 0; i < count; ++i) {
        finite = finite && std::isfinite(row[i]);
        total += std::exp(static_cast<double>(row[i]) - *best);
      }
      ids[r] = finite ? static_cast<std::int32_t>(best - row) : -1;
      if (probabilities == nullptr) continue;
      probabilities[r] = finite ? static_cast<float>(1.0 / total) : std::numeric_limits<float>::quiet_NaN();
    }
  }
};

}  // namespace

std::unique_ptr<Ops> make_reference_ops() { return std::make_unique<ReferenceOps>(); }

}  // namespace mimo
