#include "ops/cpu/activations.h"

namespace mimo {
namespace {

// Below this many rows the rounding takes less time than waking the pool.
constexpr std::int64_t kRowsPerTask = 8;

}  // namespace

ActRows Activations::room(const PanelShape& shape, int rows) {
  ActRows act;
  act.q_stride = act_units(shape);
  act.scale_stride = act_groups(shape);
  act.correction_stride = act_corrections(shape);
  const auto count = static_cast<std::size_t>(rows);
  act.q = units_.get<std::uint32_t>(act.q_stride * count);
  act.scale = scales_.get<float>(act.scale_stride * count);
  act.correction = corrections_.get<std::int32_t>(act.correction_stride * count);
  return act;
}

void Activations::round_row(const CpuKernels& kernels, const PanelShape& shape, const float* x,
                            std::size_t row, std::size_t stride, const ActRows& act) {
  kernels.quantize(shape, x + row * stride, units_.get<std::uint32_t>(0) + row * act.q_stride,
                   scales_.get<float>(0) + row * act.scale_stride,
                   corrections_.get<std::int32_t>(0) + row * act.correction_stride);
}

ActRows Activations::round(const CpuKernels& kernels, ThreadPool& pool, const PanelShape& shape,
                           const float* x, int rows, std::size_t stride) {
  const ActRows act = room(shape, rows);
  pool.for_each(rows, kRowsPerTask, [&](std::int64_t r, int) {
    round_row(kernels, shape, x, static_cast<std::size_t>(r), stride, act);
  });
  return act;
}

ActRows Activations::round(const CpuKernels& kernels, const PanelShape& shape, const float* x, int rows,
                           std::size_t stride) {
  const ActRows act = room(shape, rows);
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    round_row(kernels, shape, x, r, stride, act);
  }
  return act;
}

}  // namespace mimo
