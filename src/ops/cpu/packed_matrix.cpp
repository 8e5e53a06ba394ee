#include "ops/cpu/packed_matrix.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/check.h"
#include "core/number_formats.h"
#include "ops/cpu/fp8_tables.h"
#include "ops/cpu/pack_rows.h"

namespace mimo {
namespace {

constexpr std::size_t kVector = 64;

struct RowSource {
  const std::uint8_t* data = nullptr;  // null: a padding row of zeros
  const std::uint8_t* scales_u8 = nullptr;
  const float* scales_f32 = nullptr;
};

// Stored bytes of one canonical row.
RowSource find_row(const WeightView& view, std::int64_t row) {
  if (row >= view.rows) return {};
  const WeightSegment* segment = view.segments.data();
  while (row >= segment->rows) {
    row -= segment->rows;
    ++segment;
  }
  RowSource source;
  const auto r = static_cast<std::size_t>(row);
  source.data = segment->data + r * segment->row_stride;
  if (view.format == WeightFormat::kMxfp4) source.scales_u8 = segment->scales_u8 + r * segment->scale_stride;
  if (view.format == WeightFormat::kFp8) {
    source.scales_f32 =
        segment->scales_f32 +
        static_cast<std::size_t>((segment->grid_row + row) / kFp8Block) * segment->scale_stride;
  }
  return source;
}

using Rows = std::array<RowSource, kPanelRows>;

// Vector v of the panel takes the v-th 4 bytes of each row.
void pack_units(const Rows& rows, std::size_t row_bytes, std::size_t vectors, std::uint8_t* out) {
  constexpr std::size_t kUnit = kVector / kPanelRows;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::uint8_t* in = rows[r].data;
    const std::size_t whole = in == nullptr ? 0 : row_bytes / kUnit;
    std::uint8_t* to = out + r * kUnit;
    pack_plain_row(in, whole, to);
    for (std::size_t v = whole; v < vectors; ++v) std::memset(to + v * kVector, 0, kUnit);
    const std::size_t rest = in == nullptr ? 0 : row_bytes % kUnit;
    if (rest > 0) std::memcpy(to + whole * kVector, in + whole * kUnit, rest);
  }
}

// Returns whether a code was NaN.
bool pack_fp8(const Rows& rows, const PanelShape& shape, std::uint8_t* out) {
  const auto vectors = static_cast<std::size_t>(shape.k_padded / 4);
  const auto k = static_cast<std::size_t>(shape.k);
  bool nan = false;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::uint8_t* in = rows[r].data;
    std::uint8_t* to = out + (r / 4) * 16 + (r % 4) * 2;
    const std::size_t whole = in == nullptr ? 0 : k / 4;
    nan = pack_fp8_row(in, whole, to) || nan;
    for (std::size_t v = whole; v < vectors; ++v) {
      std::uint8_t codes[4] = {};
      for (std::size_t t = 0; t < 4 && in != nullptr && v * 4 + t < k; ++t) codes[t] = in[v * 4 + t];
      nan = pack_fp8_row(codes, 1, to + v * kVector) || nan;
    }
  }
  return nan;
}

