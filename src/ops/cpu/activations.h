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

 private:
  Workspace units_;
  Workspace scales_;
  Workspace corrections_;
};

}  // namespace mimo
