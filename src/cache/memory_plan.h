// The one calculation behind `mimo plan` and start-up: what a rank's memory is spent on and how many tokens
// of context are left. Pure: no device is asked, nothing is allocated.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/dflash_config.h"
#include "checkpoint/model_size.h"
#include "core/json.h"
#include "core/result.h"

namespace mimo {

// A drafter beside the target, in bytes of one rank.
struct DraftPlan {
  std::uint64_t weight_bytes = 0;
  std::uint64_t kv_bytes_per_token = 0;  // in the KV format of the plan
  int window = 0;  // tokens of draft KV a running request keeps; 0: as many as the target's full layers
};

// Of a DFlash drafter, which is whole on every rank. K and V projections are held twice, as
// DFlashConfig::context_parameters() says.
DraftPlan draft_plan(const DFlashConfig& config, KvFormat format, bool row_scales);

struct MemoryPlanInput {
  std::uint64_t memory_bytes = 0;  // of one rank, for everything below
  KvFormat kv_format = KvFormat::kBF16;
  bool kv_row_scales = false;  // fp8 rows carry an fp32 scale per head for K and for V
  int page_tokens = 64;
  int max_running = 8;  // requests that decode at once
  std::int64_t context =
      0;  // tokens that `full_requests` requests must be able to reach; 0: the model's limit
  int full_requests = 1;
  int chunk_tokens = 2048;             // prefill rows of one step
  bool overlap = false;                // two steps in flight: two chunks are pinned
  int evict_tokens = 0;                // window pages are freed every so many tokens; 0: max(page_tokens, 64)
  int block_tokens = 1;                // rows of one decode step of a request (drafted tokens + 1)
  int window_tails = 0;                // window snapshots kept for prefix reuse
  std::optional<double> window_ratio;  // window tokens per full token, instead of the per-request sizing
  int tensor_parallel = 1;
  int mtp_heads = 0;
  std::optional<DraftPlan> draft;
  std::uint64_t reserve_bytes = 0;  // graphs, communication buffers, fragmentation
};

struct MemoryPlanRow {
  std::string name;
  std::uint64_t bytes = 0;
  std::int64_t tokens = 0;  // that the row holds (pools) or is sized for (activations); 0: none
};

// One change of the input that would make it fit.
struct MemoryPlanChange {
  std::string text;        // "--context 131072 (now 262144)"
  std::string field;       // "context", "max_running", "kv_format", "memory"
  std::int64_t value = 0;  // of the field; kv_format: 8 bits
  double size = 0;         // relative to the value asked for, to compare changes
};

struct MemoryPlan {
  MemoryPlanInput input;
  std::string member;
  std::vector<MemoryPlanRow> rows;    // everything but the full pool
  std::uint64_t fixed_bytes = 0;      // sum of rows
  std::uint64_t full_page_bytes = 0;  // one page of all full layers (and unwindowed draft KV)
  std::int64_t full_pages = 0;        // that fit in what is left, scratch page included
  std::int64_t window_pages = 0;      // scratch page included
  std::int64_t full_tokens = 0;       // usable: without the scratch page
  std::int64_t window_tokens = 0;
  std::int64_t needed_tokens = 0;  // full_requests requests at full context, whole pages each
  std::uint64_t needed_bytes = 0;  // the least memory for which this input fits
  bool fits = false;
  std::vector<MemoryPlanChange> changes;  // when it does not fit: the smallest first; may be empty

  std::int64_t requests_at_context() const;  // how many full contexts the pool holds
};

// Errors only for inputs that no memory could satisfy (a page size that is not a power of two up to 1024, a
// tensor-parallel size this model cannot be cut to, a context above the model's limit ...), naming the field.
Result<MemoryPlan> plan_memory(const ModelConfig& config, const MemoryPlanInput& input);

// The weights of one rank in stored formats, by group (vocabulary matrices, norms and routers are on every
// rank).
std::array<std::uint64_t, kTensorGroups> rank_weight_bytes(const ModelConfig& config, int tensor_parallel,
                                                           int mtp_heads);

std::string to_text(const MemoryPlan& plan);
json::value to_json(const MemoryPlan& plan);

}  // namespace mimo