void pack_mxfp4(const Rows& rows, const PanelShape& shape, std::uint8_t* out) {
  std::memset(out, 0, shape.scale_bytes);
  std::uint8_t* lines = out + kMxfp4HeaderBytes;
  const auto groups = static_cast<std::size_t>(shape.k_padded / kMxfp4Group);
  const auto blocks = static_cast<std::size_t>(shape.k / kMxfp4Block);
  const auto code_of = [&](const RowSource& row, std::size_t block) -> int {
    // A padding block takes its neighbour's scale, so that the pair needs no shift.
    const std::uint8_t code = row.scales_u8[std::min(block, blocks - 1)];
    return code == 0 ? 0 : code - 1;
  };
  bool wide = false;
  for (const RowSource& row : rows) {
    if (row.data == nullptr) continue;
    for (std::size_t g = 0; g < groups; ++g) {
      wide = wide || std::abs(code_of(row, 2 * g) - code_of(row, 2 * g + 1)) > kMxfp4MaxShift;
    }
  }
  out[0] = wide ? 1 : 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].data == nullptr) continue;
    for (std::size_t g = 0; g < groups; ++g) {
      const int a = code_of(rows[r], 2 * g);
      const int b = code_of(rows[r], 2 * g + 1);
      const int unit = std::min(a, b);
      std::uint8_t* line = lines + g * 2 * kPanelRows + r;
      line[0] = static_cast<std::uint8_t>(wide ? a : unit);
      line[kPanelRows] = static_cast<std::uint8_t>(wide ? b : (a - unit) | (b - unit) << 4);
    }
  }
  std::uint8_t* elements = out + shape.scale_bytes;
  const auto vectors = static_cast<std::size_t>(shape.k / 8);
  std::memset(elements + vectors * kVector, 0,
              (static_cast<std::size_t>(shape.k_padded / 8) - vectors) * kVector);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::uint8_t* in = rows[r].data;
    std::uint8_t* to = elements + r * 4;
    if (in != nullptr) {
      pack_mxfp4_row(in, vectors, to);
    } else {
      for (std::size_t v = 0; v < vectors; ++v) std::memset(to + v * kVector, 0, 4);
    }
  }
}

// Integers for 128 columns of 16 BF16 rows, with one power-of-two scale: the largest magnitude maps to (8192,
// 16384], so that 128 products with 11-bit activations stay below 2^31. Returns whether all values are
// finite.
bool pack_int16(const Rows& rows, const PanelShape& shape, std::uint8_t* out, float* scales) {
  const auto k = static_cast<std::size_t>(shape.k);
  const auto groups = static_cast<std::size_t>(shape.k_padded / kWideGroup);
  // Zeros stand for missing rows and for columns past the end.
  std::array<std::array<std::uint8_t, 2 * kWideGroup>, kPanelRows> padded;
  bool finite = true;
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t columns = std::min<std::size_t>(kWideGroup, k - g * kWideGroup);
    std::array<const std::uint8_t*, kPanelRows> from;
    float largest = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (rows[r].data != nullptr && columns == kWideGroup) {
        from[r] = rows[r].data + g * 2 * kWideGroup;
      } else {
        padded[r].fill(0);
        if (rows[r].data != nullptr)
          std::memcpy(padded[r].data(), rows[r].data + g * 2 * kWideGroup, 2 * columns);
        from[r] = padded[r].data();
      }
      const float own = largest_bf16(from[r], kWideGroup);
      finite = finite && std::isfinite(own);
      largest = std::max(largest, own);
    }
    int exponent = 0;
    const bool usable = std::isnormal(largest);
    if (usable && std::frexp(largest, &exponent) == 0.5f) --exponent;  // largest <= 2^exponent
    scales[g] = usable ? std::ldexp(1.0f, exponent - 14) : 0.0f;
    const float inverse = usable ? std::ldexp(1.0f, 14 - exponent) : 0.0f;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      pack_int16_row(from[r], kWideGroup, inverse, out + g * kWideGroup / 2 * kVector + r * 4);
    }
  }
  return finite;
}

