// Attention over a ragged batch: cuts the work into (sequence, KV head, block of rows or of keys) tasks.
#pragma once

#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "ops/cpu/cpu_kv.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/workspace.h"
#include "ops/host_ops.h"

namespace mimo {

class AttentionRunner {
 public:
  // Both must outlive the runner.
  AttentionRunner(const CpuKernels& kernels, ThreadPool& pool);

  void rope_and_store(float* qkv, std::size_t row_width, const HostSequences& batch,
                      const AttentionSpec& spec, float value_scale, CpuKv& kv);

  void run(const float* qkv, std::size_t row_width, std::span<const SequenceRows> sequences,
           const AttentionSpec& spec, const CpuKv& kv, float* out);

 private:
  // Rows [row, row + rows) of one sequence for one KV head, over key chunks [chunk_begin, chunk_end).
  struct Task {
    const SequenceRows* sequence = nullptr;
    int head = 0;
    int row = 0;
    int rows = 0;
    std::int64_t chunk_begin = 0;
    std::int64_t chunk_end = 0;
    bool cut = false;  // one of several tasks over the keys of these rows; results are merged afterwards
    std::size_t partial = 0;  // cut: first query slot in the partial results
  };
  struct Context;
  void plan(std::span<const SequenceRows> sequences, const AttentionSpec& spec);
  void run_task(const Context& context, const Task& task, int worker);
  void finish(const Context& context, const Task& task, const float* result) const;

  const CpuKernels& kernels_;
  ThreadPool& pool_;
  std::vector<Task> tasks_;
  std::vector<std::size_t> merges_;  // first task of each (sequence, head) whose keys were cut
  std::size_t partial_queries_ = 0;
  std::vector<Workspace> scratch_;  // one a worker
  Workspace partial_;
};

}  // namespace mimo
