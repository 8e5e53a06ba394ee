// What is asked of the generator and what comes back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "engine/sampler.h"
#include "engine/speculation_stats.h"
#include "engine/stop_rules.h"

namespace mimo {

struct GenerateRequest {
  std::vector<std::int32_t> prompt;  // ids in [0, vocab), not empty
  // max_tokens: none is up to the end of the context; 0 is allowed here: the prompt is run and nothing is
  // generated.
  SamplingParams params;
  bool speculation = true;  // false: never drafted for
};

struct GenerateResult {
  std::vector<SampledToken> tokens;
  std::string text;              // of the tokens, without what stop rules hide; empty without a tokenizer
  std::optional<Finish> finish;  // none: ended by `error`, or max_tokens was 0
  std::optional<Error> error;    // this request only
  double prefill_seconds = 0;    // from its admission until its first token could be sampled
  double decode_seconds = 0;     // from then to its end
  SpeculationStats speculation;  // nothing counted without a drafter
};

struct GenerateCallbacks {
  // Text of request `index` that is safe to show.
  std::function<void(std::size_t index, std::string_view text)> on_text = {};
  // Logits [rows, vocab] of prompt positions [first, first + rows) of request `index`, in order. Costs the
  // output head for every prompt row.
  std::function<void(std::size_t index, std::int64_t first, std::span<const float> logits)> on_prompt_logits =
      {};
  // Request `index` has ended; the result is complete.
  std::function<void(std::size_t index, const GenerateResult& result)> on_done = {};
};

}  // namespace mimo
