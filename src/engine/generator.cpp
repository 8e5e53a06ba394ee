#include "engine/generator.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <utility>

namespace mimo {
namespace {

// Tokens that the answer may have: what was asked for, else up to the end of the context.
std::int64_t answer_limit(const GenerateRequest& request, const ModelConfig& config) {
  return request.params.max_tokens.value_or(config.max_positions -
                                            static_cast<std::int64_t>(request.prompt.size()));
}

EngineRequest engine_request(const GenerateRequest& request, const ModelConfig& config) {
  EngineRequest engine;
  engine.prompt = request.prompt;
  engine.params = request.params;
  engine.params.max_tokens = answer_limit(request, config);
  engine.speculation = request.speculation;
  return engine;
}

// The sum of the `count` largest.
std::int64_t sum_of_largest(std::vector<std::int64_t> values, int count) {
  const auto end = values.begin() + std::min<std::ptrdiff_t>(count, std::ssize(values));
  std::partial_sort(values.begin(), end, values.end(), std::greater<>());
  return std::accumulate(values.begin(), end, std::int64_t{0});
}

EngineOptions engine_options(const GeneratorOptions& options, const ModelConfig& config,
                             std::span<const GenerateRequest> requests) {
  EngineOptions engine;
  engine.scheduler.layout = {options.page_size, config.window.window};
  engine.scheduler.rows = options.chunk;
  engine.scheduler.max_running =
      std::min<int>(options.max_running, std::max<int>(1, static_cast<int>(std::ssize(requests))));
  engine.scheduler.max_queued = static_cast<int>(std::ssize(requests));
  engine.scheduler.block = 1 + (options.drafter == nullptr ? 0 : options.drafter->max_drafts());
  engine.kv_dtype = options.kv_dtype;
  engine.tokenizer = options.tokenizer;
  engine.drafter = options.drafter;
  engine.speculation = options.speculation;
  engine.poison = options.poison;
  engine.log = options.log;
  // Whichever requests run together, they find room.
  std::vector<std::int64_t> pages;
  for (const GenerateRequest& request : requests) {
    pages.push_back(pages_for(
        static_cast<std::int64_t>(request.prompt.size()) + answer_limit(request, config), options.page_size));
  }
  engine.full_pages = std::max<std::int64_t>(1, sum_of_largest(std::move(pages), options.max_running));
  engine.window_pages = Scheduler::window_pages(engine.scheduler, engine.scheduler.max_running);
  return engine;
}

// Gathers what one request gives.
class Collector final : public AnswerSink {
 public:
  Collector(std::size_t index, bool answers, const GenerateCallbacks& callbacks, GenerateResult& result)
      : index_(index), answers_(answers), callbacks_(callbacks), result_(result) {}

  void on_step(AnswerStep&& step) override {
    std::move(step.tokens.begin(), step.tokens.end(), std::back_inserter(result_.tokens));
    for (const AnswerPiece& piece : step.text) {
      result_.text += piece.text;
      if (callbacks_.on_text) callbacks_.on_text(index_, piece.text);
    }
    if (!step.last()) return;
    if (answers_) result_.finish = step.finish;
    result_.error = std::move(step.error);
    result_.prefill_seconds = step.usage.prefill_seconds;
    result_.decode_seconds = step.usage.decode_seconds;
    result_.speculation = std::move(step.usage.speculation);
    if (callbacks_.on_done) callbacks_.on_done(index_, result_);
  }

 private:
  std::size_t index_;
  bool answers_;  // false: only the prompt is run
  const GenerateCallbacks& callbacks_;
  GenerateResult& result_;
};

}  // namespace

Status check_request(const GenerateRequest& request, const ModelConfig& config) {
  EngineRequest engine;
  engine.prompt = request.prompt;
  engine.params = request.params;
  return check_request(engine, config, config.max_positions);
}

Generator::Generator(TargetModel& model, Ops& ops, const GeneratorOptions& options)
    : model_(model), ops_(ops), options_(options) {}

Result<std::vector<GenerateResult>> Generator::run(std::span<const GenerateRequest> requests,
                                                   const GenerateCallbacks& callbacks) {
  const ModelConfig& config = model_.config();
  for (const GenerateRequest& request : requests) {
    if (const Status ok = check_request(request, config); !ok) return forward_error(ok);
  }
  Result<std::unique_ptr<EngineCore>> core =
      EngineCore::make(model_, ops_, engine_options(options_, config, requests));
  if (!core) return forward_error(core);

  std::vector<GenerateResult> results(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    PromptLogits prompt_logits;
    if (callbacks.on_prompt_logits) {
      prompt_logits = [&callbacks, i](std::int64_t first, std::span<const float> logits) {
        callbacks.on_prompt_logits(i, first, logits);
      };
    }
    const bool answers = answer_limit(requests[i], config) > 0;
    const Status taken = (*core)->submit(i, engine_request(requests[i], config),
                                         std::make_shared<Collector>(i, answers, callbacks, results[i]),
                                         std::move(prompt_logits));
    if (!taken) return forward_error(taken);
  }
  while (!(*core)->idle()) (*core)->step();
  speculation_.add((*core)->speculation());
  times_.add((*core)->times());
  return results;
}

}  // namespace mimo
