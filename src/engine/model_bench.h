// Timing of the forward pass alone, in the manner of llama-bench: prompt processing and generation at depth, and the
// whole step with a drafter beside it.
#pragma once

#include <string>
#include <vector>

#include "core/result.h"
#include "engine/draft_bench.h"
#include "model/drafter.h"
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
  double head_bytes = 0;  // of the output head, which a drafter shares
};

struct ModelBenchRow {
  std::string test;   // "pp512", "tg128 @ d2048", "tg128 @ d2048 b4", "verify8 @ d2048 b4"
  double median = 0;  // rows a second
  double lowest = 0;
  double highest = 0;
  double step_rows = 1;  // of one step of a tg test
  double prompt_seconds =
      0;  // of a pp test: the whole prompt and its first token, on an idle engine; 0 for tg
  double bytes_per_token = 0;  // weights and KV that a step reads for each of its rows; 0 for pp
};

// Steps with drafts of a whole block at one depth and batch size.
struct DraftBenchRow {
  std::string test;  // "DFLASH8 @ d2048 b4"
  DraftStepTimes times;
  double decode = 0;  // seconds of a step of the same sequences without drafts
  // Weights and the target's KV that a step reads, and of them what is the drafter's: its weights, and the output head
  // once more. Without the drafter's own keys and values.
  double bytes = 0;
  double drafter_bytes = 0;
  struct Gain {
    int accept_length = 0;
    double speedup = 0;  // tokens a second over those without drafts
  };
  std::vector<Gain> gains;

  // Tokens a step must give to be as fast as without drafts.
  double even() const { return times.step / decode; }
};

struct ModelBenchResult {
  std::vector<ModelBenchRow> rows;
  std::vector<DraftBenchRow> drafts;  // empty without a drafter
};

// Runs all tests on random tokens, one repeat of everything first to warm up. Rates are those of the forward pass with
// the choice of the best token; where the backend's memory is not the CPU's, logits stay there. `drafter`: null, or one
// of the model's, which must be able to keep the states of the largest batch.
Result<ModelBenchResult> run_model_bench(TargetModel& model, Ops& ops, Drafter* drafter,
                                         const ModelBenchOptions& options);

}  // namespace mimo
