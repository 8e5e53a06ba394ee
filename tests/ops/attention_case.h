// Ragged attention problems and what their exact answer is, with a bound on the CPU backend's error.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "core/number_formats.h"
#include "ops/host_calls.h"
#include "ops/linear_bound.h"
#include "ops/ops.h"
#include "ops/stored_matrix.h"

namespace mimo::testing {

// `rows` query rows at the end of a sequence of `length` tokens.
struct Span {
  int length = 1;
  int rows = 1;
};

struct AttentionCase {
  int q_heads = 8;
  int kv_heads = 1;
  int qk_dim = 192;
  int v_dim = 128;
  int window = 0;
  bool sinks = false;
  int page_size = 16;
  KvDType dtype = KvDType::kBF16;
  float value_scale = 0.707f;
  float key_size = 1.0f;
  std::vector<Span> spans = {};
  bool bidirectional = false;  // rows of a span see each other
  bool per_anchor = false;     // the window is counted from the span's first row
  int first_key = 0;           // positions before it have no keys

  // Keys [first, last) of the row at position r of a span.
  int oldest(const Span& span, int r) const {
    const int begin = span.length - span.rows;
    int first = window == 0 ? 0 : per_anchor ? begin - window : r - window + 1;
    if (bidirectional && first > begin) first = begin;
    return std::max({first, std::min(first_key, begin), 0});
  }
  int past_newest(const Span& span, int r) const { return bidirectional ? span.length : r + 1; }
};

// The tokens of a case: queries, keys and values of every position of every sequence.
class AttentionData {
 public:
  AttentionData(const AttentionCase& c, Random& random) : case_(c) {
    for (const Span& span : c.spans) {
      const auto length = static_cast<std::size_t>(span.length);
      std::vector<float> rows = normal_values(random, length * width(), 1.0f);
      // Queries that bf16 holds exactly: their rounding has a test of its own.
      for (std::size_t t = 0; t < length; ++t) {
        float* row = rows.data() + t * width();
        for (int i = 0; i < c.q_heads * c.qk_dim; ++i) row[i] = round_to_bf16(row[i]);
        for (int i = 0; i < c.kv_heads * c.qk_dim; ++i) row[c.q_heads * c.qk_dim + i] *= c.key_size;
      }
      tokens.push_back(std::move(rows));
    }
    if (c.sinks) {
      constexpr float kValues[4] = {-5.0f, 0.0f, 5.0f, 20.0f};
      for (int h = 0; h < c.q_heads; ++h) sinks.push_back(kValues[h % 4]);
    }
  }

  std::size_t width() const {
    return static_cast<std::size_t>((case_.q_heads + case_.kv_heads) * case_.qk_dim +
                                    case_.kv_heads * case_.v_dim);
  }
  AttentionSpec spec() const {
    return {.q_heads = case_.q_heads,
            .kv_heads = case_.kv_heads,
            .qk_dim = case_.qk_dim,
            .v_dim = case_.v_dim,
            .window = case_.window,
            .scale = 1.0f / std::sqrt(static_cast<float>(case_.qk_dim)),
            .mask = case_.bidirectional ? MaskKind::kBidirectional : MaskKind::kCausal,
            .window_start = case_.per_anchor ? WindowStart::kAnchor : WindowStart::kRow};
  }
  const AttentionCase& config() const { return case_; }
  std::size_t query_rows() const {
    std::size_t rows = 0;
    for (const Span& span : case_.spans) rows += static_cast<std::size_t>(span.rows);
    return rows;
  }

  std::vector<std::vector<float>> tokens;  // [sequence][length, width]
  std::vector<float> sinks;

