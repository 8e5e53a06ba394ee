// Gated MLPs over a bank: tokens are grouped by expert, so that each expert's weights are read once a step.
#pragma once

#include <cstdint>
#include <vector>

#include "core/thread_pool.h"
#include "ops/cpu/activations.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/packed_matrix.h"
#include "ops/cpu/workspace.h"

namespace mimo {

class MlpRunner {
 public:
  // Both must outlive the runner.
  MlpRunner(const CpuKernels& kernels, ThreadPool& pool);

  // y [rows, hidden] += sum over k of weights[r][k] * mlp[ids[r][k]](x[r]). Experts are added in ascending
  // order for every row, whatever the batch.
  void run(const float* x, int rows, const PackedMlpBank& bank, int top_k, const std::int32_t* ids,
           const float* weights, float* y);

 private:
  // Rows of one expert: slots [begin, begin + count) of the grouped order.
  struct Group {
    int expert = 0;
    int begin = 0;
    int count = 0;
  };
  // Whether there are enough small experts to give every thread whole ones.
  bool whole_experts(const PackedMlpBank& bank, int rows) const;
  void run_whole(const PackedMlpBank& bank, const ActRows& input, float* inner, std::size_t inner_stride,
                 float* y);
  void group_by_expert(int rows, int experts, int top_k, const std::int32_t* ids, const float* weights);

  const CpuKernels& kernels_;
  ThreadPool& pool_;
  Activations inputs_;
  Activations inner_;
  std::vector<Activations> own_inner_;  // one a worker
  std::vector<int> order_;              // of groups, the one with the most rows first
  Workspace outputs_;                   // [slots][hidden]: results of experts before they are added up
  Workspace hidden_;                    // [slots][padded intermediate]: silu(gate) * up
  std::vector<Workspace> scratch_;      // one a worker
  std::vector<Group> groups_;
  std::vector<std::int32_t> token_of_slot_;
  std::vector<float> weight_of_slot_;
  std::vector<int> counts_;
};

}  // namespace mimo
