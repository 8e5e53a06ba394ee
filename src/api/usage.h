// Token counts and times of an answer, summed over its choices.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/engine_client.h"

namespace mimo {

struct UsageTotals {
  std::int64_t prompt_tokens = 0;       // each prompt once, however many choices it has
  std::int64_t cached_tokens = 0;       // of the prompts
  std::int64_t cached_host_tokens = 0;  // part of them that came back from host memory
  std::int64_t completion_tokens = 0;
  std::int64_t reasoning_tokens = 0;  // of the completions
  double prompt_ms = 0;               // of the slowest choice
  double predicted_ms = 0;
  std::int64_t verify_steps = 0;  // steps with drafts
  std::int64_t drafted = 0;
  std::int64_t drafts_accepted = 0;
};

// Choice i belongs to prompt i / n. The first choice of a prompt is the one that computed it.
UsageTotals sum_usage(std::span<const RequestUsage> choices, std::int64_t n);

// The value of "usage" in OpenAI's form.
void append_openai_usage(std::string& out, const UsageTotals& usage);

// The same in Anthropic's: there input_tokens are those that did not come from the cache.
void append_anthropic_usage(std::string& out, const UsageTotals& usage);

// The value of the extension "timings", as llama.cpp's server has it; draft_steps is ours: the accept length is
// 1 + draft_n_accepted / draft_steps.
void append_timings(std::string& out, const UsageTotals& usage);

}  // namespace mimo
