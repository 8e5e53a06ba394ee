// Generation without a server: all requests are known at the start, and the KV cache is sized so that whichever
// of them run together find room.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/result.h"
#include "engine/engine_core.h"
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
  const SpeculationStats& speculation() const { return speculation_; }
  const EngineTimes& times() const { return times_; }

 private:
  TargetModel& model_;
  Ops& ops_;
  GeneratorOptions options_;
  SpeculationStats speculation_;
  EngineTimes times_;
};

}  // namespace mimo
