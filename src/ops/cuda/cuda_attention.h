// Which attention kernel runs, by device, shape and rows: ops/attention_select on the calls of a GPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/attention_select.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device.h"
#include "ops/cuda/kernels/views.h"

namespace mimo::cuda {

class CudaAttention {
 public:
  // What options.attention asks for and this device, or a call of options.attention_calls, cannot have.
  static Status check(const DeviceInfo& device, const CudaOptions& options);

  // `device` must outlive it; check() has let the options pass. Says on stderr which of the known calls are slow.
  CudaAttention(Device& device, const CudaOptions& options);

  // The kernels of the calls that were known from the start.
  const std::vector<std::string>& describe() const { return lines_; }
  // Throws where a kernel that was asked for does not take this call.
  void run(const AttentionArgs& args);

 private:
  enum class Kernel : std::uint8_t { kPlain, kHopperDecode, kHopperPrefill };
  struct Decision {
    AttentionQuery query;
    Kernel kernel = Kernel::kPlain;
    std::string text;
  };

  static Kernel kernel_of(const AttentionEntry& entry);
  AttentionQuery query_of(const AttentionArgs& args) const;
  // What was decided for this query, now or before. A new decision for a slow kernel is said on stderr.
  const Decision& decide(const AttentionQuery& query);

  Device& device_;
  AttentionDevice family_;
  AttentionChoices choices_;
  std::vector<Decision> decisions_;  // a handful: one for each phase and kind of layer
  std::vector<std::string> lines_;
  std::unique_ptr<Buffer> workspace_;
  std::unique_ptr<Buffer> plan_;
};

}  // namespace mimo::cuda
