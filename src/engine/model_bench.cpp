#include "engine/model_bench.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "cache/sequence_pages.h"
#include "engine/bench_sequences.h"

namespace mimo {
namespace {

// Rows of context that a drafter is shown at a time.
constexpr int kContextRows = 256;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

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

int largest(const std::vector<int>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// One run over all tests.
class ModelBench {
 public:
  ModelBench(TargetModel& model, Ops& ops, Drafter* drafter, const ModelBenchOptions& options)
      : model_(model), ops_(ops), drafter_(drafter), options_(options) {}

  Result<ModelBenchResult> run() {
    if (const Status ok = make_room(); !ok) return forward_error(ok);
    ModelBenchResult result;
    for (const int length : options_.prompt_lengths) result.rows.push_back(prompt(length));
    if (options_.generate == 0) return result;
    sequences_->fill_context();
    for (const int depth : options_.depths) {
      for (const int batch : options_.batches) {
        double decode = 0;
        for (const int width : options_.widths) {
          result.rows.push_back(steps(depth, batch, width));
          if (width == 1) decode = batch / result.rows.back().median;
        }
        if (drafter_ == nullptr) continue;
        if (decode == 0) decode = batch / steps(depth, batch, 1).median;
        Result<DraftBenchRow> row = drafted(depth, batch, decode);
        if (!row) return forward_error(row);
        result.drafts.push_back(std::move(*row));
      }
    }
    return result;
  }

 private:
  Status make_room() {
    const ModelConfig& config = model_.config();
    int widest = options_.generate > 0 ? largest(options_.widths) : 1;
    count_ = options_.generate > 0 ? std::max(1, largest(options_.batches)) : 1;
    std::int64_t behind = std::int64_t{options_.generate} * widest;
    if (drafter_ != nullptr) {
      widest = std::max(widest, 1 + drafter_->max_drafts());
      behind = std::max(behind, DraftBench::room_needed(*drafter_, options_.generate));
    }
    capacity_ = std::max({std::int64_t{options_.page_size}, std::int64_t{largest(options_.prompt_lengths)},
                          std::int64_t{largest(options_.depths)} + behind});
    const int chunk = std::max({options_.chunk, options_.page_size, widest});
    const std::int64_t ring = config.window.window > 0
                                  ? pages_for(config.window.window + chunk, options_.page_size) + 1
                                  : pages_for(capacity_, options_.page_size);
    Result<ModelKv> kv = ModelKv::make(ops_, config,
                                       {.dtype = options_.kv_dtype,
                                        .page_size = options_.page_size,
                                        .full_pages = count_ * pages_for(capacity_, options_.page_size),
                                        .window_pages = count_ * ring});
    if (!kv) return forward_error(kv);
    kv_.emplace(std::move(*kv));
    sequences_.emplace(model_, ops_, *kv_,
                       BenchSequences::Shape{options_.page_size, count_, capacity_, ring});
    return {};
  }

  ModelBenchRow prompt(int length) {
    std::vector<double> rates;
    for (int repeat = -1; repeat < options_.repeats; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      sequences_->prefill(length, options_.chunk);
      if (repeat >= 0) rates.push_back(length / seconds_since(start));
    }
    ModelBenchRow row = summarize(fmt::format("pp{}", length), rates);
    row.prompt_seconds = length / row.median;
    return row;
  }

  ModelBenchRow steps(int depth, int batch, int width) {
    std::vector<double> rates;
    for (int repeat = -1; repeat < options_.repeats; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < options_.generate; ++i) sequences_->step(depth + i * width, width, batch, true);
      if (repeat >= 0) rates.push_back(options_.generate * width * batch / seconds_since(start));
    }
    const std::string name =
        width == 1 ? fmt::format("tg{}", options_.generate) : fmt::format("verify{}", width);
    ModelBenchRow row = summarize(test_name(name, depth, batch), rates);
    row.step_rows = width * batch;
    row.bytes_per_token = step_bytes(depth + options_.generate * width / 2, batch, width) / row.step_rows;
    return row;
  }

  Result<DraftBenchRow> drafted(int depth, int batch, double decode) {
    const int block = 1 + drafter_->max_drafts();
    DraftBench bench(*drafter_, ops_, *sequences_, model_.config().hidden,
                     {.steps = options_.generate,
                      .repeats = options_.repeats,
                      .context_rows = static_cast<int>(std::min<std::int64_t>(
                          {options_.chunk, kContextRows, std::max<std::int64_t>(capacity_, 1)}))});
    const Result<DraftStepTimes> times = bench.run(depth, batch);
    if (!times) return forward_error(times);
    DraftBenchRow row;
    row.test = test_name(fmt::format("{}{}", drafter_->name(), block), depth, batch);
    row.times = *times;
    row.decode = decode;
    row.drafter_bytes = static_cast<double>(drafter_->weight_bytes()) + options_.head_bytes;
    row.bytes = row.drafter_bytes + step_bytes(depth, batch, block);
    for (int length = DraftBench::kFewestAccepted; length <= std::min(DraftBench::kMostAccepted, block);
         ++length) {
      row.gains.push_back({length, length / row.even()});
    }
    return row;
  }

  std::string test_name(const std::string& name, int depth, int batch) const {
    std::string test = fmt::format("{} @ d{}", name, depth);
    if (count_ > 1) test += fmt::format(" b{}", batch);
    return test;
  }

  // Weights and KV that a step of `batch` sequences of `width` rows reads.
  double step_bytes(int depth, int batch, int width) const {
    return model_.bytes_per_step(width * batch) +
           batch * kv_bytes_per_token(model_.config(), options_.kv_dtype, depth);
  }

  TargetModel& model_;
  Ops& ops_;
  Drafter* drafter_;
  const ModelBenchOptions& options_;
  int count_ = 1;              // sequences
  std::int64_t capacity_ = 0;  // positions of each
  std::optional<ModelKv> kv_;
  std::optional<BenchSequences> sequences_;
};

}  // namespace

Result<ModelBenchResult> run_model_bench(TargetModel& model, Ops& ops, Drafter* drafter,
                                         const ModelBenchOptions& options) {
  return ModelBench(model, ops, drafter, options).run();
}

}  // namespace mimo
