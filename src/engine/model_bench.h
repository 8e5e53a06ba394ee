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
  std::vector<int> batches = {1};   // sequences of a tg test
  std::vector<int> widths = {1};    // rows of each: 1 decodes, more verify a block of drafts
  int repeats = 5;
  int chunk = 512;  // rows of a prefill step
  KvDType kv_dtype = KvDType::kBF16;
  int page_size = 64;
};

struct ModelBenchRow {
  std::string test;   // "pp512", "tg128 @ d2048", "tg128 @ d2048 b4", "verify8 @ d2048 b4"
  double median = 0;  // rows a second
  double lowest = 0;
  double highest = 0;
  double step_rows = 1;        // of one step of a tg test
  double bytes_per_token = 0;  // weights and KV that a step reads for each of its rows; 0 for pp
};

// Runs all tests on random tokens, one repeat of everything first to warm up. The context of a tg test holds the same
// page again and again: what stands in it costs no time. Rates are those of the forward pass with the choice of the
// best token; where the backend's memory is not the CPU's, logits stay there.
Result<std::vector<ModelBenchRow>> run_model_bench(TargetModel& model, Ops& ops,
                                                   const ModelBenchOptions& options);

}  // namespace mimo
