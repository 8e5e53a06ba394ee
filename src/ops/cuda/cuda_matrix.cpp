#include "ops/cuda/cuda_matrix.h"

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/moe_bases.h"
#include "ops/cuda/kernels/moe_pack.h"

namespace mimo::cuda {
namespace {

// Rows of a segment that are on the device at a time before they are packed.
constexpr std::size_t kPortionBytes = 32u << 20;

Result<LinearFormat> linear_format(const WeightView& view) {
  switch (view.format) {
    case WeightFormat::kF32:
      return LinearFormat::kF32;
    case WeightFormat::kBF16:
      return LinearFormat::kBF16;
    case WeightFormat::kFp8:
      return LinearFormat::kFp8;
    case WeightFormat::kMxfp4:
      break;
  }
  return fail(ErrorCode::kUnsupported, "{}: the CUDA backend runs MXFP4 in experts only", view.name);
}

// Scale rows that rows [0, segment.rows) use, and the width of one.
struct Grid {
  std::int64_t first = 0;
  std::size_t rows = 0;
  std::size_t width = 0;
};
Grid grid_of(const WeightSegment& segment, std::int64_t cols) {
  Grid grid;
  grid.first = segment.grid_row / kFp8Block;
  grid.rows = static_cast<std::size_t>((segment.grid_row + segment.rows - 1) / kFp8Block - grid.first + 1);
  grid.width = static_cast<std::size_t>((cols + kFp8Block - 1) / kFp8Block);
  return grid;
}

}  // namespace

Result<std::unique_ptr<Matrix>> CudaMatrix::pack(const WeightView& view, Device& device) {
  const WeightView* views[] = {&view};
  Result<std::unique_ptr<CudaMatrix>> matrix = stack(views, device);
  if (!matrix) return forward_error(matrix);
  return std::move(*matrix);
}

Result<std::unique_ptr<CudaMatrix>> CudaMatrix::stack(std::span<const WeightView* const> views,
                                                      Device& device) {
  const Result<LinearFormat> format = linear_format(*views.front());
  if (!format) return forward_error(format);
  auto matrix = std::make_unique<CudaMatrix>();
  LinearWeight& weight = matrix->weight_;
  weight.format = *format;
  weight.cols = static_cast<int>(views.front()->cols);
  for (const WeightView* view : views) weight.rows += static_cast<int>(view->rows);
  bool aligned = true;
  int row = 0;
  for (const WeightView* view : views) {
    for (const WeightSegment& segment : view->segments) {
      aligned = aligned && linear_scales_aligned(row, static_cast<int>(segment.rows), weight.rows,
                                                 static_cast<int>(segment.grid_row));
      row += static_cast<int>(segment.rows);
    }
  }
  weight.scale_rows = aligned ? 64 : 1;
  for (const auto& [bytes, memory, address] :
       {std::tuple{linear_data_bytes(weight), &matrix->data_, static_cast<void**>(&weight.data)},
        std::tuple{linear_scale_bytes(weight), &matrix->scales_, reinterpret_cast<void**>(&weight.scales)}}) {
    if (bytes == 0) continue;
    Result<std::unique_ptr<Buffer>> allocated = device.allocate(bytes);
    if (!allocated) return tl::unexpected(allocated.error().within(views.front()->name));
    *memory = std::move(*allocated);
    *address = (*memory)->data();
  }

  begin_linear_pack(weight, device.stream());
  const std::size_t row_bytes = weight_row_bytes(views.front()->format, weight.cols);
  const auto most = std::max<std::int64_t>(1, static_cast<std::int64_t>(kPortionBytes / row_bytes));
  Result<std::unique_ptr<Buffer>> portion =
      device.allocate(row_bytes * static_cast<std::size_t>(std::min<std::int64_t>(most, weight.rows)));
  if (!portion) return tl::unexpected(portion.error().within(views.front()->name));
  row = 0;
  for (const WeightView* view : views) {
    for (const WeightSegment& segment : view->segments) {
      for (std::int64_t done = 0; done < segment.rows;) {
        const std::int64_t count = std::min(segment.rows - done, most);
        device.upload_rows((*portion)->data(),
                           segment.data + static_cast<std::size_t>(done) * segment.row_stride, row_bytes,
                           segment.row_stride, static_cast<std::size_t>(count));
        pack_linear_rows(weight, row + static_cast<int>(done), static_cast<int>(count), (*portion)->data(),
                         row_bytes, device.stream());
        done += count;
      }
      if (weight.format == LinearFormat::kFp8) {
        const Grid grid = grid_of(segment, weight.cols);
        Result<std::unique_ptr<Buffer>> scales = device.allocate(grid.rows * grid.width * sizeof(float));
        if (!scales) return tl::unexpected(scales.error().within(view->name));
        device.upload_rows((*scales)->data(),
                           segment.scales_f32 + static_cast<std::size_t>(grid.first) * segment.scale_stride,
                           grid.width * sizeof(float), segment.scale_stride * sizeof(float), grid.rows);
        pack_linear_scales(
            weight, row, static_cast<int>(segment.rows), static_cast<float*>((*scales)->data()),
            static_cast<int>(segment.grid_row - grid.first * kFp8Block), grid.width, device.stream());
        device.wait();  // before the scales go
      }
      row += static_cast<int>(segment.rows);
    }
  }
  device.wait();
  return matrix;
}

Result<std::unique_ptr<MlpBank>> CudaMlpBank::pack(std::span<const MlpViews> experts, bool packed,
                                                   Device& device) {
  auto bank = std::make_unique<CudaMlpBank>();
  const MlpViews& first = experts.front();
  bank->experts_ = static_cast<int>(experts.size());
  bank->hidden_ = static_cast<int>(first.gate->cols);
  bank->inter_ = static_cast<int>(first.gate->rows);
  if (experts.size() == 1 && first.gate->format != WeightFormat::kMxfp4) {
    if (const Status ok = bank->pack_dense(first, device); !ok) return forward_error(ok);
    return bank;
  }
  if (bank->hidden_ % kMxfp4Block != 0 || bank->inter_ % kMxfp4Block != 0) {
    return fail(ErrorCode::kUnsupported, "{}: experts of {} x {}: the CUDA backend needs multiples of {}",
                first.gate->name, bank->inter_, bank->hidden_, kMxfp4Block);
  }
  if (packed && experts.size() > 1 && first.gate->format == WeightFormat::kMxfp4 &&
      moe_shape_packs(bank->hidden_, bank->inter_)) {
    if (const Status ok = bank->pack_experts(experts, device); !ok) return forward_error(ok);
    return bank;
  }
  for (int part = 0; part < 3; ++part) {
    if (const Status ok = bank->pack_part(experts, part, device); !ok) return forward_error(ok);
  }
  device.wait();
  return bank;
}

Status CudaMlpBank::pack_dense(const MlpViews& views, Device& device) {
  const WeightView* gate_up[] = {views.gate, views.up};
  Result<std::unique_ptr<CudaMatrix>> above = CudaMatrix::stack(gate_up, device);
  if (!above) return forward_error(above);
  const WeightView* down[] = {views.down};
  Result<std::unique_ptr<CudaMatrix>> below = CudaMatrix::stack(down, device);
  if (!below) return forward_error(below);
  gate_up_ = std::move(*above);
  down_ = std::move(*below);
  bytes_ = gate_up_->bytes() + down_->bytes();
  return {};
}

Status CudaMlpBank::pack_experts(std::span<const MlpViews> experts, Device& device) {
  const std::size_t gate_up_bytes = moe_gate_up_bytes(hidden_, inter_);
  const std::size_t down_bytes = moe_down_bytes(hidden_, inter_);
  const std::size_t codes = static_cast<std::size_t>(hidden_) * static_cast<std::size_t>(inter_) / 2;
  const std::size_t scales = codes / 16;
  const std::size_t count = experts.size();
  // The matrices of one expert as they are stored, each codes, then scales.
  memory_.resize(3);
  std::unique_ptr<Buffer> raw, counter;
  for (const auto& [bytes, memory] :
       {std::pair{count * gate_up_bytes, &memory_[0]}, std::pair{count * down_bytes, &memory_[1]},
        std::pair{moe_bases_bytes(experts_, hidden_, inter_), &memory_[2]},
        std::pair{3 * (codes + scales), &raw}, std::pair{sizeof(std::int32_t), &counter}}) {
    Result<std::unique_ptr<Buffer>> made = device.allocate(bytes);
    if (!made) return tl::unexpected(made.error().within(experts.front().gate->name));
    *memory = std::move(*made);
  }
  packed_.experts = experts_;
  packed_.hidden = hidden_;
  packed_.inter = inter_;
  packed_.gate_up = static_cast<std::uint8_t*>(memory_[0]->data());
  packed_.down = static_cast<std::uint8_t*>(memory_[1]->data());
  auto* stored = static_cast<std::uint8_t*>(raw->data());
  for (std::size_t e = 0; e < count; ++e) {
    Mxfp4Rows parts[3];
    const WeightView* views[] = {experts[e].gate, experts[e].up, experts[e].down};
    for (std::size_t p = 0; p < 3; ++p) {
      const WeightView& view = *views[p];
      const bool down = p == 2;
      if (view.format != WeightFormat::kMxfp4 || view.rows != (down ? hidden_ : inter_) ||
          view.cols != (down ? inter_ : hidden_)) {
        return fail(ErrorCode::kUnsupported, "{}: format or shape differs from that of {}", view.name,
                    experts.front().gate->name);
      }
      const std::size_t row_bytes = weight_row_bytes(view.format, view.cols);
      const auto scale_width = static_cast<std::size_t>(view.cols / kMxfp4Block);
      std::uint8_t* to = stored + p * (codes + scales);
      std::uint8_t* scales_to = to + codes;
      parts[p] = {to, static_cast<std::int64_t>(row_bytes), scales_to,
                  static_cast<std::int64_t>(scale_width)};
      for (const WeightSegment& segment : view.segments) {
        const auto rows = static_cast<std::size_t>(segment.rows);
        device.upload_rows(to, segment.data, row_bytes, segment.row_stride, rows);
        device.upload_rows(scales_to, segment.scales_u8, scale_width, segment.scale_stride, rows);
        to += rows * row_bytes;
        scales_to += rows * scale_width;
      }
    }
    MIMO_CUDA(launch_pack_expert(parts[0], parts[1], parts[2], hidden_, inter_,
                                 static_cast<std::uint8_t*>(memory_[0]->data()) + e * gate_up_bytes,
                                 static_cast<std::uint8_t*>(memory_[1]->data()) + e * down_bytes,
                                 device.stream()));
  }
  std::int32_t wide = 0;  // rows
  auto* bases = static_cast<std::uint8_t*>(memory_[2]->data());
  MIMO_CUDA(cudaMemcpyAsync(counter->data(), &wide, sizeof(wide), cudaMemcpyHostToDevice, device.stream()));
  MIMO_CUDA(launch_moe_bases(static_cast<std::uint8_t*>(memory_[0]->data()),
                             static_cast<std::uint8_t*>(memory_[1]->data()), experts_, hidden_, inter_, bases,
                             static_cast<std::int32_t*>(counter->data()), device.stream()));
  MIMO_CUDA(cudaMemcpyAsync(&wide, counter->data(), sizeof(wide), cudaMemcpyDeviceToHost, device.stream()));
  device.wait();
  if (wide == 0) packed_.bases = bases;
  bytes_ = count * (gate_up_bytes + down_bytes) + moe_bases_bytes(experts_, hidden_, inter_);
  return {};
}

Status CudaMlpBank::pack_part(std::span<const MlpViews> experts, int part, Device& device) {
  const auto view_of = [&](const MlpViews& views) -> const WeightView& {
    return part == 0 ? *views.gate : part == 1 ? *views.up : *views.down;
  };
  const WeightView& first = view_of(experts.front());
  const auto rows = static_cast<std::size_t>(first.rows);
  const std::size_t row_bytes = weight_row_bytes(first.format, first.cols);
  MlpWeights& stored = stored_[part];
  stored.format = first.format == WeightFormat::kF32    ? MlpFormat::kF32
                  : first.format == WeightFormat::kBF16 ? MlpFormat::kBF16
                  : first.format == WeightFormat::kFp8  ? MlpFormat::kFp8
                                                        : MlpFormat::kMxfp4;
  stored.expert_stride = static_cast<std::int64_t>(rows * row_bytes);
  std::size_t scale_bytes = 0;  // of one expert
  if (stored.format == MlpFormat::kFp8) {
    stored.scale_stride = (first.cols + kFp8Block - 1) / kFp8Block;
    stored.scale_expert_stride = (first.rows + kFp8Block - 1) / kFp8Block * stored.scale_stride;
    scale_bytes = static_cast<std::size_t>(stored.scale_expert_stride) * sizeof(float);
  } else if (stored.format == MlpFormat::kMxfp4) {
    stored.scale_stride = first.cols / kMxfp4Block;
    stored.scale_expert_stride = first.rows * stored.scale_stride;
    scale_bytes = static_cast<std::size_t>(stored.scale_expert_stride);
  }
  Result<std::unique_ptr<Buffer>> data = device.allocate(experts.size() * rows * row_bytes);
  if (!data) return tl::unexpected(data.error().within(first.name));
  Result<std::unique_ptr<Buffer>> scales = device.allocate(experts.size() * scale_bytes);
  if (!scales) return tl::unexpected(scales.error().within(first.name));
  stored.data = (*data)->data();
  stored.scales = (*scales)->data();
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const WeightView& view = view_of(experts[e]);
    if (view.format != first.format || view.rows != first.rows || view.cols != first.cols) {
      return fail(ErrorCode::kUnsupported, "{}: format or shape differs from that of {}", view.name,
                  first.name);
    }
    auto* to = static_cast<std::byte*>((*data)->data()) + e * rows * row_bytes;
    auto* scales_to = static_cast<std::byte*>((*scales)->data()) + e * scale_bytes;
    for (const WeightSegment& segment : view.segments) {
      const auto count = static_cast<std::size_t>(segment.rows);
      device.upload_rows(to, segment.data, row_bytes, segment.row_stride, count);
      to += count * row_bytes;
      if (stored.format == MlpFormat::kMxfp4) {
        const auto width = static_cast<std::size_t>(stored.scale_stride);
        device.upload_rows(scales_to, segment.scales_u8, width, segment.scale_stride, count);
        scales_to += count * width;
      } else if (stored.format == MlpFormat::kFp8) {
        const Grid grid = grid_of(segment, first.cols);
        if (view.segments.size() != 1 || segment.grid_row % kFp8Block != 0) {
          return fail(ErrorCode::kUnsupported,
                      "{}: the CUDA backend takes experts whose scale grid begins with them", view.name);
        }
        device.upload_rows(scales_to,
                           segment.scales_f32 + static_cast<std::size_t>(grid.first) * segment.scale_stride,
                           grid.width * sizeof(float), segment.scale_stride * sizeof(float), grid.rows);
      }
    }
  }
  bytes_ += experts.size() * (rows * row_bytes + scale_bytes);
  memory_.push_back(std::move(*data));
  memory_.push_back(std::move(*scales));
  return {};
}

}  // namespace mimo::cuda
