#include "checkpoint/assemble.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "checkpoint/sharding.h"
#include "checkpoint/tensor_table.h"
#include "core/number_formats.h"

namespace mimo {
namespace {

constexpr std::uint8_t kE8m0Nan = 255;

// A whole stored matrix.
struct Stored {
  WeightFormat format = WeightFormat::kBF16;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const std::uint8_t* data = nullptr;
  const float* scales_f32 = nullptr;
  const std::uint8_t* scales_u8 = nullptr;
  std::size_t scale_stride = 0;

  std::size_t row_bytes() const { return weight_row_bytes(format, cols); }
};

// Collects the first error, so that the assembly below stays a list of tensors.
class Assembler {
 public:
  Assembler(const ModelConfig& config, const QkvLayout& layout, TensorStore& store, Shard shard)
      : config_(config), layout_(layout), store_(store), shard_(shard) {}

  const std::optional<Error>& error() const { return error_; }

  std::vector<float> vector(const std::string& name, Range part) {
    const TensorBytes tensor = store_.get(name);
    std::vector<float> values(static_cast<std::size_t>(part.count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t index = static_cast<std::size_t>(part.begin) + i;
      if (tensor.dtype == DType::kF32) {
        std::memcpy(&values[i], tensor.data + 4 * index, sizeof(float));
      } else {
        std::uint16_t bits = 0;
        std::memcpy(&bits, tensor.data + 2 * index, sizeof(bits));
        values[i] = bf16_to_float(bits);
      }
      if (!std::isfinite(values[i])) {
        problem(fmt::format("{}[{}] is {}, expected a finite number", name, index, values[i]));
      }
    }
    return values;
  }

  std::vector<float> norm(const std::string& module) {
    return vector(module + ".weight", {0, config_.hidden});
  }

  WeightView whole(const std::string& module, WeightFormat format, std::int64_t rows, std::int64_t cols) {
    const Stored stored = load(module, format, rows, cols);
    return view(module, stored, cols, {cut(stored, {0, rows}, 0, {0, cols})});
  }

  // Column-parallel: this rank's rows of a matrix with `rows` rows.
  WeightView row_part(const std::string& module, WeightFormat format, std::int64_t rows, std::int64_t cols) {
    const Stored stored = load(module, format, rows, cols);
    const Range part = even_part(rows, shard_);
    return view(module, stored, cols, {cut(stored, part, part.begin, {0, cols})});
  }

  // Row-parallel: this rank's columns.
  WeightView column_part(const std::string& module, WeightFormat format, std::int64_t rows,
                         std::int64_t cols) {
    const Stored stored = load(module, format, rows, cols);
    const Range part = even_part(cols, shard_);
    return view(module, stored, part.count, {cut(stored, {0, rows}, 0, part)});
  }

  // `format_of(suffix)` gives the stored format of a module of this block.
  template <class FormatOf>
  AttentionWeights attention(const std::string& prefix, const AttentionShape& shape, FormatOf format_of) {
    AttentionWeights weights;
    weights.qkv = layout_.fused
                      ? fused_qkv(prefix + "self_attn.qkv_proj", shape, format_of("self_attn.qkv_proj"))
                      : split_qkv(prefix + "self_attn.", shape, format_of);
    weights.o_proj = column_part(prefix + "self_attn.o_proj", format_of("self_attn.o_proj"), config_.hidden,
                                 std::int64_t{shape.q_heads} * shape.v_dim);
    if (shape.sink) {
      weights.sinks = vector(prefix + "self_attn.attention_sink_bias", even_part(shape.q_heads, shard_));
    }
    return weights;
  }

  template <class FormatOf>
  MlpWeights mlp(const std::string& base, std::int64_t width, FormatOf format_of) {
    MlpWeights weights;
    weights.gate = row_part(base + "gate_proj", format_of("mlp.gate_proj"), width, config_.hidden);
    weights.up = row_part(base + "up_proj", format_of("mlp.up_proj"), width, config_.hidden);
    weights.down = column_part(base + "down_proj", format_of("mlp.down_proj"), config_.hidden, width);
    return weights;
  }

  MoeWeights moe(const std::string& prefix) {
    MoeWeights weights;
    // Declared and stored dtype of the router may differ between members; the stored one decides.
    const std::string router = prefix + "mlp.gate";
    const bool f32 = store_.get(router + ".weight").dtype == DType::kF32;
    weights.router =
        whole(router, f32 ? WeightFormat::kF32 : WeightFormat::kBF16, config_.experts, config_.hidden);
    weights.router_bias = vector(router + ".e_score_correction_bias", {0, config_.experts});
    prefetch_expert_scales(prefix);
    weights.experts.reserve(static_cast<std::size_t>(config_.experts));
    for (int e = 0; e < config_.experts && !error_; ++e) {
      weights.experts.push_back(mlp(fmt::format("{}mlp.experts.{}.", prefix, e), config_.moe_intermediate,
                                    [this](std::string_view) { return config_.expert_format; }));
    }
    return weights;
  }

 private:
  void problem(std::string message) {
    if (!error_) error_ = Error{ErrorCode::kCorrupt, std::move(message)};
  }

  // The scales are checked below, hundreds of small tensors one after the other: on cold storage that would
  // be as many waits, so all of them are asked for at once.
  void prefetch_expert_scales(const std::string& prefix) {
    const char* suffix = config_.expert_format == WeightFormat::kMxfp4 ? "weight_scale"
                         : config_.expert_format == WeightFormat::kFp8 ? "weight_scale_inv"
                                                                       : nullptr;
    if (suffix == nullptr) return;
    for (int e = 0; e < config_.experts; ++e) {
      for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
        store_.prefetch(fmt::format("{}mlp.experts.{}.{}.{}", prefix, e, name, suffix));
      }
    }
  }