 private:
  AttentionCase case_;
};

// One backend's cache filled with a case: pages handed out in random order, NaN wherever nothing may be read.
class FilledCache {
 public:
  FilledCache(Ops& ops, const AttentionData& data, std::uint64_t seed = 1) : ops_(ops), data_(data) {
    const AttentionCase& c = data.config();
    std::int64_t pages = 0;
    for (const Span& span : c.spans) pages += (span.length + c.page_size - 1) / c.page_size;
    Result<std::unique_ptr<KvStore>> store =
        ops.make_kv({c.kv_heads, c.qk_dim, c.v_dim, c.page_size, pages + 1, c.dtype});
    if (!store) throw std::runtime_error(store.error().message);
    kv = std::move(*store);
    for (std::int32_t page = 0; page <= pages; ++page) kv->poison_page(page);
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages + 1));
    std::iota(order.begin(), order.end(), 0);
    Random random(seed);
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t s = 0; s < c.spans.size(); ++s) {
      const int length = c.spans[s].length;
      const int count = (length + c.page_size - 1) / c.page_size;
      tables.emplace_back(order.end() - count, order.end());
      order.resize(order.size() - static_cast<std::size_t>(count));
      std::vector<float> rows = data.tokens[s];
      const int unseen = std::min(c.first_key, length - c.spans[s].rows);
      rows.erase(rows.begin(),
                 rows.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(unseen) * data.width()));
      const SequenceRows all{0, length - unseen, unseen, tables[s]};
      HostCalls(ops).rope_and_store_kv(rows.data(), data.width(), {&all, 1}, data.spec(), {}, c.value_scale,
                                       *kv);
    }
    // Pages that no query row can see are gone.
    for (std::size_t s = 0; s < c.spans.size(); ++s) {
      const int first = c.oldest(c.spans[s], c.spans[s].length - c.spans[s].rows);
      for (int p = 0; p < first / c.page_size; ++p) {
        kv->poison_page(tables[s][static_cast<std::size_t>(p)]);
        tables[s][static_cast<std::size_t>(p)] = -1;
      }
    }
  }

  // All query rows of all sequences in one call, [query rows, q_heads, v_dim].
  std::vector<float> attend() const { return attend(data_.spec(), data_.sinks); }
  std::vector<float> attend(const AttentionSpec& spec, std::span<const float> sinks) const {
    std::vector<SequenceRows> sequences;
    std::vector<float> qkv;
    int row = 0;
    for (std::size_t s = 0; s < tables.size(); ++s) {
      const Span span = data_.config().spans[s];
      sequences.push_back({row, span.rows, span.length - span.rows, tables[s], first_key(span)});
      const auto skip =
          static_cast<std::ptrdiff_t>(static_cast<std::size_t>(span.length - span.rows) * data_.width());
      qkv.insert(qkv.end(), data_.tokens[s].begin() + skip, data_.tokens[s].end());
      row += span.rows;
    }
    return call(qkv, sequences, spec, sinks);
  }
  // Rows [first, first + count) of the query rows of one sequence, alone.
  std::vector<float> attend_part(std::size_t sequence, int first, int count) const {
    const Span span = data_.config().spans[sequence];
    const std::int64_t position = span.length - span.rows + first;
    const auto skip = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(position) * data_.width());
    const std::vector<float> qkv(
        data_.tokens[sequence].begin() + skip,
        data_.tokens[sequence].begin() + skip +
            static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * data_.width()));
    const std::vector<SequenceRows> rows = {{0, count, position, tables[sequence], first_key(span)}};
    return call(qkv, rows, data_.spec(), data_.sinks);
  }

  std::unique_ptr<KvStore> kv;
  std::vector<std::vector<std::int32_t>> tables;

 private:
  std::int64_t first_key(const Span& span) const {
    return std::min(data_.config().first_key, span.length - span.rows);
  }
  std::vector<float> call(const std::vector<float>& qkv, const std::vector<SequenceRows>& sequences,
                          const AttentionSpec& spec, std::span<const float> sinks) const {
    const std::size_t rows = qkv.size() / data_.width();
    std::vector<float> out(rows * static_cast<std::size_t>(spec.q_heads * spec.v_dim), std::nanf(""));
    HostCalls(ops_).attention(qkv.data(), data_.width(), sequences, spec, sinks, *kv, out.data());
    return out;
  }

  Ops& ops_;
  const AttentionData& data_;
};

// Exact attention in double over keys and values rounded as the cache type says, and the error the CPU
// backend may make:
//   softmax weights rounded to bf16 (relative 2^-8, uniform): kDeviations * 2^-8 / sqrt(3) * sqrt(sum p^2
//   v^2) fp32 scores: kDeviations * sqrt(qk_dim) * 2^-24 * scale * sum |q k|, times what a score moves: sum p
//   |v - out| exp (2 ulp of fp32, argument rounded) and fp32 sums
// An F32 cache has no bf16 term, whatever the instruction set.
struct ExactAttention {
  std::vector<double> out;         // [query rows, q_heads, v_dim]
  std::vector<double> bound;       // of fp32 arithmetic
  std::vector<double> bf16_bound;  // of softmax weights in bf16: added to it
};

