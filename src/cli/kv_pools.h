// How large the KV pools of a server are.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/config.h"
#include "cli/serve_options.h"
#include "core/result.h"
#include "engine/scheduler.h"

namespace mimo {

struct KvPools {
  std::int64_t full_pages = 0;
  std::int64_t window_pages = 0;
  std::int64_t max_model_len = 0;
  std::string text;  // the plan as a table
};

// From the options, the bytes that are free for KV (0: not known), and what the scheduler needs. Refuses what cannot
// run, with the smallest change that would do.
Result<KvPools> plan_kv_pools(const ModelConfig& config, const ServeOptions& options,
                              const SchedulerOptions& scheduler, KvDType dtype, std::uint64_t available);

}  // namespace mimo
