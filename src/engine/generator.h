// Generation without a server: requests are admitted in order while there is room, prefilled in chunks and
// decoded together, with or without a drafter. The scheduler of the server replaces the loop, not the steps.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/result.h"
#include "engine/generate_request.h"
#include "engine/speculation.h"
#include "engine/speculation_options.h"
#include "model/drafter.h"
#include "model/target.h"
#include "text/tokenizer.h"

namespace mimo {

struct GeneratorOptions {
  KvDType kv_dtype = KvDType::kBF16;
  int page_size = 64;
  int chunk = 512;       // most rows of a step, at least 1
  int max_running = 16;  // most requests that run at once, at least 1; the KV cache is sized for them
  const Tokenizer* tokenizer = nullptr;  // null: no text, and stop strings are refused
  Drafter* drafter = nullptr;            // null: no speculation
  SpeculationOptions speculation = {};
  bool poison = false;  // NaN in every page that no sequence owns: tests show that nothing reads it
  LogLine log = {};     // null: stderr
};

// Where the time of all runs went.
struct GeneratorTimes {
  std::int64_t steps = 0;
  std::int64_t rows = 0;  // of the target
  double target_seconds = 0;
  double draft_seconds = 0;
  double observe_seconds = 0;
  double total_seconds = 0;
};

// Checks that a request can be run on this model: ids in range, lengths within the context. Names the field.
Status check_request(const GenerateRequest& request, const ModelConfig& config);

class Generator {
 public:
  // Model, backend, tokenizer and drafter must outlive the generator.
  Generator(TargetModel& model, Ops& ops, const GeneratorOptions& options);

  // Runs all requests to their ends in ragged steps; results in the order of the requests. Fails as a whole
  // only for a request or an option that cannot be run and when the KV cache cannot be had.
  Result<std::vector<GenerateResult>> run(std::span<const GenerateRequest> requests,
                                          const GenerateCallbacks& callbacks);

  // Pooled over all requests of all runs.
  SpeculationStats speculation() const { return speculation_ ? speculation_->pooled() : SpeculationStats{}; }
  const GeneratorTimes& times() const { return times_; }

 private:
  TargetModel& model_;
  Ops& ops_;
  GeneratorOptions options_;
  std::unique_ptr<Speculation> speculation_;  // null: no drafter
  GeneratorTimes times_;
};

}  // namespace mimo
