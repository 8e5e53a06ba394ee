#include "cli/kv_pools.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "cache/sequence_pages.h"

namespace mimo {
namespace {

// More than one full context, or this, is for an operator to ask for: unused KV memory is memory lost.
constexpr std::int64_t kDefaultTokens = 131072;
// Windows of the prefix cache for each request that can run: three at a prompt's end, one at a turn's end, and
// those of branches.
constexpr std::int64_t kTailsPerRequest = 8;

std::uint64_t bytes_per_token(const ModelConfig& config, LayerKind kind, KvDType dtype) {
  const AttentionShape& shape = kind == LayerKind::kFull ? config.full : config.window;
  const auto heads = static_cast<std::uint64_t>(shape.kv_heads);
  const auto dims = static_cast<std::uint64_t>(shape.qk_dim + shape.v_dim);
  std::uint64_t head = dims * 2;
  if (dtype == KvDType::kF32) head = dims * 4;
  if (dtype == KvDType::kFp8) head = dims + 8;  // an fp32 scale for K and one for V
  const auto layers =
      static_cast<std::uint64_t>(std::count(config.layer_kinds.begin(), config.layer_kinds.end(), kind));
  return heads * head * layers;
}

}  // namespace

Result<KvPools> plan_kv_pools(const ModelConfig& config, const ServeOptions& options,
                              const SchedulerOptions& scheduler, KvDType dtype, std::uint64_t available) {
  const std::int64_t size = scheduler.layout.page_size;
  const std::int64_t context = options.context > 0 ? options.context : config.max_positions;
  if (context > config.max_positions) {
    return fail(ErrorCode::kInvalidArgument, "--context-length {}: the model's is {}", context,
                config.max_positions);
  }
  const std::uint64_t full_token = bytes_per_token(config, LayerKind::kFull, dtype);
  const std::uint64_t window_token = bytes_per_token(config, LayerKind::kWindow, dtype);
  const auto budget = static_cast<std::uint64_t>(static_cast<double>(available) * options.mem_fraction);

  KvPools pools;
  const std::int64_t needed_window = Scheduler::window_pages(scheduler, scheduler.max_running);
  const std::int64_t tails = options.prefix_cache
                                 ? kTailsPerRequest * scheduler.max_running *
                                       pages_for(scheduler.layout.window, static_cast<int>(size))
                                 : 0;
  pools.window_pages = needed_window + tails;
  std::int64_t tokens = options.max_total_tokens > 0 ? options.max_total_tokens
                                                     : std::max<std::int64_t>(kDefaultTokens, context);
  if (available > 0) {
    const std::uint64_t window_bytes = static_cast<std::uint64_t>(pools.window_pages * size) * window_token;
    const std::uint64_t left = budget > window_bytes ? budget - window_bytes : 0;
    const auto most = static_cast<std::int64_t>(left / std::max<std::uint64_t>(1, full_token));
    if (options.max_total_tokens > most || most < size) {
      return fail(
          ErrorCode::kLimit,
          "KV cache: {} tokens need {:.2f} GB, and window layers {:.2f} GB; {:.2f} GB are free, of which "
          "--mem-fraction-static {} may be used: --max-total-tokens {} fits",
          tokens, static_cast<double>(static_cast<std::uint64_t>(tokens) * full_token) / 1e9,
          static_cast<double>(window_bytes) / 1e9, static_cast<double>(available) / 1e9, options.mem_fraction,
          std::max<std::int64_t>(0, most));
    }
    tokens = std::min(tokens, most);
  }
  pools.full_pages = std::max<std::int64_t>(1, tokens / size);
  if (options.window_ratio) {
    pools.window_pages =
        static_cast<std::int64_t>(static_cast<double>(pools.full_pages) * *options.window_ratio);
    if (pools.window_pages < Scheduler::window_pages(scheduler, 1)) {
      return fail(
          ErrorCode::kInvalidArgument,
          "--swa-full-tokens-ratio {}: {} window tokens; one request with chunks of {} needs {}, so {:.4f} "
          "at least",
          *options.window_ratio, pools.window_pages * size, scheduler.rows,
          Scheduler::window_pages(scheduler, 1) * size,
          static_cast<double>(Scheduler::window_pages(scheduler, 1)) / static_cast<double>(pools.full_pages));
    }
  }
  pools.max_model_len = std::min(context, pools.full_pages * size);
  const auto row = [&](const char* name, std::int64_t pages, std::uint64_t bytes) {
    pools.text += fmt::format("  {:<22} {:>10} tokens  {:>9.1f} MB\n", name, pages * size,
                              static_cast<double>(static_cast<std::uint64_t>(pages * size) * bytes) / 1e6);
  };
  row("KV of full layers", pools.full_pages, full_token);
  row("KV of window layers", pools.window_pages, window_token);
  pools.text += fmt::format("  pages of {} tokens; up to {} requests at once, the longest of {} tokens\n",
                            size, scheduler.max_running, pools.max_model_len);
  return pools;
}

}  // namespace mimo
