#include "engine/engine_cache.h"

#include <utility>

namespace mimo {

EngineCache::EngineCache(const ModelConfig& config, const EngineCacheOptions& options)
    : config_(config),
      options_(options),
      full_("full", options.full_pages),
      window_("window", options.window_pages) {}

Result<std::unique_ptr<EngineCache>> EngineCache::make(Ops& ops, const ModelConfig& config,
                                                       const EngineCacheOptions& options) {
  std::unique_ptr<EngineCache> cache(new EngineCache(config, options));
  Result<ModelKv> kv = ModelKv::make(ops, config,
                                     {.dtype = options.dtype,
                                      .page_size = options.layout.page_size,
                                      .full_pages = options.full_pages,
                                      .window_pages = options.window_pages});
  if (!kv) return forward_error(kv);
  cache->kv_.emplace(std::move(*kv));
  if (options.poison) cache->poison_free_pages();
  if (options.prefixes) {
    cache->tree_ =
        std::make_unique<PrefixTree>(options.layout, cache->full_, cache->window_,
                                     PrefixTree::Options{.attachment_bytes = options.attachment_bytes});
  }
  if (options.host_bytes > 0) {
    if (const Status ok = cache->make_host_tier(); !ok) return forward_error(ok);
  }
  return cache;
}

void EngineCache::poison_free_pages() {
  for (const auto& [pool, kind] :
       {std::pair{&full_, LayerKind::kFull}, std::pair{&window_, LayerKind::kWindow}}) {
    pool->on_free([this, kind = kind](std::int32_t page) { kv_->poison(config_, kind, page); });
    for (std::int32_t page = 0; page < pool->capacity(); ++page) kv_->poison(config_, kind, page);
  }
}

Status EngineCache::make_host_tier() {
  if (tree_ == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "host KV tier: it holds what the prefix cache evicts, and the prefix cache is off");
  }
  const auto layer_kind = [](PageKind kind) {
    return kind == PageKind::kFull ? LayerKind::kFull : LayerKind::kWindow;
  };
  PageAccess access;
  access.full_bytes = kv_->page_bytes(config_, LayerKind::kFull);
  access.window_bytes = kv_->page_bytes(config_, LayerKind::kWindow);
  access.read = [this, layer_kind](PageKind kind, std::int32_t page, std::span<std::byte> out) {
    kv_->read_page(config_, layer_kind(kind), page, out);
  };
  access.write = [this, layer_kind](PageKind kind, std::int32_t page, std::span<const std::byte> in) {
    kv_->write_page(config_, layer_kind(kind), page, in);
  };
  const Result<HostTierSize> size = host_tier_size(options_.host_bytes, options_.layout, access.full_bytes,
                                                   access.window_bytes, options_.tail_bytes);
  if (!size) return forward_error(size);
  Result<std::unique_ptr<HostArena>> arena = HostArena::make(
      std::move(access), size->full_slots, size->window_records * window_record_pages(options_.layout));
  if (!arena) return forward_error(arena);
  arena_ = std::move(*arena);
  host_ = std::make_unique<HostTier>(
      options_.layout, full_, window_, *tree_, *arena_,
      HostTier::Options{.size = *size, .min_restore_tokens = options_.host_min_tokens});
  return {};
}

void EngineCache::attach(std::span<const std::int32_t> tokens, std::string_view salt,
                         const std::shared_ptr<const CacheAttachment>& attachment) {
  if (tree_) tree_->attach(tokens, salt, attachment);
  if (host_) host_->attach(tokens, salt, attachment);
}

void EngineCache::settle() {
  while (host_ && host_->wait()) {
  }
}

void EngineCache::flush() {
  if (host_) host_->flush();
  if (tree_) tree_->flush();
}

}  // namespace mimo
