#include "eval/local_runner.h"

#include <utility>
#include <vector>

#include "eval/problem_prompt.h"

namespace mimo {
namespace {

class LocalRunner final : public Runner {
 public:
  LocalRunner(TargetModel& model, Ops& ops, const ChatFormat* format, const GeneratorOptions& options)
      : model_(model), ops_(ops), format_(format), options_(options) {}

  Status run(std::span<const Problem> problems, const RunSettings& settings,
             const OnAnswer& on_answer) override {
    if (options_.tokenizer == nullptr)
      return fail(ErrorCode::kNotFound,
                  "tokenizer.json: not found; evaluation needs the checkpoint's tokenizer");
    std::vector<GenerateRequest> requests;
    std::vector<std::size_t> problem_of;
    std::vector<ThinkBlock> think;
    for (std::size_t i = 0; i < problems.size(); ++i) {
      Result<ChatPrompt> prompt =
          make_problem_prompt(*options_.tokenizer, format_, problems[i], settings.enable_thinking);
      Status usable = prompt ? Status() : forward_error(prompt);
      GenerateRequest request;
      if (prompt) {
        request.prompt = std::move(prompt->ids);
        request.params.temperature = settings.temperature;
        request.params.top_p = settings.top_p;
        request.params.seed = problem_seed(settings, problems[i]);
        request.params.max_tokens = settings.max_tokens;
        request.params.stop = problems[i].stop;
        usable = check_request(request, model_.config());
      }
      if (!usable) {
        Answer answer;
        answer.error = usable.error();
        on_answer(i, std::move(answer));
        continue;
      }
      requests.push_back(std::move(request));
      problem_of.push_back(i);
      think.push_back(prompt->think_block);
    }

    GeneratorOptions options = options_;
    options.max_running = settings.concurrency;
    Generator generator(model_, ops_, options);
    GenerateCallbacks callbacks;
    callbacks.on_done = [&](std::size_t r, const GenerateResult& result) {
      const std::size_t i = problem_of[r];
      Answer answer = read(result, problems[i], think[r]);
      answer.prompt_tokens = static_cast<std::int64_t>(requests[r].prompt.size());
      on_answer(i, std::move(answer));
    };
    const auto results = generator.run(requests, callbacks);
    if (!results) return forward_error(results);
    return {};
  }

 private:
  Answer read(const GenerateResult& result, const Problem& problem, ThinkBlock block) const {
    Answer answer;
    if (result.error) {
      answer.error = result.error;
      return answer;
    }
    AssistantAnswer parts = parse_answer(result.text, block, problem.tools);
    answer.reasoning = std::move(parts.reasoning);
    answer.content = std::move(parts.content);
    answer.calls = std::move(parts.calls);
    answer.problems = std::move(parts.problems);
    answer.token_ids.emplace();
    for (const SampledToken& token : result.tokens) answer.token_ids->push_back(token.id);
    answer.completion_tokens = static_cast<std::int64_t>(result.tokens.size());
    answer.truncated = result.finish && result.finish->reason == FinishReason::kLength;
    answer.seconds = result.prefill_seconds + result.decode_seconds;
    if (options_.drafter != nullptr) answer.speculation = result.speculation;
    return answer;
  }

  TargetModel& model_;
  Ops& ops_;
  const ChatFormat* format_;
  GeneratorOptions options_;
};

}  // namespace

std::unique_ptr<Runner> make_local_runner(TargetModel& model, Ops& ops, const ChatFormat* format,
                                          const GeneratorOptions& options) {
  return std::make_unique<LocalRunner>(model, ops, format, options);
}

}  // namespace mimo
