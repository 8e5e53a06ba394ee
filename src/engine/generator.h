// Generation without a server: a fixed set of requests is prefilled in chunks and decoded together to the
// end. The scheduler of the server replaces the loop, not the steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"
#include "engine/sampler.h"
#include "engine/stop_rules.h"
#include "model/target.h"
#include "text/tokenizer.h"

namespace mimo {

struct GenerateRequest {
  std::vector<std::int32_t> prompt;  // ids in [0, vocab), not empty
  SamplingParams params;  // max_tokens set; 0 is allowed here: the prompt is run and nothing is generated
};

struct GenerateResult {
  std::vector<SampledToken> tokens;
  std::string text;              // of the tokens, without what stop rules hide; empty without a tokenizer
  std::optional<Finish> finish;  // none: ended by `error`, or max_tokens was 0
  std::optional<Error> error;    // this request only
  double prefill_seconds = 0;    // until its first token could be sampled
  double decode_seconds = 0;     // from then to its end
};

struct GenerateCallbacks {
  // Text of request `index` that is safe to show.
  std::function<void(std::size_t index, std::string_view text)> on_text = {};
  // Logits [rows, vocab] of prompt positions [first, first + rows) of request `index`, in order. Costs the
  // output head for every prompt row.
  std::function<void(std::size_t index, std::int64_t first, std::span<const float> logits)> on_prompt_logits =
      {};
};

struct GeneratorOptions {
  KvDType kv_dtype = KvDType::kBF16;
  int page_size = 64;
  int chunk = 512;                       // most rows of a step
  const Tokenizer* tokenizer = nullptr;  // null: no text, and stop strings are refused
};

// Checks that a request can be run on this model: ids in range, lengths within the context. Names the field.
Status check_request(const GenerateRequest& request, const ModelConfig& config);

class Generator {
 public:
  // Both must outlive the generator.
  Generator(TargetModel& model, Ops& ops, const GeneratorOptions& options);

  // Runs all requests to their ends in ragged steps; results in the order of the requests. Fails as a whole
  // only when the KV cache cannot be had.
  Result<std::vector<GenerateResult>> run(std::span<const GenerateRequest> requests,
                                          const GenerateCallbacks& callbacks);

 private:
  TargetModel& model_;
  Ops& ops_;
  GeneratorOptions options_;
};

}  // namespace mimo
