#include "ops/cpu/activations.h"

namespace mimo {
namespace {

// Below this many rows the rounding takes less time than waking the pool.
constexpr std::int64_t kRowsPerTask = 8;

}  // namespace

ActRows Activations::round(const CpuKernels& kernels, ThreadPool& pool, const PanelShape& shape,
                           const float* x, int rows, std::size_t stride) {
  ActRows act;
  act.q_stride = act_units(shape);
  act.scale_stride = act_groups(shape);
  act.correction_stride = act_corrections(shape);
  const auto count = static_cast<std::size_t>(rows);
  auto* units = units_.get<std::uint32_t>(act.q_stride * count);
  auto* scales = scales_.get<float>(act.scale_stride * count);
  auto* corrections = corrections_.get<std::int32_t>(act.correction_stride * count);
  pool.for_each(rows, kRowsPerTask, [&](std::int64_t r, int) {
    const auto row = static_cast<std::size_t>(r);
    kernels.quantize(shape, x + row * stride, units + row * act.q_stride, scales + row * act.scale_stride,
                     corrections + row * act.correction_stride);
  });
  act.q = units;
  act.scale = scales;
  act.correction = corrections;
  return act;
}

}  // namespace mimo
