// A batch of activations rounded for one weight format.
#pragma once

#include "core/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/workspace.h"

namespace mimo {

class Activations {
 public:
  // Rounds x [rows, shape.k] (x rows `stride` floats apart); the result is valid until the next call.
  ActRows round(const CpuKernels& kernels, ThreadPool& pool, const PanelShape& shape, const float* x,
                int rows, std::size_t stride);

  // The same by the calling thread alone: inside a task.
  ActRows round(const CpuKernels& kernels, const PanelShape& shape, const float* x, int rows,
                std::size_t stride);

 private:
  ActRows room(const PanelShape& shape, int rows);
  void round_row(const CpuKernels& kernels, const PanelShape& shape, const float* x, std::size_t row,
                 std::size_t stride, const ActRows& act);

  Workspace units_;
  Workspace scales_;
  Workspace corrections_;
};

}  // namespace mimo