// Bytes for 64 columns of 16 BF16 rows, with a scale a row. Returns whether all values are finite.
bool pack_int8(const Rows& rows, const PanelShape& shape, std::uint8_t* out) {
  const auto k = static_cast<std::size_t>(shape.k);
  const auto groups = static_cast<std::size_t>(shape.k_padded / kMxfp4Group);
  std::uint8_t* elements = out + shape.scale_bytes;
  bool finite = true;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t g = 0; g < groups; ++g) {
      // Zeros stand for missing rows and for columns past the end.
      std::array<float, kMxfp4Group> values{};
      float largest = 0;
      const std::size_t begin = g * kMxfp4Group;
      const std::size_t columns = rows[r].data == nullptr ? 0 : std::min<std::size_t>(kMxfp4Group, k - begin);
      for (std::size_t c = 0; c < columns; ++c) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, rows[r].data + (begin + c) * 2, sizeof(bits));
        values[c] = bf16_to_float(bits);
        finite = finite && std::isfinite(values[c]);
        largest = std::max(largest, std::fabs(values[c]));
      }
      // Below this the inverse would overflow: such a group is zero to any reader.
      const bool usable = finite && largest > 1e-35f;
      const float scale = usable ? largest / kInt8Limit : 0.0f;
      const float inverse = usable ? kInt8Limit / largest : 0.0f;
      std::memcpy(out + g * kVector + r * sizeof(float), &scale, sizeof(scale));
      for (std::size_t c = 0; c < kMxfp4Group; ++c) {
        // Sums of a half up to 192.5: cutting them off rounds.
        const float shifted = usable ? values[c] * inverse + (kInt8Limit + 0.5f) : kInt8Limit;
        elements[(begin + c) / 4 * kVector + r * 4 + c % 4] =
            static_cast<std::uint8_t>(static_cast<std::int32_t>(shifted));
      }
    }
  }
  return finite;
}

std::int64_t panels_of(std::int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }

std::int64_t scale_groups(const PanelShape& shape) {
  return shape.kind == PackedKind::kFp8 || shape.kind == PackedKind::kInt16 ? shape.k_padded / kWideGroup : 0;
}

tl::unexpected<Error> nan_error(const WeightView& view) {
  return view.format == WeightFormat::kFp8
             ? fail(ErrorCode::kCorrupt, "{}: an FP8 weight is NaN (code 0x7F or 0xFF)", view.name)
             : fail(ErrorCode::kCorrupt, "{}: a weight is not finite", view.name);
}

}  // namespace

PackedKind packed_kind(WeightFormat format, MatrixUse use, ActivationPrecision precision) {
  switch (format) {
    case WeightFormat::kF32:
      return PackedKind::kF32;
    case WeightFormat::kBF16:
      if (use == MatrixUse::kVocabulary || precision == ActivationPrecision::kExact) return PackedKind::kBf16;
      return use == MatrixUse::kDrafter ? PackedKind::kInt8 : PackedKind::kInt16;
    case WeightFormat::kFp8:
      return PackedKind::kFp8;
    case WeightFormat::kMxfp4:
      return PackedKind::kMxfp4;
  }
  return PackedKind::kF32;
}

PanelShape panel_shape(PackedKind kind, std::int64_t k, ActivationPrecision precision) {
  PanelShape shape;
  shape.kind = kind;
  shape.k = k;
  const std::int64_t step = packed_k_step(kind);
  shape.k_padded = (k + step - 1) / step * step;
  const bool integer = kind != PackedKind::kF32 && kind != PackedKind::kBf16;
  shape.planes = integer && precision == ActivationPrecision::kExact ? 2 : 1;
  const auto elements = static_cast<std::size_t>(kPanelRows * shape.k_padded);
  switch (kind) {
    case PackedKind::kF32:
      shape.bytes = elements * 4;
      break;
    case PackedKind::kBf16:
    case PackedKind::kInt16:
      shape.bytes = elements * 2;
      break;
    case PackedKind::kInt8:
      shape.scale_bytes = static_cast<std::size_t>(shape.k_padded / kMxfp4Group) * kVector;
      shape.bytes = shape.scale_bytes + elements;
      break;
    case PackedKind::kFp8:
      shape.bytes = elements;
      break;
    case PackedKind::kMxfp4: {
      const auto lines = static_cast<std::size_t>(shape.k_padded / kMxfp4Group * 2 * kPanelRows);
      shape.scale_bytes = kMxfp4HeaderBytes + (lines + kVector - 1) / kVector * kVector;
      shape.bytes = shape.scale_bytes + elements / 2;
      break;
    }
  }
  return shape;
}