  Stored load(const std::string& module, WeightFormat format, std::int64_t rows, std::int64_t cols) {
    Stored stored{format, rows, cols, store_.get(module + ".weight").data, nullptr, nullptr, 0};
    if (format == WeightFormat::kFp8) {
      const TensorBytes scales = store_.get(module + ".weight_scale_inv");
      stored.scales_f32 = reinterpret_cast<const float*>(scales.data);
      stored.scale_stride = static_cast<std::size_t>(fp8_blocks(cols));
      const std::size_t count = scales.bytes / sizeof(float);
      const float* bad = std::find_if_not(stored.scales_f32, stored.scales_f32 + count,
                                          [](float scale) { return std::isfinite(scale); });
      if (bad != stored.scales_f32 + count) {
        problem(fmt::format("{}.weight_scale_inv[{}] is {}, expected a finite number", module,
                            bad - stored.scales_f32, *bad));
      }
    } else if (format == WeightFormat::kMxfp4) {
      const TensorBytes scales = store_.get(module + ".weight_scale");
      stored.scales_u8 = scales.data;
      stored.scale_stride = static_cast<std::size_t>(cols / kMxfp4Block);
      if (const void* bad = std::memchr(scales.data, kE8m0Nan, scales.bytes)) {
        problem(fmt::format("{}.weight_scale byte {} is 255 (NaN)", module,
                            static_cast<const std::uint8_t*>(bad) - scales.data));
      }
    }
    return stored;
  }

  // Rows [rows.begin, ..) and columns of a stored matrix; `grid_row` is the row of the FP8 scale grid of the
  // first.
  static WeightSegment cut(const Stored& stored, Range rows, std::int64_t grid_row, Range cols) {
    WeightSegment segment;
    segment.rows = rows.count;
    segment.row_stride = stored.row_bytes();
    segment.data = stored.data + static_cast<std::size_t>(rows.begin) * segment.row_stride +
                   weight_row_bytes(stored.format, cols.begin);
    segment.scale_stride = stored.scale_stride;
    if (stored.format == WeightFormat::kFp8) {
      segment.scales_f32 = stored.scales_f32 + cols.begin / kFp8Block;
      segment.grid_row = grid_row;
    } else if (stored.format == WeightFormat::kMxfp4) {
      segment.scales_u8 = stored.scales_u8 + static_cast<std::size_t>(rows.begin) * stored.scale_stride +
                          cols.begin / kMxfp4Block;
    }
    return segment;
  }

  static WeightView view(const std::string& module, const Stored& stored, std::int64_t cols,
                         std::vector<WeightSegment> segments) {
    WeightView view{module, stored.format, 0, cols, std::move(segments)};
    for (const WeightSegment& segment : view.segments) view.rows += segment.rows;
    return view;
  }

  // Appends the rows of `heads` of one section (Q, K or V) of a chunked matrix. Neighbouring pieces that are
  // one run of rows on one scale grid are joined.
  void append_heads(std::vector<WeightSegment>& segments, const Stored& stored, const QkvChunk& chunk,
                    std::int64_t section_row, int heads_per_chunk, int head_dim, Range heads) const {
    const std::int64_t grid_rows = fp8_blocks(chunk.rows()) * kFp8Block;
    std::int64_t head = heads.begin;
    while (head < heads.begin + heads.count) {
      const std::int64_t c = head / heads_per_chunk;
      const std::int64_t local = head % heads_per_chunk;
      const std::int64_t count = std::min(heads_per_chunk - local, heads.begin + heads.count - head);
      const std::int64_t row = section_row + local * head_dim;
      const WeightSegment piece =
          cut(stored, {c * chunk.rows() + row, count * head_dim}, c * grid_rows + row, {0, stored.cols});
      WeightSegment* last = segments.empty() ? nullptr : &segments.back();
      const bool joins =
          last != nullptr &&
          last->data + static_cast<std::size_t>(last->rows) * last->row_stride == piece.data &&
          (stored.format != WeightFormat::kFp8 || last->grid_row + last->rows == piece.grid_row);
      if (joins) {
        last->rows += piece.rows;
      } else {
        segments.push_back(piece);
      }
      head += count;
    }
  }

