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

// One sequence over pages 0, 1, 2, ... that is never evicted, so that a test can go back to its start.
class Sequence {
 public:
  Sequence(TargetModel& model, ModelKv& kv, int page_size, std::int64_t capacity)
      : model_(model), kv_(kv), pages_(static_cast<std::size_t>(pages_for(capacity, page_size))) {
    std::iota(pages_.begin(), pages_.end(), 0);
    logits_.resize(static_cast<std::size_t>(model.config().vocab));
  }

  // Rows at positions [position, position + count); logits of the last one only, as a server needs.
  void step(std::int64_t position, int count) {
    tokens_.resize(static_cast<std::size_t>(count));
    for (std::int32_t& token : tokens_) token = pick_(random_) % model_.config().vocab;
    const SequenceRows rows{0, count, position, pages_};
    const std::int32_t last = count - 1;
    model_.forward({tokens_, {&rows, 1}, {&rows, 1}, {&last, 1}}, kv_, logits_);
  }

  void prefill(int length, int chunk) {
    for (int at = 0; at < length; at += chunk) step(at, std::min(chunk, length - at));
  }

 private:
  TargetModel& model_;
  ModelKv& kv_;
  std::vector<std::int32_t> pages_;
  std::vector<std::int32_t> tokens_;
  std::vector<float> logits_;
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
  std::int64_t capacity = 1;
  for (const int length : options.prompt_lengths) capacity = std::max<std::int64_t>(capacity, length);
  for (const int depth : options.depths)
    capacity = std::max<std::int64_t>(capacity, depth + options.generate);
  const std::int64_t pages = pages_for(capacity, options.page_size);
  Result<ModelKv> kv = ModelKv::make(ops, model.config(),
                                     {.dtype = options.kv_dtype,
                                      .page_size = options.page_size,
                                      .full_pages = pages,
                                      .window_pages = pages});
  if (!kv) return forward_error(kv);
  Sequence sequence(model, *kv, options.page_size, capacity);
  std::vector<ModelBenchRow> rows;

  for (const int length : options.prompt_lengths) {
    std::vector<double> rates;
    for (int repeat = -1; repeat < options.repeats; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      sequence.prefill(length, options.chunk);
      if (repeat >= 0) rates.push_back(length / seconds_since(start));
    }
    rows.push_back(summarize(fmt::format("pp{}", length), rates));
  }
  if (options.generate == 0) return rows;
  for (const int depth : options.depths) {
    sequence.prefill(depth, options.chunk);
    std::vector<double> rates;
    for (int repeat = -1; repeat < options.repeats; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < options.generate; ++i) sequence.step(depth + i, 1);
      if (repeat >= 0) rates.push_back(options.generate / seconds_since(start));
    }
    ModelBenchRow row = summarize(fmt::format("tg{} @ d{}", options.generate, depth), rates);
    row.bytes_per_token = static_cast<double>(model.bytes_per_token()) +
                          kv_bytes_per_token(model.config(), options.kv_dtype, depth + options.generate / 2);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace mimo
