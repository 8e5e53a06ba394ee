#include "engine/model_bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include "cache/sequence_pages.h"

namespace mimo {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Sequences side by side. Each has its own pages of full layers; of window layers a ring, since nobody looks further
// back. Nothing is evicted, so that a test can go back to its start.
class Sequences {
 public:
  Sequences(TargetModel& model, Ops& ops, ModelKv& kv, int page_size, int count, std::int64_t capacity,
            std::int64_t ring)
      : model_(model), kv_(kv), page_size_(page_size), on_backend_(!ops.host_memory()) {
    const std::int64_t pages = pages_for(capacity, page_size);
    full_.resize(static_cast<std::size_t>(count));
    window_.resize(full_.size());
    for (std::size_t s = 0; s < full_.size(); ++s) {
      const auto index = static_cast<std::int64_t>(s);
      for (std::int64_t p = 0; p < pages; ++p) {
        full_[s].push_back(static_cast<std::int32_t>(index * pages + p));
        window_[s].push_back(static_cast<std::int32_t>(index * ring + p % ring));
      }
    }
  }

  // Rows at positions [position, position + rows) of each of the first `count` sequences; the best token after the
  // last one, as a server needs, or after every row of a block.
  void step(std::int64_t position, int rows, int count, bool every_row) {
    const auto total = static_cast<std::size_t>(rows) * static_cast<std::size_t>(count);
    tokens_.resize(total);
    for (std::int32_t& token : tokens_) token = pick_(random_) % model_.config().vocab;
    full_rows_.clear();
    window_rows_.clear();
    wanted_.clear();
    for (int s = 0; s < count; ++s) {
      full_rows_.push_back({s * rows, rows, position, full_[static_cast<std::size_t>(s)]});
      window_rows_.push_back({s * rows, rows, position, window_[static_cast<std::size_t>(s)]});
      for (int r = every_row ? 0 : rows - 1; r < rows; ++r) wanted_.push_back(s * rows + r);
    }
    ForwardBatch batch{tokens_, full_rows_, window_rows_, {}};
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

  void prefill(int length, int chunk) {
    for (int at = 0; at < length; at += chunk) step(at, std::min(chunk, length - at), 1, false);
  }

  // Fills the context of all sequences with copies of the first page of the first one.
  void fill_context() {
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

 private:
  TargetModel& model_;
  ModelKv& kv_;
  int page_size_;
  bool on_backend_;
  std::vector<std::vector<std::int32_t>> full_;
  std::vector<std::vector<std::int32_t>> window_;
  std::vector<SequenceRows> full_rows_;
  std::vector<SequenceRows> window_rows_;
  std::vector<std::int32_t> wanted_;
  std::vector<std::int32_t> tokens_;
  std::vector<float> logits_;
  std::vector<std::int32_t> best_;
  std::mt19937 random_{42};
  std::uniform_int_distribution<std::int32_t> pick_{0, 1 << 30};
};

ModelBenchRow summarize(std::string test, std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  ModelBenchRow row;
  row.test = std::move(test);
  row.median = rates[rates.size() / 2];
  row.lowest = rates.front();
  row.highest = rates.back();
  return row;
}

// Bytes of keys and values that a token at this depth reads.
double kv_bytes_per_token(const ModelConfig& config, KvDType dtype, int depth) {
  const double element = dtype == KvDType::kFp8 ? 1 : (dtype == KvDType::kBF16 ? 2 : 4);
  double total = 0;
  for (int i = 0; i < config.layers; ++i) {
    const AttentionShape& shape = config.attention(i);
    const int keys = shape.window > 0 ? std::min(depth, shape.window) : depth;
    total += element * keys * shape.kv_heads * (shape.qk_dim + shape.v_dim);
  }
  return total;
}

}  // namespace

Result<std::vector<ModelBenchRow>> run_model_bench(TargetModel& model, Ops& ops,
                                                   const ModelBenchOptions& options) {
  const auto largest = [](const std::vector<int>& values) {
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  };
  const ModelConfig& config = model.config();
  const int widest = options.generate > 0 ? largest(options.widths) : 1;
  const int sequences_count = options.generate > 0 ? std::max(1, largest(options.batches)) : 1;
  const std::int64_t capacity =
      std::max({std::int64_t{options.page_size}, std::int64_t{largest(options.prompt_lengths)},
                std::int64_t{largest(options.depths)} + std::int64_t{options.generate} * widest});
  const int chunk = std::max({options.chunk, options.page_size, widest});
  const std::int64_t ring = config.window.window > 0
                                ? pages_for(config.window.window + chunk, options.page_size) + 1
                                : pages_for(capacity, options.page_size);
  Result<ModelKv> kv = ModelKv::make(ops, config,
                                     {.dtype = options.kv_dtype,
                                      .page_size = options.page_size,
                                      .full_pages = sequences_count * pages_for(capacity, options.page_size),
                                      .window_pages = sequences_count * ring});
  if (!kv) return forward_error(kv);
  Sequences sequences(model, ops, *kv, options.page_size, sequences_count, capacity, ring);
  std::vector<ModelBenchRow> rows;

  for (const int length : options.prompt_lengths) {
    std::vector<double> rates;
    for (int repeat = -1; repeat < options.repeats; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      sequences.prefill(length, options.chunk);
      if (repeat >= 0) rates.push_back(length / seconds_since(start));
    }
    rows.push_back(summarize(fmt::format("pp{}", length), rates));
  }
  if (options.generate == 0) return rows;
  sequences.fill_context();
  for (const int depth : options.depths) {
    for (const int batch : options.batches) {
      for (const int width : options.widths) {
        std::vector<double> rates;
        for (int repeat = -1; repeat < options.repeats; ++repeat) {
          const auto start = std::chrono::steady_clock::now();
          for (int i = 0; i < options.generate; ++i) sequences.step(depth + i * width, width, batch, true);
          if (repeat >= 0) rates.push_back(options.generate * width * batch / seconds_since(start));
        }
        std::string name = width == 1 ? fmt::format("tg{} @ d{}", options.generate, depth)
                                      : fmt::format("verify{} @ d{}", width, depth);
        if (sequences_count > 1) name += fmt::format(" b{}", batch);
        ModelBenchRow row = summarize(std::move(name), rates);
        row.step_rows = width * batch;
        row.bytes_per_token =
            (model.bytes_per_step(width * batch) +
             batch * kv_bytes_per_token(config, options.kv_dtype, depth + options.generate * width / 2)) /
            row.step_rows;
        rows.push_back(row);
      }
    }
  }
  return rows;
}

}  // namespace mimo
