// Which attention kernel runs, by device, shape and rows: ops/attention_select on the calls of a GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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
  // Plans of prompts are made once for all layers of a kind, while the sequences are the same. Where operations are
  // recorded, a record has plans of its own: called before and after.
  void forget_plans() { plans_.clear(); }

 private:
  enum class Kernel : std::uint8_t { kPlain, kHopperDecode, kHopperPrefill };
  struct Decision {
    AttentionQuery query;
    Kernel kernel = Kernel::kPlain;
    std::string text;
  };

  // The work of a step as the kernel for prompts takes it, for one kind of layer.
  struct Plan {
    std::uint64_t version = 0;  // of the sequences
    int q_heads = 0;
    int kv_heads = 0;
    bool fp8 = false;
    int page_size = 0;
    int window = 0;
    bool anchor_window = false;
    Mask mask = Mask::kCausal;

    bool operator==(const Plan& other) const = default;
  };
  static constexpr std::size_t kPlans = 2;  // full and window layers

  static Kernel kernel_of(const AttentionEntry& entry);
  AttentionQuery query_of(const AttentionArgs& args) const;
  void run_prefill(const AttentionArgs& args);
  // What was decided for this query, now or before. A new decision for a slow kernel is said on stderr.
  const Decision& decide(const AttentionQuery& query);

  Device& device_;
  AttentionDevice family_;
  AttentionChoices choices_;
  std::vector<Decision> decisions_;  // a handful: one for each phase and kind of layer
  std::vector<std::string> lines_;
  std::unique_ptr<Buffer> workspace_;
  std::vector<Plan> plans_;  // of plan_memory_, the last kPlans of them
  std::array<std::unique_ptr<Buffer>, kPlans> plan_memory_;
};

}  // namespace mimo::cuda
