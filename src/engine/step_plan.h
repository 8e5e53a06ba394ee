// One step of the engine, as the scheduler decides it: plain data, no device state.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine_client.h"

namespace mimo {

// The rows of one request in a step.
struct PlanPart {
  RequestId id = 0;
  int row_begin = 0;
  int rows = 0;
  std::int64_t position = 0;  // of the first row
  bool prefill = false;       // known tokens; else the anchor and its drafts
  bool last = false;  // prefill: the row of the newest known token is among them, and a token follows it
};

// Why something that could run did not, for logs and tests.
enum class HoldReason : std::uint8_t {
  kNone,
  kRows,        // the row budget is spent
  kFullPages,   // too few pages for full-attention layers
  kWindowRoom,  // window layers have room for no further request
  kMaxRunning,
  kSharedPrefix,  // another request is computing a prefix that it will use
};

struct StepPlan {
  std::vector<PlanPart> parts;  // decoding requests first
  int rows = 0;
  std::vector<RequestId> admitted;      // since the last step
  std::vector<RequestId> retracted;     // back to the queue for want of pages
  HoldReason held = HoldReason::kNone;  // of the first request that waits
};

}  // namespace mimo