  WeightView fused_qkv(const std::string& module, const AttentionShape& shape, WeightFormat format) {
    const QkvChunk chunk = qkv_chunk(shape, layout_.chunks);
    const Stored stored = load(module, format, chunk.rows() * layout_.chunks, config_.hidden);
    const Range q = even_part(shape.q_heads, shard_);
    const Range kv = kv_part(shape.kv_heads, shard_);
    const int q_heads = shape.q_heads / layout_.chunks;
    const int kv_heads = shape.kv_heads / layout_.chunks;
    std::vector<WeightSegment> segments;
    append_heads(segments, stored, chunk, 0, q_heads, shape.qk_dim, q);
    append_heads(segments, stored, chunk, chunk.q_rows, kv_heads, shape.qk_dim, kv);
    append_heads(segments, stored, chunk, chunk.q_rows + chunk.k_rows, kv_heads, shape.v_dim, kv);
    return view(module, stored, config_.hidden, std::move(segments));
  }

  template <class FormatOf>
  WeightView split_qkv(const std::string& base, const AttentionShape& shape, FormatOf format_of) {
    struct Part {
      const char* name;
      int heads, dim;
      Range range;
    };
    const Range kv = kv_part(shape.kv_heads, shard_);
    const Part parts[] = {{"q_proj", shape.q_heads, shape.qk_dim, even_part(shape.q_heads, shard_)},
                          {"k_proj", shape.kv_heads, shape.qk_dim, kv},
                          {"v_proj", shape.kv_heads, shape.v_dim, kv}};
    WeightView result{base + "qkv", format_of("self_attn.q_proj"), 0, config_.hidden, {}};
    for (const Part& part : parts) {
      const WeightFormat format = format_of(std::string("self_attn.") + part.name);
      if (format != result.format) {
        problem(
            fmt::format("{}: the q, k and v projections of one layer have different formats (ignored_layers)",
                        result.name));
        return result;
      }
      const Stored stored =
          load(base + part.name, format, std::int64_t{part.heads} * part.dim, config_.hidden);
      const Range rows{part.range.begin * part.dim, part.range.count * part.dim};
      result.segments.push_back(cut(stored, rows, rows.begin, {0, config_.hidden}));
      result.rows += rows.count;
    }
    return result;
  }

  const ModelConfig& config_;
  const QkvLayout& layout_;
  TensorStore& store_;
  Shard shard_;
  std::optional<Error> error_;
};

}  // namespace

Result<GlobalWeights> assemble_globals(const ModelConfig& config, TensorStore& store) {
  const QkvLayout none;
  Assembler in(config, none, store, {});
  GlobalWeights weights;
  weights.embed = in.whole("model.embed_tokens", WeightFormat::kBF16, config.vocab, config.hidden);
  weights.lm_head = in.whole("lm_head", WeightFormat::kBF16, config.vocab, config.hidden);
  weights.final_norm = in.norm("model.norm");
  if (in.error()) return tl::unexpected<Error>(*in.error());
  return weights;
}

Result<LayerWeights> assemble_layer(const ModelConfig& config, const QkvLayout& layout, TensorStore& store,
                                    int layer, Shard shard) {
  Assembler in(config, layout, store, shard);
  const std::string prefix = layer_module(layer, "");
  const auto format_of = [&](std::string_view suffix) {
    return module_format(config, layer_module(layer, suffix));
  };
  LayerWeights weights;
  weights.input_norm = in.norm(prefix + "input_layernorm");
  weights.post_norm = in.norm(prefix + "post_attention_layernorm");
  weights.attention = in.attention(prefix, config.attention(layer), format_of);
  if (config.layer_is_moe[static_cast<std::size_t>(layer)]) {
    weights.moe = in.moe(prefix);
  } else {
    weights.mlp = in.mlp(prefix + "mlp.", config.intermediate, format_of);
  }
  if (in.error()) return tl::unexpected<Error>(*in.error());
  return weights;
}

Result<MtpWeights> assemble_mtp(const ModelConfig& config, const QkvLayout& layout, TensorStore& store,
                                int head, Shard shard) {
  Assembler in(config, layout, store, shard);
  const std::string prefix = mtp_module(head, "");
  const auto format_of = [&](std::string_view suffix) { return mtp_module_format(config, head, suffix); };
  MtpWeights weights;
  weights.embed_norm = in.norm(prefix + "enorm");
  weights.hidden_norm = in.norm(prefix + "hnorm");
  weights.input_norm = in.norm(prefix + "input_layernorm");
  weights.pre_mlp_norm = in.norm(prefix + "pre_mlp_layernorm");
  weights.final_norm = in.norm(prefix + "final_layernorm");
  weights.eh_proj =
      in.whole(prefix + "eh_proj", WeightFormat::kBF16, config.hidden, std::int64_t{2} * config.hidden);
  weights.attention = in.attention(prefix, config.window, format_of);
  weights.mlp = in.mlp(prefix + "mlp.", config.intermediate, format_of);
  if (in.error()) return tl::unexpected<Error>(*in.error());
  return weights;
}

}  // namespace mimo
