#include "api/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace mimo {
namespace {

constexpr double kMillisecondsPerSecond = 1000;

}  // namespace

UsageTotals sum_usage(std::span<const RequestUsage> choices, std::int64_t n) {
  UsageTotals totals;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const RequestUsage& usage = choices[i];
    if (static_cast<std::int64_t>(i) % n == 0) {
      totals.prompt_tokens += usage.prompt_tokens;
      totals.cached_tokens += usage.cached_tokens;
      totals.cached_host_tokens += usage.cached_host_tokens;
    }
    totals.completion_tokens += usage.completion_tokens;
    totals.reasoning_tokens += usage.reasoning_tokens;
    totals.prompt_ms = std::max(totals.prompt_ms, usage.prefill_seconds * kMillisecondsPerSecond);
    totals.predicted_ms = std::max(totals.predicted_ms, usage.decode_seconds * kMillisecondsPerSecond);
    totals.verify_steps += usage.speculation.verify_steps;
    totals.drafted += usage.speculation.proposed;
    totals.drafts_accepted += usage.speculation.accepted;
  }
  return totals;
}

void append_openai_usage(std::string& out, const UsageTotals& usage) {
  // An extension, which is only there where there is something to say.
  std::string host;
  if (usage.cached_host_tokens > 0)
    host = fmt::format(R"(,"cached_tokens_host":{})", usage.cached_host_tokens);
  fmt::format_to(std::back_inserter(out),
                 R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                 R"("prompt_tokens_details":{{"cached_tokens":{}{}}},)"
                 R"("completion_tokens_details":{{"reasoning_tokens":{}}}}})",
                 usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens,
                 usage.cached_tokens, host, usage.reasoning_tokens);
}

void append_anthropic_usage(std::string& out, const UsageTotals& usage) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},)"
                 R"("output_tokens":{}}})",
                 usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, usage.completion_tokens);
}

void append_timings(std::string& out, const UsageTotals& usage) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"prompt_n":{},"prompt_ms":{:.3f},"predicted_n":{},"predicted_ms":{:.3f},"draft_n":{},)"
                 R"("draft_n_accepted":{},"draft_steps":{},"cache_n":{}}})",
                 usage.prompt_tokens - usage.cached_tokens, usage.prompt_ms, usage.completion_tokens,
                 usage.predicted_ms, usage.drafted, usage.drafts_accepted, usage.verify_steps,
                 usage.cached_tokens);
}

}  // namespace mimo
