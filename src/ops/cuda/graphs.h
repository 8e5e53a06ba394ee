// Steps as CUDA graphs: a shape is run as it is the first time (what it needs is allocated then), captured the second
// time, and replayed from then on. A replay costs one launch, whatever the number of operations.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "ops/cuda/device.h"

namespace mimo::cuda {

class Graphs {
 public:
  explicit Graphs(Device& device) : device_(device) {}
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;
  ~Graphs() { clear(); }

  // As Ops::run. All graphs are dropped when a buffer of the device is freed: they may hold its address.
  void run(std::span<const std::int64_t> key, const std::function<void()>& body);

 private:
  struct Entry {
    cudaGraphExec_t exec = nullptr;  // null: has run once
    std::uint64_t used = 0;          // the run that used it last
  };

  cudaGraphExec_t capture(const std::function<void()>& body);
  void drop_oldest();
  void clear();

  Device& device_;
  std::uint64_t freed_ = 0;
  std::uint64_t runs_ = 0;
  std::map<std::vector<std::int64_t>, Entry> graphs_;
};

}  // namespace mimo::cuda
