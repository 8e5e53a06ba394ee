// Which attention kernel runs, by device, shape and rows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/device.h"
#include "ops/cuda/kernels/views.h"

namespace mimo::cuda {

class CudaAttention {
 public:
  // `device` must outlive it. `fast`: the kernels for Hopper where they take the shape; else plain fp32 arithmetic.
  CudaAttention(Device& device, bool fast) : device_(device), fast_(fast) {}

  std::vector<std::string> describe() const;
  void run(const AttentionArgs& args);

 private:
  void* decode_workspace(const AttentionArgs& args);
  void* prefill_plan(const AttentionArgs& args);

  Device& device_;
  bool fast_;
  std::unique_ptr<Buffer> workspace_;
  std::unique_ptr<Buffer> plan_;
};

}  // namespace mimo::cuda
