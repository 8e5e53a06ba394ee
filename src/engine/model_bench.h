// Timing of the forward pass alone, in the manner of llama-bench: prompt processing and generation at depth.
#pragma once

#include <string>
#include <vector>

#include "core/result.h"
#include "model/target.h"

namespace mimo {

struct ModelBenchOptions {
  std::vector<int> prompt_lengths;  // pp tests
  int generate = 0;                 // tokens of every tg test
  std::vector<int> depths;          // context before a tg test
  int repeats = 5;
  int chunk = 512;  // rows of a prefill step
  KvDType kv_dtype = KvDType::kBF16;
  int page_size = 64;
};

struct ModelBenchRow {
  std::string test;   // "pp512", "tg128 @ d2048"
  double median = 0;  // tokens a second
  double lowest = 0;
  double highest = 0;
  double bytes_per_token = 0;  // weights and KV that one token reads; 0 for pp
};

// Runs all tests on one sequence of random tokens, one repeat of everything first to warm up.
Result<std::vector<ModelBenchRow>> run_model_bench(TargetModel& model, Ops& ops,
                                                   const ModelBenchOptions& options);

}  // namespace mimo