bool pack_panel(const WeightView& view, const PanelShape& shape, std::int64_t panel, std::uint8_t* out,
                float* scales) {
  Rows rows;
  for (int r = 0; r < kPanelRows; ++r)
    rows[static_cast<std::size_t>(r)] = find_row(view, panel * kPanelRows + r);
  switch (shape.kind) {
    case PackedKind::kF32:
      pack_units(rows, static_cast<std::size_t>(shape.k) * 4, static_cast<std::size_t>(shape.k_padded), out);
      return true;
    case PackedKind::kBf16:
      pack_units(rows, static_cast<std::size_t>(shape.k) * 2, static_cast<std::size_t>(shape.k_padded / 2),
                 out);
      return true;
    case PackedKind::kInt16:
      return pack_int16(rows, shape, out, scales);
    case PackedKind::kInt8:
      return pack_int8(rows, shape, out);
    case PackedKind::kFp8: {
      const bool nan = pack_fp8(rows, shape, out);
      const std::int64_t groups = scale_groups(shape);
      for (std::int64_t g = 0; g < groups; ++g) {
        scales[g] = rows[0].scales_f32[g] * kFp8IntegerScale;
        for (const RowSource& row : rows) {
          MIMO_CHECK(row.data == nullptr || row.scales_f32 == rows[0].scales_f32,
                     "{}: panel straddles scale blocks", view.name);
        }
      }
      return !nan;
    }
    case PackedKind::kMxfp4:
      pack_mxfp4(rows, shape, out);
      return true;
  }
  return true;
}

Status check_packable(const WeightView& view) {
  const std::int64_t multiple = view.format == WeightFormat::kMxfp4 ? kMxfp4Block : 1;
  if (view.cols % multiple != 0) {
    return fail(ErrorCode::kUnsupported, "{}: {} columns, MXFP4 needs a multiple of {}", view.name, view.cols,
                multiple);
  }
  if (view.format == WeightFormat::kFp8) {
    for (const WeightSegment& segment : view.segments) {
      const bool last = &segment == &view.segments.back();
      if (segment.grid_row % kPanelRows != 0 || (!last && segment.rows % kPanelRows != 0)) {
        return fail(
            ErrorCode::kUnsupported,
            "{}: FP8 rows {} at grid row {}: the CPU backend needs multiples of {} (head sizes must be)",
            view.name, segment.rows, segment.grid_row, kPanelRows);
      }
    }
  }
  return {};
}

Result<std::unique_ptr<PackedMatrix>> PackedMatrix::pack(const WeightView& view, MatrixUse use,
                                                         ActivationPrecision precision, ThreadPool& pool) {
  if (const Status ok = check_packable(view); !ok) return forward_error(ok);
  auto matrix = std::make_unique<PackedMatrix>();
  PackedPanels& panels = matrix->panels_;
  panels.shape = panel_shape(packed_kind(view.format, use, precision), view.cols, precision);
  panels.rows = view.rows;
  panels.panels = panels_of(view.rows);
  matrix->data_ = HugeBuffer(static_cast<std::size_t>(panels.panels) * panels.shape.bytes);
  const std::int64_t groups = scale_groups(panels.shape);
  matrix->scales_ = HugeBuffer(static_cast<std::size_t>(panels.panels * groups) * sizeof(float));
  std::atomic<bool> finite{true};
  pool.for_each(panels.panels, 16, [&](std::int64_t panel, int) {
    if (!pack_panel(view, panels.shape, panel,
                    matrix->data_.data() + static_cast<std::size_t>(panel) * panels.shape.bytes,
                    matrix->scales_.as<float>() + panel * groups)) {
      finite = false;
    }
  });
  if (!finite) return nan_error(view);
  panels.data = matrix->data_.data();
  panels.scales = matrix->scales_.as<float>();
  return matrix;
}

