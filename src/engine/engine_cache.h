// The memory of an engine: keys and values of all layers, the two page pools over them, and what keeps prefixes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "cache/host_arena.h"
#include "cache/host_tier.h"
#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "core/result.h"
#include "model/target.h"

namespace mimo {

struct EngineCacheOptions {
  PageLayout layout;
  KvDType dtype = KvDType::kBF16;
  std::int64_t full_pages = 0;
  std::int64_t window_pages = 0;
  bool prefixes = false;                      // kept after their request
  std::uint64_t host_bytes = 0;               // of host memory for prefixes; 0: none
  std::int64_t host_min_tokens = 256;         // a restore that saves fewer is not worth it
  std::size_t tail_bytes = 0;                 // of a drafter's tail beside each reuse point
  std::uint64_t attachment_bytes = 1u << 30;  // most of all tails beside the prefix tree
  bool poison = false;                        // NaN in every page that nothing owns
};

class EngineCache {
 public:
  // `config` must outlive it. kInvalidArgument: a host tier without prefixes, or one too small for a page.
  static Result<std::unique_ptr<EngineCache>> make(Ops& ops, const ModelConfig& config,
                                                   const EngineCacheOptions& options);

  ModelKv& kv() { return *kv_; }
  PagePool& full() { return full_; }
  PagePool& window() { return window_; }
  PrefixTree* tree() { return tree_.get(); }  // null: nothing is shared
  HostTier* host() { return host_.get(); }    // null: what is evicted is gone

  // Keeps `attachment` beside the prefix `tokens` (whole pages), wherever that is a reuse point.
  void attach(std::span<const std::int32_t> tokens, std::string_view salt,
              const std::shared_ptr<const CacheAttachment>& attachment);
  // Waits for the copies under way.
  void settle();
  // Forgets all prefixes that nobody uses.
  void flush();

 private:
  EngineCache(const ModelConfig& config, const EngineCacheOptions& options);
  void poison_free_pages();
  Status make_host_tier();

  const ModelConfig& config_;
  EngineCacheOptions options_;
  std::optional<ModelKv> kv_;  // before the pools, whose last pages may be poisoned in it
  PagePool full_;
  PagePool window_;
  std::unique_ptr<PrefixTree> tree_;
  std::unique_ptr<HostArena> arena_;
  std::unique_ptr<HostTier> host_;
};

}  // namespace mimo