inline ExactAttention exact_attention(const AttentionData& data, const AttentionCase& c,
                                      const std::vector<float>& sinks) {
  const auto qk = static_cast<std::size_t>(c.qk_dim);
  const auto vd = static_cast<std::size_t>(c.v_dim);
  const std::size_t group = static_cast<std::size_t>(c.q_heads / c.kv_heads);
  const double scale = 1.0f / std::sqrt(static_cast<float>(c.qk_dim));
  ExactAttention result;
  const auto rounded = [&](const float* x, std::size_t count, float multiplier) {
    std::vector<double> values(count);
    float top = 1e-10f;
    for (std::size_t i = 0; i < count; ++i) top = std::max(top, std::fabs(x[i] * multiplier));
    const float step = top / 448.0f;
    for (std::size_t i = 0; i < count; ++i) {
      const float value = x[i] * multiplier;
      values[i] = c.dtype == KvDType::kF32 ? value
                  : c.dtype == KvDType::kBF16
                      ? round_to_bf16(value)
                      : static_cast<double>(e4m3_to_float(float_to_e4m3(value / step))) * step;
    }
    return values;
  };
  for (std::size_t s = 0; s < c.spans.size(); ++s) {
    const Span span = c.spans[s];
    const auto length = static_cast<std::size_t>(span.length);
    std::vector<std::vector<double>> keys(length * static_cast<std::size_t>(c.kv_heads));
    std::vector<std::vector<double>> values(keys.size());
    const int oldest = c.oldest(span, span.length - span.rows);
    for (std::size_t t = static_cast<std::size_t>(oldest); t < length; ++t) {
      const float* row = data.tokens[s].data() + t * data.width() + static_cast<std::size_t>(c.q_heads) * qk;
      for (std::size_t h = 0; h < static_cast<std::size_t>(c.kv_heads); ++h) {
        keys[t * static_cast<std::size_t>(c.kv_heads) + h] = rounded(row + h * qk, qk, 1.0f);
        values[t * static_cast<std::size_t>(c.kv_heads) + h] =
            rounded(row + static_cast<std::size_t>(c.kv_heads) * qk + h * vd, vd, c.value_scale);
      }
    }
    for (int r = span.length - span.rows; r < span.length; ++r) {
      const int first = c.oldest(span, r);
      for (std::size_t h = 0; h < static_cast<std::size_t>(c.q_heads); ++h) {
        const float* q = data.tokens[s].data() + static_cast<std::size_t>(r) * data.width() + h * qk;
        std::vector<double> p;
        std::vector<double> moved;  // error of a score
        double top = sinks.empty() ? -INFINITY : sinks[h];
        for (int j = first; j < c.past_newest(span, r); ++j) {
          const std::vector<double>& k =
              keys[static_cast<std::size_t>(j) * static_cast<std::size_t>(c.kv_heads) + h / group];
          double sums[4] = {};
          double sizes[4] = {};
          for (std::size_t d = 0; d < qk; d += 4) {
            for (std::size_t i = 0; i < 4; ++i) {
              const double product = q[d + i] * k[d + i];
              sums[i] += product;
              sizes[i] += std::fabs(product);
            }
          }
          const double score = (sums[0] + sums[1] + sums[2] + sums[3]) * scale;
          const double size = (sizes[0] + sizes[1] + sizes[2] + sizes[3]) * scale;
          p.push_back(score);
          top = std::max(top, score);
          moved.push_back(kDeviations * std::sqrt(static_cast<double>(qk)) * kUnit * size);
        }
        double total = sinks.empty() ? 0.0 : std::exp(sinks[h] - top);
        for (std::size_t j = 0; j < p.size(); ++j) {
          moved[j] += 4 * kUnit * (std::fabs(p[j]) + std::fabs(top)) + 4 * kUnit;
          p[j] = std::exp(p[j] - top);
          total += p[j];
        }
        std::vector<double> o(vd, 0.0);
        std::vector<double> squares(vd, 0.0);
        std::vector<double> sizes(vd, 0.0);
        std::vector<double> slopes(vd, 0.0);
        for (std::size_t j = 0; j < p.size(); ++j) {
          p[j] /= total;
          const double* v =
              values[(static_cast<std::size_t>(first) + j) * static_cast<std::size_t>(c.kv_heads) + h / group]
                  .data();
          for (std::size_t d = 0; d < vd; ++d) {
            const double pv = p[j] * v[d];
            o[d] += pv;
            squares[d] += pv * pv;
            sizes[d] += std::fabs(pv);
          }
        }
        for (std::size_t j = 0; j < p.size(); ++j) {
          const double* v =
              values[(static_cast<std::size_t>(first) + j) * static_cast<std::size_t>(c.kv_heads) + h / group]
                  .data();
          const double weight = p[j] * moved[j];
          for (std::size_t d = 0; d < vd; ++d) slopes[d] += weight * std::fabs(v[d] - o[d]);
        }
        const double terms = static_cast<double>(p.size()) + 8;
        for (std::size_t d = 0; d < vd; ++d) {
          const double rounding =
              c.dtype == KvDType::kF32 ? 0.0 : 0x1p-8 / std::sqrt(3.0) * std::sqrt(squares[d]);
          result.bf16_bound.push_back(kDeviations * rounding);
          const double bound = slopes[d] + kDeviations * std::sqrt(terms) * kUnit * sizes[d] + 1e-30;
          result.out.push_back(o[d]);
          result.bound.push_back(bound);
        }
      }
    }
  }
  return result;
}

inline ExactAttention exact_attention(const AttentionData& data) {
  return exact_attention(data, data.config(), data.sinks);
}
inline ExactAttention exact_attention(const AttentionData& data, int window,
                                      const std::vector<float>& sinks) {
  AttentionCase other = data.config();
  other.window = window;
  return exact_attention(data, other, sinks);
}

// Largest |got - exact| / bound; NaN counts as infinite. `bf16_weights`: the backend rounds softmax weights
// to bf16.
inline double worst_ratio(const std::vector<float>& got, const ExactAttention& exact, bool bf16_weights) {
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double ratio =
        std::fabs(got[i] - exact.out[i]) / (exact.bound[i] + (bf16_weights ? exact.bf16_bound[i] : 0.0));
    worst = std::isnan(ratio) ? INFINITY : std::max(worst, ratio);
  }
  return worst;
}

}  // namespace mimo::testing