Result<std::unique_ptr<PackedMlpBank>> PackedMlpBank::pack(std::span<const MlpViews> experts, MatrixUse use,
                                                           ActivationPrecision precision, ThreadPool& pool) {
  auto bank = std::make_unique<PackedMlpBank>();
  const MlpViews& first = experts.front();
  for (const MlpViews& views : experts) {
    for (const WeightView* view : {views.gate, views.up, views.down}) {
      if (const Status ok = check_packable(*view); !ok) return forward_error(ok);
    }
    if (views.gate->format != first.gate->format || views.up->format != first.gate->format ||
        views.down->format != first.gate->format) {
      return fail(ErrorCode::kUnsupported, "{}: experts of one layer must share one format",
                  views.gate->name);
    }
  }
  bank->experts_ = static_cast<int>(experts.size());
  bank->hidden_ = first.gate->cols;
  bank->intermediate_ = first.gate->rows;
  const PackedKind kind = packed_kind(first.gate->format, use, precision);
  bank->gate_up_shape_ = panel_shape(kind, bank->hidden_, precision);
  bank->down_shape_ = panel_shape(kind, bank->intermediate_, precision);
  bank->gate_up_panels_ = 2 * panels_of(bank->intermediate_);
  bank->down_panels_ = panels_of(bank->hidden_);
  bank->expert_data_ = static_cast<std::size_t>(bank->gate_up_panels_) * bank->gate_up_shape_.bytes +
                       static_cast<std::size_t>(bank->down_panels_) * bank->down_shape_.bytes;
  const std::int64_t up_groups = scale_groups(bank->gate_up_shape_);
  const std::int64_t down_groups = scale_groups(bank->down_shape_);
  bank->expert_scales_ =
      static_cast<std::size_t>(bank->gate_up_panels_ * up_groups + bank->down_panels_ * down_groups);
  bank->data_ = HugeBuffer(bank->expert_data_ * experts.size());
  bank->scales_ = HugeBuffer(bank->expert_scales_ * experts.size() * sizeof(float));
  const std::int64_t panels = bank->gate_up_panels_ + bank->down_panels_;
  std::atomic<const WeightView*> bad{nullptr};
  pool.for_each(panels * bank->experts_, 16, [&](std::int64_t task, int) {
    const auto e = static_cast<std::size_t>(task / panels);
    const std::int64_t panel = task % panels;
    std::uint8_t* data = bank->data_.data() + e * bank->expert_data_;
    float* scales = bank->scales_.as<float>() + e * bank->expert_scales_;
    if (panel < bank->gate_up_panels_) {
      const WeightView& view = panel % 2 == 0 ? *experts[e].gate : *experts[e].up;
      if (!pack_panel(view, bank->gate_up_shape_, panel / 2,
                      data + static_cast<std::size_t>(panel) * bank->gate_up_shape_.bytes,
                      scales + panel * up_groups)) {
        bad = &view;
      }
      return;
    }
    const std::int64_t index = panel - bank->gate_up_panels_;
    data += static_cast<std::size_t>(bank->gate_up_panels_) * bank->gate_up_shape_.bytes;
    scales += bank->gate_up_panels_ * up_groups;
    if (!pack_panel(*experts[e].down, bank->down_shape_, index,
                    data + static_cast<std::size_t>(index) * bank->down_shape_.bytes,
                    scales + index * down_groups)) {
      bad = experts[e].down;
    }
  });
  if (bad != nullptr) return nan_error(*bad);
  return bank;
}

PackedPanels PackedMlpBank::gate_up(int expert) const {
  PackedPanels panels;
  panels.shape = gate_up_shape_;
  panels.rows = gate_up_panels_ * kPanelRows;
  panels.panels = gate_up_panels_;
  panels.data = data_.data() + static_cast<std::size_t>(expert) * expert_data_;
  panels.scales = scales_.as<float>() + static_cast<std::size_t>(expert) * expert_scales_;
  return panels;
}

PackedPanels PackedMlpBank::down(int expert) const {
  PackedPanels panels;
  panels.shape = down_shape_;
  panels.rows = hidden_;
  panels.panels = down_panels_;
  panels.data = data_.data() + static_cast<std::size_t>(expert) * expert_data_ +
                static_cast<std::size_t>(gate_up_panels_) * gate_up_shape_.bytes;
  panels.scales = scales_.as<float>() + static_cast<std::size_t>(expert) * expert_scales_ +
                  gate_up_panels_ * scale_groups(gate_up_shape_);
  return panels;
}

}  // namespace mimo
