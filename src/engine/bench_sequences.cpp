#include "engine/bench_sequences.h"

#include <algorithm>

#include "cache/sequence_pages.h"

namespace mimo {

BenchSequences::BenchSequences(TargetModel& model, Ops& ops, ModelKv& kv, const Shape& shape)
    : model_(model), kv_(kv), page_size_(shape.page_size), on_backend_(!ops.host_memory()) {
  const std::int64_t pages = pages_for(shape.capacity, shape.page_size);
  full_.resize(static_cast<std::size_t>(shape.count));
  window_.resize(full_.size());
  for (std::size_t s = 0; s < full_.size(); ++s) {
    const auto index = static_cast<std::int64_t>(s);
    for (std::int64_t p = 0; p < pages; ++p) {
      full_[s].push_back(static_cast<std::int32_t>(index * pages + p));
      window_[s].push_back(static_cast<std::int32_t>(index * shape.ring + p % shape.ring));
    }
  }
}

std::int32_t BenchSequences::random_token() { return pick_(random_) % model_.config().vocab; }

void BenchSequences::step(std::span<const std::int64_t> positions, int rows, bool every_row,
                          const TapRows& taps) {
  tokens_.resize(static_cast<std::size_t>(rows) * positions.size());
  for (std::int32_t& token : tokens_) token = random_token();
  full_rows_.clear();
  window_rows_.clear();
  wanted_.clear();
  for (std::size_t s = 0; s < positions.size(); ++s) {
    const int first = static_cast<int>(s) * rows;
    full_rows_.push_back({first, rows, positions[s], full_[s]});
    window_rows_.push_back({first, rows, positions[s], window_[s]});
    for (int r = every_row ? 0 : rows - 1; r < rows; ++r) wanted_.push_back(first + r);
  }
  ForwardBatch batch{tokens_, full_rows_, window_rows_, {}, taps};
  // Where the backend's memory is not the CPU's, logits stay there.
  if (on_backend_) {
    batch.best_rows = wanted_;
    batch.best_vocab = model_.config().vocab;
    best_.resize(wanted_.size());
  } else {
    batch.logit_rows = wanted_;
    logits_.resize(wanted_.size() * static_cast<std::size_t>(model_.config().vocab));
  }
  model_.forward(batch, kv_, logits_, best_);
}

void BenchSequences::step(std::int64_t position, int rows, int count, bool every_row) {
  positions_.assign(static_cast<std::size_t>(count), position);
  step(positions_, rows, every_row);
}

void BenchSequences::prefill(int length, int chunk) {
  for (int at = 0; at < length; at += chunk) step(at, std::min(chunk, length - at), 1, false);
}

void BenchSequences::fill_context() {
  step(0, page_size_, 1, false);
  for (const LayerKind kind : {LayerKind::kFull, LayerKind::kWindow}) {
    const auto& tables = kind == LayerKind::kFull ? full_ : window_;
    std::vector<std::byte> page(kv_.page_bytes(model_.config(), kind));
    kv_.read_page(model_.config(), kind, tables[0][0], page);
    std::int32_t last = 0;
    for (const auto& table : tables) last = std::max(last, *std::max_element(table.begin(), table.end()));
    for (std::int32_t p = 0; p <= last; ++p) kv_.write_page(model_.config(), kind, p, page);
  }
}

}  // namespace mimo
