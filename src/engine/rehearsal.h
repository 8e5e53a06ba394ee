// The largest steps of a server, run once before its KV cache is made: what they allocate is there from then on, so
// that no request within the limits meets a backend without memory.
#pragma once

#include <cstdint>

#include "core/result.h"
#include "engine/engine_core.h"

namespace mimo {

// Runs the longest chunk of a prompt and a full batch of decoding requests, with drafts and with logits brought to the
// CPU, on an engine of its own with `options` and small pools. Returns the bytes that such an engine needs beside its
// pools and that are free again now. Fails where there is not enough memory for it. Logits of whole prompts (echo with
// log-probabilities) are not among the steps.
Result<std::uint64_t> rehearse_steps(TargetModel& model, Ops& ops, EngineOptions options);

}  // namespace mimo
