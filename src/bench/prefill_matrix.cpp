#include "bench/prefill_matrix.h"

#include <algorithm>
#include <utility>

#include "bench/load_run.h"

namespace mimo {
namespace {

constexpr int kFewestPrompts = 8;
constexpr int kRoundsOfPrompts = 4;
constexpr double kMilliseconds = 1e3;

std::string reason_to_skip(const PrefillOptions& options, std::int64_t length, int concurrency) {
  if (options.context > 0 && length + 1 > options.context) return "context";
  if (options.pool_tokens > 0 && (length + 1) * concurrency > options.pool_tokens) return "pool";
  return "";
}

}  // namespace

std::vector<PrefillCell> run_prefill_matrix(LoadTarget& target, const RequestStyle& style,
                                            const PrefillOptions& options, const PromptSource& prompts,
                                            const std::function<void(const PrefillCell&)>& ended) {
  std::vector<PrefillCell> cells;
  int which = 0;
  for (const std::int64_t length : options.lengths) {
    bool warmed = false;
    for (const int concurrency : options.concurrencies) {
      PrefillCell cell;
      cell.length = length;
      cell.concurrency = concurrency;
      cell.skipped = reason_to_skip(options, length, concurrency);
      if (cell.skipped.empty()) {
        const int count =
            options.prompts > 0 ? options.prompts : std::max(kFewestPrompts, kRoundsOfPrompts * concurrency);
        const int warm_ups = std::exchange(warmed, true) ? 0 : 1;
        std::vector<LoadPrompt> all;
        std::string error;
        for (int i = 0; i < count + warm_ups && error.empty(); ++i) {
          Result<LoadPrompt> prompt = prompts(length, which++);
          if (prompt) {
            prompt->output_tokens = 1;
            all.push_back(std::move(*prompt));
          } else {
            error = prompt.error().message;
          }
        }
        Pace pace;
        pace.max_concurrency = concurrency;
        const auto measured = std::span<const LoadPrompt>(all);
        if (error.empty() && warm_ups > 0) run_load(*target.client, style, measured.first(1), pace);
        if (error.empty()) {
          LoadResult result =
              run_load(*target.client, style, measured.subspan(static_cast<std::size_t>(warm_ups)), pace);
          cell.records = std::move(result.records);
          cell.summary = summarise_load(cell.records, {});
        } else {
          cell.summary.requests = cell.summary.failed = count;
          cell.summary.first_error = error;
        }
        if (cell.summary.wall > 0)
          cell.rate = static_cast<double>(cell.summary.n_in - cell.summary.n_cached) / cell.summary.wall;
      }
      ended(cell);
      cells.push_back(std::move(cell));
    }
  }
  return cells;
}

json::object prefill_json(const PrefillCell& cell, int gpus) {
  json::object out;
  out["input"] = cell.length;
  out["concurrency"] = cell.concurrency;
  if (!cell.skipped.empty()) {
    out["status"] = cell.skipped;
    return out;
  }
  for (auto& [key, value] : summary_json(cell.summary)) out[key] = std::move(value);
  if (cell.summary.failed > 0) return out;
  out["prefill"] = cell.rate;
  out["prefill_per_gpu"] = cell.rate / gpus;
  return out;
}

std::string prefill_head() {
  return "| input | concurrency | prefill tok/s | per GPU | cached % | TTFT mean ms | p50 | p99 | failed |\n"
         "|---|---|---|---|---|---|---|---|---|\n";
}

std::string prefill_line(const PrefillCell& cell, int gpus) {
  if (!cell.skipped.empty())
    return fmt::format("| {} | {} | {} | | | | | | |\n", cell.length, cell.concurrency, cell.skipped);
  const LoadSummary& summary = cell.summary;
  if (summary.failed > 0) {
    return fmt::format("| {} | {} | FAILED: {} | | | | | | {} of {} |\n", cell.length, cell.concurrency,
                       summary.first_error, summary.failed, summary.requests);
  }
  return fmt::format("| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.2f} | {:.2f} | {:.2f} | 0 |\n", cell.length,
                     cell.concurrency, cell.rate, cell.rate / gpus, 100 * summary.cached_share(),
                     summary.ttft.mean * kMilliseconds, summary.ttft.median * kMilliseconds,
                     summary.ttft.p99 * kMilliseconds);
}

}  // namespace mimo
